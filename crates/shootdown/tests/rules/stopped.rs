//! Programs about a CPU that stops in a crash, and is disconnected by another one.
//!
//! One thread is CPU 1 until CPU 1 stops, and then CPU 2, which disconnects it. So the accesses of
//! CPU 1 come before the disconnection, as its contract demands. CPU 2 is offline, so that no flush
//! waits for it.

use std::ptr::NonNull;
use std::sync::Arc;

use shootdown::soft::{Config, Touch};
use shootdown::{CpuId, Pending};

use crate::ends::{free_when_clear, go_lazy, retire};
use crate::system::{Cpu, Machine, System, finish, page_at, switch};

/// The CPU that disconnects CPU 1.
pub(crate) const SURVIVOR: u32 = 2;

/// A system with CPUs 0 and 1, and a survivor.
fn system<const W: usize>(config: Config) -> Arc<System<W>> {
    let system = System::<W>::new(Config { cpus: 3, ..config });
    system.cpu(SURVIVOR).pin().offline();
    system
}

/// CPU 1 stops, and the survivor disconnects it.
pub(crate) fn stop<const W: usize>(system: &System<W>, cpu: &Cpu<'_, W>) {
    cpu.halt();
    // SAFETY: CPU 1 does nothing any more before it comes online again. Its accesses were on this
    // thread.
    unsafe { system.cpu(SURVIVOR).pin().disconnect(CpuId(1)) };
}

/// CPU 1 comes back, and finds nothing of its past.
fn come_back<const W: usize>(system: &System<W>) {
    let cpu = system.cpu(1);
    cpu.pin().online();
    assert_ne!(cpu.touch_kernel(0), Touch::Stale);
    switch(&cpu, &system.a);
    assert_ne!(cpu.touch(0), Touch::Stale);
    cpu.speculate();
    assert_eq!(system.machine().freed_table_walks(), 0);
}

/// CPU 1 uses a page and stops, while CPU 0 flushes the page, and frees it as soon as the flush is
/// done. The flush is done at last.
pub(crate) fn stop_on_page<const W: usize>(config: Config) {
    let system = system::<W>(config);
    switch(&system.cpu(1), &system.a);
    assert_eq!(system.cpu(1).touch(0), Touch::Ok);
    let use_and_stop = |system: &System<W>, cpu: &Cpu<'_, W>| {
        assert_ne!(cpu.touch(0), Touch::Stale);
        stop(system, cpu);
    };
    let free = || system.machine().free(&system.a, 0);
    let unfinished = system.race(use_and_stop, |cpu| poll_twice(system.unmap(cpu, 0), free));
    if let Some(pending) = unfinished {
        finish(pending);
        free();
    }
    come_back(&system);
}

/// As [`stop_on_page`], for a page of the kernel.
pub(crate) fn stop_on_kernel_page<const W: usize>(config: Config) {
    let system = system::<W>(config);
    assert_eq!(system.cpu(1).touch_kernel(0), Touch::Ok);
    let use_and_stop = |system: &System<W>, cpu: &Cpu<'_, W>| {
        assert_ne!(cpu.touch_kernel(0), Touch::Stale);
        stop(system, cpu);
    };
    let free = || system.machine().free_kernel(0);
    let unfinished = system.race(use_and_stop, |cpu| {
        system.machine().unmap_kernel(0);
        poll_twice(cpu.pin().flush_kernel(page_at(0)), free)
    });
    if let Some(pending) = unfinished {
        finish(pending);
        free();
    }
    come_back(&system);
}

/// Polls a flush, calls `free` if it is done, and returns the flush otherwise. The second poll has
/// the ticket of the first.
fn poll_twice<'e, const W: usize>(
    mut pending: Pending<'e, Machine<W>>,
    free: impl FnOnce(),
) -> Option<Pending<'e, Machine<W>>> {
    if !pending.poll() && !pending.poll() {
        return Some(pending);
    }
    free();
    None
}

/// CPU 1 is lazy and stops, while CPU 0 frees tables as soon as the flush is clear.
pub(crate) fn stop_on_tables<const W: usize>(config: Config) {
    let system = system::<W>(config);
    go_lazy(&system, 1);
    free_when_clear(&system, |system, cpu| {
        cpu.speculate();
        stop(system, cpu);
    });
    come_back(&system);
}

/// CPU 1 is lazy and stops, while CPU 0 retires the space.
pub(crate) fn stop_on_dead_space<const W: usize>(config: Config) {
    let system = system::<W>(config);
    go_lazy(&system, 1);
    let walk_and_stop = |system: &System<W>, cpu: &Cpu<'_, W>| {
        cpu.speculate();
        stop(system, cpu);
    };
    system.race(walk_and_stop, |cpu| retire(&system, cpu));
    assert_eq!(system.machine().take_reclaimed(), [NonNull::from(&system.a)]);
    assert_eq!(system.machine().freed_table_walks(), 0);
}

/// CPU 1 is rung and stops after its handler, which may have dropped a dead space; CPU 0 reaps.
pub(crate) fn stop_after_handler<const W: usize>(config: Config) {
    let system = system::<W>(config);
    go_lazy(&system, 1);
    retire(&system, &system.cpu(0));
    let answer_and_stop = |system: &System<W>, cpu: &Cpu<'_, W>| {
        cpu.interrupt_point();
        stop(system, cpu);
    };
    let reaping = system.race(answer_and_stop, |cpu| cpu.pin().reap());
    drop(reaping);
    assert_eq!(system.machine().take_reclaimed(), [NonNull::from(&system.a)]);
    assert_eq!(system.machine().freed_table_walks(), 0);
}
