//! Copy-on-write: a write to a private page that other spaces may share.
//!
//! # Steps
//!
//! The copy must not become writable on one CPU while another CPU still reads the original: the
//! first CPU could write, notify the second CPU, and the second CPU would read the old word. So the
//! entry is emptied first, then flushed, and the copy is mapped when all CPUs have dropped the
//! original. (Linux does the same under the lock of the page table: "clear the pte entry and flush
//! it first, before updating the pte with the new entry".)
//!
//! There is no such lock here. Instead, the faulting CPU *claims* the entry: during the flush and
//! the copy the entry contains a ticket that no other claim ever has. The claim has three effects:
//!
//! - The entry's count of the page passes to the claiming CPU. So the page stays while the CPU
//!   examines and copies it, whatever other CPUs do to the entry.
//! - Other faults on the page return, and are retried later.
//! - At the end, the ticket shows whether the entry is still the one that was claimed.
//!
//! The lock, of the area or of the space, is held for reading throughout, under every policy. So a
//! caller that holds the lock of the space for writing, and has detached the area, never finds a
//! claim, and a fork or a change of protection never has to ask where the page is. An
//! [`advise`](AddressSpace::advise) that discards pages may find a claim, and clears it. The page
//! is then discarded, which the claiming CPU detects when it fails to map the copy.

use crate::PAGE_BYTES;
use crate::area::{Area, Protection};
use crate::coherence::{Cause, ExtraFlushes};
use crate::format::{Format, Leaf, Marks};
use crate::gather::Gather;
use crate::platform::{EntryAt, FrameUse, OutOfMemory, Platform};
use crate::space::AddressSpace;
use crate::system::System;

impl<S: System> AddressSpace<S> {
    /// Gives this space its own writable page at `page` of an area, where `at` held `entry`. Does
    /// nothing if another call changes the entry first.
    pub(crate) fn make_private(
        &self,
        area: &Area<S::Platform>,
        page: u64,
        at: EntryAt,
        entry: u64,
        leaf: Leaf,
    ) -> Result<(), OutOfMemory> {
        let platform = &self.vm.platform;
        // List the flush before the claim: a call that clears the claim, and finds no page, must
        // detect that a flush is still to come.
        let mut gather = Gather::begin(self, page..page + PAGE_BYTES, Cause::CopyOnWrite);
        let claim = self.mappings.new_claim();
        platform.lock_table(at.table);
        let claimed = platform.compare_exchange(at, entry, claim);
        platform.unlock_table(at.table);
        if claimed.is_err() {
            gather.cancel();
            return Ok(());
        }
        let writable = |frame| {
            let protection = leaf.protection | Protection::WRITE;
            S::Format::leaf(Leaf { frame, protection, marks: Marks::ACCESSED | Marks::DIRTY })
        };
        if leaf.frame != self.vm.zero_page && platform.user_count(leaf.frame) == 1 {
            // No other space has the page, and none can get it, because a fork needs the lock. The
            // new entry allows more than the old one, so no flush is needed.
            if self.vm.policy.extra_flushes.contains(ExtraFlushes::REUSED_PAGES) {
                gather.add_translation(page, 0);
            }
            self.resolve_claim(gather, page, at, claim, writable(leaf.frame), leaf);
            return Ok(());
        }
        let own = match self.vm.allocate(FrameUse::Page) {
            Ok(own) => own,
            Err(error) => {
                self.resolve_claim(gather, page, at, claim, entry, leaf);
                return Err(error);
            }
        };
        if leaf.frame == self.vm.zero_page {
            self.record_write_after_read(area);
        }
        gather.remove_page(page, leaf, 0);
        let sent = gather.send();
        // Copy while other CPUs handle the flush.
        if leaf.frame == self.vm.zero_page {
            platform.clear_page(own);
        } else {
            platform.copy_page(leaf.frame, own);
        }
        sent.wait();
        self.add_mapping(own, None, page);
        platform.lock_table(at.table);
        let mapped = platform.compare_exchange(at, claim, writable(own));
        platform.unlock_table(at.table);
        if mapped.is_err() {
            self.remove_mapping(own, page);
            platform.release(own);
        } else {
            self.count_resident(1);
        }
        Ok(())
    }

    /// Replaces a claim by `entry`, which maps the page of `leaf`, and flushes what was gathered.
    /// If the page has been discarded since the claim, flushes and releases it instead of the call
    /// that discarded it.
    fn resolve_claim(
        &self,
        mut gather: Gather<'_, S>,
        page: u64,
        at: EntryAt,
        claim: u64,
        entry: u64,
        leaf: Leaf,
    ) {
        if self.vm.platform.compare_exchange(at, claim, entry).is_err() {
            gather.remove_page(page, leaf, 0);
        } else if gather.is_empty() {
            return gather.cancel();
        }
        gather.send().wait();
    }
}
