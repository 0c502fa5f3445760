use super::*;
use crate::base::ids::CpuId;
use crate::soft::{Config, Host, Platform, Soft};
use crate::state::engine::Shootdown;
use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicU64, Ordering};
use std::boxed::Box;
use std::rc::Rc;
use std::vec::Vec;

std::thread_local! {
    static CLAIMS: Cell<usize> = const { Cell::new(0) };
    static STORE_HOOK: RefCell<Option<StoreHook>> = const { RefCell::new(None) };
}

/// A number of stores, and a hook that runs after the last of them.
type StoreHook = (usize, Box<dyn FnOnce()>);

/// A word that counts its compare-and-swaps in `CLAIMS`, and runs the hook of its stores.
struct HookedWord(AtomicU64);

impl Word for HookedWord {
    fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }
    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
        let next = STORE_HOOK.take();
        match next {
            Some((1, hook)) => hook(),
            Some((stores, hook)) => STORE_HOOK.set(Some((stores - 1, hook))),
            None => {}
        }
    }
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.0.swap(value, order)
    }
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_add(value, order)
    }
    fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_or(value, order)
    }
    fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_and(value, order)
    }
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        CLAIMS.set(CLAIMS.get() + 1);
        self.0.compare_exchange(current, new, success, failure)
    }
}

struct HookedHost;

impl Platform for HookedHost {
    type Word = HookedWord;
    type Frame = AtomicU64;
    fn fence() {
        Host::fence();
    }
    fn spin_hint() {
        Host::spin_hint();
    }
    fn cpu() -> CpuId {
        Host::cpu()
    }
    fn set_cpu(cpu: CpuId) {
        Host::set_cpu(cpu);
    }
}

type Machine = Soft<HookedHost>;

/// A log and its machine.
struct Log {
    engine: Shootdown<Machine>,
    log: FlushLog<Machine>,
}

use Cause::{Explicit, Reclaim};

impl Log {
    fn new() -> Self {
        Self { engine: Machine::engine(Config::default()), log: FlushLog::default() }
    }

    /// Logs `pages` pages, at an address that depends on the generation.
    fn record(&self, generation: u64, pages: usize, cause: Cause) {
        let extent = pages_at(generation, pages);
        self.log.record(self.engine.machine(), generation, extent, cause);
    }

    fn read(&self, generation: u64) -> Option<(Extent, Cause)> {
        self.log.read(self.engine.machine(), generation)
    }

    fn missed(&self, seen: u64, now: u64, explicit: usize, all: usize) -> Missed {
        let ceiling = Ceiling { explicit, reclaim: all, all };
        self.log.missed(self.engine.machine(), seen, now, ceiling)
    }

    /// Number of extents that a CPU has missed; `None` for everything.
    fn missed_count(&self, seen: u64, now: u64, explicit: usize, all: usize) -> Option<usize> {
        match self.missed(seen, now, explicit, all) {
            Missed::Ranges(ranges) => Some(ranges.count()),
            Missed::Everything => None,
        }
    }
}

/// An extent of `pages` pages that overlaps no other generation's extent.
fn pages_at(generation: u64, pages: usize) -> Extent {
    Extent::pages(generation << 20, pages, crate::parts::extent::PageSize::SIZE_4K)
}

#[test]
fn entry_is_claimed_at_the_first_attempt() {
    for cause in [Explicit, Reclaim] {
        let log = Log::new();
        CLAIMS.set(0);
        (1..=100).for_each(|generation| log.record(generation, 1, cause));
        assert_eq!(CLAIMS.get(), 100);
    }
}

#[test]
fn entry_of_another_cause_is_overwritten() {
    let log = Log::new();
    for (generation, cause) in [(1, Explicit), (17, Reclaim), (33, Explicit)] {
        log.record(generation, 1, cause);
        assert_eq!(log.read(generation), Some((pages_at(generation, 1), cause)));
    }
    assert_eq!(log.read(17), None);
}

#[test]
fn writer_overtaken_by_sixteen_generations_logs_nothing() {
    let log = Log::new();
    log.record(17, 1, Explicit);
    log.record(1, 1, Explicit);
    assert_eq!((log.read(1), log.read(17)), (None, Some((pages_at(17, 1), Explicit))));
}

/// If it logged, the entry would pair the stamp of one flush with the extent of the other.
#[test]
fn second_writer_of_an_entry_logs_nothing() {
    for cause in [Explicit, Reclaim] {
        let log = Rc::new(Log::new());
        let other = Rc::clone(&log);
        // Between the stores of the extent and of the stamp.
        STORE_HOOK.set(Some((1, Box::new(move || other.record(17, 1, Explicit)))));
        log.record(1, 1, cause);
        assert_eq!((log.read(1), log.read(17)), (Some((pages_at(1, 1), cause)), None));
    }
}

#[test]
fn log_reaches_back_sixteen_flushes() {
    let log = Log::new();
    (1..=20).for_each(|generation| log.record(generation, 1, Explicit));
    assert_eq!(log.missed_count(4, 20, 33, 33), Some(16));
    assert_eq!(log.missed_count(3, 20, 33, 33), None);
    // A CPU that has missed nothing reads no entry.
    assert_eq!(log.missed_count(20, 20, 33, 33), Some(0));
    let Missed::Ranges(ranges) = log.missed(17, 20, 33, 33) else {
        panic!("the entries are in the log")
    };
    let expected = [18, 19, 20].map(|generation| pages_at(generation, 1));
    assert_eq!(ranges.iter().collect::<Vec<_>>(), expected);
    let one = Missed::Ranges(Ranges::One(pages_at(20, 1)));
    assert_eq!(log.missed(19, 20, 33, 33), one);
    // Flush 21 is counted, and not yet logged.
    assert_eq!(log.missed_count(20, 21, 33, 33), None);
}

#[test]
fn pages_beyond_a_ceiling_drop_everything() {
    let log = Log::new();
    log.record(1, 4, Explicit);
    assert_eq!((log.missed_count(0, 1, 4, 4), log.missed_count(0, 1, 3, 3)), (Some(1), None));
    log.record(2, 4, Reclaim);
    assert_eq!((log.missed_count(0, 2, 4, 8), log.missed_count(0, 2, 4, 7)), (Some(2), None));
    // The explicit pages are those of flush 1.
    assert_eq!((log.missed_count(0, 2, 3, 8), log.missed_count(1, 2, 3, 4)), (None, Some(1)));
    log.record(3, 2, Explicit);
    assert_eq!((log.missed_count(0, 3, 6, 10), log.missed_count(0, 3, 5, 10)), (Some(3), None));
}

#[test]
fn each_cause_has_its_own_ceiling() {
    let log = Log::new();
    let ceiling = Ceiling { explicit: 3, reclaim: 4, all: 6 };
    let count = |seen, now| match log.log.missed(log.engine.machine(), seen, now, ceiling) {
        Missed::Ranges(ranges) => Some(ranges.count()),
        Missed::Everything => None,
    };
    for (generation, pages, cause) in
        [(1, 3, Explicit), (2, 4, Reclaim), (3, 2, Explicit), (4, 4, Explicit), (5, 5, Reclaim)]
    {
        log.record(generation, pages, cause);
    }
    let one = [0, 1, 2, 3, 4].map(|seen| count(seen, seen + 1));
    assert_eq!(one, [Some(1), Some(1), Some(1), None, None]);
    assert_eq!((count(1, 3), count(0, 2)), (Some(2), None), "6 pages and 7 pages");
}

#[test]
fn extent_missed_twice_is_returned_once() {
    let log = Log::new();
    let machine = log.engine.machine();
    for (generation, pages) in [(1, 2), (2, 1), (3, 3)] {
        log.log.record(machine, generation, pages_at(7, pages), Explicit);
    }
    // The longest extent comes last, so the first is not left out.
    let ranges = [pages_at(7, 2), pages_at(7, 3)];
    let Missed::Ranges(missed) = log.missed(0, 3, 5, 5) else { panic!("the ceiling is 5") };
    assert_eq!(missed.iter().collect::<Vec<_>>(), ranges);
    assert!(!missed.free_tables());
    log.log.record(machine, 4, pages_at(8, 1).freeing_tables(), Explicit);
    let Missed::Ranges(missed) = log.missed(0, 4, 6, 6) else { panic!("the ceiling is 6") };
    assert!(missed.free_tables());
    log.log.record(machine, 5, Extent::whole(), Explicit);
    assert_eq!((log.missed_count(4, 5, 33, 33), log.missed_count(3, 5, 33, 33)), (None, None));
}

/// Where the ceiling is that of ranges, and where it is the largest number of pages.
#[test]
fn long_extent_drops_everything_without_ranges() {
    let log = Log::new();
    let range = Extent::long(0..1 << 30, crate::parts::extent::PageSize::SIZE_4K);
    log.log.record(log.engine.machine(), 1, range, Explicit);
    log.record(2, 1, Explicit);
    for seen in [0, 1] {
        let count = |ceiling| log.missed_count(seen, 1 + seen, ceiling, ceiling);
        assert_eq!((count(4095), count(8191)), (Some(1).filter(|_| seen == 1), Some(1)));
    }
    let ranges = |ceiling| log.missed_count(0, 2, ceiling, ceiling);
    assert_eq!((ranges(4095), ranges(8191)), (None, Some(2)));
}
