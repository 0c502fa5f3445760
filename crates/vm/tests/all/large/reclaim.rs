//! Large pages, reclaim and migration.

use shootdown_vm::{Access, AddressSpace, Advice};

use crate::large::fixture::*;
use crate::platform::*;

fn reclaim<const LOCK: u8>(fixture: &Fixture<LOCK>) -> usize {
    (0..NODES).map(|node| fixture.space.vm().reclaim(node, 1000).freed).sum()
}

fn freed_part_of_large_page_is_reclaimed<const LOCK: u8>() {
    let fixture = Fixture::<LOCK>::with_reclaim().with_large_page();
    fixture.space.advise(block(1), Advice::PageOut).unwrap();
    assert_eq!(reclaim(&fixture), 0);
    assert!(fixture.is_large(1), "the page is not discardable");
    fixture.space.advise(at(BLOCK, 100), Advice::Free).unwrap();
    write(&fixture.space, 2, BLOCK + 9, BLOCK + 9);
    assert_eq!(reclaim(&fixture), 99);
    for page in BLOCK..BLOCK + 100 {
        assert_eq!(read(&fixture.space, 1, page), if page == BLOCK + 9 { page } else { 0 });
    }
    fixture.check(BLOCK + 100..2 * BLOCK);
    // The rest of the block, and zeros for the reclaimed pages, collapse again.
    assert_eq!(fixture.space.collapse(block(1)), Ok(1));
    assert_eq!((read(&fixture.space, 0, BLOCK + 8), reclaim(&fixture)), (0, 0));
    fixture.check(BLOCK + 100..2 * BLOCK);
    fixture.end();
}

#[test]
fn freed_part_is_reclaimed_page_by_page() {
    freed_part_of_large_page_is_reclaimed::<SHARED>();
}

#[test]
fn freed_part_is_reclaimed_in_batches() {
    freed_part_of_large_page_is_reclaimed::<BATCHING>();
}

/// A page that was freed by advice is needed again after it has become part of a large page.
#[test]
fn collapsed_page_is_not_discardable() {
    let fixture = Fixture::<BATCHING>::with_reclaim().with_small_pages();
    fixture.space.advise(block(1), Advice::Free).unwrap();
    assert_eq!(fixture.space.collapse(block(1)), Ok(1));
    assert_eq!(reclaim(&fixture), 0);
    fixture.space.unmap(at(BLOCK, 1)).unwrap();
    assert_eq!(reclaim(&fixture), 0);
    fixture.check(BLOCK + 1..2 * BLOCK);
    fixture.end();
}

/// The frames of pages that have collapsed are free, without a record, and can be allocated again.
#[test]
fn frames_of_collapsed_pages_are_reusable() {
    let host = Host::with_addresses(2 * BLOCK as usize, 1, everything());
    let vm = system(&host).with_reclaim();
    let space: OurSpace<BATCHING> = AddressSpace::new(&vm).unwrap();
    map(&space, at(0, 2 * BLOCK), READ_WRITE);
    (BLOCK..BLOCK + 20).for_each(|page| write(&space, 0, page, page));
    assert_eq!(space.collapse(block(1)), Ok(1));
    // All frames that are left, including those.
    let is_written = |&page: &u64| try_access(&space, 0, page, Access::Write, page).is_ok();
    let written = (0..BLOCK).take_while(is_written).count();
    assert!((450..BLOCK as usize).contains(&written), "{written} frames were available");
    space.advise(block(0), Advice::Free).unwrap();
    let freed: usize = (0..NODES).map(|node| vm.reclaim(node, 1000).freed).sum();
    assert_eq!(freed, written);
    space.exit();
    drop((space, vm));
    assert_eq!(host.frames_in_use(), 1);
}

fn large_page_migrates_as_small_pages<const LOCK: u8>() {
    let fixture = Fixture::<LOCK>::with_reclaim().with_large_page();
    let node_of = |page| fixture.host.frame_of(fixture.space.root(), at(page, 1).start).0 % 2;
    let is_large = || fixture.is_large(1);
    assert!(is_large());
    for node in 0..NODES {
        let moved = fixture.space.migrate(block(1), node).unwrap();
        assert_eq!(moved, if node == 0 { 256 } else { 512 });
        assert!((BLOCK..2 * BLOCK).all(|page| node_of(page) == node as u64));
        fixture.check(BLOCK..2 * BLOCK);
    }
    assert!(!is_large());
    fixture.end();
}

#[test]
fn large_page_migrates_page_by_page() {
    large_page_migrates_as_small_pages::<SHARED>();
}

#[test]
fn large_page_migrates_in_batches() {
    large_page_migrates_as_small_pages::<BATCHING>();
}
