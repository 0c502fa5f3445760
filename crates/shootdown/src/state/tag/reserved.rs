//! The ASIDs that CPUs have loaded when a new epoch begins. They stay allocated in that epoch.
//!
//! A CPU records in `active_tag` the ASID that it is going to load. In a new epoch, the first CPU
//! that needs to know seals this word, by a compare-and-swap: it now holds the ASID that the CPU
//! reserves in the new epoch. A CPU that chooses an ASID of the old epoch at the same time does a
//! compare-and-swap as well. So there are two cases. Either the sealing CPU finds the ASID that the
//! CPU has just chosen, and reserves this one. Or the choosing CPU finds its word sealed, and
//! chooses again.
//!
//! When the CPU then chooses an ASID of the new epoch, it first moves what it reserves to
//! `reserved_tag`, until the end of the epoch. So all CPUs find the same ASIDs reserved in an
//! epoch, and none waits for another one to find them.
//!
//! That takes a load for each CPU. So one CPU writes all reserved ASIDs into a list, which the
//! others read. If they do not find the list complete, they go on without it.

use core::sync::atomic::Ordering::Relaxed;

use super::asids::AsidWord;
use crate::base::memory::{Word, fence, order};
use crate::base::rules::Rule;
use crate::parts::cpu_set::CpuSet;
use crate::state::cpu_state::CpuState;
use crate::state::machine::Machine;
use crate::state::pinned_cpu::PinnedCpu;

impl<M: Machine> CpuState<M> {
    /// Records that the CPU is going to load an ASID, or none. Returns `false` if its word is not
    /// `before` any more, because another CPU has sealed it. The CPU itself calls this.
    #[inline]
    pub(crate) fn choose(&self, machine: &M, before: AsidWord, now: AsidWord) -> bool {
        if before.epoch() != now.epoch() {
            // Relaxed: released with the exchange.
            self.reserved_tag.store(AsidWord::new(now.epoch(), before.asid()).0, Relaxed);
        }
        // Relaxed: SwitchFence has released this CPU's presence. (See `is_reserved`.)
        self.chosen_tag.store(now.0, Relaxed);
        let release = order(machine, Rule::ActiveTagRelease);
        // Relaxed on failure: the caller starts again.
        self.active_tag.compare_exchange(before.0, now.0, release, Relaxed).is_ok()
    }

    /// Records that the CPU loads no ASID. Until the end of an epoch, which is the result, it
    /// reserves the ASID that it has loaded or reserved. The CPU itself calls this, or one that has
    /// disconnected it.
    ///
    /// The TLB was emptied for the epoch `emptied` at the latest. It may have been refilled since
    /// from the root that is still loaded, so the result is not before that epoch. Without: in the
    /// epoch `emptied`, another space gets the ASID of that root, and this CPU goes to this space
    /// without emptying its TLB again.
    pub(crate) fn choose_none(&self, machine: &M, emptied: u64) -> u64 {
        loop {
            // Relaxed: the exchange confirms it.
            let before = AsidWord(self.active_tag.load(Relaxed));
            let epoch = before.allocated_in().max(emptied);
            if self.choose(machine, before, AsidWord::new(epoch, 0)) {
                return epoch;
            }
        }
    }

    /// The ASID that the CPU reserves in `epoch`; 0 for none, and `None` if the epoch is over.
    fn reserved_in(&self, machine: &M, epoch: u64) -> Option<u64> {
        loop {
            let acquire = order(machine, Rule::ActiveTagAcquire);
            let active = AsidWord(self.active_tag.load(acquire));
            let asid = if machine.breaks(Rule::ReserveTags) { 0 } else { active.asid() };
            if active.allocated_in() < epoch {
                let sealed = AsidWord::new(epoch, asid).proposed();
                // Relaxed: the load above has acquired the word. This exchange continues its
                // release sequence.
                if self.active_tag.compare_exchange(active.0, sealed.0, Relaxed, Relaxed).is_ok() {
                    return Some(asid);
                }
            } else if active.epoch() == epoch {
                // Relaxed: acquired with `active_tag`.
                let reserved = AsidWord(self.reserved_tag.load(Relaxed));
                let is_over = reserved.epoch() > epoch;
                return (!is_over)
                    .then(|| if reserved.epoch() == epoch { reserved.asid() } else { 0 });
            } else {
                return (active.allocated_in() == epoch).then_some(asid);
            }
        }
    }
}

impl<M: Machine> PinnedCpu<'_, M> {
    /// The ASIDs of one word that must not be handed out in `epoch`: those that are pinned or
    /// reserved. `None` if the epoch is over.
    pub(crate) fn unavailable(&self, epoch: u64, word: usize) -> Option<u64> {
        let (machine, tags) = (self.machine(), self.engine.tags());
        if let Some(members) = tags.listed(machine, epoch, word) {
            return Some(members);
        }
        if tags.try_with_lock(machine, self.id, || self.list_unavailable(epoch)).is_some() {
            return tags.listed(machine, epoch, word);
        }
        let users = self.users();
        // After the fence of `users`, so that either this CPU finds a pin, or the CPU that pins
        // finds its epoch over. Pairs with ListRelease: if an unpinned ASID is missing, the list is
        // complete, and has it.
        let mut members = tags.pins()[word].load(order(machine, Rule::ListAcquire));
        for cpu in users.iter() {
            // By now, the list may be complete.
            if let Some(listed) = tags.listed(machine, epoch, word) {
                return Some(listed);
            }
            let asid = machine.state(cpu).reserved_in(machine, epoch)?;
            if asid as usize / 64 == word {
                members |= 1 << (asid % 64);
            }
        }
        tags.listed(machine, epoch, word).or(Some(members))
    }

    /// Lists the unavailable ASIDs for `epoch`, unless they are listed. Call this under the lock.
    ///
    /// A list is written once: an ASID that has been unpinned since is in the list only.
    pub(crate) fn list_unavailable(&self, epoch: u64) {
        let (machine, tags) = (self.machine(), self.engine.tags());
        if tags.listed(machine, epoch, 0).is_some() {
            return;
        }
        let users = self.users();
        // Until the list is complete, other CPUs read what this one reads.
        if M::PREFETCHES_FOR_WRITE {
            let prefetch = |cpu| machine.prefetch_for_write(&machine.state(cpu).active_tag);
            users.iter().for_each(prefetch);
        }
        tags.write_list(machine, epoch, |add| {
            users.iter().all(|cpu| {
                let reserved = machine.state(cpu).reserved_in(machine, epoch);
                if let Some(asid @ 1..) = reserved {
                    add(asid);
                }
                reserved.is_some()
            })
        });
    }

    /// Returns `true` if a CPU has loaded the space under its old ASID, so that the space must keep
    /// this ASID in `epoch`.
    ///
    /// A CPU that has chosen the ASID in the epoch of `old`, or earlier, and reserves it, has
    /// loaded this space: since the CPU chose it, the ASID has been this space's alone. If the CPU
    /// chose the ASID later, it has loaded another space, which got the ASID when this space had
    /// lost it.
    pub(crate) fn is_reserved(&self, old: AsidWord, epoch: u64) -> bool {
        let (machine, tags, asid) = (self.machine(), self.engine.tags(), old.asid());
        let may_be_reserved = || {
            let listed = tags.listed(machine, epoch, asid as usize / 64);
            listed.is_none_or(|members| members >> (asid % 64) & 1 != 0)
        };
        if asid == 0 || !may_be_reserved() {
            return false;
        }
        let users = self.users();
        users.iter().take_while(|_| may_be_reserved()).any(|cpu| {
            let state = machine.state(cpu);
            // First what it reserves: from then on, the CPU does not choose the old ASID.
            state.reserved_in(machine, epoch) == Some(asid) && {
                // If the CPU has chosen another ASID meanwhile, it is leaving the space.
                let acquire = order(machine, Rule::ChosenTagAcquire);
                let chosen = AsidWord(state.chosen_tag.load(acquire));
                chosen.asid() == asid && chosen.epoch() <= old.epoch()
            }
        })
    }

    /// The CPUs that may have loaded an ASID of an earlier epoch.
    fn users(&self) -> CpuSet<M::CpuBits> {
        // Pairs with OnlineSync: either this CPU finds a CPU that comes online, or that one finds
        // the new epoch. Pairs with PinFence: see `unavailable`.
        fence(self.machine(), Rule::ReserveFence);
        let mut users = CpuSet::new();
        self.engine.tags().users.read_into(self.machine(), &mut users);
        users
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::machine::tests::Plain;

    /// A CPU that is late seals the word for the epoch 4, after this CPU has emptied its TLB for
    /// the epoch 6. Then this CPU finds no ASID.
    #[test]
    fn asid_of_replaced_root_stays_reserved() {
        let machine = Plain::<2>::with_tags(3);
        for (emptied, epoch) in [(2, 4), (4, 4), (6, 6)] {
            let cpu = CpuState::<Plain<2>>::default();
            assert!(cpu.choose(&machine, AsidWord(0), AsidWord::new(2, 3)));
            assert_eq!(cpu.reserved_in(&machine, 4), Some(3));
            assert_eq!(cpu.choose_none(&machine, emptied), epoch);
            assert_eq!(cpu.reserved_in(&machine, epoch), Some(3));
            assert_eq!(cpu.reserved_in(&machine, epoch + 2), Some(0));
        }
    }
}
