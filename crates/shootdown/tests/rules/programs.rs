//! Programs of two CPUs, three at most.
//!
//! Each does one thing on CPU 0 and another on CPU 1 at the same time, and then sees whether CPU 1
//! still uses what CPU 0 has flushed.

use std::sync::Arc;

use loom::thread;
use shootdown::Pending;
use shootdown::soft::{Config, Touch};

use crate::system::{Machine, System, finish, page_at, switch};

/// CPU 1 switches in for the first time while CPU 0 flushes.
pub(crate) fn first_switch<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    let other = Arc::clone(&system);
    let switching = thread::spawn(move || {
        let cpu = other.cpu(1);
        switch(&cpu, &other.a);
        let _ = cpu.touch(0);
    });
    let pending = system.unmap(&system.cpu(0), 0);
    switching.join().unwrap();
    system.conclude(pending);
}

/// CPU 1 switches in again, with a tag that still holds the page, while CPU 0 flushes.
pub(crate) fn switch_with_kept_tag<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    {
        let cpu = system.cpu(1);
        switch(&cpu, &system.a);
        assert_eq!(cpu.touch(0), Touch::Ok);
        cpu.here().leave();
    }
    let other = Arc::clone(&system);
    let switching = thread::spawn(move || switch(&other.cpu(1), &other.a));
    let pending = system.unmap(&system.cpu(0), 0);
    switching.join().unwrap();
    system.conclude(pending);
}

/// CPU 1 comes back from lazy while CPU 0 flushes.
pub(crate) fn resume<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    {
        let cpu = system.cpu(1);
        switch(&cpu, &system.a);
        assert_eq!(cpu.touch(0), Touch::Ok);
        cpu.here().enter_lazy();
    }
    let other = Arc::clone(&system);
    let resuming = thread::spawn(move || switch(&other.cpu(1), &other.a));
    let pending = system.unmap(&system.cpu(0), 0);
    resuming.join().unwrap();
    system.conclude(pending);
}

/// CPU 1 stops using the space while CPU 0 flushes, and CPU 0 gives the page away as soon as it
/// may.
pub(crate) fn enter_lazy<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    switch(&system.cpu(1), &system.a);
    let other = Arc::clone(&system);
    let leaving = thread::spawn(move || {
        let cpu = other.cpu(1);
        assert_ne!(cpu.touch(0), Touch::Stale);
        cpu.here().enter_lazy();
    });
    let mut pending = system.unmap(&system.cpu(0), 0);
    if pending.poll() {
        system.machine().free(&system.a, 0);
    }
    leaving.join().unwrap();
    system.cpu(1).interrupt_point();
    finish(pending);
}

/// CPU 1 runs and takes the interrupt; CPU 0 gives the page away as soon as it may.
pub(crate) fn answer<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    switch(&system.cpu(1), &system.a);
    let other = Arc::clone(&system);
    let running = thread::spawn(move || {
        let cpu = other.cpu(1);
        assert_ne!(cpu.touch(0), Touch::Stale);
        cpu.interrupt_point();
        assert_ne!(cpu.touch(0), Touch::Stale);
    });
    let mut pending = system.unmap(&system.cpu(0), 0);
    let done = pending.poll();
    if done {
        system.machine().free(&system.a, 0);
    }
    running.join().unwrap();
    let cpu = system.cpu(1);
    cpu.interrupt_point();
    finish(pending);
    if !done {
        system.machine().free(&system.a, 0);
    }
    assert_ne!(cpu.touch(0), Touch::Stale);
}

/// CPU 1 has interrupts masked, and polls its bell as one that spins on a lock does.
pub(crate) fn answer_by_polling<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    {
        let cpu = system.cpu(1);
        switch(&cpu, &system.a);
        assert_eq!(cpu.touch(0), Touch::Ok);
    }
    let other = Arc::clone(&system);
    let polling = thread::spawn(move || other.cpu(1).here().answer());
    let pending = system.unmap(&system.cpu(0), 0);
    polling.join().unwrap();
    system.conclude(pending);
}

/// CPU 0 rings a second time while CPU 1 answers the first ring.
pub(crate) fn ring_while_answering<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    {
        let cpu = system.cpu(1);
        switch(&cpu, &system.a);
        assert_eq!(cpu.touch(0), Touch::Ok);
    }
    let first = system.unmap(&system.cpu(0), 1);
    let other = Arc::clone(&system);
    let answering = thread::spawn(move || other.cpu(1).interrupt_point());
    let mut second = system.unmap(&system.cpu(0), 0);
    answering.join().unwrap();
    second.join(first);
    system.conclude(second);
}

/// Two CPUs flush and wait for each other, with their interrupts masked.
pub(crate) fn wait_for_each_other<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    switch(&system.cpu(0), &system.a);
    switch(&system.cpu(1), &system.a);
    let other = Arc::clone(&system);
    let flush_and_go = |system: &System<W>, cpu: u32| {
        let cpu = system.cpu(cpu);
        system.unmap(&cpu, 0).wait();
        // The other one may not have rung yet.
        cpu.here().offline();
    };
    let waiting = thread::spawn(move || flush_and_go(&other, 1));
    flush_and_go(&system, 0);
    waiting.join().unwrap();
}

/// CPU 1 comes back and reads in the log what CPU 0 is just writing there, over an older entry.
pub(crate) fn read_entry_being_written<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    let cpu = system.cpu(1);
    switch(&cpu, &system.a);
    assert_eq!(cpu.touch(0), Touch::Ok);
    for _ in 0..16 {
        let pending = system.unmap(&system.cpu(0), 1);
        cpu.interrupt_point();
        finish(pending);
    }
    cpu.here().enter_lazy();
    drop(cpu);

    let other = Arc::clone(&system);
    let resuming = thread::spawn(move || switch(&other.cpu(1), &other.a));
    let pending = system.unmap(&system.cpu(0), 0);
    resuming.join().unwrap();
    system.conclude(pending);
}

/// CPU 1 comes back and reads in the log what CPU 0 is just overwriting.
pub(crate) fn read_entry_being_overwritten<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    {
        let cpu = system.cpu(1);
        switch(&cpu, &system.a);
        assert_eq!(cpu.touch(0), Touch::Ok);
        cpu.here().enter_lazy();
    }
    finish(system.unmap(&system.cpu(0), 0));
    system.machine().free(&system.a, 0);
    for _ in 1..16 {
        finish(system.unmap(&system.cpu(0), 1));
    }

    let other = Arc::clone(&system);
    let resuming = thread::spawn(move || {
        let cpu = other.cpu(1);
        switch(&cpu, &other.a);
        assert_ne!(cpu.touch(0), Touch::Stale);
    });
    let pending = system.unmap(&system.cpu(0), 1);
    resuming.join().unwrap();
    system.cpu(1).interrupt_point();
    finish(pending);
}

/// The roster moves, and CPU 0 flushes, while CPU 1, which was registered, switches in.
pub(crate) fn move_roster_while_switching<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    {
        let cpu = system.cpu(1);
        switch(&cpu, &system.a);
        assert_eq!(cpu.touch(0), Touch::Ok);
        cpu.here().leave();
    }
    let other = Arc::clone(&system);
    let switching = thread::spawn(move || switch(&other.cpu(1), &other.a));
    let cpu = system.cpu(0);
    assert!(cpu.here().trim_roster(&system.a));
    let pending = system.unmap(&cpu, 0);
    switching.join().unwrap();
    drop(cpu);
    system.conclude(pending);
}

/// The same with a CPU that was not registered.
pub(crate) fn move_roster_while_registering<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    let other = Arc::clone(&system);
    let switching = thread::spawn(move || {
        let cpu = other.cpu(1);
        switch(&cpu, &other.a);
        let _ = cpu.touch(0);
    });
    let cpu = system.cpu(0);
    assert!(cpu.here().trim_roster(&system.a));
    let pending = system.unmap(&cpu, 0);
    switching.join().unwrap();
    drop(cpu);
    system.conclude(pending);
}

/// The same with a CPU whose bit of two epochs ago is still in the set that is becoming current.
pub(crate) fn move_roster_to_a_used_set<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    {
        let cpu = system.cpu(1);
        switch(&cpu, &system.a);
        assert_eq!(cpu.touch(0), Touch::Ok);
        assert!(cpu.here().trim_roster(&system.a));
        cpu.here().leave();
        assert!(cpu.here().trim_roster(&system.a));
    }
    let other = Arc::clone(&system);
    let switching = thread::spawn(move || switch(&other.cpu(1), &other.a));
    let cpu = system.cpu(0);
    assert!(cpu.here().trim_roster(&system.a));
    let pending = system.unmap(&cpu, 0);
    switching.join().unwrap();
    drop(cpu);
    system.conclude(pending);
}

/// CPU 2 moves the roster `moves` times while CPU 0 flushes and CPU 1 stays active.
pub(crate) fn move_roster_while_flushing<const W: usize>(config: Config, moves: usize) {
    let system = System::<W>::new(Config { cpus: 3, ..config });
    {
        let cpu = system.cpu(1);
        switch(&cpu, &system.a);
        assert_eq!(cpu.touch(0), Touch::Ok);
    }
    let other = Arc::clone(&system);
    let moving = thread::spawn(move || {
        let cpu = other.cpu(2);
        for _ in 0..moves {
            assert!(cpu.here().trim_roster(&other.a));
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
    {
        let cpu = system.cpu(1);
        assert_eq!(cpu.touch_kernel(0), Touch::Ok);
        cpu.here().offline();
    }
    let other = Arc::clone(&system);
    let coming = thread::spawn(move || {
        let cpu = other.cpu(1);
        cpu.here().online();
        let _ = cpu.touch_kernel(0);
    });
    system.machine().unmap_kernel(0);
    let pending = system.cpu(0).here().flush_kernel(page_at(0));
    coming.join().unwrap();
    let cpu = system.cpu(1);
    cpu.interrupt_point();
    finish(pending);
    system.machine().free_kernel(0);
    assert_ne!(cpu.touch_kernel(0), Touch::Stale);
}

/// CPU 1 goes offline, for good, while CPU 0 flushes.
pub(crate) fn go_offline<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    switch(&system.cpu(1), &system.a);
    let other = Arc::clone(&system);
    let going = thread::spawn(move || {
        let cpu = other.cpu(1);
        assert_ne!(cpu.touch(0), Touch::Stale);
        cpu.here().offline();
    });
    let mut pending = system.unmap(&system.cpu(0), 0);
    if pending.poll() {
        system.machine().free(&system.a, 0);
    }
    going.join().unwrap();
    finish(pending);
}

/// Unhooks the page tables of `a` and sends the flush.
pub(crate) fn unhook_tables<const W: usize>(system: &System<W>) -> Pending<'_, Machine<W>> {
    let cpu = system.cpu(0);
    system.machine().unhook_tables(&system.a);
    cpu.here().flush(&system.a, page_at(0).freeing_tables())
}

/// CPU 1 switches away from the space while CPU 0 frees its page tables, as soon as it may.
pub(crate) fn switch_away_from_freed_tables<const W: usize>(config: Config) {
    switch_away::<W>(config, |_| {});
}

/// The same, after CPU 0 has moved the roster.
pub(crate) fn switch_away_from_moved_roster<const W: usize>(config: Config) {
    switch_away::<W>(config, |system| {
        assert!(system.cpu(0).here().trim_roster(&system.a));
    });
}

pub(crate) fn switch_away<const W: usize>(config: Config, before: fn(&System<W>)) {
    let system = System::<W>::new(config);
    switch(&system.cpu(1), &system.a);
    let other = Arc::clone(&system);
    let switching = thread::spawn(move || switch(&other.cpu(1), &other.b));
    before(&system);
    let mut pending = unhook_tables(&system);
    let done = pending.poll();
    if done {
        system.machine().free_tables(&system.a);
    }
    switching.join().unwrap();
    let cpu = system.cpu(1);
    cpu.interrupt_point();
    finish(pending);
    if !done {
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
    cpu.here().enter_lazy();
    let pending = unhook_tables(&system);
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
    finish(unhook_tables(&system));
    system.machine().free_tables(&system.a);
    switch(&cpu, &system.a);
    assert_eq!(system.machine().freed_table_walks(), 0);
}

/// CPU 1 is active, and CPU 0 flushes.
pub(crate) fn flush_active<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    let cpu = system.cpu(1);
    switch(&cpu, &system.a);
    assert_eq!(cpu.touch(0), Touch::Ok);
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
    let system = System::<W>::new(config);
    let cpu = system.cpu(1);
    switch(&cpu, &system.a);
    assert_eq!(cpu.touch(0), Touch::Ok);
    finish(system.unmap(&cpu, 0));
    system.machine().free(&system.a, 0);
    assert_eq!(cpu.touch(0), Touch::Fault);
}

/// CPU 1 has one tag for two spaces that map the same address.
pub(crate) fn share_a_tag<const W: usize>(config: Config) {
    let system = System::<W>::new(Config { tags: 1, ..config });
    let cpu = system.cpu(1);
    // So that the two translations can be told apart.
    system.machine().unmap(&system.b, 0);
    system.machine().free(&system.b, 0);
    system.machine().map(&system.b, 0);
    switch(&cpu, &system.a);
    assert_eq!(cpu.touch(0), Touch::Ok);
    switch(&cpu, &system.b);
    assert_eq!(cpu.touch(0), Touch::Ok);
}

/// CPU 1 uses a page of the kernel that CPU 0 flushes.
pub(crate) fn flush_kernel<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    let cpu = system.cpu(1);
    assert_eq!(cpu.touch_kernel(0), Touch::Ok);
    system.machine().unmap_kernel(0);
    let pending = system.cpu(0).here().flush_kernel(page_at(0));
    cpu.interrupt_point();
    finish(pending);
    system.machine().free_kernel(0);
    assert_eq!(cpu.touch_kernel(0), Touch::Fault);
}
