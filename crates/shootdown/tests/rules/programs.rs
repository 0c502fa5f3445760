//! Programs about flushes, of two or three CPUs.
//!
//! Each program does one operation on CPU 0 and another on CPU 1 at the same time, and then checks
//! that CPU 1 does not use a page that CPU 0 has flushed and freed.

use std::sync::Arc;

use loom::thread;
use shootdown::soft::{Answers, Config, Touch};
use shootdown::{ExtentSet, Pending};

use crate::system::{Cpu, Machine, System, finish, page_at, switch};

/// CPU 1 switches in for the first time while CPU 0 flushes.
pub(crate) fn first_switch<const W: usize>(config: Config) {
    System::<W>::new(config).race_flush(|system, cpu| {
        switch(cpu, &system.a);
        let _ = cpu.touch(0);
    });
}

/// CPU 1 switches in again, with a tag under which the page is still cached, while CPU 0 flushes.
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

/// CPU 1 stops using the space while CPU 0 flushes, and frees the page as soon as the flush is
/// done.
pub(crate) fn enter_lazy<const W: usize>(config: Config) {
    let system = System::<W>::active(config);
    let pending = system.race_reuse(|_, cpu| {
        assert_ne!(cpu.touch(0), Touch::Stale);
        cpu.pin().enter_lazy();
    });
    system.cpu(1).interrupt_point();
    pending.map(finish);
}

/// CPU 1 switches to another space while CPU 0 flushes, and frees the page as soon as the flush is
/// done.
pub(crate) fn switch_away_from_page<const W: usize>(config: Config) {
    let system = System::<W>::active(config);
    let pending = system.race_reuse(|system, cpu| {
        assert_ne!(cpu.touch(0), Touch::Stale);
        switch(cpu, &system.b);
    });
    system.cpu(1).interrupt_point();
    pending.map(finish);
}

/// CPU 1 runs and takes the interrupt while CPU 0 flushes, and frees the page as soon as the flush
/// is done.
pub(crate) fn handle_interrupt<const W: usize>(config: Config) {
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

/// CPU 1 has interrupts masked, and polls its bell as a CPU that spins on a lock does.
pub(crate) fn poll_bell<const W: usize>(config: Config) {
    System::<W>::active(config).race_flush(|_, cpu| cpu.pin().handle_flush_ipi());
}

/// CPU 0 flushes, and sleeps until CPU 1 has answered.
pub(crate) fn sleep_while_handling<const W: usize>(config: Config) {
    sleep_during(&System::<W>::active(config), |_, cpu| cpu.interrupt_point());
}

/// CPU 0 flushes, and sleeps until CPU 1 has answered, which goes offline.
pub(crate) fn sleep_while_going_offline<const W: usize>(config: Config) {
    sleep_during(&System::<W>::active(config), |_, cpu| cpu.pin().offline());
}

fn sleep_during<const W: usize>(
    system: &Arc<System<W>>,
    one: impl FnOnce(&System<W>, &Cpu<'_, W>) + 'static,
) {
    let (pending, sleeps) = system.race(one, |cpu| {
        let mut pending = system.unmap(cpu, 0);
        system.machine().register_sleeper();
        let sleeps = !pending.poll_or_wake();
        (pending, sleeps)
    });
    system.cpu(1).interrupt_point();
    let is_woken = system.machine().is_woken();
    system.conclude(pending);
    // Without, the waiter sleeps for ever.
    assert!(is_woken || !sleeps);
}

/// CPU 0 rings a second time while CPU 1 handles the first interrupt.
pub(crate) fn ring_during_handler<const W: usize>(config: Config) {
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
        // The other CPU may ring later, so this one goes offline.
        cpu.pin().offline();
    };
    system.race(flush_and_go, |cpu| flush_and_go(&system, cpu));
}

/// CPU 1 comes back and reads the log entry that CPU 0 is writing over an older one.
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

/// CPU 1 comes back and reads the log entry that CPU 0 is overwriting.
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

/// CPU 0 trims the CPU mask and flushes while CPU 1 switches in.
fn trim_and_flush<const W: usize>(system: &Arc<System<W>>) {
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

/// CPU 0 trims and flushes while CPU 1, which was registered, switches in.
pub(crate) fn trim_while_switching<const W: usize>(config: Config) {
    let system = System::<W>::active(config);
    system.cpu(1).pin().leave_space();
    trim_and_flush(&system);
}

/// CPU 0 trims and flushes while CPU 1, which was not registered, switches in.
pub(crate) fn trim_while_registering<const W: usize>(config: Config) {
    trim_and_flush(&System::<W>::new(config));
}

/// CPU 0 trims and flushes while CPU 1 switches in, whose bit of two epochs ago is still in the set
/// that becomes current.
pub(crate) fn trim_to_a_used_set<const W: usize>(config: Config) {
    let system = System::<W>::active(config);
    let cpu = system.cpu(1);
    assert!(cpu.pin().trim_cpumask(&system.a));
    cpu.pin().leave_space();
    assert!(cpu.pin().trim_cpumask(&system.a));
    drop(cpu);
    trim_and_flush(&system);
}

/// CPU 2 trims the CPU mask `count` times while CPU 0 flushes and CPU 1 stays active.
fn trim_while_flushing<const W: usize>(config: Config, count: usize) {
    let system = System::<W>::active(Config { cpus: 3, ..config });
    let other = Arc::clone(&system);
    let trimming = thread::spawn(move || {
        let cpu = other.cpu(2);
        for _ in 0..count {
            assert!(cpu.pin().trim_cpumask(&other.a));
        }
    });
    let pending = system.unmap(&system.cpu(0), 0);
    trimming.join().unwrap();
    system.conclude(pending);
}

pub(crate) fn trim_once<const W: usize>(config: Config) {
    trim_while_flushing::<W>(config, 1);
}

pub(crate) fn trim_twice<const W: usize>(config: Config) {
    trim_while_flushing::<W>(config, 2);
}

/// CPU 1 comes online, with a page of the kernel still in its TLB, while CPU 0 flushes that page.
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

/// CPU 1 goes offline and stays offline while CPU 0 flushes, and frees the page as soon as the
/// flush is done.
pub(crate) fn go_offline<const W: usize>(config: Config) {
    let system = System::<W>::active(config);
    let pending = system.race_reuse(|_, cpu| {
        assert_ne!(cpu.touch(0), Touch::Stale);
        cpu.pin().offline();
    });
    pending.map(finish);
}

/// CPU 1 uses a page of the kernel, goes offline and stays offline, while CPU 0 flushes that page,
/// and frees it as soon as the flush is done.
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

/// CPU 1 switches to another space while CPU 0 flushes page tables, and frees them as soon as the
/// flush is done.
pub(crate) fn switch_away_from_freed_tables<const W: usize>(config: Config) {
    switch_away::<W>(config, |_, _| {});
}

/// As [`switch_away_from_freed_tables`], after CPU 0 has trimmed the CPU mask.
pub(crate) fn switch_away_after_trim<const W: usize>(config: Config) {
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

/// CPU 1 answers early where it may, and takes the interrupt while CPU 0 flushes page tables and
/// frees them as soon as the flush is done.
pub(crate) fn answer_early_for_freed_tables<const W: usize>(config: Config) {
    let system = System::<W>::active(Config { answers: Answers::Early, ..config });
    system.cpu(1).speculate();
    let pending = system.race(
        |_, cpu| cpu.interrupt_point(),
        |cpu| {
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

/// CPU 1 answers early, and takes an NMI before it invalidates, while CPU 0 flushes, and frees the
/// page as soon as the flush is done.
pub(crate) fn take_nmi_in_handler<const W: usize>(config: Config) {
    let system = System::<W>::active(Config { answers: Answers::EarlyWithNmis, ..config });
    let pending = system.race_reuse(|_, cpu| {
        cpu.interrupt_point();
        assert_ne!(cpu.touch(0), Touch::Stale);
    });
    if let Some(pending) = pending {
        system.conclude(pending);
    }
    assert_eq!(system.machine().stale_nmis(), 0);
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

/// CPU 1 flushes a page of the space that it uses itself.
pub(crate) fn flush_own<const W: usize>(config: Config) {
    let system = System::<W>::active(config);
    let cpu = system.cpu(1);
    finish(system.unmap(&cpu, 0));
    system.machine().free(&system.a, 0);
    assert_eq!(cpu.touch(0), Touch::Fault);
}

/// CPU 1 flushes a page of the space that it uses itself, in a gathered flush.
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
pub(crate) fn reuse_a_tag<const W: usize>(config: Config) {
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
pub(crate) fn unmap_kernel<'e, const W: usize>(
    system: &System<W>,
    cpu: &Cpu<'e, W>,
) -> Pending<'e, Machine<W>> {
    system.machine().unmap_kernel(0);
    cpu.pin().flush_kernel(page_at(0))
}

/// As [`System::conclude`], for page 0 of the kernel.
pub(crate) fn conclude_kernel<const W: usize>(
    system: &System<W>,
    pending: Pending<'_, Machine<W>>,
) {
    let cpu = system.cpu(1);
    cpu.interrupt_point();
    finish(pending);
    system.machine().free_kernel(0);
    assert_ne!(cpu.touch_kernel(0), Touch::Stale);
}
