//! What was unmapped under a design that puts the flush off: it is nobody else's until every CPU
//! has come to that.

use crate::platform::parking::Parking;
use crate::platform::*;
use shootdown_vm::{Access, AddressSpace, Backing, FaultError, Place, Sharing, Vm};

type OurSpace = AddressSpace<On<Parking>>;

struct World {
    host: Host,
    design: Parking,
    vm: Vm<On<Parking>>,
    space: OurSpace,
}

impl World {
    /// The first pages of a space hold their number plus 100, and another CPU has read them.
    fn new(frames: usize, count: u64) -> Self {
        let host = Host::new(frames, 2);
        let design = Parking::new(&host);
        let vm = Vm::new(host.clone(), design.clone()).unwrap();
        let space = AddressSpace::new(&vm).unwrap();
        let world = Self { host, design, vm, space };
        world.map(Place::Fixed(pages(0, count)));
        for page in 0..count {
            world.write(page, page + 100);
            assert_eq!(world.read(page), Ok(page + 100));
        }
        world
    }

    fn map(&self, place: Place) -> u64 {
        self.space.map(place, READ_WRITE, Sharing::Private, Backing::Anonymous).unwrap()
    }

    fn write(&self, page: u64, value: u64) {
        assert_eq!(access(&self.space, 0, pages(page, 1).start, Access::Write, value), Ok(value));
    }

    /// By another CPU.
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
fn pages_and_tables_are_kept_until_all_cpus_have_come_to_it() {
    let world = World::new(32, 8);
    let in_use = world.host.frames_in_use();
    world.unmap(0, 8);
    world.vm.free_dead_tables();
    assert_eq!(world.host.frames_in_use(), in_use);
    assert_eq!(world.read(3), Ok(103), "as it was");
    world.design.sweep();
    assert_eq!(world.host.frames_in_use(), in_use, "nobody has looked yet");
    world.vm.free_dead_tables();
    assert!(world.host.frames_in_use() < in_use - 8);
    assert_eq!(world.read(3), Err(FaultError::NoArea));
    assert_eq!(world.design.told(), 0);
    world.end();
}

#[test]
fn the_next_unmapping_frees_what_is_over() {
    let world = World::new(32, 8);
    let in_use = world.host.frames_in_use();
    world.unmap(0, 2);
    world.design.sweep();
    world.unmap(2, 2);
    assert_eq!(world.host.frames_in_use(), in_use - 2);
    world.end();
}

#[test]
fn addresses_are_not_used_again_before() {
    let world = World::new(64, 8);
    world.unmap(0, 8);
    assert!(!world.space.is_flushed(&pages(3, 1)));
    let length = pages(0, 8).end - pages(0, 8).start;
    let elsewhere = world.map(Place::Anywhere { length });
    assert!(elsewhere >= pages(8, 1).start);
    world.design.sweep();
    world.vm.free_dead_tables();
    assert!(world.space.is_flushed(&pages(3, 1)));
    world.unmap(8, PAGES - 8);
    world.design.sweep();
    world.vm.free_dead_tables();
    assert_eq!(world.map(Place::Anywhere { length: PAGES << 12 }), BASE);
    assert_eq!(world.design.told(), 0);
    world.end();
}

#[test]
fn who_wants_these_addresses_and_no_others_flushes_them() {
    let world = World::new(64, 8);
    world.unmap(0, 8);
    world.host.take_flushes();
    world.map(Place::Fixed(pages(2, 2)));
    assert_eq!(world.host.take_flushes().len(), 1);
    world.write(3, 7);
    assert_eq!(world.read(3), Ok(7));
    // All of it is wanted, and there are no others.
    world.unmap(0, PAGES);
    assert_eq!(world.map(Place::Anywhere { length: PAGES << 12 }), BASE);
    world.write(5, 9);
    assert_eq!(world.read(5), Ok(9));
    world.end();
}

#[test]
fn who_finds_no_memory_has_the_others_told() {
    let world = World::new(32, 8);
    world.unmap(0, 8);
    let free = 32 - world.host.frames_in_use();
    world.map(Place::Fixed(pages(40, 40)));
    for page in 40..40 + free as u64 {
        world.write(page, page);
    }
    assert_eq!(world.design.told(), 1);
    assert_eq!(world.read(40), Ok(40));
    world.end();
}

#[test]
fn a_space_may_end_while_something_of_it_is_kept() {
    let world = World::new(32, 8);
    world.unmap(0, 4);
    world.space.exit();
    assert_eq!(world.host.frames_in_use(), 1 + 4);
    world.design.sweep();
    world.vm.free_dead_tables();
    assert_eq!(world.host.frames_in_use(), 1);
}

#[test]
fn what_was_unmapped_twice_is_kept_until_both_are_over() {
    let world = World::new(64, 8);
    world.unmap(0, 8);
    world.map(Place::Fixed(pages(0, 8)));
    world.write(3, 7);
    world.unmap(0, 8);
    world.design.sweep_oldest();
    world.vm.free_dead_tables();
    assert!(!world.space.is_flushed(&pages(3, 1)));
    world.design.sweep();
    world.vm.free_dead_tables();
    assert!(world.space.is_flushed(&pages(3, 1)));
    world.end();
}

#[test]
fn what_overlaps_is_kept_until_both_are_over() {
    let world = World::new(64, 8);
    world.unmap(0, 2);
    // Nothing was mapped in most of these.
    world.unmap(0, 8);
    world.unmap(0, 40);
    assert!(!world.space.is_flushed(&pages(1, 1)));
    assert!(!world.space.is_flushed(&pages(7, 1)));
    assert!(world.space.is_flushed(&pages(50, 1)));
    world.end();
}
