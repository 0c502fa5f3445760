//! The classes of flush interrupts: could the target have used what the interrupt removed?
//!
//! An interrupt is sent for one flush or several, each of a range of a space. Its class is:
//!
//! - *in vain*: when the interrupt was sent, the target's TLB held no translation of the ranges
//!   that was older than the flush. If the flush frees page tables, the TLB also held no entry of
//!   the upper levels above the ranges; and for a whole space, its root was not loaded.
//! - *useful*: the target held one, and accessed its page before the target's next *natural
//!   synchronisation*. That is the next switch of threads on the target, or the next flush of the
//!   same space that the target itself begins: there the target catches up without an interrupt.
//! - *early*: all others. The target held a translation, and would have caught up before using it.
//!
//! The *bound* of a run is the number of interrupts that are not in vain.
//!
//! The classes assume the following. Entries of every tag count as held, also of tags that are not
//! loaded. An access counts as a use even if the old translation would have done no harm, such as a
//! read through an entry that was only made read-only. Other interrupts are not natural
//! synchronisations. A request that needs no interrupt of its own, because one is on its way to the
//! same target, counts for that interrupt. For a flush of a whole space, or of more than
//! [`LISTED_PAGES_MAX`] pages, the TLB is not searched for each page: a whole space counts as held
//! if the target has read its tables since it last dropped the tag; and a page that other entries
//! displaced between the flush and the access is not recognised.
//!
//! For each interrupt there is a second figure, for each level of the page tables: had the target
//! read a table that covers the ranges since it last dropped all entries of the tag? A design that
//! records exactly which CPUs have linked a table could leave out the interrupts without it.

use core::ops::Range;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::clock::Flushed;
use crate::tlb::{SpaceKey, Tlb};

/// Number of pages of a range up to which the pages that the target holds are listed.
const LISTED_PAGES_MAX: u64 = 64;
/// Number of large ranges that are watched on a CPU at a time. Older ones count as early.
const WIDE_MAX: usize = 64;
/// Number of tables above which those that were dropped are forgotten.
const TABLES_MAX: usize = 1 << 12;
/// The parts of the address space that a table of the last level, and of the two levels above,
/// cover, as powers of two: 2 MiB, 1 GiB, 512 GiB.
pub(crate) const TABLE_SHIFTS: [u8; 3] = [21, 30, 39];

type Map<K, V> = HashMap<K, V, BuildHasherDefault<Mixer>>;

/// Mixes numbers, at a fraction of the cost of a hash that resists attacks.
#[derive(Debug, Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
    #[inline]
    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }
}

/// The interrupts of one target that have no class yet, and the tables that it has read.
#[derive(Debug, Default)]
pub(crate) struct Target {
    /// The interrupts that the target has not taken, as indexes of `interrupts`.
    in_flight: Vec<usize>,
    /// The oracle's number of the flush for which the last of them was sent.
    sent_for: u64,
    interrupts: Vec<Interrupt>,
    /// The small pages that were held, and the last interrupt for each.
    pages: Map<(SpaceKey, u64), usize>,
    wide: Vec<Wide>,
    /// The tables that the target has read, with the tag and the number of the last invalidation
    /// then.
    tables: Map<(SpaceKey, u8, u64), (u16, u64)>,
    /// Number of tables above which those that were dropped are forgotten.
    tables_max: usize,
}

#[derive(Clone, Copy, Debug)]
struct Interrupt {
    is_held: bool,
    is_used: bool,
}

/// A range of which some pages were held, or a large page that was.
#[derive(Clone, Debug)]
struct Wide {
    flushed: Flushed,
    interrupt: usize,
}

impl Target {
    pub(crate) fn is_watched(&self) -> bool {
        !self.pages.is_empty() || !self.wide.is_empty()
    }

    /// Adds an interrupt that was sent for these flushes.
    pub(crate) fn send(&mut self, flushes: &[Flushed], tlb: &Tlb) {
        self.interrupts.push(Interrupt { is_held: false, is_used: false });
        let interrupt = self.interrupts.len() - 1;
        self.in_flight.push(interrupt);
        self.sent_for = number_of(flushes);
        flushes.iter().for_each(|flushed| self.hold(interrupt, flushed, tlb));
        // The flush of no space in particular makes CPUs leave the spaces that they have loaded.
        self.interrupts[interrupt].is_held |= flushes.is_empty() && tlb.space != SpaceKey::KERNEL;
    }

    /// Adds flushes that were sent without an interrupt to this target, if one is on its way.
    pub(crate) fn coalesce(&mut self, flushes: &[Flushed], tlb: &Tlb) {
        if let Some(&interrupt) = self.in_flight.last()
            && self.sent_for != number_of(flushes)
        {
            flushes.iter().for_each(|flushed| self.hold(interrupt, flushed, tlb));
        }
    }

    /// Ends the flight of all interrupts. Returns the number of those in vain.
    pub(crate) fn take(&mut self) -> u64 {
        let Self { in_flight, interrupts, .. } = self;
        let taken = in_flight.drain(..).map(|number| interrupts[number]);
        let in_vain = taken.filter(|taken| !taken.is_held).count() as u64;
        if !self.is_watched() {
            self.interrupts.clear();
        }
        in_vain
    }

    /// Adds what the target holds of a flush to one of its interrupts.
    fn hold(&mut self, interrupt: usize, flushed: &Flushed, tlb: &Tlb) {
        let Self { pages, wide, .. } = self;
        let pages_of = |range: &Range<u64>| range.end.saturating_sub(range.start).div_ceil(4096);
        let mut is_held = flushed.frees_tables && tlb.holds_table_of(flushed);
        let mut is_wide = false;
        match &flushed.range {
            Some(range) if pages_of(range) <= LISTED_PAGES_MAX => {
                tlb.held(flushed, |page, shift| {
                    is_held = true;
                    is_wide |= shift > 12;
                    if shift == 12 {
                        pages.insert((flushed.space, page >> 12), interrupt);
                    }
                    true
                });
            }
            Some(_) => tlb.held(flushed, |_, _| {
                (is_held, is_wide) = (true, true);
                false
            }),
            None => {
                let of_space = |(key, &(tag, since)): (&(SpaceKey, u8, u64), &(u16, u64))| {
                    key.0 == flushed.space && tlb.is_live(tag, since)
                };
                is_wide = self.tables.iter().any(of_space);
                is_held |= is_wide;
            }
        }
        if is_wide {
            if wide.len() == WIDE_MAX {
                wide.remove(0);
            }
            wide.push(Wide { flushed: flushed.clone(), interrupt });
        }
        self.interrupts[interrupt].is_held |= is_held;
    }

    /// Returns `true` if the target has read a table of this level that covers part of a flush,
    /// since it dropped the table's tag.
    pub(crate) fn has_read(&self, shift: u8, flushed: &Flushed, tlb: &Tlb) -> bool {
        let is_live = |&(tag, since): &(u16, u64)| tlb.is_live(tag, since);
        let key = |part| (flushed.space, shift, part);
        match &flushed.range {
            Some(range) if range.end.saturating_sub(range.start) >> shift < LISTED_PAGES_MAX => {
                let parts = range.start >> shift..=range.end.saturating_sub(1) >> shift;
                parts.into_iter().any(|part| self.tables.get(&key(part)).is_some_and(is_live))
            }
            range => self.tables.iter().any(|(&(space, level, part), read)| {
                let within = |range: &Range<u64>| {
                    (range.start >> shift..=range.end.saturating_sub(1) >> shift).contains(&part)
                };
                let is_part = range.as_ref().is_none_or(within);
                (space, level) == (flushed.space, shift) && is_part && is_live(read)
            }),
        }
    }

    /// Returns the number of interrupts that become useful by an access to `address`.
    pub(crate) fn access(&mut self, address: u64, tlb: &Tlb) -> u64 {
        let space = tlb.space;
        let mut useful = 0;
        let interrupts = &mut self.interrupts;
        let mut mark = |interrupt: usize| {
            let is_used = &mut interrupts[interrupt].is_used;
            useful += u64::from(!core::mem::replace(is_used, true));
        };
        if let Some(interrupt) = self.pages.remove(&(space, address >> 12)) {
            mark(interrupt);
        }
        if !self.wide.is_empty() {
            let read_at = tlb.trace(address);
            self.wide.retain(|Wide { flushed, interrupt }| {
                let is_used = flushed.space == space
                    && flushed.range.as_ref().is_none_or(|range| range.contains(&address))
                    && read_at.is_some_and(|read_at| read_at < flushed.began);
                if is_used {
                    mark(*interrupt);
                }
                !is_used
            });
        }
        useful
    }

    /// Ends the watch: the target has caught up.
    pub(crate) fn catch_up(&mut self) {
        self.pages.clear();
        self.wide.clear();
        if self.in_flight.is_empty() {
            self.interrupts.clear();
        }
    }

    pub(crate) fn note_table(&mut self, key: (SpaceKey, u8, u64), tag: u16, since: u64, tlb: &Tlb) {
        self.tables.insert(key, (tag, since));
        if self.tables.len() > self.tables_max.max(TABLES_MAX) {
            self.tables.retain(|_, &mut (tag, since)| tlb.is_live(tag, since));
            self.tables_max = 2 * self.tables.len();
        }
    }
}

/// Returns the oracle's number of the first of the flushes that are sent together.
fn number_of(flushes: &[Flushed]) -> u64 {
    flushes.first().map_or(0, |flushed| flushed.began)
}
