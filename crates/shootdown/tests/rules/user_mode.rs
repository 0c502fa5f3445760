//! Programs about CPUs in user mode, which flushes of the kernel's translations leave alone.

use std::sync::Arc;

use shootdown::Pending;
use shootdown::soft::{Config, Touch};

use crate::programs::{conclude_kernel, unmap_kernel};
use crate::system::{Cpu, Machine, System, finish, page_at};

/// A system on which CPU 1 has cached page 0 of the kernel, and has entered user mode.
fn in_user<const W: usize>(config: Config) -> Arc<System<W>> {
    let system = System::<W>::new(config);
    let cpu = system.cpu(1);
    assert_eq!(cpu.touch_kernel(0), Touch::Ok);
    cpu.pin().enter_user();
    drop(cpu);
    system
}

/// CPU 1 enters the kernel, and uses a page of it, while CPU 0 flushes that page.
pub(crate) fn enter_kernel<const W: usize>(config: Config) {
    let system = in_user::<W>(config);
    let enter = |_: &System<W>, cpu: &Cpu<'_, W>| {
        cpu.pin().enter_kernel();
        let _ = cpu.touch_kernel(0);
    };
    let pending = system.race(enter, |cpu| unmap_kernel(&system, cpu));
    conclude_kernel(&system, pending);
}

/// CPU 1 uses a page of the kernel, and enters user mode, while CPU 0 flushes that page, and frees
/// it as soon as the flush is done.
pub(crate) fn enter_user<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    assert_eq!(system.cpu(1).touch_kernel(0), Touch::Ok);
    let enter = |_: &System<W>, cpu: &Cpu<'_, W>| {
        assert_ne!(cpu.touch_kernel(0), Touch::Stale);
        cpu.pin().enter_user();
    };
    race_free(&system, enter, |cpu| unmap_kernel(&system, cpu));
    enter_again(&system);
}

/// CPU 1 enters the kernel, uses a page of it, and enters user mode again, while CPU 0 flushes that
/// page, and frees it as soon as the flush is done.
pub(crate) fn enter_kernel_for_a_while<const W: usize>(config: Config) {
    let system = in_user::<W>(config);
    let enter = |_: &System<W>, cpu: &Cpu<'_, W>| {
        cpu.pin().enter_kernel();
        assert_ne!(cpu.touch_kernel(0), Touch::Stale);
        cpu.pin().enter_user();
    };
    race_free(&system, enter, |cpu| unmap_kernel(&system, cpu));
    enter_again(&system);
}

/// CPU 0 frees page tables of the kernel, which CPU 1 in user mode may walk.
pub(crate) fn free_kernel_tables_in_user<const W: usize>(config: Config) {
    let system = in_user::<W>(config);
    system.cpu(1).speculate_in_kernel();
    let walk = |_: &System<W>, cpu: &Cpu<'_, W>| cpu.speculate_in_kernel();
    let (mut pending, machine) = (None, system.machine());
    system.race(walk, |cpu| {
        machine.unhook_kernel_tables();
        let mut flush = cpu.pin().flush_kernel(page_at(0).freeing_tables());
        if flush.poll() {
            machine.free_kernel_tables();
        } else {
            pending = Some(flush);
        }
    });
    let cpu = system.cpu(1);
    cpu.interrupt_point();
    if let Some(pending) = pending {
        finish(pending);
        machine.free_kernel_tables();
    }
    cpu.speculate_in_kernel();
    assert_eq!(machine.freed_table_walks(), 0);
}

/// CPU 1 takes a trap in user mode, whose handler uses a page before it enters the kernel, while
/// CPU 0 flushes that page.
pub(crate) fn use_entry_page<const W: usize>(config: Config) {
    let system = in_user::<W>(Config { entry_page: Some(0), ..config });
    let trap = |_: &System<W>, cpu: &Cpu<'_, W>| assert_ne!(cpu.touch_kernel(0), Touch::Stale);
    race_free(&system, trap, |cpu| unmap_kernel(&system, cpu));
    assert_ne!(system.cpu(1).touch_kernel(0), Touch::Stale);
}

/// Runs `one` on CPU 1 while CPU 0 sends the flush `zero` of page 0 of the kernel, and frees the
/// page when the flush is done: at once, or after CPU 1 has taken the interrupt.
fn race_free<'s, const W: usize>(
    system: &'s Arc<System<W>>,
    one: impl FnOnce(&System<W>, &Cpu<'_, W>) + 'static,
    zero: impl FnOnce(&Cpu<'s, W>) -> Pending<'s, Machine<W>>,
) {
    let pending = system.race(one, |cpu| {
        let mut pending = zero(cpu);
        if !pending.poll() {
            return Some(pending);
        }
        system.machine().free_kernel(0);
        None
    });
    system.cpu(1).interrupt_point();
    if let Some(pending) = pending {
        finish(pending);
        system.machine().free_kernel(0);
    }
}

/// CPU 1 enters the kernel, and uses the page.
fn enter_again<const W: usize>(system: &System<W>) {
    let cpu = system.cpu(1);
    cpu.pin().enter_kernel();
    assert_ne!(cpu.touch_kernel(0), Touch::Stale);
}
