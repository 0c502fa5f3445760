//! *Generation*: how many flushes there were, and what the last ones covered. A flush of several
//! ranges counts as several.
//!
//! A CPU remembers up to which generation its TLB is clean. What it missed since is the
//! difference, and as long as the log reaches back, it knows that range by range. Linux's
//! `mm->context.tlb_gen` is the same count without the log: one missed generation there means
//! invalidating everything.

use core::sync::atomic::Ordering::Relaxed;

use crate::extent::Extent;
use crate::machine::{Machine, Word};
use crate::rules::{Rule, order};

/// How many flushes the log reaches back. An entry is 16 bytes, so the log is four cache lines;
/// reading one missed entry costs about as much as one missed invalidation would, and beyond 33
/// pages (of which 8 are the program's doing, for a CPU that comes back) all of the tag goes.
pub(crate) const LOG_ENTRIES: usize = 16;

/// A count of flushes with a log of the last [`LOG_ENTRIES`].
///
/// The count comes last, so that in a [`Space`](crate::Space) it shares a line with what is read
/// along with it.
#[repr(C)]
pub(crate) struct Journal<M: Machine> {
    entries: [Entry<M>; LOG_ENTRIES],
    pub(crate) generation: M::Word,
}

/// The flush of one generation.
struct Entry<M: Machine> {
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
pub(crate) enum Origin {
    /// The program asked for it.
    Asked,
    /// Who needs memory took pages that seemed of no use: the program goes on with all others.
    Reclaimed,
}

/// How many pages are worth invalidating one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ceiling {
    /// Of those that the program itself has changed.
    pub(crate) asked: usize,
    /// Of all; no less.
    pub(crate) all: usize,
}

impl Ceiling {
    /// So many, whoever has changed them.
    pub(crate) const fn of_all(pages: usize) -> Self {
        Self { asked: pages, all: pages }
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

impl<M: Machine> Journal<M> {
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
    /// The page tables must have been [published](Machine::publish). See [`Rule::FlushFence`].
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
    pub(crate) fn log(&self, machine: &M, generation: u64, extent: Extent, origin: Origin) {
        let entry = self.entry(generation);
        let mark = if origin == Origin::Reclaimed { RECLAIMED } else { 0 };
        let stamp = (generation * GENERATION) | mark;
        let claim = order(machine, Rule::StampClaim);
        // Not read first, which would fetch the line twice, once to read and once to write. Most
        // likely it is the flush of 16 generations ago, of the same kind.
        let before = generation.saturating_sub(LOG_ENTRIES as u64);
        let mut expected = if before == 0 { 0 } else { (before * GENERATION) | mark };
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
        // The lower of the two ceilings will do, whoever has changed it.
        if seen + 1 == now
            && let Some((extent, _)) = self.read(machine, now)
            && !extent.is_whole()
            && extent.page_count() <= ceiling.asked
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
        let (mut count, mut asked, mut all) = (0, 0, 0);
        for generation in seen + 1..=now {
            let Some((extent, origin)) = self.read(machine, generation) else {
                if machine.breaks(Rule::KnowEveryRange) {
                    continue;
                }
                return Missed::Everything;
            };
            if extent.is_whole() {
                return Missed::Everything;
            }
            // A page that is given back and used again is flushed over and over.
            if extents[..count].iter().any(|known| known.contains(extent)) {
                continue;
            }
            all += extent.page_count();
            if origin == Origin::Asked {
                asked += extent.page_count();
            }
            if asked > ceiling.asked || all > ceiling.all {
                return Missed::Everything;
            }
            extents[count] = extent;
            count += 1;
        }
        Missed::Ranges(Ranges::Some(extents, count))
    }

    /// What the flush of a generation covered, if its entry is written and not yet overwritten.
    #[inline]
    fn read(&self, machine: &M, generation: u64) -> Option<(Extent, Origin)> {
        let entry = self.entry(generation);
        let stamp = entry.stamp.load(order(machine, Rule::StampAcquire));
        if stamp & !RECLAIMED != generation * GENERATION {
            return None;
        }
        let bits = entry.extent.load(order(machine, Rule::ExtentAcquire));
        let origin = if stamp & RECLAIMED == 0 { Origin::Asked } else { Origin::Reclaimed };
        (entry.stamp.load(Relaxed) == stamp).then(|| (Extent::from_bits(bits), origin))
    }

    #[inline]
    fn entry(&self, generation: u64) -> &Entry<M> {
        &self.entries[generation as usize % LOG_ENTRIES]
    }
}
