//! Knowledge of the future, for a design that no machine can have: a sender leaves out an interrupt
//! if its target will not use what the interrupt would remove.
//!
//! One run cannot know its own future. So a run leaves out every interrupt that was not needed in
//! an earlier run, and records those that it should not have left out: the oracle detects that the
//! target uses an old translation. The next run sends these. The runs end when one of them leaves
//! out no interrupt that it needs.

use core::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use crate::clock::Flushed;
use crate::tlb::{SpaceKey, Tlb, Translation};

/// The interrupts that several runs have shown to be needed. Clones share one record.
#[derive(Clone, Debug, Default)]
pub struct Foresight(Rc<RefCell<Known>>);

#[derive(Debug, Default)]
struct Known {
    needed: BTreeSet<Key>,
    /// Those that the current run left out.
    missed: BTreeSet<Key>,
}

/// An interrupt: the sender, the number of the sender's flush, and the target. Threads that keep
/// their CPUs make the same flushes in each run, so a key names the same interrupt.
pub(crate) type Key = (usize, u64, usize);

/// The interrupts of a run that were left out, for each target.
#[derive(Debug)]
pub(crate) struct LeftOut {
    foresight: Foresight,
    targets: Vec<OfTarget>,
}

/// The interrupts to a target that were left out, of which it held a translation.
#[derive(Debug, Default)]
struct OfTarget {
    /// The last interrupt for each small page.
    pages: HashMap<(SpaceKey, u64), Key>,
    /// The interrupts for larger ranges and pages, in order.
    wide: Vec<(Flushed, Key)>,
}

impl Foresight {
    /// Ends a run. Returns `true` if the run left out no interrupt that it needed.
    #[must_use]
    pub fn has_settled(&self) -> bool {
        let known = &mut *self.0.borrow_mut();
        let has_settled = known.missed.is_empty();
        known.needed.append(&mut known.missed);
        has_settled
    }
}

/// Number of pages of a range up to which each held page is recorded.
const LISTED_PAGES_MAX: u64 = 64;

impl OfTarget {
    fn add(&mut self, flushed: &Flushed, key: Key, held: &[(u64, u8)]) {
        let bytes = |range: &core::ops::Range<u64>| range.end.saturating_sub(range.start);
        let is_short = |range| bytes(range) <= LISTED_PAGES_MAX << 12;
        let is_listed = flushed.range.as_ref().is_some_and(is_short);
        if is_listed && held.iter().all(|&(_, shift)| shift == 12) {
            let pages = held.iter().map(|&(page, _)| ((flushed.space, page >> 12), key));
            self.pages.extend(pages);
            return;
        }
        self.wide
            .retain(|(other, _)| (other.space, &other.range) != (flushed.space, &flushed.range));
        self.wide.push((flushed.clone(), key));
    }

    /// Returns the last interrupt that would have removed a translation of `address`.
    fn find(&self, address: u64, used: &Translation) -> Option<Key> {
        let covers = |(flushed, _): &&(Flushed, Key)| {
            let within = flushed.range.as_ref().is_none_or(|range| {
                address >> used.shift <= range.end.saturating_sub(1) >> used.shift
                    && address >> used.shift >= range.start >> used.shift
            });
            flushed.space == used.space && used.clean_since < flushed.began && within
        };
        let wide = || self.wide.iter().rev().find(covers).map(|&(_, key)| key);
        self.pages.get(&(used.space, address >> 12)).copied().or_else(wide)
    }
}

impl LeftOut {
    pub(crate) fn new(foresight: Foresight, cpus: usize) -> Self {
        Self { foresight, targets: (0..cpus).map(|_| OfTarget::default()).collect() }
    }

    /// Returns `true` if an interrupt can be left out, and then records what its target holds.
    pub(crate) fn leave_out(&mut self, key: Key, flushes: &[Flushed], tlb: &Tlb) -> bool {
        let needs_tables = |flushed: &Flushed| flushed.frees_tables && tlb.holds_table_of(flushed);
        if flushes.is_empty() || flushes.iter().any(needs_tables) {
            return false;
        }
        let is_needed = self.foresight.0.borrow().needed.contains(&key);
        let mut held = Vec::new();
        let mut is_sent = false;
        for flushed in flushes {
            held.clear();
            tlb.held(flushed, |page, shift| {
                held.push((page, shift));
                true
            });
            is_sent |= is_needed && !held.is_empty();
            if !held.is_empty() {
                self.targets[key.2].add(flushed, key, &held);
            }
        }
        !is_sent
    }

    /// Records that a CPU has used an old translation. Returns `true` if an interrupt that was left
    /// out would have removed it.
    pub(crate) fn note_use(&self, cpu: usize, address: u64, used: &Translation) -> bool {
        let Some(key) = self.targets[cpu].find(address, used) else { return false };
        self.foresight.0.borrow_mut().missed.insert(key);
        true
    }
}
