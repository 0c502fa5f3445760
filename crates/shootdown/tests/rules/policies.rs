//! The other two ways to end a space: by interrupting those who are lazy on it, and by counting
//! them. Each must give it back once, and never while it can be walked.

use std::mem;
use std::ptr::NonNull;
use std::sync::Arc;

use loom::thread;
use shootdown::soft::{Config, OnCpu, Soft};
use shootdown::{CpuId, Extent, ExtentSet, Root, Shootdown, Space};

use crate::lifetimes::{COUNTED, SHOOT, With};
use crate::platform::Loom;
use crate::{Named, Search, soaking};

type Machine<const L: u8> = Soft<With<Loom, L>>;
type Cpu<'e, const L: u8> = OnCpu<'e, With<Loom, L>>;

struct System<const L: u8> {
    engine: Shootdown<Machine<L>>,
    a: Space<Machine<L>>,
    b: Space<Machine<L>>,
}

impl<const L: u8> System<L> {
    /// CPUs 1 and up are lazy on `a`.
    fn lazy(cpus: u32) -> Arc<Self> {
        let engine = Machine::<L>::engine(Config { cpus, ..Config::default() });
        let (a, b) = (engine.space(Root(0)), engine.space(Root(1)));
        // In place, before a CPU switches to one of the spaces.
        let system = Arc::new(Self { engine, a, b });
        for cpu in 0..cpus {
            system.cpu(cpu).pin().online();
        }
        for cpu in 1..cpus {
            let cpu = system.cpu(cpu);
            switch(&cpu, &system.a);
            cpu.pin().enter_lazy();
        }
        system
    }

    fn cpu(&self, cpu: u32) -> Cpu<'_, L> {
        self.engine.enter(CpuId(cpu))
    }

    fn was_reclaimed_once(&self) {
        let machine = self.engine.machine();
        assert_eq!(machine.freed_table_walks(), 0);
        assert_eq!(machine.take_reclaimed(), [NonNull::from(&self.a)]);
    }
}

fn switch<const L: u8>(cpu: &Cpu<'_, L>, space: &Space<Machine<L>>) {
    // SAFETY: the spaces of a `System` live as long as its machine, and do not move.
    unsafe { cpu.pin().switch(space) };
}

/// What a CPU does while CPU 0 retires `a`.
type Part<const L: u8> = fn(&System<L>, &Cpu<'_, L>);

/// Each of the other CPUs does its part while CPU 0 retires `a`.
fn retire_while<const L: u8>(parts: &[Part<L>]) {
    retire_beside(&System::<L>::lazy(1 + parts.len() as u32), parts);
}

/// The handler of CPU 1 lets go of `a`, for its tables were unhooked, while CPU 0 retires it.
fn retire_while_handler_leaves<const L: u8>() {
    let system = System::<L>::lazy(2);
    system.engine.machine().unhook_tables(&system.a);
    let mut extents = ExtentSet::new();
    extents.add(Extent::page(0).freeing_tables());
    // Who is lazy is not rung for these, and finds them when it is rung for something else. For
    // neither need anybody wait.
    mem::forget(system.cpu(0).pin().flush_gathered(&system.a, &extents));
    mem::forget(system.cpu(0).pin().flush_kernel(Extent::page(0)));
    retire_beside(&system, &[take_interrupt]);
}

/// The parts are played while CPU 0 retires `a`; then interrupts are taken.
fn retire_beside<const L: u8>(system: &Arc<System<L>>, parts: &[Part<L>]) {
    let threads: Vec<_> = (1..)
        .zip(parts)
        .map(|(cpu, &part)| {
            let system = Arc::clone(system);
            thread::spawn(move || part(&system, &system.cpu(cpu)))
        })
        .collect();
    // SAFETY: nobody uses it, and it is where it is as long as the system is.
    let retiring = unsafe { system.cpu(0).pin().retire(NonNull::from(&system.a)) };
    for thread in threads {
        thread.join().unwrap();
    }
    for cpu in (1..).take(parts.len()) {
        let cpu = system.cpu(cpu);
        cpu.interrupt_point();
        cpu.speculate();
    }
    retiring.wait();
    for cpu in (1..).take(parts.len()) {
        let cpu = system.cpu(cpu);
        cpu.speculate();
        cpu.pin().leave_space();
    }
    system.was_reclaimed_once();
}

/// Runs programs, which have names: with up to two preemptions, or in all interleavings and with up
/// to three if there is time.
fn all_right(programs: &[(&str, fn())]) {
    let searches: &[Search] = if soaking() {
        &[Search::Unbounded, Search::Witnessed(3)]
    } else {
        &[Search::Bounded(3), Search::Witnessed(2)]
    };
    let named = programs.iter().flat_map(|&(name, program)| {
        searches.iter().map(move |&search| Named::new(name, search, program))
    });
    crate::all_right(named.collect());
}

fn switch_away<const L: u8>(system: &System<L>, cpu: &Cpu<'_, L>) {
    switch(cpu, &system.b);
}

fn take_interrupt<const L: u8>(_: &System<L>, cpu: &Cpu<'_, L>) {
    cpu.interrupt_point();
}

/// Comes back, if the space is not dead, and goes lazy again.
fn come_and_go<const L: u8>(system: &System<L>, cpu: &Cpu<'_, L>) {
    let _ = cpu.pin().resume(system.a.id());
    cpu.speculate();
    cpu.pin().enter_lazy();
}

#[test]
fn shot_space_is_reclaimed_once() {
    all_right(&[
        ("shot while leaving", || retire_while::<SHOOT>(&[switch_away])),
        ("shot while idle", || retire_while::<SHOOT>(&[take_interrupt])),
        ("shot while coming back", || retire_while::<SHOOT>(&[come_and_go])),
        ("shot while leaving in the handler", retire_while_handler_leaves::<SHOOT>),
    ]);
}

#[test]
fn counted_space_is_reclaimed_once() {
    all_right(&[
        ("counted, leaving", || retire_while::<COUNTED>(&[switch_away])),
        ("counted, two leaving", || retire_while::<COUNTED>(&[switch_away, switch_away])),
        ("counted, staying", || retire_while::<COUNTED>(&[take_interrupt])),
        ("counted, leaving in the handler", retire_while_handler_leaves::<COUNTED>),
    ]);
}
