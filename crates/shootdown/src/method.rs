//! The *method* by which a flush notifies other CPUs: interrupts or a broadcast, whichever costs
//! less.
//!
//! The machine says what each costs when nothing is in its way. What is in its way is learnt, of
//! both methods alike: broadcasts queue for one interconnect, and interrupts wait for CPUs that
//! mask them, or that a hypervisor does not run.

use core::cell::Cell;

use crate::costs::NotifyCosts;

/// How to tell those who are present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotifyMethod {
    Interrupt,
    Broadcast,
}

/// What a CPU knows of what telling costs, and what it has yet to complete.
#[derive(Debug)]
pub(crate) struct NotifyPolicy {
    /// By how much broadcasts have lately taken longer than the machine says: others' were before
    /// them.
    queueing_ns: Cell<u32>,
    /// By how much answers to interrupts have lately taken longer than the machine says: a target
    /// had interrupts masked, or is a virtual CPU that was not running.
    answering_ns: Cell<u32>,
    /// Of 128 rings, how many have lately taken an interrupt: the others found one on its way, or
    /// a CPU that looks at its bell by itself.
    interrupts_of_128: Cell<u8>,
    last: Cell<Option<NotifyMethod>>,
    /// What could have been saved since others were last interrupted: see [`TRIAL_SHIFT`].
    untried_ns: Cell<u32>,
    /// How many operations were issued here and not completed.
    pub(crate) outstanding: Cell<u16>,
}

/// A newly measured wait counts for an eighth of what is known.
const MEASURED_SHIFT: u32 = 3;
/// What is known of one way is forgotten by a 64th with each flush that takes the other, so that it
/// will be tried again: a queue of 100 µs is forgotten, for all purposes, after some 300 flushes.
const FORGOTTEN_SHIFT: u32 = 6;
/// A newly measured share of rings that took an interrupt counts for a quarter.
const SHARE_SHIFT: u32 = 2;
/// That no ring takes an interrupt is not believed: there is still an answer to wait for.
const SHARE_MIN: u64 = 16;
/// The other way is taken when it costs less than seven eighths: the costs are estimates, and
/// a CPU that goes back and forth learns about both too late.
const WORTH_A_CHANGE: (u64, u64) = (7, 8);
/// Who only broadcasts never learns what interrupts would cost; nor do those who are told learn
/// that they had better say when they enter the kernel, for nothing disturbs them there. So now and
/// then it interrupts instead, when that costs no more than an eighth of what it might save: what
/// broadcasts have cost since for each CPU that was present, and by waiting for others'.
const TRIAL_SHIFT: u32 = 3;

impl NotifyPolicy {
    pub(crate) const fn new() -> Self {
        Self {
            queueing_ns: Cell::new(0),
            answering_ns: Cell::new(0),
            interrupts_of_128: Cell::new(128),
            last: Cell::new(None),
            untried_ns: Cell::new(0),
            outstanding: Cell::new(0),
        }
    }

    /// The cheaper way to tell so many CPUs; or, for once, the other.
    pub(crate) fn choose(&self, costs: &NotifyCosts, cpus: u64, operations: u64) -> NotifyMethod {
        let interrupt =
            costs.interrupt_ns.saturating_add(costs.interrupt_each_ns.saturating_mul(cpus));
        let by_target = costs.broadcast_each_ns.saturating_mul(cpus);
        let queueing = u64::from(self.queueing_ns.get());
        let broadcast = costs
            .broadcast_ns
            .saturating_add(costs.operation_ns.saturating_mul(operations - 1))
            .saturating_add(by_target)
            .saturating_add(queueing);
        if self.last.get().is_none() && costs.broadcast_each_ns != 0 {
            // Where each CPU costs, there is the most to save, and it is tried first.
            self.untried_ns.set(u32::MAX);
        }
        let answering = u64::from(self.answering_ns.get());
        let chosen = self.cheaper(self.as_learnt(interrupt).saturating_add(answering), broadcast);
        self.last.set(Some(chosen));
        let forget = |cost_ns: &Cell<u32>| {
            let known = cost_ns.get();
            cost_ns.set(known - known.div_ceil(1 << FORGOTTEN_SHIFT));
        };
        if chosen == NotifyMethod::Interrupt {
            forget(&self.queueing_ns);
        } else {
            forget(&self.answering_ns);
            // One broadcast before ours is what chance does.
            let for_others = by_target.saturating_add(queueing.saturating_sub(costs.broadcast_ns));
            let price = interrupt.saturating_add(answering).saturating_sub(broadcast);
            if self.is_trial_due(for_others, price) {
                return NotifyMethod::Interrupt;
            }
        }
        chosen
    }

    fn cheaper(&self, interrupt: u64, broadcast: u64) -> NotifyMethod {
        let (worth, of) = WORTH_A_CHANGE;
        let is_worth = |new: u64, old: u64| new.saturating_mul(of) < old.saturating_mul(worth);
        match self.last.get() {
            None if broadcast < interrupt => NotifyMethod::Broadcast,
            None => NotifyMethod::Interrupt,
            Some(NotifyMethod::Interrupt) if is_worth(broadcast, interrupt) => {
                NotifyMethod::Broadcast
            }
            Some(NotifyMethod::Broadcast) if is_worth(interrupt, broadcast) => {
                NotifyMethod::Interrupt
            }
            Some(as_before) => as_before,
        }
    }

    /// What it costs to ring CPUs of which only some must be interrupted.
    fn as_learnt(&self, interrupt: u64) -> u64 {
        match u64::from(self.interrupts_of_128.get()).max(SHARE_MIN) {
            128.. => interrupt,
            share => (interrupt / 128).saturating_mul(share),
        }
    }

    /// Whether to interrupt for once, which costs so much more; a broadcast costs so much for
    /// others' sake.
    fn is_trial_due(&self, for_others: u64, price: u64) -> bool {
        if for_others == 0 {
            return false;
        }
        let for_others = u32::try_from(for_others).unwrap_or(u32::MAX);
        let untried = self.untried_ns.get().saturating_add(for_others);
        let is_due = u64::from(untried >> TRIAL_SHIFT) > price;
        self.untried_ns.set(if is_due { 0 } else { untried });
        is_due
    }

    /// So many rings took an interrupt, and so many did not.
    pub(crate) fn learn_rings(&self, interrupts: u64, coalesced: u64) {
        let Some(share) = (interrupts << 7).checked_div(interrupts + coalesced) else { return };
        let known = self.interrupts_of_128.get();
        let learnt = known - (known >> SHARE_SHIFT) + (share as u8 >> SHARE_SHIFT);
        self.interrupts_of_128.set(learnt);
    }

    /// Learns from the time that a wait for the answers of so many CPUs took.
    pub(crate) fn learn_answers(&self, costs: &NotifyCosts, cpus: u64, took_ns: u64) {
        let expected_ns =
            costs.interrupt_ns.saturating_add(costs.interrupt_each_ns.saturating_mul(cpus));
        learn_excess(&self.answering_ns, took_ns.saturating_sub(expected_ns));
    }

    /// What was outstanding took so long.
    pub(crate) fn learn(&self, costs: &NotifyCosts, took_ns: u64) {
        let after_first = u64::from(self.outstanding.replace(0).saturating_sub(1));
        let unqueued_ns =
            costs.broadcast_ns.saturating_add(costs.operation_ns.saturating_mul(after_first));
        learn_excess(&self.queueing_ns, took_ns.saturating_sub(unqueued_ns));
    }
}

/// A newly measured excess over what the machine says moves what is known towards it.
fn learn_excess(known_ns: &Cell<u32>, measured_ns: u64) {
    let measured = i64::try_from(measured_ns).unwrap_or(i64::MAX);
    let known = i64::from(known_ns.get());
    let learnt = known + ((measured - known) >> MEASURED_SHIFT);
    known_ns.set(u32::try_from(learnt).unwrap_or(u32::MAX));
}

#[cfg(test)]
mod tests {
    use super::*;
    use NotifyMethod::{Broadcast as ByBroadcast, Interrupt as ByInterrupt};
    use proptest::prelude::*;

    const COSTS: NotifyCosts = NotifyCosts {
        interrupt_ns: 2000,
        interrupt_each_ns: 500,
        broadcast_ns: 1000,
        broadcast_each_ns: 0,
        operation_ns: 100,
    };

    #[test]
    fn more_cpus_speak_for_broadcasts_and_more_operations_for_interrupts() {
        let policy = NotifyPolicy::new();
        assert_eq!(policy.choose(&COSTS, 1, 1), ByBroadcast);
        // 2500 ns to 1000 and 100 for each but the first.
        assert_eq!(policy.choose(&COSTS, 1, 60), ByInterrupt);
        assert_eq!(policy.choose(&COSTS, 60, 60), ByBroadcast);
    }

    #[test]
    fn what_costs_the_same_changes_nothing() {
        assert_eq!(NotifyPolicy::new().choose(&NotifyCosts::default(), 3, 1), ByInterrupt);
        for first in [ByInterrupt, ByBroadcast] {
            let policy = NotifyPolicy::new();
            policy.last.set(Some(first));
            for (interrupt_ns, broadcast_ns) in [(100, 100), (100, 90), (90, 100), (0, 0)] {
                let costs = NotifyCosts { interrupt_ns, broadcast_ns, ..NotifyCosts::default() };
                assert_eq!(policy.choose(&costs, 3, 1), first);
            }
        }
    }

    #[test]
    fn costs_that_cannot_be_added_are_too_high() {
        let policy = NotifyPolicy::new();
        let dear = NotifyCosts { interrupt_each_ns: u64::MAX, interrupt_ns: 9, ..COSTS };
        assert_eq!(policy.choose(&dear, 4, 1), ByBroadcast);
        let dear = NotifyCosts { broadcast_ns: u64::MAX, operation_ns: 7, ..COSTS };
        assert_eq!(policy.choose(&dear, 4, 9), ByInterrupt);
        policy.learn(&COSTS, u64::MAX);
        assert_eq!(policy.choose(&COSTS, 4, 1), ByInterrupt);
    }

    /// A queue is learnt of within a few broadcasts, avoided for a while, and then tried again.
    #[test]
    fn queueing_is_learnt_and_forgotten() {
        let policy = NotifyPolicy::new();
        let is_chosen = |chosen| policy.choose(&COSTS, 1, 1) == chosen;
        let broadcasts = (0..9).take_while(|_| is_chosen(ByBroadcast));
        let broadcasts = broadcasts.inspect(|_| policy.learn(&COSTS, 100_000)).count();
        assert!((1..=4).contains(&broadcasts), "{broadcasts}");
        let interrupts = 1 + (0..999).take_while(|_| is_chosen(ByInterrupt)).count();
        assert!((50..=400).contains(&interrupts), "{interrupts}");
    }

    /// Where everyone flushes, most look at their bells anyway: then interrupts cost less than the
    /// machine says.
    #[test]
    fn rings_that_take_no_interrupt_make_interrupts_cheaper() {
        let policy = NotifyPolicy::new();
        let costs = NotifyCosts { broadcast_ns: 2000, ..COSTS };
        assert_eq!(policy.choose(&costs, 4, 1), ByBroadcast);
        policy.learn_rings(0, 0);
        assert_eq!(policy.choose(&costs, 4, 1), ByBroadcast);
        (0..8).for_each(|_| policy.learn_rings(1, 3));
        assert_eq!(policy.choose(&costs, 4, 1), ByInterrupt);
        (0..16).for_each(|_| policy.learn_rings(4, 0));
        assert_eq!(policy.choose(&costs, 4, 1), ByBroadcast);
        policy.interrupts_of_128.set(64);
        assert_eq!(policy.as_learnt(12_800), 6400);
    }

    /// Interrupts are tried at once where each CPU costs, and then as often as is worth it; never
    /// where broadcasts cost the same whoever is present, nor where interrupts are out of question.
    #[test]
    fn what_is_not_chosen_is_tried_now_and_then() {
        let trials = |costs: NotifyCosts| {
            let policy = NotifyPolicy::new();
            let tries = |count: u64| {
                (0..count).filter(|_| policy.choose(&costs, 2, 1) == ByInterrupt).count()
            };
            (tries(1), tries(1600))
        };
        assert_eq!(trials(COSTS), (0, 0));
        // 3000 ns to 1200: a trial for each 8 x 1800 ns of 200.
        let by_target = NotifyCosts { broadcast_each_ns: 100, ..COSTS };
        assert_eq!(trials(by_target), (1, 1600 / 73));
        let alone = NotifyCosts { interrupt_ns: u64::MAX, ..by_target };
        assert_eq!(trials(alone), (0, 0));
    }

    #[test]
    fn many_operations_are_no_queue() {
        let policy = NotifyPolicy::new();
        (0..100).for_each(|_| policy.learn(&COSTS, COSTS.broadcast_ns + 8000));
        assert!((7990..=8000).contains(&policy.queueing_ns.get()), "that is one");
        for _ in 0..100 {
            policy.outstanding.set(50);
            policy.learn(&COSTS, COSTS.broadcast_ns + 49 * COSTS.operation_ns);
        }
        assert_eq!(policy.queueing_ns.get(), 0);
    }

    /// A virtual CPU that is not running answers after milliseconds.
    #[test]
    fn slow_answers_are_learnt_and_forgotten() {
        let policy = NotifyPolicy::new();
        let costs = NotifyCosts { broadcast_ns: 5000, ..COSTS };
        let is_chosen = |chosen| policy.choose(&costs, 1, 1) == chosen;
        let slow = |_: &i32| policy.learn_answers(&costs, 1, 10_000_000);
        let interrupts = (0..9).take_while(|_| is_chosen(ByInterrupt)).inspect(slow).count();
        assert_eq!(interrupts, 1);
        let broadcasts = 1 + (0..999).take_while(|_| is_chosen(ByBroadcast)).count();
        assert!((100..=700).contains(&broadcasts), "{broadcasts}");
        policy.learn_answers(&costs, 1, 0);
        assert_eq!(policy.choose(&costs, 1, 1), ByInterrupt, "as fast as the machine says");
    }

    #[test]
    fn broadcasts_only_never_interrupts() {
        let policy = NotifyPolicy::new();
        let costs = NotifyCosts { broadcast_each_ns: 100, ..COSTS }.broadcasts_only();
        for _ in 0..1000 {
            assert_eq!(policy.choose(&costs, 64, 9), ByBroadcast);
            policy.learn(&costs, 1_000_000);
            policy.learn_rings(0, 1);
        }
    }

    proptest! {
        /// However costs vary by an eighth, the way stays what it was; and if one costs half as
        /// much as the other, that is the way.
        #[test]
        fn the_cheaper_way_is_taken_and_kept(
            interrupt in 1000u64..100_000, broadcast in 1000u64..100_000,
            shakes in prop::collection::vec((0u64..=125, 0u64..=125), 1..20)
        ) {
            let policy = NotifyPolicy::new();
            let costs = |shake: (u64, u64)| NotifyCosts {
                interrupt_ns: interrupt + interrupt * shake.0 / 1000,
                broadcast_ns: broadcast + broadcast * shake.1 / 1000,
                ..NotifyCosts::default()
            };
            let first = policy.choose(&costs((0, 0)), 5, 1);
            if interrupt * 2 < broadcast {
                prop_assert_eq!(first, ByInterrupt);
            }
            if broadcast * 2 < interrupt {
                prop_assert_eq!(first, ByBroadcast);
            }
            let mut last = first;
            let mut changes = 0;
            for shake in shakes {
                let chosen = policy.choose(&costs(shake), 5, 1);
                changes += u32::from(chosen != last);
                last = chosen;
            }
            prop_assert!(changes <= 1, "it came back");
        }
    }
}
