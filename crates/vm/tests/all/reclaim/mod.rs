//! Reclaim: concurrent operations while pages are unmapped and not yet flushed.

mod fixture;
mod interruptions;
mod memory;
mod migrate;
mod reuse;
mod truncate;

use std::sync::Arc;
use std::thread;

use crate::platform::*;
use fixture::*;
use shootdown_vm::{
    Access, AddressSpace, Advice, Backing, Cause, FaultError, File, FileId, Place, Protection,
    RangeError, Sharing,
};

fn reclaimed_pages_keep_contents<const LOCK: u8>() {
    let fixture = Fixture::<LOCK>::new();
    fixture.map_file(0, 40, Sharing::Shared);
    for page in 0..40 {
        let how =
            if page % 2 == 0 { write } else { |space: &_, cpu, page, _| read(space, cpu, page) };
        how(&fixture.space, 0, page, page + 100).unwrap();
        read(&fixture.space, 1, page).unwrap();
    }
    let in_use = fixture.host.frames_in_use();
    assert_eq!(fixture.reclaim(), 40);
    assert_eq!(fixture.host.frames_in_use(), in_use - 40);
    assert_eq!(fixture.file.resident_pages(), 0);
    fixture.host.check_caches();
    for page in 0..40 {
        let word = if page % 2 == 0 { page + 100 } else { 0 };
        assert_eq!(fixture.host.stored(FILE, page), word);
        assert_eq!(read(&fixture.space, 2, page), Ok(word));
    }
    fixture.end();
}

#[test]
fn reclaimed_pages_keep_contents_page_by_page() {
    reclaimed_pages_keep_contents::<SHARED>();
}

#[test]
fn reclaimed_pages_keep_contents_in_batches() {
    reclaimed_pages_keep_contents::<BATCHING>();
}

/// A CPU may write to a dirty page until the flush is complete. The page is written out after that.
#[test]
fn write_through_stale_entry_is_kept() {
    let fixture = Fixture::<BATCHING>::new();
    fixture.map_file(0, 1, Sharing::Shared);
    write(&fixture.space, 1, 0, 5).unwrap();
    let freed = fixture.reclaim_while(|space| {
        assert_eq!(touch(space, 1, 0, Access::Write, 6), Ok(6), "the CPU was not notified yet");
    });
    assert_eq!((freed, fixture.host.stored(FILE, 0)), (1, 6));
    assert_eq!(read(&fixture.space, 0, 0), Ok(6));
    fixture.end();
}

/// A CPU cannot write to a clean page unnoticed, because the first write walks to the entry.
#[test]
fn clean_stale_entry_refuses_write() {
    let fixture = Fixture::<BATCHING>::new();
    fixture.map_file(0, 1, Sharing::Shared);
    read(&fixture.space, 1, 0).unwrap();
    fixture.reclaim_while(|space| {
        assert_eq!(touch(space, 1, 0, Access::Read, 0), Ok(0), "the CPU was not notified yet");
        assert_eq!(touch(space, 1, 0, Access::Write, 6), Err(PageFault));
        assert_eq!(write(space, 1, 0, 6), Ok(6), "the write faults and succeeds");
    });
    assert_eq!(read(&fixture.space, 0, 0), Ok(6));
    fixture.end();
}

/// The bug that 3ea277194daa fixed: an operation that finds an empty entry must not return before
/// the old translation is flushed.
#[test]
fn operation_on_reclaimed_page_waits_for_flush() {
    type Change = fn(&Batching);
    let changes: [Change; 4] = [
        |space| space.unmap(pages(0, 4)).unwrap(),
        |space| space.protect(pages(0, 4), Protection::empty()).unwrap(),
        |space| space.advise(pages(0, 4), Advice::DontNeed).unwrap(),
        |space| space.remap(pages(0, 4), pages(20, 4)).unwrap(),
    ];
    for change in changes {
        let fixture = Fixture::<BATCHING>::new();
        fixture.map_file(0, 4, Sharing::Shared);
        cache(&fixture.space, 1, 0..4);
        fixture.reclaim_while(move |space| {
            let find = || [0, 1, 2, 3].map(|page| touch(space, 1, page, Access::Read, 0));
            assert_eq!(find(), [Ok(0); 4], "the CPU was not notified yet");
            change(space);
            assert_eq!(find(), [Err(PageFault); 4]);
        });
        fixture.end();
    }
}

/// Reclaim has just unmapped a page of a file from a private mapping. One thread writes there, and
/// gets a separate page. Another thread, on a CPU that still caches the file's page, must read the
/// written value.
#[test]
fn refault_is_visible_to_all_cpus() {
    let fixture = Fixture::<BATCHING>::new();
    fixture.map_file(0, 1, Sharing::Private);
    read(&fixture.space, 1, 0).unwrap();
    fixture.reclaim_while(|space| {
        assert_eq!(touch(space, 1, 0, Access::Read, 0), Ok(0), "the CPU was not notified yet");
        assert_eq!(write(space, 0, 0, 9), Ok(9));
        assert_eq!(read(space, 1, 0), Ok(9));
    });
    fixture.end();
}

/// Two spaces use each page of the second file, and one uses each page of the first, which are
/// reclaimed first.
#[test]
fn less_used_pages_are_reclaimed_first() {
    const COUNT: u64 = 80;
    let host = Host::new(512, 3);
    let vm = system::<BATCHING, AT_WAIT>(&host).with_reclaim();
    let files = [1, 2].map(|id| Arc::new(File::stored(host.clone(), FileId(id))));
    let spaces = [0, 1, 1].map(|file| {
        let space: Batching = AddressSpace::new(&vm).unwrap();
        let backing = Backing::File { file: Arc::clone(&files[file]), first_page: 0 };
        space.map(Place::Fixed(pages(0, COUNT)), READ, Sharing::Shared, backing).unwrap();
        cache(&space, 0, 0..COUNT);
        space
    });
    // All pages that are reclaimed together, of the node's half of them.
    let freed = vm.reclaim(0, 1).freed;
    assert!(freed > 0);
    let all = COUNT as usize;
    assert_eq!(files.each_ref().map(|file| file.resident_pages()), [all - freed, all]);
    for space in spaces {
        space.exit();
    }
    files.into_iter().for_each(|file| vm.close(file));
    assert_eq!(host.frames_in_use(), 1);
}

#[test]
fn access_check_flushes_nothing() {
    let fixture = Fixture::<BATCHING>::new();
    fixture.map_file(0, 8, Sharing::Shared);
    cache(&fixture.space, 1, 0..8);
    fixture.host.take_flushes();
    assert_eq!(fixture.reclaim(), 8);
    // Each page was examined twice, and flushed once, when it was unmapped.
    let flushed = fixture.host.take_flushes();
    assert_eq!(flushed.len(), 8);
    assert!(flushed.iter().all(|change| change.cause == Cause::Reclaim));
    fixture.end();
}

fn freed_pages_are_discarded_unless_written<const LOCK: u8>() {
    let fixture = Fixture::<LOCK>::new();
    fixture.map_anonymous(0, 4);
    for page in 0..4 {
        write(&fixture.space, 1, page, page + 1).unwrap();
    }
    assert_eq!(fixture.reclaim(), 0, "anonymous pages cannot be written out");
    fixture.space.advise(pages(0, 4), Advice::Free).unwrap();
    write(&fixture.space, 1, 2, 30).unwrap();
    assert_eq!(fixture.reclaim(), 3);
    fixture.host.check_caches();
    for (page, word) in [(0, 0), (1, 0), (2, 30), (3, 0)] {
        assert_eq!(read(&fixture.space, 0, page), Ok(word));
    }
    // The page was needed again, and not written since. The old advice must not discard it.
    assert_eq!(fixture.reclaim(), 0);
    assert_eq!(read(&fixture.space, 0, 2), Ok(30));
    fixture.end();
}

#[test]
fn freed_pages_are_discarded_page_by_page() {
    freed_pages_are_discarded_unless_written::<SHARED>();
}

#[test]
fn freed_pages_are_discarded_in_batches() {
    freed_pages_are_discarded_unless_written::<BATCHING>();
}

/// The advice concerns one of the two spaces, or came before there were two.
#[test]
fn freed_page_of_two_spaces_is_kept() {
    for is_forked_first in [true, false] {
        let fixture = Fixture::<BATCHING>::new();
        let advise = || fixture.space.advise(pages(0, 1), Advice::Free).unwrap();
        fixture.map_anonymous(0, 1);
        write(&fixture.space, 1, 0, 7).unwrap();
        if !is_forked_first {
            advise();
        }
        let child = fixture.space.fork().unwrap();
        if is_forked_first {
            advise();
        }
        assert_eq!(fixture.reclaim(), 0);
        assert_eq!((read(&fixture.space, 0, 0), read(&child, 2, 0)), (Ok(7), Ok(7)));
        child.exit();
        advise();
        assert_eq!(fixture.reclaim(), 1, "one space has the page now");
        fixture.host.check_caches();
        fixture.end();
    }
}

/// Only pages that are stored in a file can be reclaimed, even by explicit advice.
#[test]
fn page_out_affects_stored_pages_only() {
    let fixture = Fixture::<BATCHING>::new();
    fixture.map_file(0, 2, Sharing::Shared);
    let place = Place::Fixed(pages(10, 2));
    fixture.space.map(place, READ_WRITE, Sharing::Shared, Backing::Anonymous).unwrap();
    fixture.map_anonymous(20, 2);
    for page in [0, 1, 10, 11, 20, 21] {
        write(&fixture.space, 1, page, page + 1).unwrap();
    }
    let in_use = fixture.host.frames_in_use();
    fixture.space.advise(pages(0, 30), Advice::PageOut).unwrap_err();
    assert_eq!(fixture.host.frames_in_use(), in_use - 2);
    fixture.host.check_caches();
    for page in [0, 1, 10, 11, 20, 21] {
        assert_eq!(read(&fixture.space, 0, page), Ok(page + 1));
    }
    fixture.end();
}

/// A page that is written out stays mapped, in both spaces, and its next write is a fault.
#[test]
fn write_back_protects_written_pages() {
    let fixture = Fixture::<BATCHING>::new();
    fixture.map_file(0, 3, Sharing::Shared);
    let child = fixture.space.fork().unwrap();
    write(&fixture.space, 1, 0, 5).unwrap();
    write(&child, 2, 0, 6).unwrap();
    read(&fixture.space, 1, 1).unwrap();
    write(&child, 2, 2, 8).unwrap();
    fixture.space.write_back(pages(0, 2)).unwrap();
    fixture.host.check_caches();
    assert!(touch(&fixture.space, 1, 0, Access::Write, 9).is_err(), "the page is protected");
    assert!(touch(&child, 2, 0, Access::Write, 9).is_err(), "so it is in the other space");
    assert_eq!(touch(&child, 2, 2, Access::Write, 8), Ok(8), "page 2 was not in the range");
    let reclaim = |node| fixture.space.vm().reclaim(node, EVERYTHING).written;
    assert_eq!((0..NODES).map(reclaim).sum::<usize>(), 1, "page 0 was written out before");
    assert_eq!((read(&fixture.space, 0, 0), read(&child, 0, 2)), (Ok(6), Ok(8)));
    write(&fixture.space, 1, 0, 7).unwrap();
    assert_eq!(read(&child, 2, 0), Ok(7));
    assert_eq!(fixture.space.write_back(pages(0, 9)), Err(RangeError::NoArea));
    child.exit();
    fixture.host.check_caches();
    fixture.end();
}

/// A private area has copies of its own, or pages that others write.
#[test]
fn write_back_ignores_private_areas() {
    let fixture = Fixture::<BATCHING>::new();
    fixture.map_file(0, 1, Sharing::Shared);
    fixture.map_file(10, 1, Sharing::Private);
    fixture.map_anonymous(20, 1);
    write(&fixture.space, 1, 0, 5).unwrap();
    read(&fixture.space, 1, 10).unwrap();
    write(&fixture.space, 1, 20, 6).unwrap();
    fixture.space.write_back(pages(10, 1)).unwrap();
    fixture.space.write_back(pages(20, 1)).unwrap();
    assert_eq!(touch(&fixture.space, 1, 0, Access::Write, 7), Ok(7), "the page is not protected");
    assert_eq!(touch(&fixture.space, 1, 20, Access::Write, 8), Ok(8));
    assert_eq!(fixture.space.write_back(pages(10, 0)), Err(RangeError::BadRange));
    fixture.end();
}

/// A write through a translation that is cached as dirty sets no mark. So the page is written out
/// only after the flush.
#[test]
fn write_during_write_back_is_stored() {
    let fixture = Fixture::<BATCHING>::new();
    fixture.map_file(0, 1, Sharing::Shared);
    write(&fixture.space, 1, 0, 1).unwrap();
    let other = Arc::clone(&fixture.space);
    fixture.host.when_waiting(move || {
        assert_eq!(touch(&other, 1, 0, Access::Write, 3), Ok(3), "the CPU was not notified yet");
    });
    fixture.space.write_back(pages(0, 1)).unwrap();
    assert!(!fixture.host.hook_is_set(), "the operation did not wait");
    assert_eq!(fixture.reclaim(), 1);
    assert_eq!(read(&fixture.space, 0, 0), Ok(3));
    fixture.end();
}

/// A write after the advice, through a translation that is cached as dirty, sets no mark until the
/// advice's own flush is complete. Reclaim must not treat the page as unneeded before that.
#[test]
fn write_during_free_advice_is_kept() {
    let fixture = Fixture::<BATCHING>::new();
    fixture.map_anonymous(0, 1);
    write(&fixture.space, 1, 0, 1).unwrap();
    // Because of this advice the page is discardable. It is written afterwards.
    fixture.space.advise(pages(0, 1), Advice::Free).unwrap();
    write(&fixture.space, 1, 0, 2).unwrap();
    let (host, other) = (fixture.host.clone(), Arc::clone(&fixture.space));
    host.when_waiting(move || {
        assert_eq!(touch(&other, 1, 0, Access::Write, 3), Ok(3), "the CPU was not notified yet");
        for node in 0..NODES {
            other.vm().reclaim(node, EVERYTHING);
        }
    });
    fixture.space.advise(pages(0, 1), Advice::Free).unwrap();
    assert!(!host.hook_is_set(), "the operation did not wait");
    assert_eq!(read(&fixture.space, 0, 0), Ok(3));
    fixture.end();
}

#[test]
fn allocation_reclaims_file_pages() {
    let fixture = Fixture::<BATCHING>::with_frames(40);
    fixture.map_file(0, PAGES, Sharing::Shared);
    for round in 0..3 {
        for page in 0..PAGES {
            assert_eq!(write(&fixture.space, 0, page, page + round), Ok(page + round));
        }
    }
    assert!((0..PAGES).all(|page| read(&fixture.space, 1, page) == Ok(page + 2)));
    fixture.host.check_caches();
    fixture.end();
}

#[test]
fn allocation_without_reclaimable_pages_fails() {
    let fixture = Fixture::<BATCHING>::with_frames(40);
    fixture.map_anonymous(0, PAGES);
    let out_of_memory = |page| write(&fixture.space, 0, page, page) == Err(FaultError::OutOfMemory);
    let full =
        (0..PAGES).find(|&page| out_of_memory(page)).expect("40 frames are too few for all pages");
    assert_eq!(fixture.space.fork().err(), Some(shootdown_vm::OutOfMemory));
    assert!((0..full).all(|page| read(&fixture.space, 1, page) == Ok(page)));
    fixture.space.unmap(pages(0, 1)).unwrap();
    assert_eq!(write(&fixture.space, 0, full, full), Ok(full));
    fixture.end();
}

#[test]
fn page_written_by_ended_space_is_written_out() {
    let fixture = Fixture::<BATCHING>::new();
    fixture.map_file(0, 1, Sharing::Shared);
    write(&fixture.space, 1, 0, 5).unwrap();
    fixture.space.exit();
    assert_eq!((fixture.reclaim(), fixture.host.stored(FILE, 0)), (1, 5));
    fixture.end();
}

/// There are more spaces than a batch can hold. The batch is flushed in between, and no space is
/// skipped.
#[test]
fn full_batch_is_flushed_and_continued() {
    let fixture = Fixture::<BATCHING>::new();
    let vm = fixture.space.vm();
    let others: Vec<Batching> = (0..5).map(|_| AddressSpace::new(vm).unwrap()).collect();
    for (index, space) in others.iter().enumerate() {
        let backing = Backing::File { file: Arc::clone(&fixture.file), first_page: 0 };
        space.map(Place::Fixed(pages(0, 3)), READ, Sharing::Shared, backing).unwrap();
        cache(space, index % 3, 0..3);
    }
    assert_eq!(fixture.reclaim(), 3);
    fixture.host.check_caches();
    for space in &others {
        assert_eq!(read(space, 0, 1), Ok(0));
        space.exit();
    }
    drop(others);
    fixture.end();
}

/// A space forks and exits while its pages are unmapped and not yet flushed.
#[test]
fn space_forks_and_exits_during_reclaim() {
    let fixture = Fixture::<BATCHING>::new();
    let space: Arc<Batching> = Arc::new(AddressSpace::new(fixture.space.vm()).unwrap());
    let backing = Backing::File { file: Arc::clone(&fixture.file), first_page: 0 };
    space.map(Place::Fixed(pages(0, 6)), READ, Sharing::Private, backing).unwrap();
    cache(&space, 1, 0..6);
    let ending = Arc::clone(&space);
    fixture.host.when_waiting(move || {
        let child = ending.fork().unwrap();
        ending.exit();
        assert!((0..6).all(|page| read(&child, 0, page) == Ok(0)));
        child.exit();
    });
    fixture.reclaim();
    assert!(!fixture.host.hook_is_set(), "the operation did not wait");
    drop(space);
    fixture.end();
}

/// Real threads write to a shared file, each to words of its own pages, while others reclaim,
/// migrate, fork and discard. At the end each thread finds its last write.
fn threads_read_own_writes<const LOCK: u8>() {
    const ROUNDS: u64 = if cfg!(miri) { 20 } else { 3_000 };
    let fixture = Fixture::<LOCK>::with_frames(64);
    fixture.map_file(0, 60, Sharing::Shared);
    fixture.map_anonymous(60, 20);
    thread::scope(|scope| {
        for cpu in 0..2 {
            let space = &fixture.space;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let page = (round * 7) % 30 * 2 + cpu as u64;
                    assert_eq!(write(space, cpu, page, round), Ok(round));
                    assert_eq!(read(space, cpu, page), Ok(round));
                    if round % 64 == 0 {
                        let _ = space.advise(pages(page, 1), Advice::DontNeed);
                        assert_eq!(read(space, cpu, page), Ok(round));
                    }
                }
            });
        }
        let space = &fixture.space;
        scope.spawn(move || {
            for round in 0..ROUNDS / 4 {
                let node = round as usize % NODES;
                space.vm().reclaim(node, 8);
                let _ = space.migrate(pages(round % 60, 8), node);
                if round % 16 == 0
                    && let Ok(child) = space.fork()
                {
                    child.exit();
                }
                let _ = write(space, 2, 60 + round % 20, round);
                let _ = space.advise(pages(60, 20), Advice::Free);
            }
        });
    });
    fixture.host.check_caches();
    fixture.end();
}

#[test]
fn threads_read_own_writes_page_by_page() {
    threads_read_own_writes::<SHARED>();
}

#[test]
fn threads_read_own_writes_in_batches() {
    threads_read_own_writes::<BATCHING>();
}
