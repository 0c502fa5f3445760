//! Deferred unmaps: pages and addresses are not reused until every CPU has performed the flush.

use std::sync::{Arc, mpsc};

use crate::platform::deferring::Deferring;
use crate::platform::*;
use shootdown_vm::{Access, AddressSpace, Backing, FaultError, Place, Sharing, Vm};

type OurSpace = AddressSpace<TestSystem<Deferring>>;

struct Fixture {
    host: Host,
    design: Deferring,
    vm: Vm<TestSystem<Deferring>>,
    space: Arc<OurSpace>,
}

impl Fixture {
    /// Creates a space whose first `count` pages hold their number plus 100, and were read by
    /// another CPU.
    fn new(frames: usize, count: u64) -> Self {
        let host = Host::new(frames, 2);
        let design = Deferring::new(&host);
        let vm = Vm::new(host.clone(), design.clone()).unwrap();
        let space = Arc::new(AddressSpace::new(&vm).unwrap());
        let fixture = Self { host, design, vm, space };
        fixture.map(Place::Fixed(pages(0, count)));
        for page in 0..count {
            fixture.write(page, page + 100);
            assert_eq!(fixture.read(page), Ok(page + 100));
        }
        fixture
    }

    fn map(&self, place: Place) -> u64 {
        self.space.map(place, READ_WRITE, Sharing::Private, Backing::Anonymous).unwrap()
    }

    fn write(&self, page: u64, value: u64) {
        assert_eq!(access(&self.space, 0, pages(page, 1).start, Access::Write, value), Ok(value));
    }

    /// Reads on another CPU.
    fn read(&self, page: u64) -> Result<u64, FaultError> {
        access(&self.space, 1, pages(page, 1).start, Access::Read, 0)
    }

    fn unmap(&self, first: u64, count: u64) {
        self.space.unmap(pages(first, count)).unwrap();
    }

    fn end(&self) {
        self.design.sweep();
        self.host.check_caches();
        self.space.exit();
        self.vm.free_dead_tables();
        assert_eq!(self.host.frames_in_use(), 1);
    }
}

#[test]
fn deferred_unmap_is_freed_after_sweep() {
    let fixture = Fixture::new(32, 8);
    let in_use = fixture.host.frames_in_use();
    fixture.unmap(0, 8);
    fixture.vm.free_dead_tables();
    assert_eq!(fixture.host.frames_in_use(), in_use);
    assert_eq!(fixture.read(3), Ok(103), "the old translation is still usable");
    fixture.design.sweep();
    assert_eq!(fixture.host.frames_in_use(), in_use, "free_dead_tables was not called yet");
    fixture.vm.free_dead_tables();
    assert!(fixture.host.frames_in_use() < in_use - 8);
    assert_eq!(fixture.read(3), Err(FaultError::NoArea));
    assert_eq!(fixture.design.notified(), 0);
    fixture.end();
}

#[test]
fn next_unmap_frees_completed_unmaps() {
    let fixture = Fixture::new(32, 8);
    let in_use = fixture.host.frames_in_use();
    fixture.unmap(0, 2);
    fixture.design.sweep();
    fixture.unmap(2, 2);
    assert_eq!(fixture.host.frames_in_use(), in_use - 2);
    fixture.end();
}

#[test]
fn deferred_addresses_are_not_reused() {
    let fixture = Fixture::new(64, 8);
    fixture.unmap(0, 8);
    assert!(!fixture.space.is_flushed(&pages(3, 1)));
    let length = pages(0, 8).end - pages(0, 8).start;
    let elsewhere = fixture.map(Place::Anywhere { length });
    assert!(elsewhere >= pages(8, 1).start);
    fixture.design.sweep();
    fixture.vm.free_dead_tables();
    assert!(fixture.space.is_flushed(&pages(3, 1)));
    fixture.unmap(8, PAGES - 8);
    fixture.design.sweep();
    fixture.vm.free_dead_tables();
    assert_eq!(fixture.map(Place::Anywhere { length: PAGES << 12 }), BASE);
    assert_eq!(fixture.design.notified(), 0);
    fixture.end();
}

/// The flush is in flight until it is listed as deferred.
#[test]
fn deferred_flush_is_listed_throughout() {
    let fixture = Fixture::new(64, 8);
    let space = Arc::clone(&fixture.space);
    let (sender, is_checked) = mpsc::channel();
    fixture.design.when_deferred(move || {
        assert!(!space.is_flushed(&pages(3, 1)), "the addresses could be mapped again");
        sender.send(()).unwrap();
    });
    fixture.unmap(0, 8);
    is_checked.try_recv().expect("no lock was taken after the flush was deferred");
    fixture.end();
}

#[test]
fn deferred_flush_is_listed_until_it_is_complete() {
    let fixture = Fixture::new(64, 8);
    fixture.unmap(0, 8);
    fixture.map(Place::Fixed(pages(40, 1)));
    let (space, (sender, is_checked)) = (Arc::clone(&fixture.space), mpsc::channel());
    fixture.design.when_completed(move || {
        assert!(!space.is_flushed(&pages(3, 1)), "the addresses could be mapped again");
        sender.send(()).unwrap();
    });
    fixture.host.limit_frames(0);
    fixture.write(40, 1);
    is_checked.try_recv().expect("the allocation completes the flush");
    assert!(fixture.space.is_flushed(&pages(3, 1)));
    fixture.end();
}

#[test]
fn mapping_at_deferred_address_flushes_it() {
    let fixture = Fixture::new(64, 8);
    fixture.unmap(0, 8);
    fixture.host.take_flushes();
    fixture.map(Place::Fixed(pages(2, 2)));
    assert_eq!(fixture.host.take_flushes().len(), 1);
    fixture.write(3, 7);
    assert_eq!(fixture.read(3), Ok(7));
    // All of the space is wanted, so there are no other addresses.
    fixture.unmap(0, PAGES);
    assert_eq!(fixture.map(Place::Anywhere { length: PAGES << 12 }), BASE);
    fixture.write(5, 9);
    assert_eq!(fixture.read(5), Ok(9));
    fixture.end();
}

#[test]
fn failed_allocation_completes_deferred_flushes() {
    let fixture = Fixture::new(32, 8);
    fixture.unmap(0, 8);
    let free = 32 - fixture.host.frames_in_use();
    fixture.map(Place::Fixed(pages(40, 40)));
    for page in 40..40 + free as u64 {
        fixture.write(page, page);
    }
    assert_eq!(fixture.design.notified(), 1);
    assert_eq!(fixture.read(40), Ok(40));
    fixture.end();
}

#[test]
fn space_exits_with_deferred_unmaps() {
    let fixture = Fixture::new(32, 8);
    fixture.unmap(0, 4);
    fixture.space.exit();
    assert_eq!(fixture.host.frames_in_use(), 1 + 4);
    fixture.design.sweep();
    fixture.vm.free_dead_tables();
    assert_eq!(fixture.host.frames_in_use(), 1);
}

#[test]
fn address_unmapped_twice_waits_for_both() {
    let fixture = Fixture::new(64, 8);
    fixture.unmap(0, 8);
    fixture.map(Place::Fixed(pages(0, 8)));
    fixture.write(3, 7);
    fixture.unmap(0, 8);
    fixture.design.sweep_oldest();
    fixture.vm.free_dead_tables();
    assert!(!fixture.space.is_flushed(&pages(3, 1)));
    fixture.design.sweep();
    fixture.vm.free_dead_tables();
    assert!(fixture.space.is_flushed(&pages(3, 1)));
    fixture.end();
}

#[test]
fn overlapping_deferred_unmaps_are_tracked() {
    let fixture = Fixture::new(64, 8);
    // The first range below page 7 ends before it.
    fixture.unmap(2, 1);
    fixture.unmap(0, 2);
    // Most of these pages were never mapped.
    fixture.unmap(0, 8);
    fixture.unmap(0, 40);
    assert!(!fixture.space.is_flushed(&pages(1, 1)));
    assert!(!fixture.space.is_flushed(&pages(7, 1)));
    assert!(fixture.space.is_flushed(&pages(50, 1)));
    fixture.end();
}

#[test]
fn long_deferred_unmap_is_found_after_short() {
    let fixture = Fixture::new(64, 8);
    fixture.unmap(0, 6);
    fixture.unmap(7, 1);
    assert!(!fixture.space.is_flushed(&pages(5, 1)));
    assert!(fixture.space.is_flushed(&pages(6, 1)));
    fixture.end();
}
