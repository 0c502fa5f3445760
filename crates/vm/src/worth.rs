//! The decision whether replicas of upper page tables are worth their cost.
//!
//! A space gets replicas when a second CPU faults or flushes in it, while another CPU is in user
//! mode in it: from then on, flushes interrupt CPUs. To wait for interrupts would be to send them.
//!
//! On the simulated `xeon-2s`, an interrupt costs the two CPUs about 0.6 µs together, and the CPU
//! that flushes waits about as long again. A flush of replicas costs about 0.1 µs, and 0.3 µs more
//! for each sharer. A fault for a link costs 0.5 µs. So a space gives its replicas up, for good, if
//! its CPUs use the same tables: if a quarter of an interrupt for each sharer, and half of one for
//! each link, are more than the interrupts to the CPUs that flushes have left out. As many of those
//! would have been interrupted, in proportion, as of the CPUs that were in user mode when they were
//! looked at. (The sharers would be a wrong sample: a thread that maps where another has just
//! unmapped shares a table with a CPU that was in the kernel a moment ago, and is in user mode
//! now.)

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize};

use crate::coherence::Replication;

/// Number of events of a CPU from one judgement to the next, after some early ones.
const JUDGED_EVENTS: u64 = 32;
/// Cost that each CPU may cause before it counts, in interrupts.
const FREE: u64 = 8;
/// What is assumed before CPUs have been looked at: one of eight is in user mode.
const ASSUMED_PROBES: u64 = 8;

/// Whether a space has replicas, and why.
pub(crate) struct Worth {
    /// The CPU that was the last to change the space, and one more, before the space had replicas;
    /// 0 at first.
    last_cpu: AtomicUsize,
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
    /// Number of CPUs that those flushes have left out.
    left_out: AtomicU64,
    /// Number of the CPU's faults that did nothing but make a link.
    link_faults: AtomicU64,
    /// Number of times that another CPU was looked at.
    probes: AtomicUsize,
    /// Number of these times that it was in user mode.
    probes_in_user: AtomicU64,
}

impl Worth {
    pub(crate) const fn new(replication: Replication) -> Self {
        let state = match replication {
            Replication::Never => GIVEN_UP,
            Replication::IfWorth => OFF,
            Replication::Always => ALWAYS,
        };
        Self { last_cpu: AtomicUsize::new(0), state: AtomicU8::new(state) }
    }

    pub(crate) fn is_wanted(&self) -> bool {
        matches!(self.state.load(Relaxed), ON | ALWAYS)
    }

    /// Decides for replicas if `cpu`, which changes the space, is not the only CPU that uses it.
    pub(crate) fn is_wanted_by(
        &self,
        cpu: usize,
        is_used_elsewhere: impl FnOnce() -> bool,
    ) -> bool {
        if self.state.load(Relaxed) != OFF {
            return self.is_wanted();
        }
        let last = self.last_cpu.load(Relaxed);
        if last == cpu + 1 {
            return false;
        }
        // A thread that was moved uses the space alone.
        if last == 0 || !is_used_elsewhere() {
            self.last_cpu.store(cpu + 1, Relaxed);
            return false;
        }
        // If the space has just given up, it stays so.
        let _ = self.state.compare_exchange(OFF, ON, Relaxed, Relaxed);
        self.is_wanted()
    }

    pub(crate) fn give_up(&self) {
        self.state.store(GIVEN_UP, Relaxed);
    }

    /// Gives up if the replicas have cost more than they have saved.
    pub(crate) fn judge<'t>(&self, tallies: impl Iterator<Item = &'t Tally>) {
        let [mut covered, mut left_out, mut link_faults, mut free] = [0; 4];
        let (mut probes, mut in_user) = (ASSUMED_PROBES, 1);
        for tally in tallies {
            covered += tally.covered.load(Relaxed);
            left_out += tally.left_out.load(Relaxed);
            link_faults += tally.link_faults.load(Relaxed);
            free += FREE;
            probes += tally.probes() as u64;
            in_user += tally.probes_in_user.load(Relaxed);
        }
        let saved = left_out * in_user / probes;
        if covered / 4 + link_faults / 2 > free + saved {
            self.give_up_if_possible();
        }
    }

    /// Gives up, unless the space has replicas always.
    pub(crate) fn give_up_if_possible(&self) {
        let _ = self.state.compare_exchange(ON, GIVEN_UP, Relaxed, Relaxed);
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
            left_out: AtomicU64::new(0),
            link_faults: AtomicU64::new(0),
            probes: AtomicUsize::new(0),
            probes_in_user: AtomicU64::new(0),
        }
    }

    /// Records a flush, which covered the replicas of `covered` other CPUs, and has left out other
    /// CPUs. Returns `true` if it is time to [judge](Worth::judge).
    pub(crate) fn note_flush(&self, covered: usize, left_out: usize) -> bool {
        self.covered.fetch_add(covered as u64, Relaxed);
        self.left_out.fetch_add(left_out as u64, Relaxed);
        is_judged(self.flushes.fetch_add(1, Relaxed) + 1)
    }

    /// Records a fault for a link. Returns `true` if it is time to [judge](Worth::judge).
    pub(crate) fn note_link_fault(&self) -> bool {
        is_judged(self.link_faults.fetch_add(1, Relaxed) + 1)
    }

    /// Number of times that another CPU was looked at.
    pub(crate) fn probes(&self) -> usize {
        self.probes.load(Relaxed)
    }

    /// Records whether another CPU was in user mode when it was looked at.
    pub(crate) fn note_probe(&self, is_in_user: bool) {
        self.probes.fetch_add(1, Relaxed);
        self.probes_in_user.fetch_add(u64::from(is_in_user), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> Worth {
        let worth = Worth::new(Replication::IfWorth);
        assert!(!worth.is_wanted_by(1, || true));
        assert!(worth.is_wanted_by(0, || true));
        worth
    }

    #[test]
    fn thread_that_is_moved_is_no_reason_for_replicas() {
        let worth = Worth::new(Replication::IfWorth);
        for cpu in [0, 0, 1, 1, 0, 3] {
            assert!(!worth.is_wanted_by(cpu, || false));
        }
        assert!(!worth.is_wanted_by(3, || panic!("is not asked each time")));
        assert!(worth.is_wanted_by(0, || true));
        assert!(worth.is_wanted_by(2, || panic!("the space has replicas")));
    }

    #[test]
    fn replicas_that_leave_out_many_cpus_are_kept() {
        let (worth, tally) = (wanted(), Tally::new());
        let judged = (0..10_000).filter(|_| tally.note_flush(1, 7));
        // Besides each 32nd, the events 4, 8 and 16.
        assert_eq!(judged.count() as u64, 10_000 / JUDGED_EVENTS + 3);
        (0..300).for_each(|probe| tally.note_probe(probe % 12 == 0));
        worth.judge([&tally].into_iter());
        assert!(worth.is_wanted());
    }

    #[test]
    fn replicas_are_given_up_where_cpus_use_the_same_tables() {
        let events: [fn(&Tally) -> bool; 3] = [
            |tally| tally.note_flush(7, 1),
            // The CPUs that are left out would hardly ever be interrupted.
            |tally| {
                tally.note_probe(false);
                tally.note_flush(1, 7)
            },
            Tally::note_link_fault,
        ];
        for note in events {
            let (worth, tally) = (wanted(), Tally::new());
            (0..100 * FREE).for_each(|_| {
                note(&tally);
            });
            worth.judge([&tally].into_iter());
            assert!(!worth.is_wanted());
            assert!(!worth.is_wanted_by(7, || true), "for good");
        }
    }

    /// A CPU that loaded an abandoned replica would be flushed by no other CPU.
    #[test]
    fn replicas_that_were_given_up_stay_so() {
        for worth in [Worth::new(Replication::IfWorth), Worth::new(Replication::Always), wanted()] {
            worth.give_up();
            for cpu in [0, 1, 0, 1] {
                assert!(!worth.is_wanted_by(cpu, || true));
            }
            assert!(!worth.is_wanted());
        }
    }

    #[test]
    fn first_sharers_are_no_reason_to_give_up() {
        let (worth, tally) = (wanted(), Tally::new());
        (0..2 * FREE).for_each(|_| _ = tally.note_flush(1, 7));
        worth.judge([&tally].into_iter());
        assert!(worth.is_wanted());
    }
}
