//! Concurrent operations at every interruption point of a collapse or a split: between any two of
//! its platform calls.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use shootdown_vm::{Access, Advice};

use crate::large::fixture::*;
use crate::platform::*;

/// Pages of block 1 that hold their numbers. The others were never touched.
const WRITTEN: Range<u64> = BLOCK + 3..BLOCK + 9;
/// One of them, whose contents are not needed.
const FREED_BY_ADVICE: u64 = BLOCK + 8;
/// One of them, and the value that other CPUs write to it.
const SHARED_PAGE: u64 = BLOCK + 5;
const NEW: u64 = 77;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pages {
    Small,
    Large,
}

fn fixture<const LOCK: u8>(pages: Pages) -> Fixture<LOCK> {
    let fixture = Fixture::<LOCK>::with_reclaim();
    fixture.map(at(0, 3 * BLOCK));
    for page in WRITTEN {
        write(&fixture.space, 1, page, page);
        assert_eq!(read(&fixture.space, 2, page), page);
    }
    match pages {
        Pages::Small => fixture.space.advise(at(FREED_BY_ADVICE, 1), Advice::Free).unwrap(),
        Pages::Large => {
            assert_eq!(fixture.space.collapse(block(1)), Ok(1));
            // CPU 1 has cached the page as writable, CPU 2 only as readable.
            write(&fixture.space, 1, WRITTEN.start, WRITTEN.start);
            assert_eq!(read(&fixture.space, 2, WRITTEN.start), WRITTEN.start);
        }
    }
    fixture
}

/// Operations of CPUs that hold no lock. A write may be refused; an accepted write must not be
/// lost.
#[derive(Clone, Copy, Debug)]
enum Concurrent {
    /// A write by a CPU that has cached the page, or by one that must walk.
    Write {
        cpu: usize,
    },
    Read,
    Reclaim,
}

const CONCURRENT: [Concurrent; 4] = [
    Concurrent::Write { cpu: 1 },
    Concurrent::Write { cpu: 0 },
    Concurrent::Read,
    Concurrent::Reclaim,
];

impl Concurrent {
    fn perform<const LOCK: u8>(self, space: &OurSpace<LOCK>, last: &AtomicU64) {
        match self {
            Self::Write { cpu } => {
                if touch(space, cpu, SHARED_PAGE, Access::Write, NEW).is_ok() {
                    last.store(NEW, Relaxed);
                }
            }
            Self::Read => {
                for page in WRITTEN {
                    let word = touch(space, 2, page, Access::Read, 0);
                    assert!(word.is_err() || word == Ok(page), "{word:?} in page {page}");
                }
            }
            Self::Reclaim => {
                (0..NODES).for_each(|node| assert!(space.vm().reclaim(node, 9).freed < 9));
            }
        }
    }
}

/// Runs `operation` on pages in a given state, once for each interruption point and concurrent
/// operation.
fn at_every_point<const LOCK: u8>(
    pages: Pages,
    operation: impl Fn(&OurSpace<LOCK>),
    stays: impl Fn(u64) -> bool,
) {
    for concurrent in CONCURRENT {
        let interrupts_at = |point: &u64| {
            let fixture = fixture::<LOCK>(pages);
            let last = Arc::new(AtomicU64::new(SHARED_PAGE));
            let (other, last_there) = (Arc::clone(&fixture.space), Arc::clone(&last));
            let hook = move || concurrent.perform(&other, &last_there);
            fixture.host.interrupt_after(*point, hook);
            operation(&fixture.space);
            let is_complete = fixture.host.cancel_interruption();
            check(&fixture, last.load(Relaxed), &stays);
            fixture.end();
            !is_complete
        };
        let count = (0..).take_while(interrupts_at).count();
        assert!(count > 500, "{concurrent:?}: only {count} points");
    }
}

/// Checks that all CPUs find the last written values.
fn check<const LOCK: u8>(fixture: &Fixture<LOCK>, last: u64, stays: impl Fn(u64) -> bool) {
    fixture.host.check_caches();
    for page in WRITTEN.start - 1..=WRITTEN.end {
        let words = [0, 1, 2].map(|cpu| read(&fixture.space, cpu, page));
        assert!(words.iter().all(|&word| word == words[0]), "CPUs read {words:?} in page {page}");
        match page {
            _ if !WRITTEN.contains(&page) || !stays(page) => assert_eq!(words[0], 0),
            SHARED_PAGE => assert_eq!(words[0], last),
            FREED_BY_ADVICE => assert!([0, page].contains(&words[0])),
            _ => assert_eq!(words[0], page),
        }
    }
}

fn collapse_loses_no_write<const LOCK: u8>() {
    let collapse = |space: &OurSpace<LOCK>| assert_eq!(space.collapse(block(1)), Ok(1));
    at_every_point(Pages::Small, collapse, |_| true);
}

#[test]
fn collapse_loses_no_write_with_reclaim() {
    collapse_loses_no_write::<SHARED>();
}

#[test]
fn collapse_loses_no_write_with_batched_reclaim() {
    collapse_loses_no_write::<BATCHING>();
}

#[test]
fn split_loses_no_write() {
    let protect = |space: &OurSpace<RELEASED>| space.protect(at(BLOCK, 4), READ).unwrap();
    at_every_point(Pages::Large, protect, |_| true);
    let discard = |space: &OurSpace<BATCHING>| {
        space.advise(at(BLOCK, 4), Advice::DontNeed).unwrap();
    };
    at_every_point(Pages::Large, discard, |page| page >= BLOCK + 4);
}

/// Collapses during reclaim. The reverse is not tested, because a lock prevents it.
fn collapse_during_reclaim_is_safe<const LOCK: u8>() {
    let interrupts_at = |point: &u64| {
        let fixture = fixture::<LOCK>(Pages::Small);
        let other = Arc::clone(&fixture.space);
        fixture.host.interrupt_after(*point, move || {
            assert_eq!(other.collapse(block(1)), Ok(1));
            other.advise(at(BLOCK, 4), Advice::Free).unwrap();
            assert_eq!(other.collapse(block(1)), Ok(1));
        });
        (0..NODES).for_each(|node| assert!(fixture.space.vm().reclaim(node, 9).freed < 9));
        let is_complete = fixture.host.cancel_interruption();
        check(&fixture, SHARED_PAGE, |_| true);
        fixture.end();
        !is_complete
    };
    // Few points are found, because reclaim holds the lock of a record most of the time.
    let count = (0..).take_while(interrupts_at).count();
    assert!(count > 1, "only {count} points");
}

#[test]
fn collapse_during_reclaim_is_safe_page_by_page() {
    collapse_during_reclaim_is_safe::<RELEASED>();
}

#[test]
fn collapse_during_reclaim_is_safe_in_batches() {
    collapse_during_reclaim_is_safe::<BATCHING>();
}

/// The discard holds the lock for reading. Another call may discard the large page first, and a
/// fault may link a table, which the first call must not mistake for the large page.
#[test]
fn concurrent_discards_of_large_page_are_safe() {
    for (first, second) in
        [(block(1), block(1)), (block(1), at(BLOCK, 4)), (at(BLOCK, 4), block(1))]
    {
        let interrupts_at = |point: &u64| {
            let fixture = fixture::<SHARED>(Pages::Large);
            if first != second {
                // Split before the two calls meet, because a split needs the lock for writing.
                fixture.space.advise(at(BLOCK, 1), Advice::DontNeed).unwrap();
            }
            let (other, range) = (Arc::clone(&fixture.space), second.clone());
            fixture.host.interrupt_after(*point, move || {
                other.advise(range, Advice::DontNeed).unwrap();
                let how = Access::Write;
                other.fault(at(SHARED_PAGE, 1).start, how).unwrap();
                let _ = touch(&other, 1, SHARED_PAGE, how, NEW);
            });
            fixture.space.advise(first.clone(), Advice::DontNeed).unwrap();
            let is_complete = fixture.host.cancel_interruption();
            fixture.host.check_caches();
            let words = [0, 1, 2].map(|cpu| read(&fixture.space, cpu, SHARED_PAGE));
            assert!(words == [words[0]; 3] && [0, NEW, SHARED_PAGE].contains(&words[0]));
            assert!(words[0] != SHARED_PAGE || is_complete && first != block(1));
            fixture.end();
            !is_complete
        };
        assert!((0..).take_while(interrupts_at).count() > 5);
    }
}

#[test]
fn large_page_discarded_during_fault_is_safe() {
    let interrupts_at = |point: &u64| {
        let fixture = fixture::<SHARED>(Pages::Large);
        let other = Arc::clone(&fixture.space);
        fixture.host.interrupt_after(*point, move || {
            other.advise(block(1), Advice::DontNeed).unwrap();
        });
        fixture.space.fault(at(SHARED_PAGE, 1).start, Access::Write).unwrap();
        let is_complete = fixture.host.cancel_interruption();
        check(&fixture, SHARED_PAGE, |_| is_complete);
        fixture.end();
        !is_complete
    };
    assert!((0..).take_while(interrupts_at).count() > 2);
}
