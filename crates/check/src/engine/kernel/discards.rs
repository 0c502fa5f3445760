//! Pages that were discarded in place: zeroed where they are, and freed later with one flush.
//!
//! To zero a page has no effect on TLBs, so only the release is an operation. The machine has no
//! contents: the zero test reads a page as writing it out does, and no CPU may write to the page
//! from then on.

use shootdown::{Extent, PageSize};

use super::{InFlight, Kernel, KernelSpace};
use crate::engine::Fault;
use crate::hardware::{Entry, PAGES};
use crate::machine::with_machine;
use crate::sometimes::Sometimes;

impl<const LIFETIME: u8, const WORDS: usize> Kernel<'_, LIFETIME, WORDS> {
    /// Claims the entries of a table's pages, flushes all of them once, and tests the pages.
    pub(super) fn free_discarded(&self, space: usize, slot: usize) {
        let KernelSpace { tables, in_flight, .. } = &self.spaces[space];
        let _in_flight = InFlight::begin(in_flight);
        let pages = slot * PAGES..(slot + 1) * PAGES;
        let claimed = pages.clone().map(|number| (number, tables.swap(number, Entry::EMPTY)));
        let mut claims = [None; PAGES];
        for (claim, (number, entry)) in claims.iter_mut().zip(claimed) {
            *claim = entry.is_present().then_some((number, entry));
        }
        let test = || {
            for (_, entry) in claims.iter().flatten() {
                with_machine(|machine| machine.write_out(entry.target(), true));
            }
        };
        if claims.iter().all(Option::is_none) {
            return;
        }
        if self.fault == Some(Fault::EarlyZeroTest) {
            test();
        }
        let extent = Extent::pages((pages.start as u64) << 12, PAGES, PageSize::SIZE_4K);
        self.flush(space, extent, self.stale_entries(space, extent));
        if self.fault != Some(Fault::EarlyZeroTest) {
            test();
        }
        let is_both = claims.iter().all(Option::is_some);
        for (index, (number, entry)) in claims.into_iter().flatten().enumerate() {
            let is_back = index != 0
                && tables.has_table(number)
                && tables.replace(number, Entry::EMPTY, entry);
            if !is_back {
                self.free_frame(space, number, entry.target());
            }
        }
        if is_both {
            with_machine(|machine| machine.reach(Sometimes::FreedDiscarded));
        }
    }
}
