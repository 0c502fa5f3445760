//! *Generation*: how many flushes there were, and what the last ones covered. A flush of several
//! ranges counts as several.
//!
//! A CPU remembers up to which generation its TLB is clean. What it missed since is the
//! difference, and as long as the log reaches back, it knows that range by range. Linux's
//! `mm->context.tlb_gen` is the same count without the log: one missed generation there means
//! invalidating everything.

use core::sync::atomic::Ordering::Relaxed;

use crate::extent::Extent;
use crate::memory::{Memory, Word, order};
use crate::rules::Rule;

/// How many flushes the log reaches back. An entry is 16 bytes, so the log is four cache lines;
/// reading one missed entry costs about as much as one missed invalidation would, and beyond 33
/// pages all of the tag goes. Of these, 8 may be the program's doing for a CPU that comes back, and
/// 17 a batch's for a CPU that is interrupted.
pub(crate) const LOG_ENTRIES: usize = 16;

/// A count of flushes with a log of the last [`LOG_ENTRIES`].
///
/// The count comes last, so that in a [`Space`](crate::Space) it shares a line with what is read
/// along with it.
#[repr(C)]
pub(crate) struct FlushLog<M: Memory> {
    entries: [Entry<M>; LOG_ENTRIES],
    pub(crate) generation: M::Word,
}

/// The flush of one generation.
struct Entry<M: Memory> {
    /// The generation times 4, plus [`RECLAIMED`] if it was such a flush, plus [`WRITING`] while
    /// `extent` is not yet that generation's.
    stamp: M::Word,
    extent: M::Word,
}

const WRITING: u64 = 1;
const RECLAIMED: u64 = 2;
const GENERATION: u64 = 4;

/// Why page tables were changed. It decides how much of it is worth making up for page by page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The program asked for the change.
    Explicit,
    /// The kernel reclaimed pages that seemed to be unused. The program continues with all others.
    Reclaim,
}

/// How many pages are worth invalidating one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ceiling {
    /// Of those that the program itself has changed.
    pub(crate) explicit: usize,
    /// Of those that a batch has taken from it.
    pub(crate) reclaim: usize,
    /// Of all; no less than each of these.
    pub(crate) all: usize,
}

impl Ceiling {
    /// So many, whoever has changed them.
    pub(crate) const fn of_all(pages: usize) -> Self {
        Self { explicit: pages, reclaim: pages, all: pages }
    }

    /// The part of the ceiling that applies to one kind of flush.
    #[inline]
    pub(crate) const fn of(&self, cause: Cause) -> usize {
        match cause {
            Cause::Explicit => self.explicit,
            Cause::Reclaim => self.reclaim,
        }
    }
}

/// What a CPU has to invalidate to catch up.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Missed {
    /// These extents, none of them whole.
    Ranges(Ranges),
    /// Everything: the log does not reach back, or there is too much, or it was a whole flush.
    Everything,
}

/// A few extents.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ranges {
    /// What a CPU that is rung has missed nearly always.
    One(Extent),
    /// The first so many.
    Some([Extent; LOG_ENTRIES], usize),
}

impl Ranges {
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = Extent> + '_ {
        match self {
            Self::One(extent) => core::slice::from_ref(extent),
            Self::Some(extents, count) => &extents[..*count],
        }
        .iter()
        .copied()
    }

    #[inline]
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Some(_, count) => *count,
        }
    }

    #[inline]
    pub(crate) fn free_tables(&self) -> bool {
        self.iter().any(Extent::frees_tables)
    }
}

impl<M: Memory> FlushLog<M> {
    pub(crate) fn new() -> Self {
        Self {
            generation: M::Word::new(0),
            entries: core::array::from_fn(|_| Entry {
                stamp: M::Word::new(0),
                extent: M::Word::new(0),
            }),
        }
    }

    /// The number of flushes so far. See [`Rule::GenerationAcquire`].
    #[inline]
    pub(crate) fn generation(&self, machine: &M) -> u64 {
        self.generation.load(order(machine, Rule::GenerationAcquire))
    }

    /// Counts so many flushes, then fences: whatever the caller reads next, it reads after the
    /// bump. Returns the generation of the last of them.
    ///
    /// The page tables must have been [published](crate::Machine::publish) before. See
    /// [`Rule::FlushFence`].
    #[inline]
    pub(crate) fn bump(&self, machine: &M, count: u64) -> u64 {
        let release = order(machine, Rule::BumpRelease);
        let before = if machine.breaks(Rule::FlushFence) {
            self.generation.fetch_add(count, release)
        } else {
            machine.fetch_add_then_fence(&self.generation, count, release)
        };
        before + count
    }

    /// Logs what a flush covers: before those who are to look there are rung.
    ///
    /// Does nothing if the entry's writer of 16 generations ago is still at it or that of 16
    /// generations hence was faster: then it stays unknown, which costs a reader a whole flush.
    #[inline]
    pub(crate) fn record(&self, machine: &M, generation: u64, extent: Extent, cause: Cause) {
        let entry = self.entry(generation);
        let mark = if cause == Cause::Reclaim { RECLAIMED } else { 0 };
        let stamp = (generation * GENERATION) | mark;
        let claim = order(machine, Rule::StampClaim);
        // Not read first, which would fetch the line twice, once to read and once to write. Most
        // likely it is the flush of 16 generations ago, of the same kind.
        let before = generation.saturating_sub(LOG_ENTRIES as u64);
        let mut expected = if before == 0 { 0 } else { (before * GENERATION) | mark };
        // Relaxed: where it fails, it is tried again, or nothing is written.
        while let Err(found) =
            entry.stamp.compare_exchange(expected, stamp | WRITING, claim, Relaxed)
        {
            if found & WRITING != 0 || found > stamp {
                return;
            }
            expected = found;
        }
        entry.extent.store(extent.to_bits(), order(machine, Rule::ExtentRelease));
        entry.stamp.store(stamp, order(machine, Rule::StampRelease));
    }

    /// What was flushed after generation `seen`, up to and including `now`.
    ///
    /// What was flushed more than once is there once.
    #[inline]
    pub(crate) fn missed(&self, machine: &M, seen: u64, now: u64, ceiling: Ceiling) -> Missed {
        if seen + 1 == now
            && let Some((extent, cause)) = self.read(machine, now)
            && !extent.is_unbounded()
            && extent.page_count() <= ceiling.of(cause)
        {
            return Missed::Ranges(Ranges::One(extent));
        }
        self.missed_several(machine, seen, now, ceiling)
    }

    #[inline(never)]
    fn missed_several(&self, machine: &M, seen: u64, now: u64, ceiling: Ceiling) -> Missed {
        if now - seen > LOG_ENTRIES as u64 {
            return Missed::Everything;
        }
        let mut extents = [Extent::whole(); LOG_ENTRIES];
        let (mut count, mut explicit, mut reclaim) = (0, 0, 0);
        for generation in seen + 1..=now {
            let Some((extent, cause)) = self.read(machine, generation) else {
                if machine.breaks(Rule::KnowEveryRange) {
                    continue;
                }
                return Missed::Everything;
            };
            if extent.is_unbounded() {
                return Missed::Everything;
            }
            // A page that is given back and used again is flushed over and over.
            if extents[..count].iter().any(|known| known.contains(extent)) {
                continue;
            }
            match cause {
                Cause::Explicit => explicit += extent.page_count(),
                Cause::Reclaim => reclaim += extent.page_count(),
            }
            if explicit > ceiling.explicit
                || reclaim > ceiling.reclaim
                || explicit + reclaim > ceiling.all
            {
                return Missed::Everything;
            }
            extents[count] = extent;
            count += 1;
        }
        Missed::Ranges(Ranges::Some(extents, count))
    }

    /// What the flush of a generation covered, if its entry is written and not yet overwritten.
    #[inline]
    pub(crate) fn read(&self, machine: &M, generation: u64) -> Option<(Extent, Cause)> {
        let entry = self.entry(generation);
        let stamp = entry.stamp.load(order(machine, Rule::StampAcquire));
        if stamp & !RECLAIMED != generation * GENERATION {
            return None;
        }
        let bits = entry.extent.load(order(machine, Rule::ExtentAcquire));
        let cause = if stamp & RECLAIMED == 0 { Cause::Explicit } else { Cause::Reclaim };
        // Relaxed: ExtentAcquire, above, orders this load after that of the extent.
        (entry.stamp.load(Relaxed) == stamp).then(|| (Extent::from_bits(bits), cause))
    }

    #[inline]
    fn entry(&self, generation: u64) -> &Entry<M> {
        &self.entries[generation as usize % LOG_ENTRIES]
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use super::*;
    use crate::engine::Shootdown;
    use crate::ids::CpuId;
    use crate::soft::{Config, Host, Platform, Soft};
    use core::cell::{Cell, RefCell};
    use core::sync::atomic::{AtomicU64, Ordering};
    use std::boxed::Box;
    use std::rc::Rc;
    use std::vec::Vec;

    std::thread_local! {
        static CLAIMS: Cell<usize> = const { Cell::new(0) };
        static INTERLUDE: RefCell<Option<Interlude>> = const { RefCell::new(None) };
    }

    /// What happens after so many more stores.
    type Interlude = (usize, Box<dyn FnOnce()>);

    /// A word that is watched.
    struct Watched(AtomicU64);

    impl Word for Watched {
        fn new(value: u64) -> Self {
            Self(AtomicU64::new(value))
        }
        fn load(&self, order: Ordering) -> u64 {
            self.0.load(order)
        }
        fn store(&self, value: u64, order: Ordering) {
            self.0.store(value, order);
            let next = INTERLUDE.take();
            match next {
                Some((1, interlude)) => interlude(),
                Some((stores, interlude)) => INTERLUDE.set(Some((stores - 1, interlude))),
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

    struct WatchedHost;

    impl Platform for WatchedHost {
        type Word = Watched;
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

    type Watching = Soft<WatchedHost>;

    /// A log on its machine.
    struct Log {
        engine: Shootdown<Watching>,
        log: FlushLog<Watching>,
    }

    use Cause::{Explicit, Reclaim};

    impl Log {
        fn new() -> Self {
            Self { engine: Watching::engine(Config::default()), log: FlushLog::new() }
        }

        /// Logs so many pages from the page with the generation's number on.
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

        /// How many extents have to be made up for; `None` for everything.
        fn missed_count(&self, seen: u64, now: u64, explicit: usize, all: usize) -> Option<usize> {
            match self.missed(seen, now, explicit, all) {
                Missed::Ranges(ranges) => Some(ranges.count()),
                Missed::Everything => None,
            }
        }
    }

    /// As many pages for each generation, none of them another's.
    fn pages_at(generation: u64, pages: usize) -> Extent {
        Extent::pages(generation << 20, pages, crate::extent::PageSize::SIZE_4K)
    }

    #[test]
    fn an_entry_is_claimed_at_the_first_attempt() {
        for cause in [Explicit, Reclaim] {
            let log = Log::new();
            CLAIMS.set(0);
            (1..=100).for_each(|generation| log.record(generation, 1, cause));
            assert_eq!(CLAIMS.get(), 100);
        }
    }

    #[test]
    fn an_entry_of_another_kind_is_overwritten() {
        let log = Log::new();
        for (generation, cause) in [(1, Explicit), (17, Reclaim), (33, Explicit)] {
            log.record(generation, 1, cause);
            assert_eq!(log.read(generation), Some((pages_at(generation, 1), cause)));
        }
        assert_eq!(log.read(17), None);
    }

    #[test]
    fn who_is_overtaken_by_sixteen_generations_logs_nothing() {
        let log = Log::new();
        log.record(17, 1, Explicit);
        log.record(1, 1, Explicit);
        assert_eq!((log.read(1), log.read(17)), (None, Some((pages_at(17, 1), Explicit))));
    }

    /// Else the entry would pair the stamp of the one with the extent of the other.
    #[test]
    fn who_finds_an_entry_being_written_logs_nothing() {
        for cause in [Explicit, Reclaim] {
            let log = Rc::new(Log::new());
            let other = Rc::clone(&log);
            // Between the extent and the stamp.
            INTERLUDE.set(Some((1, Box::new(move || other.record(17, 1, Explicit)))));
            log.record(1, 1, cause);
            assert_eq!((log.read(1), log.read(17)), (Some((pages_at(1, 1), cause)), None));
        }
    }

    #[test]
    fn the_log_reaches_back_sixteen_flushes() {
        let log = Log::new();
        (1..=20).for_each(|generation| log.record(generation, 1, Explicit));
        assert_eq!(log.missed_count(4, 20, 33, 33), Some(16));
        assert_eq!(log.missed_count(3, 20, 33, 33), None);
        // Nor is it reason to look that nothing was missed.
        assert_eq!(log.missed_count(20, 20, 33, 33), Some(0));
        let Missed::Ranges(ranges) = log.missed(17, 20, 33, 33) else { panic!("they are there") };
        let expected = [18, 19, 20].map(|generation| pages_at(generation, 1));
        assert_eq!(ranges.iter().collect::<Vec<_>>(), expected);
        let one = Missed::Ranges(Ranges::One(pages_at(20, 1)));
        assert_eq!(log.missed(19, 20, 33, 33), one);
        // It is on its way, and not yet there.
        assert_eq!(log.missed_count(20, 21, 33, 33), None);
    }

    #[test]
    fn pages_are_dropped_one_by_one_up_to_the_ceilings() {
        let log = Log::new();
        log.record(1, 4, Explicit);
        assert_eq!((log.missed_count(0, 1, 4, 4), log.missed_count(0, 1, 3, 3)), (Some(1), None));
        log.record(2, 4, Reclaim);
        assert_eq!((log.missed_count(0, 2, 4, 8), log.missed_count(0, 2, 4, 7)), (Some(2), None));
        // The program's own are the first.
        assert_eq!((log.missed_count(0, 2, 3, 8), log.missed_count(1, 2, 3, 4)), (None, Some(1)));
        log.record(3, 2, Explicit);
        assert_eq!((log.missed_count(0, 3, 6, 10), log.missed_count(0, 3, 5, 10)), (Some(3), None));
    }

    #[test]
    fn each_cause_has_a_ceiling_of_its_own() {
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
        assert_eq!((count(1, 3), count(0, 2)), (Some(2), None), "6 pages, and 7");
    }

    #[test]
    fn what_was_missed_twice_is_there_once() {
        let log = Log::new();
        let machine = log.engine.machine();
        for (generation, pages) in [(1, 2), (2, 1), (3, 3)] {
            log.log.record(machine, generation, pages_at(7, pages), Explicit);
        }
        // The longer one comes too late.
        let ranges = [pages_at(7, 2), pages_at(7, 3)];
        let Missed::Ranges(missed) = log.missed(0, 3, 5, 5) else { panic!("5 pages are allowed") };
        assert_eq!(missed.iter().collect::<Vec<_>>(), ranges);
        assert!(!missed.free_tables());
        log.log.record(machine, 4, pages_at(8, 1).freeing_tables(), Explicit);
        let Missed::Ranges(missed) = log.missed(0, 4, 6, 6) else { panic!("6 pages are allowed") };
        assert!(missed.free_tables());
        log.log.record(machine, 5, Extent::whole(), Explicit);
        assert_eq!((log.missed_count(4, 5, 33, 33), log.missed_count(3, 5, 33, 33)), (None, None));
    }
}
