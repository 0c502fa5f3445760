//! Programs about a device that has a TLB of its own.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use loom::sync::Mutex;
use loom::sync::atomic::AtomicBool;
use shootdown::soft::{Config, Touch};
use shootdown::{ExtentSet, PrimaryChanges};

use crate::system::{Cpu, System, finish, page_at, switch};

/// CPU 0 flushes a space that a device uses, and no CPU.
pub(crate) fn flush_under_attached_device<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    system.engine.attach_device(&system.a).unwrap();
    assert_eq!(system.machine().touch_by_device(&system.a, 0), Touch::Ok);
    finish(system.unmap(&system.cpu(0), 0));
    system.machine().free(&system.a, 0);
    assert_ne!(system.machine().touch_by_device(&system.a, 0), Touch::Stale);
}

/// Two CPUs flush, and the flush of each covers a page that the device uses.
pub(crate) fn two_flush_under_device<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    system.engine.attach_device(&system.a).unwrap();
    for page in [0, 1] {
        assert_eq!(system.machine().touch_by_device(&system.a, page), Touch::Ok);
    }
    let reuse = |system: &System<W>, cpu: &Cpu<'_, W>, page| {
        finish(system.unmap(cpu, page));
        system.machine().free(&system.a, page);
    };
    system.race(move |system, cpu| reuse(system, cpu, 1), |cpu| reuse(&system, cpu, 0));
    for page in [0, 1] {
        assert_ne!(system.machine().touch_by_device(&system.a, page), Touch::Stale);
    }
}

/// A secondary table has a fault while CPU 0 unmaps the primary entry. In the end, it has no entry.
pub(crate) fn fault_while_primary_changes<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    let changes = Arc::new(PrimaryChanges::default());
    let primary = Arc::new(AtomicBool::new(true));
    // Mapped, as the primary entry is.
    let secondary = Arc::new(Mutex::new(true));
    let of_fault = (Arc::clone(&changes), Arc::clone(&primary), Arc::clone(&secondary));
    let fault = move |system: &System<W>, _: &Cpu<'_, W>| {
        let (changes, primary, secondary) = of_fault;
        let Some(fault) = changes.begin_fault(system.machine()) else { return };
        let found = primary.load(Relaxed);
        let mut entry = secondary.lock().unwrap();
        if found && changes.may_install(system.machine(), fault) {
            *entry = true;
        }
    };
    system.race(fault, |_| {
        let change = changes.start(system.machine());
        *secondary.lock().unwrap() = false;
        primary.store(false, Relaxed);
        drop(change);
    });
    // An entry would be that of a freed page.
    assert!(!*secondary.lock().unwrap());
}

/// CPU 0 waits for a device that is busy until the flush of CPU 1 is done, which waits for CPU 0.
pub(crate) fn flush_while_waiting_for_device<const W: usize>(config: Config) {
    let system = System::<W>::new(Config { holds_device: true, ..config });
    system.engine.attach_device(&system.a).unwrap();
    assert_eq!(system.machine().touch_by_device(&system.a, 0), Touch::Ok);
    switch(&system.cpu(0), &system.b);
    let flush_and_release = |system: &System<W>, cpu: &Cpu<'_, W>| {
        system.machine().unmap(&system.b, 1);
        cpu.pin().flush(&system.b, page_at(1)).wait();
        system.machine().free(&system.b, 1);
        system.machine().release_device();
    };
    system.race(flush_and_release, |cpu| {
        system.unmap(cpu, 0).wait();
        system.machine().free(&system.a, 0);
        assert_ne!(cpu.touch(1), Touch::Stale);
    });
    assert_ne!(system.machine().touch_by_device(&system.a, 0), Touch::Stale);
}

/// The kernel attaches a device, which then uses the space, while CPU 0 flushes.
pub(crate) fn attach_while_flushing<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    switch(&system.cpu(0), &system.a);
    let attach_and_use = |system: &System<W>, _: &Cpu<'_, W>| {
        system.engine.attach_device(&system.a).unwrap();
        let _ = system.machine().touch_by_device(&system.a, 0);
    };
    finish(system.race(attach_and_use, |cpu| system.unmap(cpu, 0)));
    system.machine().free(&system.a, 0);
    assert_ne!(system.machine().touch_by_device(&system.a, 0), Touch::Stale);
}

/// The device uses the space for the last time, and is detached, while CPU 0 flushes, and frees the
/// page as soon as the flush is done.
pub(crate) fn detach_while_flushing<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    system.engine.attach_device(&system.a).unwrap();
    let use_and_detach = |system: &System<W>, _: &Cpu<'_, W>| {
        assert_ne!(system.machine().touch_by_device(&system.a, 0), Touch::Stale);
        system.machine().reset_device();
        // SAFETY: the device has dropped its translations.
        unsafe { system.engine.detach_device(&system.a) };
    };
    let pending = system.race_reuse(use_and_detach);
    assert!(pending.is_none(), "no CPU was rung");
}

/// A device is attached while CPU 1 trims the mask. Neither change of the phase may be lost.
pub(crate) fn attach_while_trimming<const W: usize>(config: Config) {
    let system = System::<W>::new(Config { cpus: 3, ..config });
    switch(&system.cpu(2), &system.a);
    switch(&system.cpu(2), &system.b);
    system.race(
        // Trims nothing if the device comes in between.
        |system, cpu| _ = cpu.pin().trim_cpumask(&system.a),
        |_| system.engine.attach_device(&system.a).unwrap(),
    );
    assert_eq!(system.machine().touch_by_device(&system.a, 0), Touch::Ok);
    finish(system.unmap(&system.cpu(0), 0));
    system.machine().free(&system.a, 0);
    assert_ne!(system.machine().touch_by_device(&system.a, 0), Touch::Stale);
    // The mask can be trimmed again.
    assert!(system.cpu(0).pin().trim_cpumask(&system.a));
}

/// A device walks page tables that CPU 0 unhooks and frees. Lazy CPUs keep tables in quarantine,
/// and a device does not.
pub(crate) fn unhook_tables_under_device<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    system.engine.attach_device(&system.a).unwrap();
    let walk = |system: &System<W>, _: &Cpu<'_, W>| {
        assert_ne!(system.machine().touch_by_device(&system.a, 1), Touch::Stale);
    };
    let horizon = system.race(walk, |cpu| {
        system.machine().unhook_tables(&system.a);
        let mut extents = ExtentSet::new();
        extents.add(page_at(0).freeing_tables());
        extents.add(page_at(3));
        let pending = cpu.pin().flush_gathered(&system.a, &extents);
        let horizon = pending.horizon();
        finish(pending);
        horizon
    });
    assert!(horizon.is_clear());
    system.machine().free_tables(&system.a);
    assert_ne!(system.machine().touch_by_device(&system.a, 1), Touch::Stale);
    assert_eq!(system.machine().freed_table_walks(), 0);
}
