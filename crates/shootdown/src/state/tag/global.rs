//! Tags that mean the same space on every CPU, as Arm's and RISC-V's ASIDs do.
//!
//! A space gets an ASID when it first runs, and keeps it until ASIDs run out. Then comes a
//! *rollover*: one increment of the epoch. In the new epoch, only the ASIDs that a CPU has loaded
//! stay allocated (`reserved.rs`). Each CPU empties its TLB before it uses an ASID of the new
//! epoch. So an ASID belongs to one space at a time, no CPU is interrupted, and a rollover costs
//! each CPU one flush.
//!
//! A CPU that goes back to a space does one compare-and-swap of its own word, `active_tag`.
//!
//! No CPU waits for another one when it switches, wherever the other one is interrupted or stops.
//! (Linux on Arm has the same epochs, in `arch/arm64/mm/context.c`, with a lock for each new ASID
//! and for the rollover. There, Linux also reserves a second ASID per space, which this engine does
//! not.)
//!
//! There is one exception: if fewer than two ASIDs for each CPU are not pinned, a CPU that ends an
//! epoch first waits for those that are choosing an ASID of it (`await_takers`), with a bound.
//!
//! If there are no more ASIDs than CPUs, a CPU may find none free, or lose one in a rollover. Then
//! it runs the space under [`Tag::KERNEL`], as a machine without tags does. Such a machine cannot
//! broadcast.

use core::sync::atomic::Ordering::Relaxed;

use super::Choice;
use super::asids::{AsidWord, EPOCH};
use super::slots::{named_by, vacate};
use super::stock::Block;
use super::taking::end_taking;
use crate::base::ids::{CpuId, Tag};
use crate::base::memory::{Word, fence, order};
use crate::base::rules::Rule;
use crate::state::cpu_state::CpuState;
use crate::state::machine::{Machine, Tagging};
use crate::state::pinned_cpu::PinnedCpu;
use crate::state::space::Space;

/// Result of choosing an ASID.
struct Chosen {
    tag: Tag,
    cached: Cached,
}

/// Translations that this CPU's TLB may hold under an ASID.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cached {
    /// Nothing: the TLB was emptied, and so is clean of every flush.
    Nothing,
    /// Translations of the space.
    OfSpace,
    /// Translations of a dead space.
    OfDead,
}

impl<'e, M: Machine> PinnedCpu<'e, M> {
    /// Chooses the tag of `space`, which is at `generation`.
    #[inline]
    pub(crate) fn choose_global_tag(&self, space: &Space<M>, generation: u64) -> Choice<'e> {
        let Chosen { tag, cached } = self.choose_asid(space);
        // The ASID determines the slot, and is the same on all CPUs. So each space keeps its slot
        // while this CPU has enough slots for its spaces.
        let slot = (tag != Tag::KERNEL).then(|| named_by(self.tags(), tag)).flatten();
        let slot = slot.unwrap_or(self.spare_slot().0);
        let known = slot.is_of(space.id()).then(|| slot.generation());
        slot.give_to(space.id(), tag);
        let clean = match cached {
            Cached::OfDead => None,
            _ if tag == Tag::KERNEL => None,
            Cached::Nothing => Some(generation),
            Cached::OfSpace => {
                // Every broadcast has reached this CPU. It has missed every other flush that it has
                // not observed.
                let clean = space.clean_everywhere();
                Some(known.map_or(clean, |seen| seen.max(clean)))
            }
        };
        Choice { slot, generation: clean }
    }

    /// Chooses the space's ASID, and records that this CPU is going to load it.
    #[inline]
    fn choose_asid(&self, space: &Space<M>) -> Chosen {
        let machine = self.machine();
        let word = space.asid(machine);
        // Relaxed: if the epoch is over, the word is sealed, and the exchange fails, or the ASID is
        // reserved for this CPU (ReserveTags).
        let before = AsidWord(self.cpu.active_tag.load(Relaxed));
        let epoch = self.engine.tags().epoch.load(Relaxed);
        // A CPU that has chosen in this epoch has emptied its TLB before.
        if word.epoch() == epoch
            && before.epoch() == epoch
            && self.cpu.choose(machine, before, word.unpinned())
        {
            return Chosen { tag: word.tag(), cached: Cached::OfSpace };
        }
        self.choose_slow(space)
    }

    /// The slow path of [`choose_asid`](Self::choose_asid): allocates an ASID if the space has none
    /// in this epoch, and empties the TLB if this CPU has not done so since the rollover.
    #[inline(never)]
    fn choose_slow(&self, space: &Space<M>) -> Chosen {
        let mut cached = Cached::OfSpace;
        if self.engine.tags().count(self.machine()) == 0 {
            return Chosen { tag: Tag::KERNEL, cached };
        }
        while let Some(word) = self.current_asid(space) {
            if self.empty_for(word.epoch()) {
                cached = Cached::Nothing;
            }
            if self.choose_of_epoch(word.unpinned()) {
                end_taking(self.cpu);
                if self.local().stock.needs_discard(word.asid()) && cached == Cached::OfSpace {
                    cached = Cached::OfDead;
                }
                return Chosen { tag: word.tag(), cached };
            }
            // Where a CPU may go without, it does not compete for ASIDs again and again.
            if !self.engine.tags().covers_all_cpus(self.machine()) {
                break;
            }
        }
        // This CPU runs the space without an ASID, so it reserves none in the next epoch.
        let epoch = self.cpu.choose_none(self.machine(), self.local().tag_clock.get());
        self.empty_for(epoch);
        Chosen { tag: Tag::KERNEL, cached }
    }

    /// Records that this CPU is going to load an ASID. Returns `false` if its epoch is over, or if
    /// another CPU has just sealed this CPU's word.
    fn choose_of_epoch(&self, word: AsidWord) -> bool {
        // Relaxed: the exchange confirms it.
        let before = AsidWord(self.cpu.active_tag.load(Relaxed));
        if before.allocated_in() > word.epoch() {
            // So that the caller finds an ASID of the epoch for which the word is sealed.
            self.read_epoch(before.allocated_in());
            return false;
        }
        self.cpu.choose(self.machine(), before, word)
    }

    /// Reads the epoch until it is at least `epoch`, which this CPU has found in another word. The
    /// epoch was written before that word, so there is nothing to wait for but the caches.
    fn read_epoch(&self, epoch: u64) {
        // Relaxed: what this CPU does in an epoch comes after a load of the epoch.
        while self.engine.tags().epoch.load(Relaxed) < epoch {
            self.machine().spin_hint();
        }
    }

    /// Empties the TLB if this CPU has not done so in `epoch`. Returns `true` if it did.
    fn empty_for(&self, epoch: u64) -> bool {
        if self.local().tag_clock.get() >= epoch {
            return false;
        }
        self.local().tag_clock.set(epoch);
        self.empty_tlb();
        true
    }

    /// Empties the TLB.
    pub(super) fn empty_tlb(&self) {
        if !self.machine().breaks(Rule::FlushOnRollover) {
            // The CPU may refill the TLB from the root that is still loaded. The ASID of that root
            // is reserved, so no other space gets it in this epoch.
            self.machine().invalidate_all();
        }
        self.counters().flushes_full.add_unshared(1);
        vacate(self.tags());
    }

    /// The space's ASID in this epoch, allocated if it has none; `None` if none is free.
    pub(super) fn current_asid(&self, space: &Space<M>) -> Option<AsidWord> {
        let (machine, tags) = (self.machine(), self.engine.tags());
        let mut rollovers = 0;
        loop {
            let word = space.asid(machine);
            // Relaxed: if this epoch is over, an exchange of the caller fails. The word, which has
            // been acquired, is not of a later epoch.
            let epoch = tags.epoch.load(Relaxed);
            if word.epoch() == epoch {
                return Some(word);
            }
            let (renewed, taken) = if word.allocated_in() == epoch {
                // Pairs with FlushFence: a flush that broadcasts either names this ASID, or its
                // fence comes before this fence. In the second case, a CPU that uses the ASID comes
                // after this fence, and walks page tables at least as new as the flush. The ASID is
                // therefore first proposed: a CPU that loads it comes here, and so does not use the
                // ASID before the fence. Without the fence, a flush could name the old ASID while a
                // CPU caches the old entry under the new ASID.
                fence(machine, Rule::NewAsidFence);
                (word.confirmed(), None)
            } else if word.is_pinned() || self.is_reserved(word, epoch) {
                (word.renewed(epoch, word.asid()), None)
            } else if let Some(asid) = self.take_asid(epoch) {
                (word.renewed(epoch, asid).proposed(), Some(asid))
            } else if self.roll_over(epoch, rollovers) {
                rollovers += 1;
                continue;
            } else {
                return None;
            };
            let release = order(machine, Rule::AsidRelease);
            // Relaxed on failure: the word is read again.
            let exchanged = space.tag.compare_exchange(word.0, renewed.0, release, Relaxed);
            match taken {
                Some(asid) if exchanged.is_err() => self.local().stock.put_back(asid),
                Some(_) => {
                    self.counters().tags_taken.add_unshared(1);
                    if rollovers != 0 {
                        tags.failures.store(0, Relaxed);
                    }
                }
                None => {}
            }
        }
    }

    /// Takes an ASID from this CPU's stock, and a block from the allocator if the stock is empty.
    /// `None` if there are none left in `epoch`, or if it is over.
    fn take_asid(&self, epoch: u64) -> Option<u64> {
        let (machine, tags, stock) = (self.machine(), self.engine.tags(), &self.local().stock);
        self.begin_taking(epoch);
        loop {
            if let Some(asid) = stock.pop(epoch) {
                return Some(asid);
            }
            let block = tags.take_block(machine, epoch)?;
            // The block may be of an epoch that this CPU has not read. Pairs with OnlineSync, by
            // ReserveFence in `unavailable`: a CPU that comes online, and is not found there, reads
            // what this CPU has read. Without: that CPU reads an earlier epoch, in which it loads
            // an ASID that this CPU hands out.
            if !machine.breaks(Rule::ReadEpoch) {
                self.read_epoch(block.epoch);
            }
            let asids = block.asids & !self.unavailable(block.epoch, block.word)?;
            stock.fill(Block { asids, ..block });
        }
    }

    /// Begins a new epoch, unless `epoch` is over already. Returns `false` if that would be in
    /// vain.
    ///
    /// If there are fewer ASIDs than CPUs, a rollover may free none. Then the next rollover waits
    /// for as many failed allocations as there are ASIDs. `rollovers` is their number in this
    /// allocation.
    fn roll_over(&self, epoch: u64, rollovers: u32) -> bool {
        let (machine, tags) = (self.machine(), self.engine.tags());
        if !tags.covers_all_cpus(machine) {
            // Relaxed: a wrong number makes a rollover come too early or too late.
            let failures = tags.failures.load(Relaxed);
            let is_vain = rollovers != 0 || failures != 0 && failures < tags.count(machine);
            if is_vain {
                // Relaxed: as above.
                tags.failures.store(if rollovers == 0 { failures + 1 } else { 1 }, Relaxed);
                return false;
            }
        }
        self.await_takers(epoch);
        // Relaxed: a CPU that reads the new epoch seals the words of all others (ReserveTags), and
        // fences before it reads which ASIDs are pinned (ReserveFence).
        let after = epoch + EPOCH;
        if tags.epoch.compare_exchange(epoch, after, Relaxed, Relaxed).is_ok() {
            self.counters().rollovers.add_unshared(1);
        }
        true
    }

    /// Enters the CPUs that have ASIDs. The caller then synchronizes, and empties the TLB.
    pub(crate) fn join_asids(&self) {
        if self.machine().tagging() == Tagging::Global {
            let tags = self.engine.tags();
            tags.users.insert(self.id);
            // Relaxed: if the epoch is over already, the TLB is emptied once more.
            self.local().tag_clock.set(tags.epoch.load(Relaxed));
        }
    }

    /// Ends the reservation of a CPU that goes offline, this one or one that has stopped: its ASID
    /// is free in the next epoch. So are the ASIDs of its stock.
    pub(crate) fn release_asids(&self, of: &CpuState<M>) {
        if self.machine().tagging() == Tagging::Global {
            end_taking(of);
            of.choose_none(self.machine(), 0);
        }
    }

    /// Releases the allocator's lock if a CPU that has stopped held it.
    ///
    /// If the CPU was pinning or unpinning an ASID, that ASID may stay pinned for ever.
    pub(crate) fn repair_asids(&self, stopped: CpuId) {
        self.engine.tags().release_lock_of(self.machine(), stopped);
    }
}

impl<M: Machine> Space<M> {
    /// The ASID for a CPU that is going to load it. Acquires what the CPU that allocated the ASID
    /// observed: see [`current_asid`](PinnedCpu::current_asid).
    #[inline]
    fn asid(&self, machine: &M) -> AsidWord {
        AsidWord(self.tag.load(order(machine, Rule::AsidAcquire)))
    }

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
}
