//! Folios of files: faults that map them, and operations that split them.

use std::sync::Arc;

use shootdown::{Extent, PageSize};
use shootdown_vm::{
    Access, AddressSpace, Advice, Backing, Cause, Change, FaultError, File, Folios, Freed, Place,
    Platform as _, Sharing,
};

use crate::large::fixture::*;
use crate::platform::*;

type OurFixture = Fixture<RELEASED>;

/// Maps a file at blocks 0 to 2, with page `first_page` at the beginning.
fn map_file(fixture: &OurFixture, sharing: Sharing, first_page: u64) -> Arc<File<Host>> {
    let file = Arc::new(File::new(fixture.host.clone()));
    let backing = Backing::File { file: Arc::clone(&file), first_page };
    fixture.space.map(Place::Fixed(at(0, 3 * BLOCK)), READ_WRITE, sharing, backing).unwrap();
    file
}

/// Maps a file by folios, and makes CPUs 1 and 2 cache the one in block 1. Each page of the block
/// holds its number.
fn with_folio(sharing: Sharing, folios: Folios) -> OurFixture {
    let fixture = OurFixture::new();
    let file = map_file(&fixture, Sharing::Shared, 0);
    fixture.space.use_folios(everything(), Folios::Large).unwrap();
    for page in BLOCK..2 * BLOCK {
        write(&fixture.space, 1, page, page);
    }
    assert_eq!(fixture.space.stats().folios_mapped, 1);
    let backing = Backing::File { file, first_page: 0 };
    fixture.space.map(Place::Fixed(at(0, 3 * BLOCK)), READ_WRITE, sharing, backing).unwrap();
    fixture.space.use_folios(everything(), folios).unwrap();
    for cpu in [1, 2] {
        assert_eq!(read(&fixture.space, cpu, BLOCK), BLOCK);
    }
    assert!(fixture.is_large(1));
    fixture.host.take_flushes();
    fixture
}

/// Returns a flush of all of the folio in block 1.
fn flush_of_folio(cause: Cause) -> Change {
    let mut change = Change::range(block(1), Freed::Pages);
    change.extents = Default::default();
    change.extents.add(Extent::pages(block(1).start, 1, PageSize::SIZE_2M));
    Change { page_size: PageSize::SIZE_2M, resizes: true, cause, ..change }
}

fn assert_split(fixture: &OurFixture) {
    assert_eq!(fixture.host.take_flushes(), [flush_of_folio(Cause::Split)]);
    assert_eq!(fixture.space.stats().folios_split, 1);
    assert!(!fixture.is_large(1));
}

#[test]
fn fault_maps_whole_folio() {
    let fixture = with_folio(Sharing::Shared, Folios::Large);
    for page in BLOCK..2 * BLOCK {
        assert_eq!(touch(&fixture.space, 1, page, Access::Write, page), Ok(page));
    }
    assert_eq!(read(&fixture.space, 1, 2 * BLOCK + 3), 0);
    assert!(!fixture.is_large(0) && fixture.is_large(2));
    fixture.check(BLOCK..2 * BLOCK);
    fixture.end();
}

#[test]
fn discarded_part_splits_folio() {
    let fixture = with_folio(Sharing::Shared, Folios::Large);
    fixture.space.advise(at(BLOCK + 7, 1), Advice::DontNeed).unwrap();
    assert_split(&fixture);
    // The file still has the page, and the next access maps the folio again.
    fixture.check(BLOCK..2 * BLOCK);
    assert!(fixture.is_large(1));
    fixture.end();
}

#[test]
fn discarded_folio_is_flushed_once() {
    let fixture = with_folio(Sharing::Shared, Folios::Large);
    fixture.space.advise(everything(), Advice::DontNeed).unwrap_err();
    assert_eq!(fixture.host.take_flushes(), [flush_of_folio(Cause::Advise)]);
    assert_eq!(fixture.space.stats().folios_split, 0);
    fixture.check(BLOCK..2 * BLOCK);
    fixture.end();
}

#[test]
fn unmapped_part_splits_folio() {
    let fixture = with_folio(Sharing::Shared, Folios::Large);
    fixture.space.unmap(at(BLOCK + 100, 50)).unwrap();
    assert_split(&fixture);
    let read = try_access(&fixture.space, 1, BLOCK + 100, Access::Read, 0);
    assert_eq!(read, Err(FaultError::NoArea));
    // The folio does not fit into either area any more.
    fixture.check(BLOCK..BLOCK + 100);
    assert!(!fixture.is_large(1));
    fixture.end();
}

#[test]
fn protected_part_splits_folio() {
    let fixture = with_folio(Sharing::Shared, Folios::Large);
    fixture.space.protect(at(BLOCK + 100, 50), READ).unwrap();
    assert_split(&fixture);
    fixture.check(BLOCK..2 * BLOCK);
    let write = try_access(&fixture.space, 1, BLOCK + 100, Access::Write, 1);
    assert_eq!(write, Err(FaultError::NotPermitted));
    fixture.end();
}

#[test]
fn protected_folio_stays_large() {
    let fixture = with_folio(Sharing::Shared, Folios::Large);
    fixture.space.protect(block(1), READ).unwrap();
    assert!(fixture.is_large(1));
    assert_eq!(fixture.host.take_flushes().len(), 1);
    let write = try_access(&fixture.space, 1, BLOCK, Access::Write, 1);
    assert_eq!(write, Err(FaultError::NotPermitted));
    fixture.check(BLOCK..2 * BLOCK);
    fixture.end();
}

#[test]
fn tracked_write_maps_folio_again() {
    let fixture = with_folio(Sharing::Shared, Folios::LargeTracked);
    write(&fixture.space, 1, BLOCK, BLOCK);
    assert_eq!(fixture.host.take_flushes(), [flush_of_folio(Cause::Split)]);
    assert!(fixture.is_large(1));
    write(&fixture.space, 2, BLOCK + 1, BLOCK + 1);
    assert_eq!(fixture.host.take_flushes(), [], "the file system has tracked the write");
    fixture.check(BLOCK..2 * BLOCK);
    fixture.end();
}

#[test]
fn private_write_splits_folio() {
    let fixture = with_folio(Sharing::Private, Folios::Large);
    write(&fixture.space, 1, BLOCK + 7, 7);
    assert_split(&fixture);
    assert_eq!(read(&fixture.space, 2, BLOCK + 7), 7);
    fixture.check(BLOCK..BLOCK + 7);
    fixture.space.advise(at(BLOCK + 7, 1), Advice::DontNeed).unwrap();
    fixture.check(BLOCK..2 * BLOCK);
    fixture.end();
}

#[test]
fn fork_leaves_folio_to_faults() {
    for sharing in [Sharing::Shared, Sharing::Private] {
        let fixture = with_folio(sharing, Folios::Large);
        let child = fixture.space.fork().unwrap();
        assert_eq!(fixture.host.take_flushes(), []);
        assert_eq!(read(&child, 0, BLOCK + 7), BLOCK + 7);
        assert!(fixture.is_large(1) && fixture.host.is_large(child.root(), block(1).start));
        fixture.space.unmap(block(1)).unwrap();
        assert_eq!(read(&child, 0, BLOCK + 8), BLOCK + 8);
        child.exit();
        fixture.end();
    }
}

#[test]
fn moved_folio_is_unmapped() {
    let fixture = with_folio(Sharing::Shared, Folios::Large);
    fixture.space.remap(at(BLOCK, BLOCK), at(3 * BLOCK, BLOCK)).unwrap();
    assert_split(&fixture);
    assert_eq!(read(&fixture.space, 1, 3 * BLOCK + 7), BLOCK + 7);
    assert!(fixture.is_large(3), "the new address is a multiple of its size also");
    fixture.end();
}

#[test]
fn files_without_room_for_folios_have_small_pages() {
    let fixture = OurFixture::new();
    // The places in the file do not fit the addresses.
    let file = map_file(&fixture, Sharing::Shared, 1);
    fixture.space.use_folios(everything(), Folios::Large).unwrap();
    write(&fixture.space, 1, BLOCK, 1);
    assert!(!fixture.is_large(1));
    // A small page is in memory.
    let backing = Backing::File { file: Arc::clone(&file), first_page: 0 };
    let place = Place::Fixed(at(0, 3 * BLOCK));
    fixture.space.map(place, READ_WRITE, Sharing::Shared, backing).unwrap();
    fixture.space.use_folios(everything(), Folios::Large).unwrap();
    assert_eq!(read(&fixture.space, 1, BLOCK + 1), 1);
    assert!(!fixture.is_large(1));
    // The next folio needs 512 frames in a row.
    while fixture.host.allocate_large().is_ok() {}
    assert_eq!(read(&fixture.space, 1, 2 * BLOCK), 0);
    assert!(!fixture.is_large(2));
    drop(file);
    fixture.space.exit();
}

#[test]
fn reclaimed_memory_has_no_folios() {
    let fixture = OurFixture::with_reclaim();
    let file = map_file(&fixture, Sharing::Shared, 0);
    fixture.space.use_folios(everything(), Folios::Large).unwrap();
    write(&fixture.space, 1, BLOCK, BLOCK);
    assert!(!fixture.is_large(1));
    drop(file);
    fixture.end();
}

#[test]
fn anonymous_areas_have_no_folios() {
    let fixture = OurFixture::new();
    fixture.map(block(1));
    fixture.space.use_folios(everything(), Folios::Large).unwrap();
    write(&fixture.space, 1, BLOCK, BLOCK);
    assert!(!fixture.is_large(1));
    fixture.end();
}

/// The second call finds the entry empty, and the first one's flush not complete.
#[test]
fn discard_during_split_revokes_access() {
    let fixture = with_folio(Sharing::Shared, Folios::Large);
    let other = Arc::clone(&fixture.space);
    fixture.host.when_waiting(move || {
        let find = || touch(&other, 1, BLOCK + 300, Access::Read, 0);
        assert_eq!(find(), Ok(BLOCK + 300), "the CPU was not notified yet");
        other.advise(at(BLOCK + 300, 1), Advice::DontNeed).unwrap();
        assert_eq!(find(), Err(PageFault));
    });
    fixture.space.advise(at(BLOCK + 7, 1), Advice::DontNeed).unwrap();
    assert!(!fixture.host.hook_is_set(), "the split did not wait");
    fixture.check(BLOCK..2 * BLOCK);
    fixture.end();
}

/// CPUs read and write a folio while other CPUs discard parts of it.
#[test]
fn concurrent_faults_and_splits_keep_contents() {
    let fixture = with_folio(Sharing::Shared, Folios::Large);
    let space: &AddressSpace<_> = &fixture.space;
    std::thread::scope(|scope| {
        for cpu in 0..3 {
            scope.spawn(move || {
                for page in (BLOCK..2 * BLOCK).skip(cpu).step_by(3) {
                    assert_eq!(read(space, cpu, page), page);
                    space.advise(at(page, 1), Advice::DontNeed).unwrap();
                    write(space, cpu, page, page);
                }
            });
        }
    });
    fixture.check(BLOCK..2 * BLOCK);
    fixture.end();
}
