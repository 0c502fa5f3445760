//! The lifetimes `Shoot` and `Counted`, under which a space ends by interrupting the CPUs that are
//! lazy on it, or by counting them. Each must reclaim the space once, and never while a CPU can
//! walk its page tables.

use std::mem;
use std::ptr::NonNull;
use std::sync::Arc;

use loom::thread;
use shootdown::soft::{Config, OnCpu, Soft};
use shootdown::{CpuId, Extent, ExtentSet, Root, Shootdown, Space};

use crate::lifetimes::{COUNTED, SHOOT, With};
use crate::platform::Loom;
use crate::{NamedSearch, Search, soaking};

type Machine<const L: u8> = Soft<With<Loom, L>>;
type Cpu<'e, const L: u8> = OnCpu<'e, With<Loom, L>>;

struct System<const L: u8> {
    engine: Shootdown<Machine<L>>,
    a: Space<Machine<L>>,
    b: Space<Machine<L>>,
}

impl<const L: u8> System<L> {
    /// A system whose CPUs 1 and up are lazy on `a`.
    fn lazy(cpus: u32) -> Arc<Self> {
        let engine = Machine::<L>::engine(Config { cpus, ..Config::default() });
        let (a, b) = (engine.space(Root(0)), engine.space(Root(1)));
        // The spaces must not move any more when a CPU switches to one of them.
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

    /// Asserts that `a` was reclaimed once, and that no CPU has walked freed page tables.
    fn assert_reclaimed_once(&self) {
        let machine = self.engine.machine();
        assert_eq!(machine.freed_table_walks(), 0);
        assert_eq!(machine.take_reclaimed(), [NonNull::from(&self.a)]);
    }
}

fn switch<const L: u8>(cpu: &Cpu<'_, L>, space: &Space<Machine<L>>) {
    // SAFETY: the spaces of a `System` live as long as its machine, and do not move.
    unsafe { cpu.pin().switch(space) };
}

/// An action of a CPU while CPU 0 retires `a`.
type Action<const L: u8> = fn(&System<L>, &Cpu<'_, L>);

/// Runs one action on each of the other CPUs while CPU 0 retires `a`.
fn retire_while<const L: u8>(actions: &[Action<L>]) {
    retire_during(&System::<L>::lazy(1 + actions.len() as u32), actions);
}

/// The handler of CPU 1 leaves `a`, because tables were unhooked, while CPU 0 retires it.
fn retire_while_handler_leaves<const L: u8>() {
    let system = System::<L>::lazy(2);
    system.engine.machine().unhook_tables(&system.a);
    let mut extents = ExtentSet::new();
    extents.add(Extent::page(0).freeing_tables());
    // A lazy CPU is not rung for unhooked tables, and leaves the space when it is rung for another
    // reason. The program waits for neither flush.
    mem::forget(system.cpu(0).pin().flush_gathered(&system.a, &extents));
    mem::forget(system.cpu(0).pin().flush_kernel(Extent::page(0)));
    retire_during(&system, &[take_interrupt]);
}

/// Runs the actions while CPU 0 retires `a`; then takes interrupts.
fn retire_during<const L: u8>(system: &Arc<System<L>>, actions: &[Action<L>]) {
    let threads: Vec<_> = (1..)
        .zip(actions)
        .map(|(cpu, &action)| {
            let system = Arc::clone(system);
            thread::spawn(move || action(&system, &system.cpu(cpu)))
        })
        .collect();
    // SAFETY: no CPU uses `a`, which stays in place as long as the system exists.
    let retiring = unsafe { system.cpu(0).pin().retire(NonNull::from(&system.a)) };
    for thread in threads {
        thread.join().unwrap();
    }
    for cpu in (1..).take(actions.len()) {
        let cpu = system.cpu(cpu);
        cpu.interrupt_point();
        cpu.speculate();
    }
    retiring.wait();
    for cpu in (1..).take(actions.len()) {
        let cpu = system.cpu(cpu);
        cpu.speculate();
        cpu.pin().leave_space();
    }
    system.assert_reclaimed_once();
}

/// Runs programs with names, with up to two preemptions and witnesses, or three without. Under
/// `cargo xtask soak`, in all interleavings, and with up to three preemptions and witnesses.
fn assert_all_pass(programs: &[(&str, fn())]) {
    let searches: &[Search] = if soaking() {
        &[Search::Unbounded, Search::Witnessed(3)]
    } else {
        &[Search::Bounded(3), Search::Witnessed(2)]
    };
    let named = programs.iter().flat_map(|&(name, program)| {
        searches.iter().map(move |&search| NamedSearch::new(name, search, program))
    });
    crate::assert_all_pass(named.collect());
}

fn switch_away<const L: u8>(system: &System<L>, cpu: &Cpu<'_, L>) {
    switch(cpu, &system.b);
}

fn take_interrupt<const L: u8>(_: &System<L>, cpu: &Cpu<'_, L>) {
    cpu.interrupt_point();
}

/// Resumes the space, if it is not dead, and goes lazy again.
fn resume_and_idle<const L: u8>(system: &System<L>, cpu: &Cpu<'_, L>) {
    let _ = cpu.pin().resume(system.a.id());
    cpu.speculate();
    cpu.pin().enter_lazy();
}

#[test]
fn shot_space_is_reclaimed_once() {
    assert_all_pass(&[
        ("shot while leaving", || retire_while::<SHOOT>(&[switch_away])),
        ("shot while idle", || retire_while::<SHOOT>(&[take_interrupt])),
        ("shot while coming back", || retire_while::<SHOOT>(&[resume_and_idle])),
        ("shot while leaving in the handler", retire_while_handler_leaves::<SHOOT>),
    ]);
}

#[test]
fn counted_space_is_reclaimed_once() {
    assert_all_pass(&[
        ("counted, leaving", || retire_while::<COUNTED>(&[switch_away])),
        ("counted, two leaving", || retire_while::<COUNTED>(&[switch_away, switch_away])),
        ("counted, staying", || retire_while::<COUNTED>(&[take_interrupt])),
        ("counted, leaving in the handler", retire_while_handler_leaves::<COUNTED>),
    ]);
}
