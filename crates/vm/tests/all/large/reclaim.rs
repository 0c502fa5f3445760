//! Large pages where memory is reclaimed and pages migrate.

use shootdown_vm::{Access, AddressSpace, Advice};

use crate::large::world::*;
use crate::platform::*;

fn reclaim<const LOCK: u8>(world: &World<LOCK>) -> usize {
    (0..NODES).map(|node| world.space.vm().reclaim(node, 1000).freed).sum()
}

fn what_is_given_up_of_a_large_page_is_taken<const LOCK: u8>() {
    let world = World::<LOCK>::with_reclaim().with_large_page();
    world.space.advise(block(1), Advice::PageOut).unwrap();
    assert_eq!(reclaim(&world), 0);
    assert!(world.is_large(1), "nobody has given it up");
    world.space.advise(at(BLOCK, 100), Advice::Free).unwrap();
    write(&world.space, 2, BLOCK + 9, BLOCK + 9);
    assert_eq!(reclaim(&world), 99);
    for page in BLOCK..BLOCK + 100 {
        assert_eq!(read(&world.space, 1, page), if page == BLOCK + 9 { page } else { 0 });
    }
    world.check(BLOCK + 100..2 * BLOCK);
    // What was taken, and what is left, becomes one again.
    assert_eq!(world.space.collapse(block(1)), Ok(1));
    assert_eq!((read(&world.space, 0, BLOCK + 8), reclaim(&world)), (0, 0));
    world.check(BLOCK + 100..2 * BLOCK);
    world.end();
}

#[test]
fn what_is_given_up_of_a_large_page_is_taken_page_by_page() {
    what_is_given_up_of_a_large_page_is_taken::<SHARED>();
}

#[test]
fn what_is_given_up_of_a_large_page_is_taken_in_batches() {
    what_is_given_up_of_a_large_page_is_taken::<BATCHING>();
}

/// Whose marks were taken away is not unneeded any more when it is part of a large page.
#[test]
fn what_was_given_up_and_collapsed_is_kept() {
    let world = World::<BATCHING>::with_reclaim().with_small_pages();
    world.space.advise(block(1), Advice::Free).unwrap();
    assert_eq!(world.space.collapse(block(1)), Ok(1));
    assert_eq!(reclaim(&world), 0);
    world.space.unmap(at(BLOCK, 1)).unwrap();
    assert_eq!(reclaim(&world), 0);
    world.check(BLOCK + 1..2 * BLOCK);
    world.end();
}

/// The frames that pages had before they became one are nobody's, and can be had again.
#[test]
fn frames_have_no_past_when_their_pages_are_part_of_a_large_one() {
    let host = Host::with_addresses(2 * BLOCK as usize, 1, everything());
    let vm = system(&host).with_reclaim();
    let space: OurSpace<BATCHING> = AddressSpace::new(&vm).unwrap();
    map(&space, at(0, 2 * BLOCK), READ_WRITE);
    (BLOCK..BLOCK + 20).for_each(|page| write(&space, 0, page, page));
    assert_eq!(space.collapse(block(1)), Ok(1));
    // All that there are: those, too.
    let is_written = |&page: &u64| try_access(&space, 0, page, Access::Write, page).is_ok();
    let written = (0..BLOCK).take_while(is_written).count();
    assert!((450..BLOCK as usize).contains(&written), "{written} frames were left");
    space.advise(block(0), Advice::Free).unwrap();
    let freed: usize = (0..NODES).map(|node| vm.reclaim(node, 1000).freed).sum();
    assert_eq!(freed, written);
    space.exit();
    drop((space, vm));
    assert_eq!(host.frames_in_use(), 1);
}

fn large_pages_migrate_in_parts<const LOCK: u8>() {
    let world = World::<LOCK>::with_reclaim().with_large_page();
    let node_of = |page| world.host.frame_of(world.space.root(), at(page, 1).start).0 % 2;
    let is_large = || world.is_large(1);
    assert!(is_large());
    for node in 0..NODES {
        let moved = world.space.migrate(block(1), node).unwrap();
        assert_eq!(moved, if node == 0 { 256 } else { 512 });
        assert!((BLOCK..2 * BLOCK).all(|page| node_of(page) == node as u64));
        world.check(BLOCK..2 * BLOCK);
    }
    assert!(!is_large());
    world.end();
}

#[test]
fn large_pages_migrate_in_parts_one_by_one() {
    large_pages_migrate_in_parts::<SHARED>();
}

#[test]
fn large_pages_migrate_in_parts_in_batches() {
    large_pages_migrate_in_parts::<BATCHING>();
}
