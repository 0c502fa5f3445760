//! Migration of pages to the memory of another node.

use std::sync::Arc;

use shootdown_vm::{Access, Advice, Sharing};

use crate::platform::*;
use crate::reclaim::fixture::*;

fn node_of<const LOCK: u8>(space: &OurSpace<LOCK>, page: u64) -> usize {
    space.vm().platform().frame_of(space.root(), pages(page, 1).start).0 as usize % NODES
}

fn migrated_pages_keep_contents<const LOCK: u8>() {
    let fixture = Fixture::<LOCK>::new();
    fixture.map_file(0, 20, Sharing::Shared);
    fixture.map_anonymous(40, 20);
    for page in (0..20).chain(40..60) {
        write(&fixture.space, 1, page, page + 1).unwrap();
    }
    let in_use = fixture.host.frames_in_use();
    let mut moved = 0;
    for node in [0, 1] {
        moved += fixture.space.migrate(pages(0, PAGES), node).unwrap();
        fixture.host.check_caches();
        for page in (0..20).chain(40..60) {
            assert_eq!(read(&fixture.space, 0, page), Ok(page + 1));
            assert_eq!(node_of(&fixture.space, page), node);
        }
        assert_eq!(fixture.host.frames_in_use(), in_use);
    }
    assert_eq!(fixture.space.migrate(pages(0, PAGES), 1), Ok(0), "all pages are on the node");
    assert!(moved >= 40 && fixture.space.stats().migrated == moved as u64, "{moved}");
    // Values that were written before the migration are written out by reclaim.
    assert_eq!(fixture.reclaim(), 20);
    assert_eq!(fixture.host.stored(FILE, 3), 4);
    fixture.end();
}

#[test]
fn migrated_pages_keep_contents_one_by_one() {
    migrated_pages_keep_contents::<SHARED>();
}

#[test]
fn migrated_pages_keep_contents_in_batches() {
    migrated_pages_keep_contents::<BATCHING>();
}

/// A write before a CPU is notified of the migration is in the copy. Later writes wait for the
/// migration.
#[test]
fn migration_loses_no_write() {
    let fixture = Fixture::<BATCHING>::new();
    fixture.map_anonymous(0, 1);
    write(&fixture.space, 1, 0, 1).unwrap();
    let node = 1 - node_of(&fixture.space, 0);
    let other = Arc::clone(&fixture.space);
    fixture.host.when_waiting(move || {
        assert_eq!(touch(&other, 1, 0, Access::Write, 2), Ok(2), "the CPU was not notified yet");
        assert_eq!(touch(&other, 2, 0, Access::Read, 0), Err(PageFault), "the page is claimed");
    });
    assert_eq!(fixture.space.migrate(pages(0, 1), node), Ok(1));
    assert_eq!((read(&fixture.space, 2, 0), node_of(&fixture.space, 0)), (Ok(2), node));
    fixture.end();
}

/// The page's record has taken over the mark of an entry that was cleared.
#[test]
fn written_page_stays_dirty_when_it_moves() {
    let fixture = Fixture::<BATCHING>::new();
    fixture.map_file(0, 1, Sharing::Shared);
    write(&fixture.space, 1, 0, 5).unwrap();
    fixture.space.advise(pages(0, 1), Advice::DontNeed).unwrap();
    read(&fixture.space, 1, 0).unwrap();
    let node = 1 - node_of(&fixture.space, 0);
    assert_eq!(fixture.space.migrate(pages(0, 1), node), Ok(1));
    assert_eq!((fixture.reclaim(), fixture.host.stored(FILE, 0)), (1, 5));
    fixture.end();
}

/// The discard finds a claim in the place of the entry that was marked.
#[test]
fn written_page_discarded_during_migration_stays_dirty() {
    let fixture = Fixture::<BATCHING>::new();
    fixture.map_file(0, 1, Sharing::Shared);
    write(&fixture.space, 1, 0, 5).unwrap();
    let node = 1 - node_of(&fixture.space, 0);
    let other = Arc::clone(&fixture.space);
    fixture.host.when_waiting(move || other.advise(pages(0, 1), Advice::DontNeed).unwrap());
    assert_eq!(fixture.space.migrate(pages(0, 1), node), Ok(1));
    assert_eq!((fixture.reclaim(), fixture.host.stored(FILE, 0)), (1, 5));
    fixture.end();
}

#[test]
fn page_discarded_during_migration_is_freed() {
    let fixture = Fixture::<BATCHING>::new();
    fixture.map_anonymous(0, 2);
    for page in 0..2 {
        write(&fixture.space, 1, page, 7).unwrap();
    }
    let other = Arc::clone(&fixture.space);
    fixture.host.when_waiting(move || other.advise(pages(0, 1), Advice::DontNeed).unwrap());
    for node in 0..NODES {
        fixture.space.migrate(pages(0, 2), node).unwrap();
    }
    assert_eq!((read(&fixture.space, 1, 0), read(&fixture.space, 1, 1)), (Ok(0), Ok(7)));
    fixture.end();
}

#[test]
fn shared_page_is_not_migrated() {
    let fixture = Fixture::<BATCHING>::new();
    fixture.map_anonymous(0, 1);
    write(&fixture.space, 0, 0, 1).unwrap();
    let child = fixture.space.fork().unwrap();
    let node = 1 - node_of(&fixture.space, 0);
    assert_eq!(fixture.space.migrate(pages(0, 1), node), Ok(0));
    child.exit();
    assert_eq!(fixture.space.migrate(pages(0, 1), node), Ok(1));
    fixture.end();
}
