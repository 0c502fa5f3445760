//! What others do at every moment of a collapse or a split: between any two of its calls of the
//! platform.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use shootdown_vm::{Access, Advice};

use crate::large::world::*;
use crate::platform::*;

/// Pages of block 1 that hold their numbers. The others were never touched.
const WRITTEN: Range<u64> = BLOCK + 3..BLOCK + 9;
/// One of them, which nobody needs.
const GIVEN_UP: u64 = BLOCK + 8;
/// One of them, and what others write there.
const SHARED_PAGE: u64 = BLOCK + 5;
const NEW: u64 = 77;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pages {
    Small,
    Large,
}

fn world<const LOCK: u8>(pages: Pages) -> World<LOCK> {
    let world = World::<LOCK>::with_reclaim();
    world.map(at(0, 3 * BLOCK));
    for page in WRITTEN {
        write(&world.space, 1, page, page);
        assert_eq!(read(&world.space, 2, page), page);
    }
    match pages {
        Pages::Small => world.space.advise(at(GIVEN_UP, 1), Advice::Free).unwrap(),
        Pages::Large => {
            assert_eq!(world.space.collapse(block(1)), Ok(1));
            // CPU 1 may write to it, CPU 2 has not asked yet.
            write(&world.space, 1, WRITTEN.start, WRITTEN.start);
            assert_eq!(read(&world.space, 2, WRITTEN.start), WRITTEN.start);
        }
    }
    world
}

/// What CPUs do that hold no lock. A write may be refused; if it is not, it must not be lost.
#[derive(Clone, Copy, Debug)]
enum Meanwhile {
    /// By a CPU that knows the page, or by one that has to look.
    Write {
        cpu: usize,
    },
    Read,
    Reclaim,
}

const MEANWHILE: [Meanwhile; 4] =
    [Meanwhile::Write { cpu: 1 }, Meanwhile::Write { cpu: 0 }, Meanwhile::Read, Meanwhile::Reclaim];

impl Meanwhile {
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

/// Does `operation` with pages that are `pages` at first, and the other at every moment of it.
fn at_every_moment<const LOCK: u8>(
    pages: Pages,
    operation: impl Fn(&OurSpace<LOCK>),
    stays: impl Fn(u64) -> bool,
) {
    for meanwhile in MEANWHILE {
        let comes_at = |moment: &u64| {
            let world = world::<LOCK>(pages);
            let last = Arc::new(AtomicU64::new(SHARED_PAGE));
            let (other, last_there) = (Arc::clone(&world.space), Arc::clone(&last));
            let hook = move || meanwhile.perform(&other, &last_there);
            world.host.interrupt_after(*moment, hook);
            operation(&world.space);
            let is_over = world.host.cancel_interruption();
            check(&world, last.load(Relaxed), &stays);
            world.end();
            !is_over
        };
        let count = (0..).take_while(comes_at).count();
        assert!(count > 500, "{meanwhile:?}: {count} moments are not all");
    }
}

/// That all CPUs find what was written last.
fn check<const LOCK: u8>(world: &World<LOCK>, last: u64, stays: impl Fn(u64) -> bool) {
    world.host.check_caches();
    for page in WRITTEN.start - 1..=WRITTEN.end {
        let words = [0, 1, 2].map(|cpu| read(&world.space, cpu, page));
        assert!(words.iter().all(|&word| word == words[0]), "CPUs see {words:?} in page {page}");
        match page {
            _ if !WRITTEN.contains(&page) || !stays(page) => assert_eq!(words[0], 0),
            SHARED_PAGE => assert_eq!(words[0], last),
            GIVEN_UP => assert!([0, page].contains(&words[0])),
            _ => assert_eq!(words[0], page),
        }
    }
}

fn no_write_is_lost_while_pages_become_one<const LOCK: u8>() {
    let collapse = |space: &OurSpace<LOCK>| assert_eq!(space.collapse(block(1)), Ok(1));
    at_every_moment(Pages::Small, collapse, |_| true);
}

#[test]
fn no_write_is_lost_while_pages_become_one_and_others_go_page_by_page() {
    no_write_is_lost_while_pages_become_one::<SHARED>();
}

#[test]
fn no_write_is_lost_while_pages_become_one_and_others_go_in_batches() {
    no_write_is_lost_while_pages_become_one::<BATCHING>();
}

#[test]
fn no_write_is_lost_while_a_page_is_split() {
    let protect = |space: &OurSpace<RELEASED>| space.protect(at(BLOCK, 4), READ).unwrap();
    at_every_moment(Pages::Large, protect, |_| true);
    let discard = |space: &OurSpace<BATCHING>| {
        space.advise(at(BLOCK, 4), Advice::DontNeed).unwrap();
    };
    at_every_moment(Pages::Large, discard, |page| page >= BLOCK + 4);
}

/// The other way round, where a lock does not keep them apart.
fn a_collapse_comes_at_every_moment_of_reclaim<const LOCK: u8>() {
    let comes_at = |moment: &u64| {
        let world = world::<LOCK>(Pages::Small);
        let other = Arc::clone(&world.space);
        world.host.interrupt_after(*moment, move || {
            assert_eq!(other.collapse(block(1)), Ok(1));
            other.advise(at(BLOCK, 4), Advice::Free).unwrap();
            assert_eq!(other.collapse(block(1)), Ok(1));
        });
        (0..NODES).for_each(|node| assert!(world.space.vm().reclaim(node, 9).freed < 9));
        let is_over = world.host.cancel_interruption();
        check(&world, SHARED_PAGE, |_| true);
        world.end();
        !is_over
    };
    // Most of what reclaim does, it does with a record locked.
    let count = (0..).take_while(comes_at).count();
    assert!(count > 1, "{count} moments are not all");
}

#[test]
fn a_collapse_comes_at_every_moment_of_reclaim_page_by_page() {
    a_collapse_comes_at_every_moment_of_reclaim::<RELEASED>();
}

#[test]
fn a_collapse_comes_at_every_moment_of_reclaim_in_batches() {
    a_collapse_comes_at_every_moment_of_reclaim::<BATCHING>();
}

/// Under the lock for reading: another call may discard the large page first, and a fault put a
/// table there that is not to be taken for it.
#[test]
fn a_large_page_is_discarded_at_every_moment_of_being_discarded() {
    for (first, second) in
        [(block(1), block(1)), (block(1), at(BLOCK, 4)), (at(BLOCK, 4), block(1))]
    {
        let comes_at = |moment: &u64| {
            let world = world::<SHARED>(Pages::Large);
            if first != second {
                // Before they meet: a split needs the lock for writing.
                world.space.advise(at(BLOCK, 1), Advice::DontNeed).unwrap();
            }
            let (other, range) = (Arc::clone(&world.space), second.clone());
            world.host.interrupt_after(*moment, move || {
                other.advise(range, Advice::DontNeed).unwrap();
                let how = Access::Write;
                other.fault(at(SHARED_PAGE, 1).start, how).unwrap();
                let _ = touch(&other, 1, SHARED_PAGE, how, NEW);
            });
            world.space.advise(first.clone(), Advice::DontNeed).unwrap();
            let is_over = world.host.cancel_interruption();
            world.host.check_caches();
            let words = [0, 1, 2].map(|cpu| read(&world.space, cpu, SHARED_PAGE));
            assert!(words == [words[0]; 3] && [0, NEW, SHARED_PAGE].contains(&words[0]));
            assert!(words[0] != SHARED_PAGE || is_over && first != block(1));
            world.end();
            !is_over
        };
        assert!((0..).take_while(comes_at).count() > 5);
    }
}

#[test]
fn a_large_page_is_discarded_at_every_moment_of_a_fault() {
    let comes_at = |moment: &u64| {
        let world = world::<SHARED>(Pages::Large);
        let other = Arc::clone(&world.space);
        world.host.interrupt_after(*moment, move || {
            other.advise(block(1), Advice::DontNeed).unwrap();
        });
        world.space.fault(at(SHARED_PAGE, 1).start, Access::Write).unwrap();
        let is_over = world.host.cancel_interruption();
        check(&world, SHARED_PAGE, |_| is_over);
        world.end();
        !is_over
    };
    assert!((0..).take_while(comes_at).count() > 2);
}
