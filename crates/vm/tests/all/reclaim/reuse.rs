//! Pages of files that are flushed when their frames are reused.

use std::sync::Arc;

use shootdown_vm::{Access, Advice, Protection, Sharing};

use super::fixture::*;
use crate::platform::*;

/// An eighth of this many listed pages may wait.
const LISTED: u64 = 64;
const WAITING: u64 = LISTED / 8;

/// Pages of a file, which CPU 1 has cached and cannot write. The first `count` are paged out.
fn paged_out(count: u64) -> Fixture<REUSING> {
    let fixture = Fixture::<REUSING>::new();
    fixture.map_file(0, LISTED, Sharing::Private);
    cache(&fixture.space, 1, 0..LISTED);
    fixture.host.take_flushes();
    fixture.space.advise(pages(0, count), Advice::PageOut).unwrap();
    fixture
}

fn stale(fixture: &Fixture<REUSING>, page: u64) -> Result<u64, PageFault> {
    touch(&fixture.space, 1, page, Access::Read, 0)
}

#[test]
fn clean_pages_wait_up_to_the_limit() {
    let fixture = paged_out(WAITING);
    assert!(fixture.host.take_flushes().is_empty());
    assert_eq!(stale(&fixture, 0), Ok(0), "no CPU was notified");
    assert_eq!(fixture.file.resident_pages(), LISTED as usize);
    assert_eq!(fixture.reclaim(), LISTED as usize);
    assert_eq!(stale(&fixture, 0), Err(PageFault));
    fixture.end();

    let fixture = paged_out(WAITING + 1);
    assert_eq!(fixture.host.take_flushes().len(), WAITING as usize + 1);
    assert_eq!(stale(&fixture, 0), Err(PageFault));
    assert_eq!(fixture.file.resident_pages(), (LISTED - WAITING - 1) as usize);
    fixture.end();
}

/// A CPU with the old translation reads the frame until it is notified.
#[test]
fn frame_is_free_after_its_flush() {
    let fixture = paged_out(WAITING);
    let read = |space: &OurSpace<REUSING>| touch(space, 1, 0, Access::Read, 0);
    fixture.reclaim_while(move |space| assert_eq!(read(space), Ok(0)));
    assert_eq!(stale(&fixture, 0), Err(PageFault));
    fixture.end();
}

#[test]
fn page_that_can_be_written_does_not_wait() {
    let fixture = Fixture::<REUSING>::new();
    fixture.map_file(0, LISTED, Sharing::Shared);
    cache(&fixture.space, 1, 0..LISTED);
    fixture.host.take_flushes();
    fixture.space.advise(pages(0, 1), Advice::PageOut).unwrap();
    assert_eq!(fixture.host.take_flushes().len(), 1);
    assert_eq!(stale(&fixture, 0), Err(PageFault));
    fixture.end();
}

/// A page whose protection is being removed counts as writable until that is flushed.
#[test]
fn page_that_becomes_writable_meanwhile_is_flushed_alone() {
    let interrupts_at = |point: &u64| {
        let fixture = Fixture::<REUSING>::new();
        fixture.map_file(0, LISTED, Sharing::Shared);
        fixture.space.protect(pages(0, LISTED), READ).unwrap();
        cache(&fixture.space, 1, 0..LISTED);
        let other = Arc::clone(&fixture.space);
        fixture.host.interrupt_after(*point, move || {
            other.protect(pages(0, 1), READ_WRITE).unwrap();
            write(&other, 1, 0, 7).unwrap();
        });
        fixture.reclaim();
        let is_complete = fixture.host.cancel_interruption();
        fixture.reclaim();
        fixture.host.check_caches();
        let written = if is_complete { 0 } else { 7 };
        assert_eq!(read(&fixture.space, 2, 0), Ok(written), "point {point}");
        fixture.end();
        !is_complete
    };
    assert!((0..).take_while(interrupts_at).count() > 5);
}

#[test]
fn page_that_is_mapped_again_stays() {
    let fixture = paged_out(WAITING);
    assert_eq!(read(&fixture.space, 0, 0), Ok(0));
    assert!(fixture.host.take_flushes().is_empty(), "it is the same page");
    // Unmapped a second time, the page is in two batches.
    fixture.space.advise(pages(0, 1), Advice::PageOut).unwrap();
    assert_eq!(read(&fixture.space, 2, 0), Ok(0));
    fixture.reclaim();
    fixture.host.check_caches();
    assert_eq!(read(&fixture.space, 2, 0), Ok(0));
    fixture.end();
}

#[test]
fn operation_on_waiting_page_flushes_it() {
    type Change = fn(&OurSpace<REUSING>);
    let changes: [Change; 4] = [
        |space| space.unmap(pages(0, 4)).unwrap(),
        |space| space.protect(pages(0, 4), Protection::empty()).unwrap(),
        |space| space.advise(pages(0, 4), Advice::DontNeed).unwrap(),
        |space| space.remap(pages(0, 4), pages(LISTED, 4)).unwrap(),
    ];
    for change in changes {
        let fixture = paged_out(WAITING);
        assert_eq!(stale(&fixture, 3), Ok(0), "no CPU was notified");
        change(&fixture.space);
        assert_eq!([0, 1, 2, 3].map(|page| stale(&fixture, page)), [Err(PageFault); 4]);
        fixture.end();
    }
}

#[test]
fn write_to_waiting_page_is_visible_to_all_cpus() {
    let fixture = paged_out(WAITING);
    assert_eq!(write(&fixture.space, 0, 0, 9), Ok(9));
    assert_eq!(read(&fixture.space, 1, 0), Ok(9));
    fixture.end();
}

#[test]
fn space_may_end_while_its_pages_wait() {
    let fixture = paged_out(WAITING);
    let in_use = fixture.host.frames_in_use();
    fixture.space.exit();
    assert!(fixture.host.frames_in_use() < in_use);
    assert_eq!(fixture.file.resident_pages(), LISTED as usize);
    fixture.end();
}

/// A failed allocation flushes the waiting pages before it reclaims others.
#[test]
fn allocation_takes_waiting_pages_first() {
    let fixture = paged_out(WAITING);
    fixture.map_anonymous(LISTED, WAITING);
    fixture.host.limit_frames(0);
    for page in 0..WAITING {
        write(&fixture.space, 0, LISTED + page, page).unwrap();
    }
    let resident = fixture.file.resident_pages() as u64;
    assert_eq!(resident, LISTED - WAITING, "the waiting pages were enough");
    fixture.host.check_caches();
    fixture.end();
}
