//! Programs of two CPUs, three at most.
//!
//! Each does one thing on CPU 0 and another on CPU 1 at the same time, and then sees whether CPU 1
//! still uses what CPU 0 has flushed.

use std::sync::Arc;

use loom::thread;
use shootdown::soft::{Config, Touch};
use shootdown::{ExtentSet, Pending};

use crate::system::{Cpu, Machine, System, finish, page_at, switch};

/// CPU 1 switches in for the first time while CPU 0 flushes.
pub(crate) fn first_switch<const W: usize>(config: Config) {
    System::<W>::new(config).race_flush(|system, cpu| {
        switch(cpu, &system.a);
        let _ = cpu.touch(0);
    });
}

/// CPU 1 switches in again, with a tag that still holds the page, while CPU 0 flushes.
pub(crate) fn switch_with_kept_tag<const W: usize>(config: Config) {
    let system = System::<W>::active(config);
    system.cpu(1).pin().leave_space();
    system.race_flush(|system, cpu| switch(cpu, &system.a));
}

/// CPU 1 comes back from lazy while CPU 0 flushes.
pub(crate) fn resume<const W: usize>(config: Config) {
    let system = System::<W>::active(config);
    system.cpu(1).pin().enter_lazy();
    system.race_flush(|system, cpu| switch(cpu, &system.a));
}

/// CPU 1 stops using the space while CPU 0 flushes, and gives the page away as soon as it may.
pub(crate) fn enter_lazy<const W: usize>(config: Config) {
    let system = System::<W>::active(config);
    let pending = system.race_reuse(|_, cpu| {
        assert_ne!(cpu.touch(0), Touch::Stale);
        cpu.pin().enter_lazy();
    });
    system.cpu(1).interrupt_point();
    pending.map(finish);
}

/// CPU 1 switches away from the page while CPU 0 flushes, and gives it away as soon as it may.
pub(crate) fn switch_away_from_page<const W: usize>(config: Config) {
    let system = System::<W>::active(config);
    let pending = system.race_reuse(|system, cpu| {
        assert_ne!(cpu.touch(0), Touch::Stale);
        switch(cpu, &system.b);
    });
    system.cpu(1).interrupt_point();
    pending.map(finish);
}

/// CPU 1 runs and takes the interrupt while CPU 0 flushes, and gives the page away as soon as it
/// may.
pub(crate) fn answer<const W: usize>(config: Config) {
    let system = System::<W>::active(config);
    let pending = system.race_reuse(|_, cpu| {
        assert_ne!(cpu.touch(0), Touch::Stale);
        cpu.interrupt_point();
        assert_ne!(cpu.touch(0), Touch::Stale);
    });
    if let Some(pending) = pending {
        system.conclude(pending);
    }
}

/// CPU 1 has interrupts masked, and polls its bell as one that spins on a lock does.
pub(crate) fn answer_by_polling<const W: usize>(config: Config) {
    System::<W>::active(config).race_flush(|_, cpu| cpu.pin().handle_flush_ipi());
}

/// CPU 0 rings a second time while CPU 1 answers the first ring.
pub(crate) fn ring_while_answering<const W: usize>(config: Config) {
    let system = System::<W>::active(config);
    let first = system.unmap(&system.cpu(0), 1);
    let mut second = system.race(|_, cpu| cpu.interrupt_point(), |cpu| system.unmap(cpu, 0));
    second.join(first);
    system.conclude(second);
}

/// Two CPUs flush and wait for each other, with their interrupts masked.
pub(crate) fn wait_for_each_other<const W: usize>(config: Config) {
    let system = System::<W>::active(config);
    switch(&system.cpu(0), &system.a);
    let flush_and_go = |system: &System<W>, cpu: &Cpu<'_, W>| {
        system.unmap(cpu, 0).wait();
        // The other one may not have rung yet.
        cpu.pin().offline();
    };
    system.race(flush_and_go, |cpu| flush_and_go(&system, cpu));
}

/// CPU 1 comes back and reads in the log what CPU 0 is just writing there, over an older entry.
pub(crate) fn read_entry_being_written<const W: usize>(config: Config) {
    let system = System::<W>::active(config);
    for _ in 0..16 {
        let pending = system.unmap(&system.cpu(0), 1);
        system.cpu(1).interrupt_point();
        finish(pending);
    }
    system.cpu(1).pin().enter_lazy();
    system.race_flush(|system, cpu| switch(cpu, &system.a));
}

/// CPU 1 comes back and reads in the log what CPU 0 is just overwriting.
pub(crate) fn read_entry_being_overwritten<const W: usize>(config: Config) {
    let system = System::<W>::active(config);
    system.cpu(1).pin().enter_lazy();
    finish(system.unmap(&system.cpu(0), 0));
    system.machine().free(&system.a, 0);
    for _ in 1..16 {
        finish(system.unmap(&system.cpu(0), 1));
    }
    let resume = |system: &System<W>, cpu: &Cpu<'_, W>| {
        switch(cpu, &system.a);
        assert_ne!(cpu.touch(0), Touch::Stale);
    };
    let pending = system.race(resume, |cpu| system.unmap(cpu, 1));
    system.cpu(1).interrupt_point();
    finish(pending);
}

/// CPU 0 moves the roster and flushes while CPU 1 switches in.
fn move_roster_and_flush<const W: usize>(system: &Arc<System<W>>) {
    let pending = system.race(
        |system, cpu| {
            switch(cpu, &system.a);
            let _ = cpu.touch(0);
        },
        |cpu| {
            assert!(cpu.pin().trim_cpumask(&system.a));
            system.unmap(cpu, 0)
        },
    );
    system.conclude(pending);
}

/// The roster moves while CPU 1, which was registered, switches in.
pub(crate) fn move_roster_while_switching<const W: usize>(config: Config) {
    let system = System::<W>::active(config);
    system.cpu(1).pin().leave_space();
    move_roster_and_flush(&system);
}

/// The same with a CPU that was not registered.
pub(crate) fn move_roster_while_registering<const W: usize>(config: Config) {
    move_roster_and_flush(&System::<W>::new(config));
}

/// The same with a CPU whose bit of two epochs ago is still in the set that is becoming current.
pub(crate) fn move_roster_to_a_used_set<const W: usize>(config: Config) {
    let system = System::<W>::active(config);
    let cpu = system.cpu(1);
    assert!(cpu.pin().trim_cpumask(&system.a));
    cpu.pin().leave_space();
    assert!(cpu.pin().trim_cpumask(&system.a));
    drop(cpu);
    move_roster_and_flush(&system);
}

/// CPU 2 moves the roster `moves` times while CPU 0 flushes and CPU 1 stays active.
fn move_roster_while_flushing<const W: usize>(config: Config, moves: usize) {
    let system = System::<W>::active(Config { cpus: 3, ..config });
    let other = Arc::clone(&system);
    let moving = thread::spawn(move || {
        let cpu = other.cpu(2);
        for _ in 0..moves {
            assert!(cpu.pin().trim_cpumask(&other.a));
        }
    });
    let pending = system.unmap(&system.cpu(0), 0);
    moving.join().unwrap();
    system.conclude(pending);
}

pub(crate) fn move_roster_once<const W: usize>(config: Config) {
    move_roster_while_flushing::<W>(config, 1);
}

pub(crate) fn move_roster_twice<const W: usize>(config: Config) {
    move_roster_while_flushing::<W>(config, 2);
}

/// CPU 1 comes online, with a TLB that kept a page of the kernel, while CPU 0 flushes that page.
pub(crate) fn come_online<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    let cpu = system.cpu(1);
    assert_eq!(cpu.touch_kernel(0), Touch::Ok);
    cpu.pin().offline();
    drop(cpu);
    let come_online = |_: &System<W>, cpu: &Cpu<'_, W>| {
        cpu.pin().online();
        let _ = cpu.touch_kernel(0);
    };
    let pending = system.race(come_online, |cpu| unmap_kernel(&system, cpu));
    conclude_kernel(&system, pending);
}

/// CPU 1 goes offline, for good, while CPU 0 flushes, and gives the page away as soon as it may.
pub(crate) fn go_offline<const W: usize>(config: Config) {
    let system = System::<W>::active(config);
    let pending = system.race_reuse(|_, cpu| {
        assert_ne!(cpu.touch(0), Touch::Stale);
        cpu.pin().offline();
    });
    pending.map(finish);
}

/// CPU 1 uses a page of the kernel and goes offline, for good, while CPU 0 flushes that page, and
/// gives it away as soon as it may.
fn go_offline_from_kernel_page<const W: usize>(system: &Arc<System<W>>) {
    let cpu = system.cpu(1);
    assert_eq!(cpu.touch_kernel(0), Touch::Ok);
    drop(cpu);
    let use_and_go_offline = |_: &System<W>, cpu: &Cpu<'_, W>| {
        assert_ne!(cpu.touch_kernel(0), Touch::Stale);
        cpu.pin().offline();
    };
    let pending = system.race(use_and_go_offline, |cpu| {
        let mut pending = unmap_kernel(system, cpu);
        if !pending.poll() {
            return Some(pending);
        }
        system.machine().free_kernel(0);
        None
    });
    pending.map(finish);
}

/// CPU 1 goes offline with no space loaded.
pub(crate) fn go_offline_from_kernel<const W: usize>(config: Config) {
    go_offline_from_kernel_page(&System::<W>::new(config));
}

/// CPU 1 goes offline with a space loaded.
pub(crate) fn go_offline_from_space<const W: usize>(config: Config) {
    go_offline_from_kernel_page(&System::<W>::active(config));
}

/// CPU 1 goes offline while it is lazy on a space.
pub(crate) fn go_offline_from_lazy<const W: usize>(config: Config) {
    let system = System::<W>::active(config);
    system.cpu(1).pin().enter_lazy();
    go_offline_from_kernel_page(&system);
}

/// Unhooks the page tables of `a` and sends the flush.
fn unhook_tables<'e, const W: usize>(
    system: &System<W>,
    cpu: &Cpu<'e, W>,
) -> Pending<'e, Machine<W>> {
    system.machine().unhook_tables(&system.a);
    cpu.pin().flush(&system.a, page_at(0).freeing_tables())
}

/// CPU 1 switches away from the space while CPU 0 frees its page tables, as soon as it may.
pub(crate) fn switch_away_from_freed_tables<const W: usize>(config: Config) {
    switch_away::<W>(config, |_, _| {});
}

/// The same, after CPU 0 has moved the roster.
pub(crate) fn switch_away_from_moved_roster<const W: usize>(config: Config) {
    switch_away::<W>(config, |system, cpu| assert!(cpu.pin().trim_cpumask(&system.a)));
}

fn switch_away<const W: usize>(config: Config, before: fn(&System<W>, &Cpu<'_, W>)) {
    let system = System::<W>::active(config);
    let pending = system.race(
        |system, cpu| switch(cpu, &system.b),
        |cpu| {
            before(&system, cpu);
            let mut pending = unhook_tables(&system, cpu);
            if !pending.poll() {
                return Some(pending);
            }
            system.machine().free_tables(&system.a);
            None
        },
    );
    let cpu = system.cpu(1);
    cpu.interrupt_point();
    if let Some(pending) = pending {
        finish(pending);
        system.machine().free_tables(&system.a);
    }
    cpu.speculate();
    assert_eq!(system.machine().freed_table_walks(), 0);
}

/// CPU 1 has the space loaded lazily when its page tables are freed.
pub(crate) fn lazy_on_freed_tables<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    let cpu = system.cpu(1);
    switch(&cpu, &system.a);
    cpu.pin().enter_lazy();
    let pending = unhook_tables(&system, &system.cpu(0));
    cpu.interrupt_point();
    finish(pending);
    system.machine().free_tables(&system.a);
    cpu.speculate();
    assert_eq!(system.machine().freed_table_walks(), 0);
}

/// CPU 1 is on another space when page tables are freed, and comes back.
pub(crate) fn return_to_freed_tables<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    let cpu = system.cpu(1);
    switch(&cpu, &system.a);
    switch(&cpu, &system.b);
    finish(unhook_tables(&system, &system.cpu(0)));
    system.machine().free_tables(&system.a);
    switch(&cpu, &system.a);
    assert_eq!(system.machine().freed_table_walks(), 0);
}

/// CPU 1 is active, and CPU 0 flushes.
pub(crate) fn flush_active<const W: usize>(config: Config) {
    let system = System::<W>::active(config);
    let cpu = system.cpu(1);
    let mut pending = system.unmap(&system.cpu(0), 0);
    if pending.poll() {
        system.machine().free(&system.a, 0);
        assert_ne!(cpu.touch(0), Touch::Stale);
    }
    drop(cpu);
    system.conclude(pending);
}

/// CPU 1 flushes what it uses itself.
pub(crate) fn flush_own<const W: usize>(config: Config) {
    let system = System::<W>::active(config);
    let cpu = system.cpu(1);
    finish(system.unmap(&cpu, 0));
    system.machine().free(&system.a, 0);
    assert_eq!(cpu.touch(0), Touch::Fault);
}

/// The same, as one of several ranges.
pub(crate) fn flush_own_gathered<const W: usize>(config: Config) {
    let system = System::<W>::active(config);
    let cpu = system.cpu(1);
    system.machine().unmap(&system.a, 0);
    let mut extents = ExtentSet::new();
    extents.add(page_at(0));
    finish(cpu.pin().flush_gathered(&system.a, &extents));
    system.machine().free(&system.a, 0);
    assert_eq!(cpu.touch(0), Touch::Fault);
}

/// CPU 1 has one tag for two spaces that map the same address.
pub(crate) fn share_a_tag<const W: usize>(config: Config) {
    let system = System::<W>::new(Config { tags: 1, ..config });
    let cpu = system.cpu(1);
    switch(&cpu, &system.a);
    assert_eq!(cpu.touch(0), Touch::Ok);
    switch(&cpu, &system.b);
    assert_eq!(cpu.touch(0), Touch::Ok);
}

/// CPU 1 uses a page of the kernel that CPU 0 flushes.
pub(crate) fn flush_kernel<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    assert_eq!(system.cpu(1).touch_kernel(0), Touch::Ok);
    let pending = unmap_kernel(&system, &system.cpu(0));
    conclude_kernel(&system, pending);
}

/// Unmaps page 0 of the kernel and sends the flush.
fn unmap_kernel<'e, const W: usize>(
    system: &System<W>,
    cpu: &Cpu<'e, W>,
) -> Pending<'e, Machine<W>> {
    system.machine().unmap_kernel(0);
    cpu.pin().flush_kernel(page_at(0))
}

/// As [`System::conclude`], for page 0 of the kernel.
fn conclude_kernel<const W: usize>(system: &System<W>, pending: Pending<'_, Machine<W>>) {
    let cpu = system.cpu(1);
    cpu.interrupt_point();
    finish(pending);
    system.machine().free_kernel(0);
    assert_ne!(cpu.touch_kernel(0), Touch::Stale);
}
