//! The decision whether replicas of upper page tables are worth their cost.
//!
//! An interrupt costs the two CPUs about 0.6 µs together, and a flush of replicas about 0.1 µs, and
//! 0.3 µs more for each sharer. A fault for a link costs 0.5 µs. So a space gets replicas if every
//! sixth of its flushes sends an interrupt. It gives them up, for good, if its CPUs use the same
//! tables: if the replicas cost more than the interrupts to the CPUs that flushes have left out. As
//! many of those would have been interrupted, in proportion, as of the sharers.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU8, AtomicU64};

use crate::coherence::Replication;

/// Number of flushes after which their interrupts are counted.
const WINDOW: u64 = 32;
/// Number of flushes without replicas that must send an interrupt on average.
const FLUSHES_PER_INTERRUPT: u64 = 6;
/// Number of events of a CPU from one judgement to the next, after some early ones.
const JUDGED_EVENTS: u64 = 32;
/// Cost that each CPU may cause before it counts, in interrupts.
const FREE: u64 = 8;

/// Whether a space has replicas, and why.
pub(crate) struct Worth {
    /// Number of flushes in the current window, and in the upper half that of their interrupts.
    window: AtomicU64,
    state: AtomicU8,
}

/// The space has no replicas yet.
const OFF: u8 = 0;
/// The space has replicas while they are worth their cost.
const ON: u8 = 1;
/// The space will have no replicas any more.
const GIVEN_UP: u8 = 2;
/// The space has replicas, whatever they cost.
const ALWAYS: u8 = 3;

/// The costs and the gain of one replica.
pub(crate) struct Tally {
    /// Number of flushes that the replica's CPU has sent.
    flushes: AtomicU64,
    /// Number of replicas of other CPUs that those flushes covered.
    covered: AtomicU64,
    /// Number of interrupts that those flushes have sent.
    interrupts: AtomicU64,
    /// Number of CPUs that those flushes have left out.
    left_out: AtomicU64,
    /// Number of the CPU's faults that did nothing but make a link.
    link_faults: AtomicU64,
}

impl Worth {
    pub(crate) const fn new(replication: Replication) -> Self {
        let state = match replication {
            Replication::Never => GIVEN_UP,
            Replication::IfWorth => OFF,
            Replication::Always => ALWAYS,
        };
        Self { window: AtomicU64::new(0), state: AtomicU8::new(state) }
    }

    pub(crate) fn is_wanted(&self) -> bool {
        matches!(self.state.load(Relaxed), ON | ALWAYS)
    }

    pub(crate) fn give_up(&self) {
        self.state.store(GIVEN_UP, Relaxed);
    }

    /// Records a flush without replicas, which has sent this number of interrupts.
    pub(crate) fn note_interrupts(&self, count: usize) {
        if self.state.load(Relaxed) != OFF {
            return;
        }
        let more = 1 | (count as u64) << 32;
        let window = self.window.fetch_add(more, Relaxed) + more;
        let (flushes, interrupts) = (window & u64::from(u32::MAX), window >> 32);
        if flushes < WINDOW {
            return;
        }
        self.window.store(0, Relaxed);
        if interrupts * FLUSHES_PER_INTERRUPT >= flushes {
            // If the space has just given up, it stays so.
            let _ = self.state.compare_exchange(OFF, ON, Relaxed, Relaxed);
        }
    }

    /// Gives up if the replicas have cost more than they have saved.
    pub(crate) fn judge<'t>(&self, tallies: impl Iterator<Item = &'t Tally>) {
        let [mut covered, mut interrupts, mut left_out, mut link_faults, mut free] = [0; 5];
        for tally in tallies {
            covered += tally.covered.load(Relaxed);
            interrupts += tally.interrupts.load(Relaxed);
            left_out += tally.left_out.load(Relaxed);
            link_faults += tally.link_faults.load(Relaxed);
            free += FREE;
        }
        let saved = left_out * interrupts.max(1) / covered.max(1);
        if covered / 2 + link_faults > free + saved {
            // Not if the space has them always.
            let _ = self.state.compare_exchange(ON, GIVEN_UP, Relaxed, Relaxed);
        }
    }
}

/// Returns `true` if event number `count` of a CPU is followed by a judgement.
const fn is_judged(count: u64) -> bool {
    count.is_multiple_of(JUDGED_EVENTS) || count.is_power_of_two() && count > 2
}

impl Tally {
    pub(crate) const fn new() -> Self {
        Self {
            flushes: AtomicU64::new(0),
            covered: AtomicU64::new(0),
            interrupts: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
            link_faults: AtomicU64::new(0),
        }
    }

    /// Records a flush, which covered the replicas of `covered` other CPUs, has sent `interrupts`,
    /// and has left out other CPUs. Returns `true` if it is time to [judge](Worth::judge).
    pub(crate) fn note_flush(&self, covered: usize, interrupts: usize, left_out: usize) -> bool {
        self.covered.fetch_add(covered as u64, Relaxed);
        self.interrupts.fetch_add(interrupts as u64, Relaxed);
        self.left_out.fetch_add(left_out as u64, Relaxed);
        is_judged(self.flushes.fetch_add(1, Relaxed) + 1)
    }

    /// Records a fault for a link. Returns `true` if it is time to [judge](Worth::judge).
    pub(crate) fn note_link_fault(&self) -> bool {
        is_judged(self.link_faults.fetch_add(1, Relaxed) + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> Worth {
        let worth = Worth::new(Replication::IfWorth);
        (0..WINDOW).for_each(|flush| worth.note_interrupts(usize::from(flush % 4 == 0)));
        assert!(worth.is_wanted());
        worth
    }

    #[test]
    fn few_interrupts_are_no_reason_for_replicas() {
        let worth = Worth::new(Replication::IfWorth);
        for flush in 0..10 * WINDOW {
            worth.note_interrupts(usize::from(flush % 8 == 0));
            assert!(!worth.is_wanted());
        }
    }

    #[test]
    fn replicas_that_leave_out_many_cpus_are_kept() {
        let (worth, tally) = (wanted(), Tally::new());
        let judged =
            (0..10_000).filter(|flush| tally.note_flush(1, usize::from(flush % 4 == 0), 7));
        // Besides each 32nd, the events 4, 8 and 16.
        assert_eq!(judged.count() as u64, 10_000 / JUDGED_EVENTS + 3);
        worth.judge([&tally].into_iter());
        assert!(worth.is_wanted());
    }

    #[test]
    fn replicas_are_given_up_where_cpus_use_the_same_tables() {
        let events: [fn(&Tally) -> bool; 3] = [
            |tally| tally.note_flush(7, 3, 1),
            // The CPUs that are left out would hardly ever be interrupted.
            |tally| tally.note_flush(1, 0, 7),
            Tally::note_link_fault,
        ];
        for note in events {
            let (worth, tally) = (wanted(), Tally::new());
            (0..100 * FREE).for_each(|_| {
                note(&tally);
            });
            worth.judge([&tally].into_iter());
            assert!(!worth.is_wanted());
            (0..WINDOW).for_each(|_| worth.note_interrupts(3));
            assert!(!worth.is_wanted(), "for good");
        }
    }
}
