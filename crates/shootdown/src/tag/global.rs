//! Tags that mean the same space on every CPU, as Arm's and RISC-V's ASIDs do.
//!
//! A space gets an ASID when it first runs, and keeps it until ASIDs run out. Then comes a
//! *rollover*: a new epoch begins, in which only the ASIDs that a CPU has loaded stay allocated.
//! Each CPU empties its TLB before it uses an ASID of the new epoch. So an ASID belongs to one
//! space at a time, no CPU is interrupted, and a rollover costs each CPU one flush.
//!
//! A CPU that goes back to a space does one compare-and-swap of its own word, `active_tag`. A
//! rollover swaps this word for 0, and reserves the ASID that it had. Both operate on one word, so
//! there are two cases. Either the rollover finds the ASID that the CPU has just chosen, and
//! reserves this ASID. Or the CPU finds its word empty, and takes the slow path under the lock.
//! (Linux on Arm uses this scheme, in `arch/arm64/mm/context.c`. There, Linux also reserves a
//! second ASID per space, which this engine does not.)
//!
//! If there are no more ASIDs than CPUs, a CPU may find none free. Then it runs the space under
//! [`Tag::KERNEL`], as a machine without tags does. Such a machine cannot broadcast.

#![expect(unsafe_code, reason = "only the driver knows what a device caches")]

use core::sync::atomic::Ordering::Relaxed;

use super::Choice;
use super::asids::AsidWord;
use super::slots::{named_by, vacate};
use crate::cpu_set::CpuSet;
use crate::cpu_state::CpuState;
use crate::ids::{CpuId, Tag};
use crate::machine::{Machine, Tagging};
use crate::memory::{Word, fence, order};
use crate::pinned_cpu::PinnedCpu;
use crate::rules::Rule;
use crate::space::Space;

/// Result of choosing an ASID.
struct Chosen {
    tag: Tag,
    /// The TLB was emptied, and so is clean of every flush.
    emptied: bool,
}

impl<'e, M: Machine> PinnedCpu<'e, M> {
    /// Chooses the tag of `space`, which is at `generation`.
    #[inline]
    pub(crate) fn choose_global_tag(&self, space: &Space<M>, generation: u64) -> Choice<'e> {
        let Chosen { tag, emptied } = self.choose_asid(space);
        // The ASID determines the slot, and is the same on all CPUs. So each space keeps its slot
        // while this CPU has enough slots for its spaces.
        let slot = (tag != Tag::KERNEL).then(|| named_by(self.tags(), tag)).flatten();
        let slot = slot.unwrap_or(self.spare_slot().0);
        let known = slot.is_of(space.id()).then(|| slot.generation());
        slot.give_to(space.id(), tag);
        let clean = if tag == Tag::KERNEL {
            None
        } else if emptied {
            Some(generation)
        } else {
            // Every broadcast has reached this CPU. It has missed every other flush that it has not
            // observed.
            let clean = space.clean_everywhere();
            Some(known.map_or(clean, |seen| seen.max(clean)))
        };
        Choice { slot, generation: clean }
    }

    /// Chooses the space's ASID, and publishes that this CPU is going to load it.
    #[inline]
    fn choose_asid(&self, space: &Space<M>) -> Chosen {
        // Acquires what the CPU that allocated the ASID observed: see `current_asid`.
        let word = AsidWord(space.tag.load(order(self.machine(), Rule::AsidAcquire)));
        let active = &self.cpu.active_tag;
        // Relaxed: the rollover and this CPU both read-modify-write this one word (ReserveTags). If
        // the loaded epoch is out of date, the rollover has emptied `active`, and the exchange
        // below fails.
        let before = active.load(Relaxed);
        let is_current = word.epoch() == self.engine.tags().epoch.load(Relaxed);
        let chosen = word.unpinned().0;
        if before != 0
            && is_current
            && active.compare_exchange(before, chosen, Relaxed, Relaxed).is_ok()
        {
            return Chosen { tag: word.tag(), emptied: false };
        }
        self.allocate_slow(space)
    }

    /// The slow path of [`choose_asid`](Self::choose_asid): allocates an ASID if the space has none
    /// in this epoch, and empties the TLB if this CPU has not done so since the rollover.
    ///
    /// Relaxed: all accesses are under the lock (`TagLockAcquire`).
    #[inline(never)]
    fn allocate_slow(&self, space: &Space<M>) -> Chosen {
        let (machine, tags) = (self.machine(), self.engine.tags());
        if tags.count(machine) == 0 {
            return Chosen { tag: Tag::KERNEL, emptied: false };
        }
        tags.with_lock(machine, self.id, || {
            let chosen = self.current_asid(space);
            let emptied = tags.flush_pending.contains(self.id);
            if emptied {
                // The CPU may refill the TLB from the root that is still loaded. The ASID of that
                // root is reserved, so no other space gets it.
                tags.flush_pending.remove(self.id, Relaxed);
                if !machine.breaks(Rule::FlushOnRollover) {
                    machine.invalidate_all();
                }
                self.counters().flushes_full.add_unshared(1);
                vacate(self.tags());
            }
            self.cpu.active_tag.store(chosen.unpinned().0, Relaxed);
            if chosen == AsidWord(0) {
                // This CPU runs the space without an ASID, so it reserves none any more.
                self.cpu.reserved_tag.store(0, Relaxed);
            }
            Chosen { tag: chosen.tag(), emptied }
        })
    }

    /// The space's ASID in this epoch, allocated if it has none; 0 if none is free. Call this under
    /// the lock.
    ///
    /// Relaxed: loads under the lock (`TagLockAcquire`).
    fn current_asid(&self, space: &Space<M>) -> AsidWord {
        let (machine, tags) = (self.machine(), self.engine.tags());
        let word = AsidWord(space.tag.load(Relaxed));
        if word.epoch() == tags.epoch.load(Relaxed) {
            return word;
        }
        let Some(asid) = self.asid_for(word) else { return AsidWord(0) };
        // `asid_for` may have begun a new epoch.
        let pins = word.0 & AsidWord::PINS;
        let renewed = AsidWord(AsidWord::new(tags.epoch.load(Relaxed), asid).0 | pins);
        // Pairs with FlushFence: a flush that broadcasts either names this ASID, or its fence comes
        // before this fence. In the second case, a CPU that uses the ASID comes after this fence,
        // and walks page tables at least as new as the flush. The ASID is therefore first stored
        // without an epoch: a CPU that loads it takes the slow path, and so does not use the ASID
        // before the fence. Without the fence, a flush could name the old ASID while a CPU caches
        // the old entry under the new ASID.
        let release = order(machine, Rule::AsidRelease);
        space.tag.store(AsidWord::new(0, asid).0 | pins, release);
        fence(machine, Rule::NewAsidFence);
        space.tag.store(renewed.0, release);
        renewed
    }

    /// Allocates an ASID for the space that had `old` in an earlier epoch: the same one if
    /// possible. `None` if none is free.
    ///
    /// Relaxed: called under the lock (`TagLockAcquire`).
    fn asid_for(&self, old: AsidWord) -> Option<u64> {
        let (machine, tags) = (self.machine(), self.engine.tags());
        let asid = old.asid();
        if asid != 0 && (self.renew_reserved(old) || old.is_pinned() || tags.allocate(asid)) {
            return Some(asid);
        }
        self.counters().tags_taken.add_unshared(1);
        if let Some(asid) = tags.allocate_next(machine) {
            return Some(asid);
        }
        // If there are fewer ASIDs than CPUs, a rollover may free none. Then the next rollover
        // waits for as many failed allocations as there are ASIDs.
        let failures = tags.failures.load(Relaxed);
        if failures != 0 && failures < tags.count(machine) {
            tags.failures.store(failures + 1, Relaxed);
            return None;
        }
        self.roll_over();
        let asid = tags.allocate_next(machine);
        tags.failures.store(u64::from(asid.is_none()), Relaxed);
        asid
    }

    /// Renews each CPU's reservation of the old ASID for the new epoch. Returns `true` if there was
    /// one: then the space keeps the ASID.
    ///
    /// Relaxed: called under the lock (`TagLockAcquire`).
    fn renew_reserved(&self, old: AsidWord) -> bool {
        let (machine, tags) = (self.machine(), self.engine.tags());
        let renewed = AsidWord::new(tags.epoch.load(Relaxed), old.asid());
        let mut found = false;
        for cpu in self.cpus_with_tags().iter() {
            let reserved = &machine.state(cpu).reserved_tag;
            if reserved.load(Relaxed) == old.unpinned().0 {
                reserved.store(renewed.0, Relaxed);
                found = true;
            }
        }
        found
    }

    /// Begins a new epoch, in which only the ASIDs that CPUs have loaded or devices use stay
    /// allocated.
    ///
    /// Relaxed: called under the lock (`TagLockAcquire`).
    fn roll_over(&self) {
        let (machine, tags) = (self.machine(), self.engine.tags());
        self.counters().rollovers.add_unshared(1);
        let epoch = tags.epoch.load(Relaxed) + 1;
        tags.epoch.store(epoch, Relaxed);
        for (allocated, pinned) in tags.allocated().iter().zip(tags.pins()) {
            allocated.store(pinned.load(Relaxed), Relaxed);
        }
        for cpu in self.cpus_with_tags().iter() {
            let state = machine.state(cpu);
            // A flush may load an ASID that is reallocated from here on (AsidRelease,
            // BroadcastAsidAcquire). It must then observe the presence of a CPU that has just
            // chosen its next ASID, so that it finds this CPU leaving. Relaxed: before this CPU
            // releases the lock, it reallocates an ASID, and NewAsidFence acquires what this swap
            // has read.
            let active = state.active_tag.swap(0, Relaxed);
            // If `active` is 0, the CPU has not chosen an ASID since the last rollover, and still
            // has its reserved ASID loaded.
            if active != 0 {
                state.reserved_tag.store(active, Relaxed);
            }
            let reserved = AsidWord(state.reserved_tag.load(Relaxed));
            if reserved.asid() != 0 && !machine.breaks(Rule::ReserveTags) {
                tags.allocate(reserved.asid());
            }
            tags.flush_pending.insert(cpu);
        }
    }

    /// Ends the reservation of a CPU that goes offline: this one, or one that has stopped.
    ///
    /// This takes the lock, because a concurrent rollover could otherwise reserve the ASID again.
    /// The reservation would still exist when the CPU comes back online, while the ASID may belong
    /// to another space by then.
    pub(crate) fn release_asids(&self, of: &CpuState<M>) {
        if self.machine().tagging() == Tagging::Global {
            self.engine.tags().with_lock(self.machine(), self.id, || {
                // Relaxed: under the lock (TagLockAcquire).
                of.active_tag.store(0, Relaxed);
                of.reserved_tag.store(0, Relaxed);
            });
        }
    }

    /// Releases the allocator's lock if a CPU that has stopped held it.
    ///
    /// That CPU may have been in the middle of a change. A rollover repairs any: it frees all ASIDs
    /// but those that are loaded or pinned, and marks all CPUs of the online set for a flush. If
    /// the CPU was pinning or unpinning an ASID, that ASID may stay pinned for ever.
    pub(crate) fn repair_asids(&self, stopped: CpuId) {
        self.engine.tags().with_lock_of(self.machine(), stopped, || self.roll_over());
    }

    /// The CPUs that may have a tag loaded. A CPU that comes online concurrently is not missed: it
    /// allocates its first ASID under the lock, and its TLB is empty.
    fn cpus_with_tags(&self) -> CpuSet<M::CpuBits> {
        let mut online = CpuSet::new();
        self.engine.online().read_into(self.machine(), &mut online);
        online
    }

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
        let (machine, tags) = (self.machine(), self.engine.tags());
        self.engine.broadcaster_to_all()?;
        let pinned = tags.with_lock(machine, self.id, || {
            // Relaxed: under the lock (TagLockAcquire).
            let word = self.current_asid(space);
            let pinned = tags.pinned.load(Relaxed);
            let for_devices = tags.count(machine).saturating_sub(machine.cpu_limit() as u64 + 1);
            let is_first = !word.is_pinned();
            let fits = if is_first {
                pinned < for_devices
            } else {
                word.0 & AsidWord::PINS != AsidWord::PINS
            };
            if word.asid() == 0 || !fits {
                return None;
            }
            if is_first {
                tags.pinned.store(pinned + 1, Relaxed);
                tags.set_pinned(word.asid(), |word, bit| word | bit);
            }
            space.tag.store(word.0 + AsidWord::PIN, order(machine, Rule::AsidRelease));
            Some(word.tag())
        });
        // Pairs with FlushFence. Either a flush observes that the space is pinned, and broadcasts,
        // or the device walks page tables at least as new as the flush. Without the fence, the
        // flush may skip the broadcast while the device caches the old entry.
        fence(machine, Rule::NewAsidFence);
        pinned
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
            // Relaxed: under the lock (TagLockAcquire).
            let word = AsidWord(space.tag.load(Relaxed));
            if !word.is_pinned() {
                return false;
            }
            let left = AsidWord(word.0 - AsidWord::PIN);
            space.tag.store(left.0, order(machine, Rule::AsidRelease));
            if !left.is_pinned() {
                tags.pinned.store(tags.pinned.load(Relaxed) - 1, Relaxed);
                tags.set_pinned(word.asid(), |word, bit| word & !bit);
            }
            true
        });
        // The panic is outside of the lock, so that a kernel that survives it can go on.
        assert!(was_pinned, "the space is unpinned more often than pinned");
    }
}

impl<M: Machine> Space<M> {
    /// The ASID that the space has on all CPUs that have it loaded; [`Tag::KERNEL`] if it has none.
    /// Call this after a full fence (see [`Rule::NewAsidFence`]), and before the scan.
    ///
    /// A CPU that the scan finds on the space, or lazy on it, has loaded the space under this ASID.
    /// A CPU that is leaving the space may have loaded it under an older one. Such a CPU has
    /// published the ASID of its next space, so its old ASID may have been reallocated while the
    /// old root is still loaded. A flush that loads the new ASID of the space finds that CPU
    /// leaving.
    #[inline]
    pub(crate) fn global_tag(&self, machine: &M) -> Tag {
        AsidWord(self.tag.load(order(machine, Rule::BroadcastAsidAcquire))).tag()
    }

    /// Returns `true` if a device uses the space.
    #[inline]
    pub(crate) fn is_pinned(&self) -> bool {
        // Relaxed: the caller has executed FlushFence, which pairs with NewAsidFence of `pin_tag`.
        AsidWord(self.tag.load(Relaxed)).is_pinned()
    }
}
