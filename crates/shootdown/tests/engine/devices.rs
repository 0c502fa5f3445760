//! Flushes of a space that a device uses.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use shootdown::soft::{Config, Touch};
use shootdown::{Batch, Extent, ExtentSet, PageSize, Pending, StaleWrites};

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

/// Commands are sent after the interrupts, so that CPUs and devices invalidate at the same time.
#[test]
fn flush_of_cpus_and_device_waits_for_both() {
    let system: System = System::new(Config { holds_device: true, ..CONFIG });
    let (machine, space) = (system.engine.machine(), &system.spaces[0]);
    system.engine.attach_device(space).unwrap();
    system.switch(1, 0);
    assert_eq!(system.cpu(1).touch(3), Touch::Ok);
    assert_eq!(machine.touch_by_device(space, 3), Touch::Ok);
    machine.unmap(space, 3);
    let mut pending = system.cpu(0).pin().flush(space, page_at(3));
    assert_eq!(machine.device_flushes(), 1);
    assert!(!pending.poll());
    machine.release_device();
    assert!(!pending.poll());
    system.cpu(1).interrupt_point();
    assert!(pending.poll());
    machine.free(space, 3);
    assert_eq!(machine.touch_by_device(space, 3), Touch::Fault);
    assert_eq!(system.cpu(1).touch(3), Touch::Fault);
}

/// Unmaps two pages for two flushes, of which the second waits for both.
#[test]
fn joined_flush_waits_for_devices() {
    let system: System = System::new(Config { holds_device: true, ..CONFIG });
    let (machine, space) = (system.engine.machine(), &system.spaces[0]);
    system.engine.attach_device(space).unwrap();
    let flush = |page: u64| {
        assert_eq!(machine.touch_by_device(space, page as usize), Touch::Ok);
        machine.unmap(space, page as usize);
        system.cpu(0).pin().flush(space, page_at(page))
    };
    let (first, mut all) = (flush(1), flush(2));
    all.join(first);
    let mut none = Pending::done(&system.engine);
    none.join(all);
    assert!(!none.poll() && !none.poll_or_wake());
    machine.release_device();
    assert!(none.poll_or_wake());
    for page in [1, 2] {
        machine.free(space, page);
        assert_eq!(machine.touch_by_device(space, page), Touch::Fault);
    }
}

/// Otherwise, the device would hold up flushes that do not concern it.
#[test]
fn waiter_for_device_answers_other_flushes() {
    let system: System = System::new(Config { holds_device: true, ..CONFIG });
    let (machine, spaces) = (system.engine.machine(), &system.spaces);
    system.engine.attach_device(&spaces[0]).unwrap();
    system.switch(0, 1);
    let (flushed, answered) = (&AtomicBool::new(false), &AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let cpu = system.cpu(0);
            machine.unmap(&spaces[0], 3);
            let pending = cpu.pin().flush(&spaces[0], page_at(3));
            flushed.store(true, SeqCst);
            drop(pending);
            assert!(answered.load(SeqCst), "the device was released after that");
        });
        scope.spawn(|| {
            while !flushed.load(SeqCst) {
                thread::yield_now();
            }
            let cpu = system.cpu(1);
            machine.unmap(&spaces[1], 3);
            cpu.pin().flush(&spaces[1], page_at(3)).wait();
            machine.free(&spaces[1], 3);
            answered.store(true, SeqCst);
            machine.release_device();
        });
    });
}

#[test]
fn flush_and_wait_completes_on_device() {
    for broadcasts in [false, true] {
        let config = if broadcasts { CONFIG.with_broadcasts(15) } else { CONFIG };
        let system: System = System::new(config);
        let (machine, space) = (system.engine.machine(), &system.spaces[0]);
        system.engine.attach_device(space).unwrap();
        system.switch(0, 0);
        for page in [1, 2] {
            assert_eq!(machine.touch_by_device(space, page), Touch::Ok);
            machine.unmap(space, page);
        }
        let cpu = system.cpu(0);
        cpu.pin().flush_and_wait(space, page_at(1));
        let mut extents = ExtentSet::new();
        extents.add(page_at(2));
        cpu.pin().flush_gathered_and_wait(space, &extents);
        for page in [1, 2] {
            machine.free(space, page);
            assert_eq!(machine.touch_by_device(space, page), Touch::Fault);
        }
    }
}

/// The device observes broadcasts, and is not attached.
#[test]
fn refused_broadcast_reaches_device_of_pinned_space() {
    let config = Config { refuses_each: 1, holds_device: true, ..CONFIG.with_broadcasts(15) };
    let system: System = System::new(config);
    let (machine, space) = (system.engine.machine(), &system.spaces[0]);
    system.cpu(0).pin().pin_tag(space).unwrap();
    system.switch(1, 0);
    assert_eq!(system.cpu(1).touch(3), Touch::Ok);
    assert_eq!(machine.touch_by_device(space, 3), Touch::Ok);
    machine.unmap(space, 3);
    let mut pending = system.cpu(0).pin().flush(space, page_at(3));
    system.cpu(1).interrupt_point();
    assert!(!pending.poll());
    machine.release_device();
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
