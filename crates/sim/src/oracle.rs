//! The oracle: records the begin and end of every flush, and the time at which every translation
//! was read from the page tables; and checks each use of a translation.
//!
//! It uses nothing of the designs' mechanisms (generations, presence, doorbells), so that it can
//! judge all of them. It counts four kinds of violations:
//!
//! - a CPU uses a translation that a completed flush covers, and that is older than that flush;
//! - a CPU uses a page that was freed after the translation was read;
//! - a CPU uses a translation from another space's tables (a tag that was reassigned unflushed);
//! - a CPU walks a page table that was freed.
//!
//! A fifth kind is visible in no access: a table is freed while a CPU can still walk it, through
//! its loaded root or through cached upper-level entries. A speculative walk may read the table at
//! any time. The first version of Linux's lazy TLB with generations had that bug (b956575bed91
//! fixed it, after machine checks). These cases are counted separately, as *hazards*, because
//! nothing wrong has happened yet.

use core::ops::Range;
use std::collections::{BTreeSet, HashMap};

use crate::clock::Flushed;
use crate::time::Time;
use crate::tlb::{SpaceKey, Tlb, Translation};

/// Kind of a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ViolationKind {
    /// A translation was used that a completed flush covers.
    FlushedTranslation,
    /// A translation was used whose page had been freed.
    FreedPage,
    /// A translation was used that is from another space.
    ForeignTranslation,
    /// A page table was walked that had been freed.
    FreedTable,
    /// A page table was freed that a CPU could still walk (a hazard).
    WalkableTableFreed,
}

/// A violation or hazard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Kind of the violation.
    pub kind: ViolationKind,
    /// Simulated time.
    pub at: Time,
    /// The CPU that used the translation, or that could still walk the table.
    pub cpu: usize,
    /// The virtual address that was used, or the physical address of the table.
    pub address: u64,
}

/// A flush that has begun and not ended.
#[derive(Clone, Debug)]
#[must_use = "the oracle checks nothing for a flush that never ends"]
pub struct FlushRecord {
    pub(crate) space: SpaceKey,
    range: Option<Range<u64>>,
    began: u64,
    /// Simulated time of the begin.
    pub(crate) began_at: Time,
}

impl FlushRecord {
    /// What the flush makes stale.
    pub(crate) fn flushed(&self, frees_tables: bool) -> Flushed {
        let Self { space, range, began, .. } = self;
        Flushed { space: *space, range: range.clone(), began: *began, frees_tables }
    }
}

/// The oracle's records.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    /// Number of flushes that began, plus 1.
    clock: u64,
    spaces: HashMap<SpaceKey, Completed>,
    /// The flushes that have begun and not ended, identified by their numbers in the order of
    /// begin.
    in_flight: BTreeSet<u64>,
    pub(crate) violations: u64,
    pub(crate) hazards: u64,
    /// The first violations and hazards.
    pub(crate) first: Vec<Violation>,
}

/// The completed flushes of a space: for each part of the space, the number of the last flush that
/// covers it, in the order in which flushes began.
#[derive(Debug, Default)]
struct Completed {
    whole: u64,
    /// The key is the size of the part, as a power of two, and its index among parts of that size.
    parts: HashMap<(u8, u64), u64>,
    latest: u64,
}

/// The sizes of parts: 4 KiB, 2 MiB, 1 GiB, 512 GiB.
const PART_SHIFTS: [u8; 4] = [12, 21, 30, 39];
/// Number of parts above which cached translations are checked once, so that the records of parts
/// can be dropped.
const PARTS_MAX: usize = 1 << 16;
/// Number of violations that are recorded for display.
const RECORDED_MAX: usize = 64;

impl Oracle {
    pub(crate) fn new() -> Self {
        Self { clock: 1, ..Self::default() }
    }

    /// The current time in the order of flushes. A translation that is read from the page tables
    /// now is not made stale by flushes that began before.
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

    /// Ends a flush: translations that it covers must not be used again. `tlbs` are the TLBs of all
    /// CPUs.
    pub(crate) fn end(&mut self, flush: FlushRecord, tlbs: &mut [Tlb]) {
        self.in_flight.remove(&flush.began);
        let completed = self.spaces.entry(flush.space).or_default();
        completed.latest = completed.latest.max(flush.began);
        match flush.range {
            None => completed.whole = completed.whole.max(flush.began),
            Some(range) => completed.add(range, flush.began),
        }
        if completed.parts.len() > PARTS_MAX {
            // Flushes that are still in flight will be recorded when they end.
            let clean = self.in_flight.first().map_or(self.clock, |&began| began - 1);
            for translation in tlbs.iter_mut().flat_map(Tlb::translations) {
                // A dead translation is marked, so that it stays dead without its record.
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

    /// Drops the records of a space whose tables are freed.
    pub(crate) fn forget(&mut self, space: SpaceKey) {
        self.spaces.remove(&space);
    }

    /// Checks a use of a translation. `loaded` is the space in use. `generation` is the number of
    /// times that the frame was freed.
    #[inline]
    pub(crate) fn check(
        &self,
        translation: &mut Translation,
        loaded: SpaceKey,
        generation: u32,
    ) -> Option<ViolationKind> {
        if translation.space != loaded {
            return Some(ViolationKind::ForeignTranslation);
        }
        if translation.clean_since < self.clock {
            if translation.clean_since == DEAD {
                return Some(ViolationKind::FlushedTranslation);
            }
            if let Some(completed) = self.spaces.get(&loaded)
                && translation.clean_since < completed.latest
                && completed.covers(translation)
            {
                return Some(ViolationKind::FlushedTranslation);
            }
        }
        (translation.frame_generation != generation).then_some(ViolationKind::FreedPage)
    }

    pub(crate) fn report(&mut self, violation: Violation) {
        if violation.kind == ViolationKind::WalkableTableFreed {
            self.hazards += 1;
        } else {
            self.violations += 1;
        }
        if self.first.len() < RECORDED_MAX {
            self.first.push(violation);
        }
    }
}

/// The value of `clean_since` of a translation that a completed flush covers.
const DEAD: u64 = 0;

impl Completed {
    /// Records a flush of a range, divided into the largest possible parts.
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
        // A flush of part of a large page covers the whole page.
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
    fn completed_flush_kills_exactly_covered_translations() {
        let mut oracle = Oracle { clock: 5, ..Oracle::new() };
        let mut covered = translation(0x20_3000, 5);
        let mut beside = translation(0x20_4000, 5);
        let pending = oracle.begin(SPACE, Some(0x20_3000..0x20_4000), Time::ZERO);
        let mut newer = translation(0x20_3000, oracle.now());
        assert_eq!(oracle.check(&mut covered, SPACE, 3), None);
        oracle.end(pending, &mut []);
        let stale = Some(ViolationKind::FlushedTranslation);
        assert_eq!(oracle.check(&mut covered, SPACE, 3), stale);
        assert_eq!(oracle.check(&mut beside, SPACE, 3), None);
        assert_eq!(oracle.check(&mut newer, SPACE, 3), None);
        flush(&mut oracle, None);
        assert_eq!(oracle.check(&mut beside, SPACE, 3), stale);
    }

    #[test]
    fn reused_frames_and_roots_are_distinguished() {
        let oracle = Oracle::new();
        let mut used = translation(0, oracle.now());
        assert_eq!(oracle.check(&mut used, SPACE, 4), Some(ViolationKind::FreedPage));
        let other = SpaceKey::new(7, 1);
        assert_eq!(oracle.check(&mut used, other, 3), Some(ViolationKind::ForeignTranslation));
    }

    #[test]
    fn large_ranges_use_large_parts() {
        let mut oracle = Oracle { clock: 5, ..Oracle::new() };
        let (start, end) = ((1 << 30) - 0x3000, (5 << 30) + (3 << 21) + 0x2000);
        let probes = [start - 0x1000, start, 1 << 30, (5 << 30) + (2 << 21), end - 0x1000, end];
        let mut probes = probes.map(|page| translation(page, 5));
        flush(&mut oracle, Some(start..end));
        assert_eq!(oracle.spaces[&SPACE].parts.len(), 3 + 4 + 3 + 2);
        let dead = probes.each_mut().map(|probe| oracle.check(probe, SPACE, 3).is_some());
        assert_eq!(dead, [false, true, true, true, true, false]);
    }

    #[test]
    fn translations_stay_dead_when_records_are_dropped() {
        let mut oracle = Oracle { clock: 5, ..Oracle::new() };
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
        tlbs[0].load(SPACE, SPACE, 0);
        tlbs[0].insert(translation(0x1000, 5), 0);
        tlbs[0].insert(translation(1 << 40, 5), 0);
        for page in 1..=PARTS_MAX as u64 + 1 {
            let record = oracle.begin(SPACE, Some(page << 12..(page + 1) << 12), Time::ZERO);
            oracle.end(record, &mut tlbs);
        }
        assert!(oracle.spaces[&SPACE].parts.is_empty());
        let stale = Some(ViolationKind::FlushedTranslation);
        assert_eq!(oracle.check(tlbs[0].find(0x1000).unwrap(), SPACE, 3), stale);
        assert_eq!(oracle.check(tlbs[0].find(1 << 40).unwrap(), SPACE, 3), None);
    }
}
