//! Pins of ASIDs, for devices that translate by a space's page tables.

#![expect(unsafe_code, reason = "only the driver knows what a device caches")]

use core::sync::atomic::Ordering::Relaxed;

use super::asids::AsidWord;
use super::taking::end_taking;
use crate::base::ids::Tag;
use crate::base::memory::{Word, fence, order};
use crate::base::rules::Rule;
use crate::state::machine::Machine;
use crate::state::pinned_cpu::PinnedCpu;
use crate::state::space::Space;

impl<M: Machine> PinnedCpu<'_, M> {
    /// Pins the ASID of the space, for a device that translates by the same page tables (shared
    /// virtual memory: Arm's SMMU). Returns the ASID, which the caller passes to the device.
    ///
    /// Until [`unpin_tag`](Self::unpin_tag) has been called as often, rollovers do not change the
    /// ASID. Each flush of the space is broadcast, because a device does not publish when it uses a
    /// translation.
    ///
    /// Unpin the space before you [retire](Self::retire) it, because its tables may be freed then.
    ///
    /// Returns `None` in these cases:
    ///
    /// - the machine's tags are not [global](crate::Tagging::Global);
    /// - the machine cannot [broadcast](Machine::broadcaster) to all CPUs;
    /// - at most as many ASIDs as CPUs would be left;
    /// - this space is pinned 255 times already.
    pub fn pin_tag(&self, space: &Space<M>) -> Option<Tag> {
        self.engine.broadcaster_to_all()?;
        let tags = self.engine.tags();
        let pinned = tags.with_lock(self.machine(), self.id, || self.pin_locked(space));
        end_taking(self.cpu);
        // Pairs with FlushFence. Either a flush observes that the space is pinned, and broadcasts,
        // or the device walks page tables at least as new as the flush. Without the fence, the
        // flush may skip the broadcast while the device caches the old entry.
        fence(self.machine(), Rule::NewAsidFence);
        pinned
    }

    /// Pins the ASID under the lock.
    fn pin_locked(&self, space: &Space<M>) -> Option<Tag> {
        let (machine, tags) = (self.machine(), self.engine.tags());
        loop {
            let word = self.current_asid(space)?;
            if self.local().stock.needs_discard(word.asid()) {
                // The ASID is not loaded here, and no method names one that is not.
                self.empty_tlb();
            }
            // Relaxed: under the lock (TagLockAcquire).
            let pinned = tags.pinned.load(Relaxed);
            let for_devices = tags.count(machine).saturating_sub(machine.cpu_limit() as u64 + 1);
            let is_first = !word.is_pinned();
            let fits = if is_first {
                pinned < for_devices
            } else {
                word.0 & AsidWord::PINS != AsidWord::PINS
            };
            if !fits {
                return None;
            }
            if is_first {
                tags.set_pinned(machine, word.asid(), |word, bit| word | bit);
                // Pairs with ReserveFence: either a CPU that allocates in the next epoch finds the
                // ASID pinned, or this CPU finds the epoch over.
                fence(machine, Rule::PinFence);
            }
            let more = word.0 + AsidWord::PIN;
            let release = order(machine, Rule::AsidRelease);
            // Relaxed: after the fence. Relaxed on failure: the word is read again.
            if (!is_first || tags.epoch.load(Relaxed) == word.epoch())
                && space.tag.compare_exchange(word.0, more, release, Relaxed).is_ok()
            {
                // Relaxed: as above.
                tags.pinned.store(pinned + u64::from(is_first), Relaxed);
                return Some(word.tag());
            }
            if is_first {
                tags.set_pinned(machine, word.asid(), |word, bit| word & !bit);
            }
        }
    }

    /// Unpins the ASID of the space once.
    ///
    /// # Panics
    ///
    /// If the space is not [pinned](Self::pin_tag).
    ///
    /// # Safety
    ///
    /// The device does not use the ASID any more, and has dropped the translations that it cached
    /// under it. This is the only call for one [`pin_tag`](Self::pin_tag).
    pub unsafe fn unpin_tag(&self, space: &Space<M>) {
        let (machine, tags) = (self.machine(), self.engine.tags());
        let was_pinned = tags.with_lock(machine, self.id, || {
            loop {
                // Relaxed: the exchange confirms it.
                let word = AsidWord(space.tag.load(Relaxed));
                if !word.is_pinned() {
                    return false;
                }
                let left = AsidWord(word.0 - AsidWord::PIN);
                let release = order(machine, Rule::UnpinRelease);
                // Relaxed on failure: the word is read again.
                if space.tag.compare_exchange(word.0, left.0, release, Relaxed).is_ok() {
                    if !left.is_pinned() {
                        self.free_pin(left);
                    }
                    return true;
                }
            }
        });
        // The panic is outside of the lock, so that a kernel that survives it can go on.
        assert!(was_pinned, "the space is unpinned more often than pinned");
    }

    /// Frees the ASID that `unpinned` has for the next epoch, under the lock. In this epoch, the
    /// space still has it.
    fn free_pin(&self, unpinned: AsidWord) {
        let (machine, tags) = (self.machine(), self.engine.tags());
        // Relaxed: under the lock (TagLockAcquire), for the count. If the epoch is over, CPUs that
        // allocate in a later one do not need the pin.
        let epoch = tags.epoch.load(Relaxed).max(unpinned.epoch());
        self.list_unavailable(epoch);
        tags.pinned.store(tags.pinned.load(Relaxed) - 1, Relaxed);
        tags.set_pinned(machine, unpinned.asid(), |word, bit| word & !bit);
    }
}

impl<M: Machine> Space<M> {
    /// Returns `true` if a device uses the space.
    #[inline]
    pub(crate) fn is_pinned(&self, machine: &M) -> bool {
        // After FlushFence, which pairs with NewAsidFence of `pin_tag`.
        AsidWord(self.tag.load(order(machine, Rule::UnpinAcquire))).is_pinned()
    }
}
