//! *Generation*: the number of flushes of a space, and a log of the extents that the last of them
//! covered. A flush of several extents counts as several.
//!
//! A CPU remembers up to which generation its TLB is clean. It has missed the flushes since then.
//! As far back as the log reaches, the CPU reads which extent each of them covered. Linux's
//! `mm->context.tlb_gen` is the same count without the log: there, a CPU that has missed any flush
//! but the one that interrupts it invalidates everything.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::extent::Extent;
use crate::memory::{Memory, Word, order, zero_words};
use crate::rules::Rule;

/// Number of flushes that the log reaches back. An entry is 16 bytes, so the log is four cache
/// lines. To read an entry costs about as much as to invalidate a page, and a CPU that has missed
/// more than 33 pages drops the whole tag. Of these 33 pages, at most 8 may be explicit changes for
/// a CPU that comes back, and at most 17 reclaimed pages for a CPU that is interrupted.
pub(crate) const LOG_ENTRIES: usize = 16;

/// A count of flushes with a log of the last [`LOG_ENTRIES`].
///
/// The count is the last field, so that in a [`Space`](crate::Space) it shares a cache line with
/// the fields that are read along with it.
#[repr(C)]
pub(crate) struct FlushLog<M: Memory> {
    entries: [Entry<M>; LOG_ENTRIES],
    pub(crate) generation: M::Word,
}

/// Log entry of the flush of one generation.
struct Entry<M: Memory> {
    /// The generation times [`GENERATION`], plus [`RECLAIMED`] if the flush was [`Cause::Reclaim`],
    /// plus [`WRITING`] while `extent` is not yet the extent of that generation.
    stamp: M::Word,
    extent: M::Word,
}

const WRITING: u64 = 1;
const RECLAIMED: u64 = 2;
const GENERATION: u64 = 4;

/// The reason why page tables were changed. It decides up to how many pages a CPU catches up page
/// by page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The program asked for the change.
    Explicit,
    /// The kernel reclaimed pages that seemed to be unused. The program continues with all others.
    Reclaim,
}

/// Largest numbers of missed pages that a CPU invalidates one by one. With more, it drops the tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ceiling {
    /// Pages of [`Cause::Explicit`].
    pub(crate) explicit: usize,
    /// Pages of [`Cause::Reclaim`].
    pub(crate) reclaim: usize,
    /// Pages of both causes together; at least as large as each of the other two.
    pub(crate) all: usize,
}

impl Ceiling {
    /// A ceiling of `pages` for each cause and for both together.
    pub(crate) const fn of_all(pages: usize) -> Self {
        Self { explicit: pages, reclaim: pages, all: pages }
    }

    /// The ceiling for a CPU that has missed one flush of this cause.
    #[inline]
    pub(crate) const fn of(&self, cause: Cause) -> usize {
        match cause {
            Cause::Explicit => self.explicit,
            Cause::Reclaim => self.reclaim,
        }
    }
}

/// The translations that a CPU has to invalidate to catch up.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Missed {
    /// These extents, none of them whole.
    Ranges(Ranges),
    /// Everything: the log does not reach back, or the extents exceed the ceiling, or one of the
    /// flushes was whole.
    Everything,
}

/// A few extents.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ranges {
    /// One extent: nearly always the case for a CPU that is rung.
    One(Extent),
    /// The first extents of the array, and their number.
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

impl<M: Memory<Word = AtomicU64>> FlushLog<M> {
    /// A log of no flushes.
    #[expect(unsafe_code, reason = "an array of words cannot be made by a constant otherwise")]
    pub(crate) const fn new() -> Self {
        // SAFETY: all fields are words, or arrays of words.
        unsafe { zero_words() }
    }
}

impl<M: Memory> Default for FlushLog<M> {
    fn default() -> Self {
        Self {
            generation: M::Word::new(0),
            entries: core::array::from_fn(|_| Entry {
                stamp: M::Word::new(0),
                extent: M::Word::new(0),
            }),
        }
    }
}

impl<M: Memory> FlushLog<M> {
    /// Number of flushes so far. See [`Rule::GenerationAcquire`].
    #[inline]
    pub(crate) fn generation(&self, machine: &M) -> u64 {
        self.generation.load(order(machine, Rule::GenerationAcquire))
    }

    /// Counts `count` flushes, then fences: the caller's later loads come after the bump. Returns
    /// the generation of the last of these flushes.
    ///
    /// [Publish](crate::Machine::publish) the page tables before. See [`Rule::FlushFence`].
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

    /// Logs the extent of a flush. Call this before ringing the CPUs that read the entry.
    ///
    /// Logs nothing if the writer of 16 generations ago is still writing this entry, or if the
    /// writer of 16 generations later has claimed it already. Then the extent stays unknown, which
    /// costs each reader a whole flush.
    #[inline]
    pub(crate) fn record(&self, machine: &M, generation: u64, extent: Extent, cause: Cause) {
        let entry = self.entry(generation);
        let mark = if cause == Cause::Reclaim { RECLAIMED } else { 0 };
        let stamp = (generation * GENERATION) | mark;
        let claim = order(machine, Rule::StampClaim);
        // The stamp is guessed, not read: a read would fetch the line twice, once to read and once
        // to write. Most likely the entry is of 16 generations ago, with the same cause.
        let before = generation.saturating_sub(LOG_ENTRIES as u64);
        let mut expected = if before == 0 { 0 } else { (before * GENERATION) | mark };
        // Relaxed: a failed exchange is repeated, or nothing is written.
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

    /// Leaves the entry of `generation` as a CPU does that stops while it writes the entry.
    #[cfg(test)]
    pub(crate) fn record_for_ever(&self, generation: u64) {
        // Relaxed: for tests of one thread.
        self.entry(generation).stamp.store((generation * GENERATION) | WRITING, Relaxed);
    }

    /// The extents of the flushes after generation `seen`, up to and including `now`. An extent
    /// that an earlier one contains is left out.
    #[inline]
    pub(crate) fn missed(&self, machine: &M, seen: u64, now: u64, ceiling: Ceiling) -> Missed {
        if seen + 1 == now {
            if let Some((extent, cause)) = self.read(machine, now) {
                if !extent.is_unbounded() && extent.page_count() <= ceiling.of(cause) {
                    return Missed::Ranges(Ranges::One(extent));
                }
            }
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
            // A page that is freed and mapped again is flushed repeatedly.
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

    /// The extent and cause of a generation's flush; `None` if its entry is not yet written, or is
    /// overwritten already.
    #[inline]
    pub(crate) fn read(&self, machine: &M, generation: u64) -> Option<(Extent, Cause)> {
        let entry = self.entry(generation);
        let stamp = entry.stamp.load(order(machine, Rule::StampAcquire));
        if stamp & !RECLAIMED != generation * GENERATION {
            return None;
        }
        let bits = entry.extent.load(order(machine, Rule::ExtentAcquire));
        let cause = if stamp & RECLAIMED == 0 { Cause::Explicit } else { Cause::Reclaim };
        // Relaxed: ExtentAcquire, above, orders this load after the load of the extent.
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
        Extent::pages(generation << 20, pages, crate::extent::PageSize::SIZE_4K)
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
}
