//! The oracle: knows of every flush when it began and when it was said to be done, and of every
//! translation when it was read from the page tables; and looks at each use.
//!
//! It knows nothing of generations, presence or bells, so that it can judge whoever has them. Four
//! things are wrong, and counted:
//!
//! - a translation is used that a completed flush covers, and that is older than that flush;
//! - a page is used that has been given away since the translation was read;
//! - a translation is used that was read from another space's tables (a tag given on unflushed);
//! - a page table is walked that has been freed.
//!
//! And a fifth thing that no access shows: a table is freed while a CPU could still walk it, by its
//! loaded root or by what it caches of upper levels. A speculative walk may do so at any moment;
//! Linux's first lazy TLB with generations had that bug (b956575bed91 mended it, after machine
//! checks). These are counted apart, as *hazards*: nothing wrong has been seen to happen yet.

use core::ops::Range;
use std::collections::{BTreeSet, HashMap};

use crate::time::Time;
use crate::tlb::{SpaceKey, Tlb, Translation};

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wrong {
    /// A completed flush covers the translation that was used.
    FlushedTranslation,
    /// The page had been given away.
    FreedPage,
    /// The translation is another space's.
    ForeignTranslation,
    /// The page table had been freed.
    FreedTable,
    /// A page table was freed that a CPU could still walk.
    WalkableTableFreed,
}

/// One thing that went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// What.
    pub wrong: Wrong,
    /// When.
    pub at: Time,
    /// On which CPU, or whose doing could have it happen.
    pub cpu: usize,
    /// The virtual address that was used, or the physical one of the table.
    pub address: u64,
}

/// A flush that has begun.
#[derive(Clone, Debug)]
#[must_use = "a flush that never ends covers nothing"]
pub struct FlushRecord {
    space: SpaceKey,
    range: Option<Range<u64>>,
    began: u64,
    /// When that was, in simulated time.
    pub(crate) began_at: Time,
}

impl FlushRecord {
    pub(crate) const fn space(&self) -> SpaceKey {
        self.space
    }
}

/// The judge.
#[derive(Debug)]
pub(crate) struct Oracle {
    /// Counts the flushes that began, from 1 on.
    clock: u64,
    spaces: HashMap<SpaceKey, Completed>,
    /// The flushes that have begun and not ended, by when they began.
    in_flight: BTreeSet<u64>,
    pub(crate) violations: u64,
    pub(crate) hazards: u64,
    /// The first of them.
    pub(crate) first: Vec<Violation>,
}

/// The completed flushes of a space: for each part of it, when the last one that covers it began.
#[derive(Debug, Default)]
struct Completed {
    whole: u64,
    /// By the size of the part, as a power of two, and its number.
    parts: HashMap<(u8, u64), u64>,
    latest: u64,
}

/// The sizes by which ranges are kept: 4 KiB, 2 MiB, 1 GiB, 512 GiB.
const PART_SHIFTS: [u8; 4] = [12, 21, 30, 39];
/// More parts than that, and what is cached is looked through once, so that they can be dropped.
const PARTS_MAX: usize = 1 << 16;
/// How many violations are kept for people to look at.
const KEPT_MAX: usize = 64;

impl Default for Oracle {
    fn default() -> Self {
        Self {
            clock: 1,
            spaces: HashMap::new(),
            in_flight: BTreeSet::new(),
            violations: 0,
            hazards: 0,
            first: Vec::new(),
        }
    }
}

impl Oracle {
    /// The moment, in the order of flushes: what is read from page tables now is clean of all
    /// flushes that began before.
    #[inline]
    pub(crate) const fn now(&self) -> u64 {
        self.clock
    }

    pub(crate) fn begin(
        &mut self,
        space: SpaceKey,
        range: Option<Range<u64>>,
        began_at: Time,
    ) -> FlushRecord {
        self.clock += 1;
        self.in_flight.insert(self.clock);
        FlushRecord { space, range, began: self.clock, began_at }
    }

    /// A flush is done: what it covers must not be used again. `tlbs` are all CPUs' caches.
    pub(crate) fn end(&mut self, flush: FlushRecord, tlbs: &mut [Tlb]) {
        self.in_flight.remove(&flush.began);
        let completed = self.spaces.entry(flush.space).or_default();
        completed.latest = completed.latest.max(flush.began);
        match flush.range {
            None => completed.whole = completed.whole.max(flush.began),
            Some(range) => completed.add(range, flush.began),
        }
        if completed.parts.len() > PARTS_MAX {
            // A flush that has not ended will still have its say.
            let clean = self.in_flight.first().map_or(self.clock, |&began| began - 1);
            for translation in tlbs.iter_mut().flat_map(Tlb::translations) {
                // What is dead stays so, without its record.
                if translation.space == flush.space && completed.covers(translation) {
                    translation.clean_since = DEAD;
                } else if translation.space == flush.space && translation.clean_since != DEAD {
                    translation.clean_since = translation.clean_since.max(clean);
                }
            }
            completed.parts.clear();
            completed.whole = 0;
        }
    }

    /// The space's tables are gone, and so is all that is known of it.
    pub(crate) fn forget(&mut self, space: SpaceKey) {
        self.spaces.remove(&space);
    }

    /// Looks at a use of a translation, with `loaded` as the space in use. `generation` is how
    /// often the frame has been given away.
    #[inline]
    pub(crate) fn check(
        &self,
        translation: &mut Translation,
        loaded: SpaceKey,
        generation: u32,
    ) -> Option<Wrong> {
        if translation.space != loaded {
            return Some(Wrong::ForeignTranslation);
        }
        if translation.clean_since < self.clock {
            if translation.clean_since == DEAD {
                return Some(Wrong::FlushedTranslation);
            }
            if let Some(completed) = self.spaces.get(&loaded)
                && translation.clean_since < completed.latest
                && completed.covers(translation)
            {
                return Some(Wrong::FlushedTranslation);
            }
        }
        (translation.frame_generation != generation).then_some(Wrong::FreedPage)
    }

    pub(crate) fn report(&mut self, violation: Violation) {
        if violation.wrong == Wrong::WalkableTableFreed {
            self.hazards += 1;
        } else {
            self.violations += 1;
        }
        if self.first.len() < KEPT_MAX {
            self.first.push(violation);
        }
    }
}

/// Marks a translation that a completed flush is known to cover.
const DEAD: u64 = 0;

impl Completed {
    /// Notes a flush of a range: in parts as large as it covers.
    fn add(&mut self, range: Range<u64>, began: u64) {
        let mut at = range.start & !0xfff;
        let end = if range.end == 0 { u64::MAX } else { range.end };
        while at < end {
            let fits = |&shift: &u8| {
                at & ((1 << shift) - 1) == 0 && end - at >= 1 << shift || shift == PART_SHIFTS[0]
            };
            let shift = PART_SHIFTS.into_iter().rev().find(fits).unwrap_or(PART_SHIFTS[0]);
            let part = self.parts.entry((shift, at >> shift)).or_default();
            *part = began.max(*part);
            let Some(next) = at.checked_add(1 << shift) else { break };
            at = next;
        }
    }

    fn covers(&self, translation: &Translation) -> bool {
        let (page, since) = (translation.page, translation.clean_since);
        let above = PART_SHIFTS
            .into_iter()
            .filter_map(|shift| self.parts.get(&(shift, page >> shift)))
            .fold(self.whole, |latest, &began| latest.max(began));
        // Part of a large page is as good as all of it.
        let within = |(&(shift, part), &began): (&(u8, u64), &u64)| {
            shift < translation.shift
                && part << shift >> translation.shift == page >> translation.shift
                && since < began
        };
        since < above || translation.shift > PART_SHIFTS[0] && self.parts.iter().any(within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPACE: SpaceKey = SpaceKey::new(7, 0);

    fn translation(page: u64, clean_since: u64) -> Translation {
        Translation {
            page,
            shift: 12,
            writable: true,
            dirty: true,
            frame: 9,
            frame_generation: 3,
            space: SPACE,
            clean_since,
        }
    }

    fn flush(oracle: &mut Oracle, range: Option<Range<u64>>) {
        let record = oracle.begin(SPACE, range, Time::ZERO);
        oracle.end(record, &mut []);
    }

    #[test]
    fn what_a_completed_flush_covers_is_dead_and_nothing_else() {
        let mut oracle = Oracle { clock: 5, ..Oracle::default() };
        let mut covered = translation(0x20_3000, 5);
        let mut beside = translation(0x20_4000, 5);
        let pending = oracle.begin(SPACE, Some(0x20_3000..0x20_4000), Time::ZERO);
        let mut newer = translation(0x20_3000, oracle.now());
        assert_eq!(oracle.check(&mut covered, SPACE, 3), None);
        oracle.end(pending, &mut []);
        let stale = Some(Wrong::FlushedTranslation);
        assert_eq!(oracle.check(&mut covered, SPACE, 3), stale);
        assert_eq!(oracle.check(&mut beside, SPACE, 3), None);
        assert_eq!(oracle.check(&mut newer, SPACE, 3), None);
        flush(&mut oracle, None);
        assert_eq!(oracle.check(&mut beside, SPACE, 3), stale);
    }

    #[test]
    fn frames_and_spaces_are_told_apart() {
        let oracle = Oracle::default();
        let mut used = translation(0, oracle.now());
        assert_eq!(oracle.check(&mut used, SPACE, 4), Some(Wrong::FreedPage));
        let other = SpaceKey::new(7, 1);
        assert_eq!(oracle.check(&mut used, other, 3), Some(Wrong::ForeignTranslation));
    }

    #[test]
    fn large_ranges_are_kept_in_large_parts() {
        let mut oracle = Oracle { clock: 5, ..Oracle::default() };
        let (start, end) = ((1 << 30) - 0x3000, (5 << 30) + (3 << 21) + 0x2000);
        let probes = [start - 0x1000, start, 1 << 30, (5 << 30) + (2 << 21), end - 0x1000, end];
        let mut probes = probes.map(|page| translation(page, 5));
        flush(&mut oracle, Some(start..end));
        assert_eq!(oracle.spaces[&SPACE].parts.len(), 3 + 4 + 3 + 2);
        let dead = probes.each_mut().map(|probe| oracle.check(probe, SPACE, 3).is_some());
        assert_eq!(dead, [false, true, true, true, true, false]);
    }

    #[test]
    fn dropping_records_forgets_no_dead_translation() {
        let mut oracle = Oracle { clock: 5, ..Oracle::default() };
        let size = crate::machine::Tlb {
            tags: 0,
            entries: 4,
            ways: 4,
            large_entries: 1,
            upper_entries: 1,
            walk: Time::ZERO,
            load_root: Time::ZERO,
            load_root_and_discard: Time::ZERO,
            invalidate_page: Time::ZERO,
            pages_per_invalidation: 1,
            invalidate_all: Time::ZERO,
            flush_ceiling: 33,
        };
        let mut tlbs = [Tlb::new(&size)];
        tlbs[0].load(SPACE, 0);
        tlbs[0].insert(translation(0x1000, 5), 0);
        tlbs[0].insert(translation(1 << 40, 5), 0);
        for page in 1..=PARTS_MAX as u64 + 1 {
            let record = oracle.begin(SPACE, Some(page << 12..(page + 1) << 12), Time::ZERO);
            oracle.end(record, &mut tlbs);
        }
        assert!(oracle.spaces[&SPACE].parts.is_empty());
        let stale = Some(Wrong::FlushedTranslation);
        assert_eq!(oracle.check(tlbs[0].find(0x1000).unwrap(), SPACE, 3), stale);
        assert_eq!(oracle.check(tlbs[0].find(1 << 40).unwrap(), SPACE, 3), None);
    }
}
