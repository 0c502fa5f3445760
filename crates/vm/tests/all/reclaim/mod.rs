//! Reclaim: what others do while pages have been taken and CPUs still use them.

mod memory;
mod migrate;
mod moments;
mod world;

use std::sync::Arc;
use std::thread;

use crate::platform::*;
use shootdown_vm::{
    Access, AddressSpace, Advice, Backing, Cause, FaultError, File, FileId, Place, Protection,
    Sharing,
};
use world::*;

fn what_is_reclaimed_comes_back_as_it_was<const LOCK: u8>() {
    let world = World::<LOCK>::new();
    world.map_file(0, 40, Sharing::Shared);
    for page in 0..40 {
        let how =
            if page % 2 == 0 { write } else { |space: &_, cpu, page, _| read(space, cpu, page) };
        how(&world.space, 0, page, page + 100).unwrap();
        read(&world.space, 1, page).unwrap();
    }
    let in_use = world.host.frames_in_use();
    assert_eq!(world.reclaim(), 40);
    assert_eq!(world.host.frames_in_use(), in_use - 40);
    assert_eq!(world.file.resident_pages(), 0);
    world.host.check_caches();
    for page in 0..40 {
        let word = if page % 2 == 0 { page + 100 } else { 0 };
        assert_eq!(world.host.stored(FILE, page), word);
        assert_eq!(read(&world.space, 2, page), Ok(word));
    }
    world.end();
}

#[test]
fn what_is_reclaimed_page_by_page_comes_back_as_it_was() {
    what_is_reclaimed_comes_back_as_it_was::<SHARED>();
}

#[test]
fn what_is_reclaimed_in_batches_comes_back_as_it_was() {
    what_is_reclaimed_comes_back_as_it_was::<BATCHING>();
}

/// A page that was written may be written until the flush is done: what goes to the disk, goes
/// after that.
#[test]
fn what_is_written_through_a_stale_entry_is_not_lost() {
    let world = World::<BATCHING>::new();
    world.map_file(0, 1, Sharing::Shared);
    write(&world.space, 1, 0, 5).unwrap();
    let freed = world.reclaim_while(|space| {
        assert_eq!(touch(space, 1, 0, Access::Write, 6), Ok(6), "it has not been told");
    });
    assert_eq!((freed, world.host.stored(FILE, 0)), (1, 6));
    assert_eq!(read(&world.space, 0, 0), Ok(6));
    world.end();
}

/// A page that was not written can't be unnoticed: the first write looks at the entry.
#[test]
fn a_clean_page_is_not_written_through_a_stale_entry() {
    let world = World::<BATCHING>::new();
    world.map_file(0, 1, Sharing::Shared);
    read(&world.space, 1, 0).unwrap();
    world.reclaim_while(|space| {
        assert_eq!(touch(space, 1, 0, Access::Read, 0), Ok(0), "it has not been told");
        assert_eq!(touch(space, 1, 0, Access::Write, 6), Err(Refused));
        assert_eq!(write(space, 1, 0, 6), Ok(6), "by a fault");
    });
    assert_eq!(read(&world.space, 0, 0), Ok(6));
    world.end();
}

/// The bug that 3ea277194daa mended: who finds nothing to take away must not return before what
/// was there is flushed.
#[test]
fn who_changes_what_was_taken_returns_when_it_is_flushed() {
    type Change = fn(&Batching);
    let changes: [Change; 4] = [
        |space| space.unmap(pages(0, 4)).unwrap(),
        |space| space.protect(pages(0, 4), Protection::empty()).unwrap(),
        |space| space.advise(pages(0, 4), Advice::DontNeed).unwrap(),
        |space| space.remap(pages(0, 4), pages(20, 4)).unwrap(),
    ];
    for change in changes {
        let world = World::<BATCHING>::new();
        world.map_file(0, 4, Sharing::Shared);
        cache(&world.space, 1, 0..4);
        world.reclaim_while(move |space| {
            let find = || [0, 1, 2, 3].map(|page| touch(space, 1, page, Access::Read, 0));
            assert_eq!(find(), [Ok(0); 4], "it has not been told");
            change(space);
            assert_eq!(find(), [Err(Refused); 4]);
        });
        world.end();
    }
}

/// One thread writes where a page of the file was just taken from a private mapping, and so gets a
/// page of its own: another thread, on a CPU that still remembers the file's, must find what was
/// written.
#[test]
fn another_page_in_the_place_of_one_that_was_taken_is_seen_by_all() {
    let world = World::<BATCHING>::new();
    world.map_file(0, 1, Sharing::Private);
    read(&world.space, 1, 0).unwrap();
    world.reclaim_while(|space| {
        assert_eq!(touch(space, 1, 0, Access::Read, 0), Ok(0), "it has not been told");
        assert_eq!(write(space, 0, 0, 9), Ok(9));
        assert_eq!(read(space, 1, 0), Ok(9));
    });
    world.end();
}

/// Of pages that two spaces use, and as many that one does, the latter go first.
#[test]
fn what_is_used_more_goes_later() {
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
    // As many as are taken together, of the node's half of them.
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
fn to_look_whether_pages_were_used_flushes_nothing() {
    let world = World::<BATCHING>::new();
    world.map_file(0, 8, Sharing::Shared);
    cache(&world.space, 1, 0..8);
    world.host.take_flushes();
    assert_eq!(world.reclaim(), 8);
    // Each was looked at twice, and flushed once, when it went.
    let flushed = world.host.take_flushes();
    assert_eq!(flushed.len(), 8);
    assert!(flushed.iter().all(|change| change.cause == Cause::Reclaim));
    world.end();
}

fn what_is_not_needed_is_discarded_unless_it_is_written_again<const LOCK: u8>() {
    let world = World::<LOCK>::new();
    world.map_anonymous(0, 4);
    for page in 0..4 {
        write(&world.space, 1, page, page + 1).unwrap();
    }
    assert_eq!(world.reclaim(), 0, "there is nowhere to put it");
    world.space.advise(pages(0, 4), Advice::Free).unwrap();
    write(&world.space, 1, 2, 30).unwrap();
    assert_eq!(world.reclaim(), 3);
    world.host.check_caches();
    for (page, word) in [(0, 0), (1, 0), (2, 30), (3, 0)] {
        assert_eq!(read(&world.space, 0, page), Ok(word));
    }
    // Needed again, and not written since: it is not discarded on account of the old advice.
    assert_eq!(world.reclaim(), 0);
    assert_eq!(read(&world.space, 0, 2), Ok(30));
    world.end();
}

#[test]
fn what_is_not_needed_is_discarded_page_by_page() {
    what_is_not_needed_is_discarded_unless_it_is_written_again::<SHARED>();
}

#[test]
fn what_is_not_needed_is_discarded_in_batches() {
    what_is_not_needed_is_discarded_unless_it_is_written_again::<BATCHING>();
}

/// Only what is stored somewhere else can be taken, whoever asks for it.
#[test]
fn what_is_paged_out_comes_back_and_what_is_stored_nowhere_stays() {
    let world = World::<BATCHING>::new();
    world.map_file(0, 2, Sharing::Shared);
    let place = Place::Fixed(pages(10, 2));
    world.space.map(place, READ_WRITE, Sharing::Shared, Backing::Anonymous).unwrap();
    world.map_anonymous(20, 2);
    for page in [0, 1, 10, 11, 20, 21] {
        write(&world.space, 1, page, page + 1).unwrap();
    }
    let in_use = world.host.frames_in_use();
    world.space.advise(pages(0, 30), Advice::PageOut).unwrap_err();
    assert_eq!(world.host.frames_in_use(), in_use - 2);
    world.host.check_caches();
    for page in [0, 1, 10, 11, 20, 21] {
        assert_eq!(read(&world.space, 0, page), Ok(page + 1));
    }
    world.end();
}

/// What a CPU writes after the advice, by an entry that it remembers as written, leaves no mark
/// until the advice's own flush has reached it: reclaim must not take it for unneeded before.
#[test]
fn what_is_written_while_advice_is_on_its_way_is_kept() {
    let world = World::<BATCHING>::new();
    world.map_anonymous(0, 1);
    write(&world.space, 1, 0, 1).unwrap();
    // Said before: the page is discardable, and written since.
    world.space.advise(pages(0, 1), Advice::Free).unwrap();
    write(&world.space, 1, 0, 2).unwrap();
    let (host, other) = (world.host.clone(), Arc::clone(&world.space));
    host.when_waiting(move || {
        assert_eq!(touch(&other, 1, 0, Access::Write, 3), Ok(3), "it has not been told");
        for node in 0..NODES {
            other.vm().reclaim(node, EVERYTHING);
        }
    });
    world.space.advise(pages(0, 1), Advice::Free).unwrap();
    assert!(!host.hook_is_set(), "it did not wait");
    assert_eq!(read(&world.space, 0, 0), Ok(3));
    world.end();
}

#[test]
fn who_finds_no_memory_takes_it_from_files() {
    let world = World::<BATCHING>::with_frames(40);
    world.map_file(0, PAGES, Sharing::Shared);
    for round in 0..3 {
        for page in 0..PAGES {
            assert_eq!(write(&world.space, 0, page, page + round), Ok(page + round));
        }
    }
    assert!((0..PAGES).all(|page| read(&world.space, 1, page) == Ok(page + 2)));
    world.host.check_caches();
    world.end();
}

#[test]
fn when_nothing_can_be_taken_that_is_said_and_nothing_lost() {
    let world = World::<BATCHING>::with_frames(40);
    world.map_anonymous(0, PAGES);
    let out_of_memory = |page| write(&world.space, 0, page, page) == Err(FaultError::OutOfMemory);
    let full = (0..PAGES).find(|&page| out_of_memory(page)).expect("40 frames are not enough");
    assert_eq!(world.space.fork().err(), Some(shootdown_vm::OutOfMemory));
    assert!((0..full).all(|page| read(&world.space, 1, page) == Ok(page)));
    world.space.unmap(pages(0, 1)).unwrap();
    assert_eq!(write(&world.space, 0, full, full), Ok(full));
    world.end();
}

/// More spaces than a batch holds: it is flushed in between, and none is forgotten.
#[test]
fn a_page_of_more_spaces_than_a_batch_holds_is_taken_from_all() {
    let world = World::<BATCHING>::new();
    let vm = world.space.vm();
    let others: Vec<Batching> = (0..5).map(|_| AddressSpace::new(vm).unwrap()).collect();
    for (index, space) in others.iter().enumerate() {
        let backing = Backing::File { file: Arc::clone(&world.file), first_page: 0 };
        space.map(Place::Fixed(pages(0, 3)), READ, Sharing::Shared, backing).unwrap();
        cache(space, index % 3, 0..3);
    }
    assert_eq!(world.reclaim(), 3);
    world.host.check_caches();
    for space in &others {
        assert_eq!(read(space, 0, 1), Ok(0));
        space.exit();
    }
    drop(others);
    world.end();
}

/// The end of a space, and a fork, while its pages have been taken and are not flushed.
#[test]
fn a_space_may_fork_and_end_while_its_pages_are_taken() {
    let world = World::<BATCHING>::new();
    let space: Arc<Batching> = Arc::new(AddressSpace::new(world.space.vm()).unwrap());
    let backing = Backing::File { file: Arc::clone(&world.file), first_page: 0 };
    space.map(Place::Fixed(pages(0, 6)), READ, Sharing::Private, backing).unwrap();
    cache(&space, 1, 0..6);
    let ending = Arc::clone(&space);
    world.host.when_waiting(move || {
        let child = ending.fork().unwrap();
        ending.exit();
        assert!((0..6).all(|page| read(&child, 0, page) == Ok(0)));
        child.exit();
    });
    world.reclaim();
    assert!(!world.host.hook_is_set(), "it did not wait");
    drop(space);
    world.end();
}

/// Real threads that write to a shared file, each to words of its own pages, while others reclaim,
/// migrate, fork and discard: each finds in the end what it wrote last.
fn threads_find_what_they_wrote<const LOCK: u8>() {
    const ROUNDS: u64 = if cfg!(miri) { 20 } else { 3_000 };
    let world = World::<LOCK>::with_frames(64);
    world.map_file(0, 60, Sharing::Shared);
    world.map_anonymous(60, 20);
    thread::scope(|scope| {
        for cpu in 0..2 {
            let space = &world.space;
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
        let space = &world.space;
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
    world.host.check_caches();
    world.end();
}

#[test]
fn threads_find_what_they_wrote_page_by_page() {
    threads_find_what_they_wrote::<SHARED>();
}

#[test]
fn threads_find_what_they_wrote_in_batches() {
    threads_find_what_they_wrote::<BATCHING>();
}
