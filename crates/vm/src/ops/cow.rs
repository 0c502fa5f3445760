//! Copy-on-write: a write to a private page that others may share.
//!
//! # The order of things
//!
//! The copy must not be writable on one CPU while another still reads the original: the one would
//! write, tell the other, and that would read the old word. So the entry is emptied first, then
//! flushed, and the copy put there when all CPUs have forgotten the original. (Linux does so under
//! the lock of the page table: "clear the pte entry and flush it first, before updating the pte
//! with the new entry".)
//!
//! Without such a lock, the entry is *claimed* meanwhile: it holds a ticket that no other claim
//! ever has. The claim does three things. It takes the entry's count of the page over to the
//! claimant, so that the page stays while it is looked at and copied, whatever others do to the
//! entry. It has other faults on the page come back later. And it tells at the end whether the
//! entry is still the one that was claimed.
//!
//! The lock is held for reading throughout, whatever the design. Who holds it for writing never
//! meets a claim, and so a fork, or a change of protection, never has to ask where the page is. An
//! [`advise`](AddressSpace::advise) that discards may meet one, and clears it: the page is gone,
//! which the claimant sees when it fails to put the copy there.

use core::sync::atomic::Ordering::Relaxed;

use crate::PAGE_BYTES;
use crate::area::Protection;
use crate::coherence::{Cause, ZeroPage};
use crate::format::{Format, Leaf, Marks};
use crate::gather::Gather;
use crate::platform::{EntryAt, FrameUse, OutOfMemory, Platform};
use crate::space::AddressSpace;
use crate::system::System;

impl<S: System> AddressSpace<S> {
    /// Makes the page at `page`, for which `at` held `entry`, ours alone and writable, if nobody
    /// else changes the entry.
    pub(crate) fn make_private(
        &self,
        page: u64,
        at: EntryAt,
        entry: u64,
        leaf: Leaf,
    ) -> Result<(), OutOfMemory> {
        let platform = &self.vm.platform;
        // Before the claim: who clears it, and finds no page, must know that a flush is to come.
        let mut gather = Gather::begin(self, page..page + PAGE_BYTES, Cause::CopyOnWrite);
        let claim = S::Format::claim(self.claims.fetch_add(1, Relaxed));
        if platform.compare_exchange(at, entry, claim).is_err() {
            gather.cancel();
            return Ok(());
        }
        let writable = |frame| {
            let protection = leaf.protection | Protection::WRITE;
            S::Format::leaf(Leaf { frame, protection, marks: Marks::ACCESSED | Marks::DIRTY })
        };
        if leaf.frame != self.vm.zero_page && platform.user_count(leaf.frame) == 1 {
            // Nobody else has it, and nobody can come to: a fork needs the lock. More is allowed
            // than was, so no flush.
            self.put_back(gather, page, at, claim, writable(leaf.frame), leaf);
            return Ok(());
        }
        let own = match self.vm.allocate(FrameUse::Page) {
            Ok(own) => own,
            Err(error) => {
                self.put_back(gather, page, at, claim, entry, leaf);
                return Err(error);
            }
        };
        if self.vm.policy.zero_page == ZeroPage::Predicted && leaf.frame == self.vm.zero_page {
            self.zero_page_predictor.was_written();
        }
        gather.page(page, leaf, 0);
        let sent = gather.send();
        // While other CPUs are told.
        if leaf.frame == self.vm.zero_page {
            platform.clear_page(own);
        } else {
            platform.copy_page(leaf.frame, own);
        }
        sent.wait();
        self.add_mapping(own, None, page);
        if platform.compare_exchange(at, claim, writable(own)).is_err() {
            self.remove_mapping(own, page);
            platform.release(own);
        }
        Ok(())
    }

    /// Ends a claim with the page where it was, or, where it has been discarded meanwhile, flushes
    /// and releases it in place of who discarded it.
    fn put_back(
        &self,
        mut gather: Gather<'_, S>,
        page: u64,
        at: EntryAt,
        claim: u64,
        entry: u64,
        leaf: Leaf,
    ) {
        if self.vm.platform.compare_exchange(at, claim, entry).is_ok() {
            gather.cancel();
        } else {
            gather.page(page, leaf, 0);
            gather.send().wait();
        }
    }
}
