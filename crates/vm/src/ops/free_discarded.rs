//! Freeing pages that were discarded in place: late, many with one flush, and only those that are
//! still zero.
//!
//! # Steps
//!
//! 1. Claim the entry of each page, and test the page. A page that is not zero is in use again: its
//!    entry is restored. So a page that is used again and again costs no flush.
//! 2. Flush the claimed pages, and wait.
//! 3. Test each page again. No CPU can write to it any more, so the answer is final. If the page is
//!    zero, clear the entry and free the page: the next access finds another page of zeros. If a
//!    CPU has written to the page, map it back.
//!
//! Neither test alone would do. Before the flush, a CPU that caches the translation may write to
//! the page after it was tested, and the write would be lost with the page. And the dirty mark of
//! the entry shows nothing: the page was dirty when it was discarded, and a CPU that caches the
//! entry as dirty does not mark it again.
//!
//! # Locks
//!
//! The space, or the area of the pages, is locked for reading from the first claim until the last
//! claim is resolved, so a call that has the space's lock for writing, and has detached the areas
//! that it changes, finds no claim. A call that discards a claimed page flushes it. So
//! the flush is not listed as [in flight](crate::deferred::in_flight): its range would make every
//! concurrent discard in between flush as well. The space's lock is only tried: an allocation that
//! fails frees discarded pages, and its caller may have any lock of any space.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::PAGE_BYTES;
use crate::area::Area;
use crate::coherence::Change;
use crate::discarded::{AGE_MAX_NS, Choice};
use crate::format::{EMPTY, Format, Leaf, Marks};
use crate::mappings::Mappings;
use crate::platform::{EntryAt, Platform, Work};
use crate::sharers::Sharers;
use crate::system::System;
use crate::table::{Slot, change_leaf};
use crate::vm::Vm;

/// A page whose entry was claimed.
struct Claimed {
    address: u64,
    at: EntryAt,
    claim: u64,
    leaf: Leaf,
}

impl<S: System> Vm<S> {
    /// Frees pages of any space that were [discarded in place](crate::Discards::InPlace) 20 ms ago
    /// or earlier, and have not been written since. Returns their number. Flushes once for each
    /// space that has such pages.
    ///
    /// Call this when a CPU becomes idle, as [`free_dead_tables`](Self::free_dead_tables): it is
    /// cheap if there is nothing to free. `advise` calls it also. Without these calls, pages are
    /// freed when memory is short, when the space has 2 MiB of them, and at its end. Do not call it
    /// while you hold a spin lock.
    pub fn free_discarded(&self) -> usize {
        if self.discards.is_empty() {
            return 0;
        }
        let now_ns = self.platform.now_ns();
        if !self.discards.take_due(now_ns) {
            return 0;
        }
        self.free_discarded_everywhere(&Choice::Until(now_ns.saturating_sub(AGE_MAX_NS)))
    }

    /// Frees the discarded pages of all spaces whose lock is free. Returns their number.
    pub(crate) fn free_all_discarded(&self) -> usize {
        if self.discards.is_empty() { 0 } else { self.free_discarded_everywhere(&Choice::All) }
    }

    fn free_discarded_everywhere(&self, choice: &Choice) -> usize {
        let mut freed = 0;
        for mappings in self.discards.spaces() {
            freed += self.free_discarded_of(&mappings, choice);
            if let Some(oldest_ns) = mappings.discarded.oldest_ns() {
                self.discards.set_due(oldest_ns);
            }
        }
        freed
    }

    /// Frees discarded pages of one space, if its lock is free. Returns their number.
    pub(crate) fn free_discarded_of(&self, mappings: &Arc<Mappings<S>>, choice: &Choice) -> usize {
        let Some(areas) = mappings.areas.try_read() else { return 0 };
        // Tables stay during the walk only where an area is.
        self.free_discarded_if(mappings, choice, |page| {
            areas.find(page).is_some_and(Area::is_private_anonymous)
        })
    }

    /// Frees discarded pages for which `is_private` returns `true`: those of private anonymous
    /// areas that are locked. Returns their number.
    pub(crate) fn free_discarded_if(
        &self,
        mappings: &Arc<Mappings<S>>,
        choice: &Choice,
        is_private: impl Fn(u64) -> bool,
    ) -> usize {
        let taken = mappings.discarded.take(choice, self.platform.now_ns());
        if taken.pages.is_empty() {
            return 0;
        }
        self.discards.count_taken(&taken);
        let private = taken.pages.iter().filter(|&&page| is_private(page));
        let claimed: Vec<Claimed> =
            private.filter_map(|&page| self.claim_if_zero(mappings, page)).collect();
        self.flush_claimed(mappings, &claimed);
        let is_freed = |page: &&Claimed| self.resolve(mappings, page);
        let freed = claimed.iter().filter(is_freed).count();
        if freed != 0 {
            self.platform.work(Work::UnmapPage, freed);
        }
        self.discards.count_freed(freed, taken.pages.len() - freed);
        freed
    }

    /// Claims the entry of a page that can be freed and is zero.
    fn claim_if_zero(&self, mappings: &Mappings<S>, address: u64) -> Option<Claimed> {
        let platform = &self.platform;
        let at = mappings.tables.find(platform, address)?;
        let claim = mappings.new_claim();
        let entry = platform.load(at);
        let leaf = change_leaf::<S::Format>(platform, Slot { at, level: 0 }, entry, |leaf| {
            (leaf.frame != self.zero_page).then_some(claim)
        })?;
        let can_go = platform.user_count(leaf.frame) == 1 && platform.is_zero(leaf.frame);
        // If another call clears the claim first, it leaves the page to this call, which must flush
        // and release it.
        let is_restored =
            !can_go && platform.compare_exchange(at, claim, S::Format::leaf(leaf)).is_ok();
        (!is_restored).then_some(Claimed { address, at, claim, leaf })
    }

    /// Makes all CPUs drop the claimed pages.
    fn flush_claimed(&self, mappings: &Mappings<S>, claimed: &[Claimed]) {
        // A CPU can cache only translations that allow some access, or allowed it until a flush.
        let cached = claimed.iter().filter(|page| {
            let range = page.address..page.address + PAGE_BYTES;
            !page.leaf.protection.is_empty() || mappings.unflushed(&range, None).is_some()
        });
        if let Some(change) = Change::discarded(cached.map(|page| page.address)) {
            self.discards.count_flush();
            let unlinked = Sharers::default();
            let flush = mappings.flush(&self.coherence, &self.platform, &change, unlinked);
            flush.wait(&self.coherence, &self.platform);
        }
    }

    /// Frees a claimed page that is still zero, or maps it back. Returns `true` if it was freed.
    fn resolve(&self, mappings: &Arc<Mappings<S>>, page: &Claimed) -> bool {
        let Claimed { address, at, claim, leaf } = *page;
        let platform = &self.platform;
        let entry = if platform.is_zero(leaf.frame) {
            EMPTY
        } else {
            // The page was just written.
            let marks = Marks::ACCESSED | Marks::DIRTY;
            S::Format::leaf(Leaf { marks, ..leaf })
        };
        if platform.compare_exchange(at, claim, entry).is_ok() && entry != EMPTY {
            return false;
        }
        if let Some(rmap) = self.rmap_of(leaf.frame) {
            rmap.remove_mapping(leaf.frame, mappings, address);
        }
        self.release(leaf.frame);
        true
    }
}
