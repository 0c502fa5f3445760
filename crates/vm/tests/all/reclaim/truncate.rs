//! Truncation of a stored file: the mappings that lose pages, the flushes, and concurrent calls.

use std::sync::Arc;

use super::fixture::*;
use crate::platform::*;
use shootdown_vm::{AddressSpace, Advice, Backing, Place, Sharing};

/// Reads or writes the stored word of a page.
fn stored<const LOCK: u8>(fixture: &Fixture<LOCK>, number: u64) -> u64 {
    fixture.host.stored(FILE, number)
}

#[test]
fn truncate_unmaps_pages_everywhere_with_one_flush_each() {
    let fixture = Fixture::<BATCHING>::new();
    let (space, vm) = (&fixture.space, fixture.space.vm().clone());
    fixture.map_file(0, 6, Sharing::Shared);
    fixture.map_file(10, 6, Sharing::Private);
    let child = space.fork().unwrap();
    for page in 0..6 {
        write(space, 1, page, page + 40).unwrap();
    }
    cache(&child, 2, 1..6);
    write(space, 1, 10 + 4, 9).unwrap();
    read(space, 1, 10 + 5).unwrap();
    fixture.host.take_flushes();
    vm.truncate(&fixture.file, 2);
    let flushes = fixture.host.take_flushes();
    let mut ranges: Vec<_> = flushes.into_iter().map(|change| change.range.unwrap()).collect();
    ranges.sort_by_key(|range| (range.start, range.end));
    // The child and its parent, and the private mapping.
    assert_eq!(ranges, [pages(2, 4), pages(2, 4), pages(15, 1)]);
    fixture.host.check_caches();
    assert_eq!(fixture.file.resident_pages(), 2);
    let words = |space, first: u64| [1, 2, 4, 5].map(|page| read(space, 2, first + page).unwrap());
    assert_eq!((words(space, 0), words(&child, 0)), ([41, 0, 0, 0], [41, 0, 0, 0]));
    assert_eq!(words(space, 10), [41, 0, 9, 0], "a copy stays");
    write(&child, 2, 5, 7).unwrap();
    assert_eq!(read(space, 1, 5), Ok(7), "the file goes on without an end");
    child.exit();
    fixture.end();
}

/// The page that a write copied is in memory, and mapped nowhere.
#[test]
fn truncate_removes_page_that_was_only_copied() {
    let fixture = Fixture::<BATCHING>::new();
    fixture.map_file(0, 1, Sharing::Private);
    write(&fixture.space, 1, 0, 5).unwrap();
    assert_eq!(fixture.file.resident_pages(), 1);
    fixture.space.vm().truncate(&fixture.file, 0);
    assert_eq!(fixture.file.resident_pages(), 0);
    assert_eq!(read(&fixture.space, 1, 0), Ok(5));
    fixture.end();
}

#[test]
fn truncate_drops_stored_data() {
    let fixture = Fixture::<SHARED>::new();
    fixture.map_file(0, 4, Sharing::Shared);
    for page in 0..4 {
        write(&fixture.space, 0, page, page + 40).unwrap();
    }
    fixture.space.advise(pages(0, 4), Advice::PageOut).unwrap();
    read(&fixture.space, 0, 3).unwrap();
    assert_eq!([0, 2, 3].map(|page| stored(&fixture, page)), [40, 42, 43]);
    fixture.space.vm().truncate(&fixture.file, 1);
    assert_eq!([0, 2, 3].map(|page| stored(&fixture, page)), [40, 0, 0]);
    assert_eq!([0, 2, 3].map(|page| read(&fixture.space, 0, page)), [Ok(40), Ok(0), Ok(0)]);
    fixture.end();
}

/// No page is freed before the flush: a CPU with the old translation still uses the old page.
#[test]
fn truncated_page_is_freed_after_flush() {
    let fixture = Fixture::<SHARED>::new();
    fixture.map_file(0, 2, Sharing::Shared);
    write(&fixture.space, 1, 0, 5).unwrap();
    let other = Arc::clone(&fixture.space);
    fixture.host.when_waiting(move || {
        // The machine checks that the frame of a cached translation has not been freed.
        assert!(matches!(read(&other, 1, 0), Ok(0 | 5)));
        // A new page takes the place of the old one, and is flushed with it.
        assert_eq!(write(&other, 0, 0, 6), Ok(6));
    });
    fixture.space.vm().truncate(&fixture.file, 0);
    assert!(!fixture.host.hook_is_set(), "the call did not wait");
    fixture.host.check_caches();
    assert_eq!([0, 1, 2].map(|cpu| read(&fixture.space, cpu, 0)), [Ok(6); 3]);
    fixture.end();
}

/// A child that inherits a mapping during the call loses it also.
#[test]
fn fork_during_truncate_inherits_no_page() {
    let fixture = Fixture::<SHARED>::new();
    fixture.map_file(0, 3, Sharing::Shared);
    cache(&fixture.space, 1, 0..3);
    let vm = fixture.space.vm().clone();
    let second: OurSpace<SHARED> = AddressSpace::new(&vm).unwrap();
    let backing = Backing::File { file: Arc::clone(&fixture.file), first_page: 0 };
    second.map(Place::Fixed(pages(0, 3)), READ_WRITE, Sharing::Shared, backing).unwrap();
    cache(&second, 2, 0..3);
    let (other, children) = (Arc::new(second), Arc::new(std::sync::Mutex::new(Vec::new())));
    let (forked, kept) = (Arc::clone(&other), Arc::clone(&children));
    fixture.host.when_waiting(move || kept.lock().unwrap().push(forked.fork().unwrap()));
    vm.truncate(&fixture.file, 0);
    let child = children.lock().unwrap().pop().unwrap();
    fixture.host.check_caches();
    write(&other, 2, 1, 8).unwrap();
    assert_eq!((read(&child, 0, 1), read(&fixture.space, 1, 1)), (Ok(8), Ok(8)));
    child.exit();
    other.exit();
    drop((child, other));
    fixture.end();
}

/// Threads write words and truncate, and memory is short: no word comes back.
#[test]
fn threads_find_no_word_from_before_truncation() {
    let fixture = Fixture::<BATCHING>::with_frames(40);
    fixture.map_file(0, 24, Sharing::Shared);
    let (vm, space) = (fixture.space.vm().clone(), &fixture.space);
    std::thread::scope(|scope| {
        // Uses other pages of the file, so that pages are reclaimed all the time.
        scope.spawn(|| {
            run_on(1);
            for round in 0..if cfg!(miri) { 20 } else { 2000 } {
                for page in 8..24 {
                    let _ = write(space, 1, page, round);
                }
            }
        });
        scope.spawn(|| {
            run_on(0);
            for round in 1..if cfg!(miri) { 20 } else { 1000 } {
                for page in 0..8 {
                    assert_eq!(read(space, 0, page), Ok(0), "round {round}, page {page}");
                    write(space, 0, page, round).unwrap();
                }
                space.advise(pages(0, 4), Advice::PageOut).unwrap();
                vm.truncate(&fixture.file, 0);
            }
        });
    });
    fixture.host.check_caches();
    drop(vm);
    fixture.end();
}
