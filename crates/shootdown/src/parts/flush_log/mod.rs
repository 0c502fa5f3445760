//! *Generation*: the number of flushes of a space, and a log of the extents that the last of them
//! covered. A flush of several extents counts as several.
//!
//! A CPU remembers up to which generation its TLB is clean. It has missed the flushes since then.
//! As far back as the log reaches, the CPU reads which extent each of them covered. Linux's
//! `mm->context.tlb_gen` is the same count without the log: there, a CPU that has missed any flush
//! but the one that interrupts it invalidates everything.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::base::memory::{Memory, Word, order, zero_words};
use crate::base::rules::Rule;
use crate::parts::extent::Extent;

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
                if !extent.is_unbounded() && extent.weight() <= ceiling.of(cause) {
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
                Cause::Explicit => explicit += extent.weight(),
                Cause::Reclaim => reclaim += extent.weight(),
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
mod tests;
