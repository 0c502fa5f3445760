//! Flushes of a space that a device uses.

use shootdown::soft::{Config, Touch};
use shootdown::{Batch, Extent, ExtentSet, PageSize, StaleWrites};

use crate::{CONFIG, System, page_at};

/// The result of a flush of some pages, sent on CPU 0.
type Flush = fn(&System, pages: &[u64]);

fn flush_one(system: &System, pages: &[u64]) {
    pages.iter().for_each(|&page| system.flush(0, 0, page_at(page)));
}

fn flush_gathered(system: &System, pages: &[u64]) {
    let mut extents = ExtentSet::new();
    pages.iter().for_each(|&page| extents.add(page_at(page)));
    let cpu = system.cpu(0);
    cpu.pin().flush_gathered(&system.spaces[0], &extents).wait();
}

fn flush_for_resize(system: &System, pages: &[u64]) {
    let cpu = system.cpu(0);
    for &page in pages {
        cpu.pin().flush_for_resize(&system.spaces[0], page_at(page)).wait();
    }
}

fn flush_batch(system: &System, pages: &[u64]) {
    let (machine, cpu, space) = (system.engine.machine(), system.cpu(0), &system.spaces[0]);
    let mut batch: Batch<_, Vec<u64>> = Batch::new();
    for &page in pages {
        let entry = batch.space(machine, &space).unwrap();
        entry.unmapped(&cpu.pin(), page_at(page), StaleWrites::Impossible).wait();
    }
    batch.send(&cpu.pin()).wait();
}

fn check(flush: Flush, pages: &[u64], calls: u64, config: Config) {
    let system: System = System::new(config);
    let (machine, space) = (system.engine.machine(), &system.spaces[0]);
    let touch = |page: u64| machine.touch_by_device(space, page as usize);
    let reuse = |page: u64| {
        machine.unmap(space, page as usize);
        flush(&system, &[page]);
        machine.free(space, page as usize);
    };
    system.switch(0, 0);
    // A space without devices.
    reuse(40);
    assert_eq!(machine.device_flushes(), 0);
    system.engine.attach_device(space).unwrap();
    pages.iter().for_each(|&page| assert_eq!(touch(page), Touch::Ok));
    assert_eq!(touch(60), Touch::Ok);
    pages.iter().for_each(|&page| machine.unmap(space, page as usize));
    flush(&system, pages);
    assert_eq!(machine.device_flushes(), calls);
    pages.iter().for_each(|&page| machine.free(space, page as usize));
    pages.iter().for_each(|&page| assert_eq!(touch(page), Touch::Fault));
    assert_eq!(touch(60), Touch::Ok);
    machine.reset_device();
    // SAFETY: the device has been reset.
    unsafe { system.engine.detach_device(space) };
    reuse(41);
    assert_eq!(machine.device_flushes(), calls);
}

#[test]
fn each_flush_calls_the_hook_once() {
    // Two distant pages are two extents.
    for (flush, calls) in
        [(flush_one as Flush, 2), (flush_gathered, 1), (flush_for_resize, 2), (flush_batch, 1)]
    {
        let configs = [CONFIG, CONFIG.with_broadcasts(15), Config { tags: 0, ..CONFIG }];
        // Each takes miri seconds.
        for config in configs.into_iter().take(if cfg!(miri) { 1 } else { 3 }) {
            check(flush, &[3, 20], calls, config);
        }
    }
    check(flush_gathered, &[3], 1, CONFIG);
    check(flush_batch, &[3], 1, CONFIG);
}

/// The hook is called after the interrupts are sent, so that CPUs and devices invalidate at the
/// same time.
#[test]
fn flush_of_cpus_and_device_reaches_both() {
    let system: System = System::new(CONFIG);
    let (machine, space) = (system.engine.machine(), &system.spaces[0]);
    system.engine.attach_device(space).unwrap();
    system.switch(1, 0);
    assert_eq!(system.cpu(1).touch(3), Touch::Ok);
    assert_eq!(machine.touch_by_device(space, 3), Touch::Ok);
    machine.unmap(space, 3);
    let mut pending = system.cpu(0).pin().flush(space, page_at(3));
    assert_eq!(machine.device_flushes(), 1);
    assert!(!pending.poll());
    system.cpu(1).interrupt_point();
    assert!(pending.poll());
    machine.free(space, 3);
    assert_eq!(machine.touch_by_device(space, 3), Touch::Fault);
    assert_eq!(system.cpu(1).touch(3), Touch::Fault);
}

/// The device observes broadcasts, and is not attached.
#[test]
fn refused_broadcast_reaches_device_of_pinned_space() {
    let system: System = System::new(Config { refuses_each: 1, ..CONFIG.with_broadcasts(15) });
    let (machine, space) = (system.engine.machine(), &system.spaces[0]);
    system.cpu(0).pin().pin_tag(space).unwrap();
    system.switch(1, 0);
    assert_eq!(system.cpu(1).touch(3), Touch::Ok);
    assert_eq!(machine.touch_by_device(space, 3), Touch::Ok);
    machine.unmap(space, 3);
    let mut pending = system.cpu(0).pin().flush(space, page_at(3));
    assert!(!pending.poll());
    system.cpu(1).interrupt_point();
    assert!(pending.poll());
    machine.free(space, 3);
    assert_eq!(machine.touch_by_device(space, 3), Touch::Fault);
    assert_eq!(system.cpu(1).touch(3), Touch::Fault);
}

/// More pages than a CPU invalidates one by one.
#[test]
fn device_gets_every_extent_unchanged() {
    let system: System = System::new(CONFIG);
    let (machine, space) = (system.engine.machine(), &system.spaces[0]);
    system.engine.attach_device(space).unwrap();
    let mut extents = ExtentSet::new();
    extents.add(Extent::pages(0, 40, PageSize::SIZE_4K));
    extents.add(page_at(50));
    for page in [0, 39, 45, 50] {
        assert_eq!(machine.touch_by_device(space, page), Touch::Ok);
        machine.unmap(space, page);
    }
    system.cpu(0).pin().flush_gathered(space, &extents).wait();
    for page in [0, 39, 50] {
        assert_eq!(machine.touch_by_device(space, page), Touch::Fault);
    }
    // Page 45 is in no extent.
    assert_eq!(machine.touch_by_device(space, 45), Touch::Ok);
    system.cpu(0).pin().flush_gathered(space, &ExtentSet::new()).wait();
    assert_eq!(machine.device_flushes(), 1);
}

#[test]
#[should_panic = "a device is attached to the dead space"]
#[cfg(debug_assertions)]
fn retire_with_device_panics() {
    let system: System = System::new(CONFIG);
    let space = &system.spaces[0];
    system.engine.attach_device(space).unwrap();
    // SAFETY: no CPU uses the space, and it stays in place.
    let _ = unsafe { system.cpu(0).pin().retire(std::ptr::NonNull::from(space)) };
}
