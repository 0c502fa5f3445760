//! The classification of interrupts while the machine runs: see [`classes`](crate::classes).

use core::cell::RefCell;

use crate::classes::{TABLE_SHIFTS, Target};
use crate::clock::Flushed;
use crate::sim::Sim;
use crate::tlb::SpaceKey;

impl Sim {
    /// Makes the simulation count the classes of flush interrupts:
    /// [`interrupts_useful`](crate::Counts::interrupts_useful) and the counts after it. Without
    /// this call they are 0, and cost the simulator nothing but one comparison for each access.
    pub fn classify_interrupts(&self) {
        let targets = || (0..self.machine.cpu_count()).map(|_| Target::default()).collect();
        let _ = self.targets.get_or_init(|| RefCell::new(targets()));
    }

    /// Records an interrupt that this CPU sends.
    pub(crate) fn classify_sent(&self, target: usize, flushes: &[Flushed]) {
        let Some(targets) = self.targets.get() else { return };
        let read = {
            let (own, tlb) = (&mut targets.borrow_mut()[target], &self.tlbs.borrow()[target]);
            let read = TABLE_SHIFTS
                .map(|shift| flushes.iter().any(|flushed| own.has_read(shift, flushed, tlb)));
            self.watching(own, |own| own.send(flushes, tlb));
            read.map(u64::from)
        };
        self.count(|counts| {
            counts.interrupts_touched_2mib += read[0];
            counts.interrupts_touched_1gib += read[1];
            counts.interrupts_touched_512gib += read[2];
        });
    }

    /// Records that this CPU has sent all interrupts of some flushes. Other CPUs may have needed
    /// none, because one was on its way.
    pub(crate) fn classify_coalesced(&self, flushes: &[Flushed]) {
        let Some(targets) = self.targets.get() else { return };
        let mut targets = targets.borrow_mut();
        for (cpu, (own, tlb)) in targets.iter_mut().zip(&*self.tlbs.borrow()).enumerate() {
            // This CPU flushes its own TLB.
            if cpu != self.cpu() {
                self.watching(own, |own| own.coalesce(flushes, tlb));
            }
        }
    }

    /// Records that this CPU takes all interrupts that were sent to it.
    pub(crate) fn classify_taken(&self) {
        let Some(targets) = self.targets.get() else { return };
        let in_vain = targets.borrow_mut()[self.cpu()].take();
        self.count(|counts| counts.interrupts_in_vain += in_vain);
    }

    /// Records an access of this CPU, before it takes place.
    #[inline]
    pub(crate) fn classify_access(&self, address: u64) {
        if self.watched_cpus.get() > 0 {
            self.classify_watched_access(address);
        }
    }

    fn classify_watched_access(&self, address: u64) {
        let Some(targets) = self.targets.get() else { return };
        let own = &mut targets.borrow_mut()[self.cpu()];
        if own.is_watched() {
            let tlb = &self.tlbs.borrow()[self.cpu()];
            let useful = self.watching(own, |own| own.access(address, tlb));
            self.count(|counts| counts.interrupts_useful += useful);
        }
    }

    /// Records that this CPU reads an entry above the last level: it covers part number `part` of
    /// those of 2^`shift` bytes.
    #[inline]
    pub(crate) fn classify_walk(&self, space: SpaceKey, shift: u8, part: u64) {
        let Some(targets) = self.targets.get() else { return };
        let tlb = &self.tlbs.borrow()[self.cpu()];
        let own = &mut targets.borrow_mut()[self.cpu()];
        own.note_table((space, shift, part), tlb.tag, self.last_invalidation(), tlb);
    }

    /// Records a natural synchronisation of this CPU.
    #[inline]
    pub(crate) fn classify_synchronisation(&self) {
        if self.watched_cpus.get() == 0 {
            return;
        }
        let Some(targets) = self.targets.get() else { return };
        self.watching(&mut targets.borrow_mut()[self.cpu()], Target::catch_up);
    }

    /// Calls `change`, and counts the CPUs on which accesses are watched.
    fn watching<R>(&self, target: &mut Target, change: impl FnOnce(&mut Target) -> R) -> R {
        let before = target.is_watched();
        let result = change(target);
        let cpus = self.watched_cpus.get() + usize::from(target.is_watched());
        self.watched_cpus.set(cpus - usize::from(before));
        result
    }
}
