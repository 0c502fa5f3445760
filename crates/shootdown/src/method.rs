//! The *method* with which a flush notifies other CPUs: interrupts or a broadcast, whichever costs
//! less.
//!
//! The machine states the cost of each method in the absence of delays. The delays are measured,
//! for both methods alike: broadcasts queue for one interconnect, and interrupts wait for CPUs that
//! mask them, or that a hypervisor does not run.

use core::cell::Cell;

use crate::costs::NotifyCosts;

/// A method to notify the CPUs that are present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotifyMethod {
    Interrupt,
    Broadcast,
}

/// One CPU's measurements of the cost of each method, and the number of its outstanding broadcasts.
#[derive(Debug)]
pub(crate) struct NotifyPolicy {
    /// Recent excess of the duration of broadcasts over the machine's figure: the broadcasts of
    /// other CPUs were queued before them.
    queueing_ns: Cell<u32>,
    /// Recent excess of the time to answer an interrupt over the machine's figure: a target had
    /// interrupts masked, or is a virtual CPU that was not running.
    answering_ns: Cell<u32>,
    /// Number of recent rings that took an interrupt, of 128. The others found an interrupt on its
    /// way, or a CPU that polls its bell.
    interrupts_of_128: Cell<u8>,
    /// The method chosen last. Trials do not count.
    last: Cell<Option<NotifyMethod>>,
    /// Cost that interrupts could have saved since the last trial: see [`TRIAL_SHIFT`].
    untried_ns: Cell<u32>,
    /// Number of operations that this CPU has issued and not completed.
    pub(crate) outstanding: Cell<u16>,
}

/// Weight of a newly measured delay in the moving average: an eighth.
const MEASURED_SHIFT: u32 = 3;
/// Decay of one method's measured delay with each flush that uses the other method: a 64th.
///
/// Without decay, a method that was slow once would never be tried again. A queue of 100 µs is
/// practically forgotten after some 300 flushes.
const DECAY_SHIFT: u32 = 6;
/// Weight of a newly measured share of rings that took an interrupt: a quarter.
const SHARE_SHIFT: u32 = 2;
/// Lower limit, of 128, of the share of rings that take an interrupt. Even if no ring takes one,
/// the sender must wait for an answer.
const SHARE_MIN: u64 = 16;
/// Threshold for a change of the method: the other one must cost less than seven eighths.
///
/// The costs are estimates, and a CPU that often changes the method measures both too late.
const WORTH_A_CHANGE: (u64, u64) = (7, 8);
/// Share of the possible saving that a trial of interrupts may cost: an eighth.
///
/// A CPU that only broadcasts never measures the cost of interrupts. Nor do its targets find out
/// that [entering lazy](crate::LazyEntryPredictor) in the kernel would save them interrupts,
/// because they take none. So the CPU occasionally interrupts instead. The possible saving is the
/// sum of what broadcasts have cost since the last trial for each CPU that was present, and by
/// queueing behind the broadcasts of other CPUs.
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

    /// Returns the cheaper method to notify `cpus` CPUs of `operations` operations, or occasionally
    /// interrupts as a trial.
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
            // Where a broadcast costs time for each CPU, interrupts may save most: try them first.
            self.untried_ns.set(u32::MAX);
        }
        let answering = u64::from(self.answering_ns.get());
        let chosen = self.cheaper(self.discounted(interrupt).saturating_add(answering), broadcast);
        self.last.set(Some(chosen));
        let decay = |cost_ns: &Cell<u32>| {
            let known = cost_ns.get();
            cost_ns.set(known - known.div_ceil(1 << DECAY_SHIFT));
        };
        if chosen == NotifyMethod::Interrupt {
            decay(&self.queueing_ns);
        } else {
            decay(&self.answering_ns);
            // A queue of one broadcast is normal, and not counted.
            let for_others = by_target.saturating_add(queueing.saturating_sub(costs.broadcast_ns));
            let price = interrupt.saturating_add(answering).saturating_sub(broadcast);
            if self.is_trial_due(for_others, price) {
                return NotifyMethod::Interrupt;
            }
        }
        chosen
    }

    /// Returns the method used last, unless the other one costs less than
    /// [that share](WORTH_A_CHANGE) of it.
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
            Some(last) => last,
        }
    }

    /// The cost of interrupts, reduced by the measured share of rings that take none.
    fn discounted(&self, interrupt: u64) -> u64 {
        match u64::from(self.interrupts_of_128.get()).max(SHARE_MIN) {
            128.. => interrupt,
            share => (interrupt / 128).saturating_mul(share),
        }
    }

    /// Returns `true` if a trial of interrupts is due.
    ///
    /// `for_others` is the part of the broadcast's cost that interrupts may save. `price` is the
    /// additional cost of interrupts.
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

    /// Records the number of rings that took an interrupt, and the number that did not.
    pub(crate) fn record_rings(&self, interrupts: u64, coalesced: u64) {
        let Some(share) = (interrupts << 7).checked_div(interrupts + coalesced) else { return };
        let known = self.interrupts_of_128.get();
        let average = known - (known >> SHARE_SHIFT) + (share as u8 >> SHARE_SHIFT);
        self.interrupts_of_128.set(average);
    }

    /// Records the time that a wait for the answers of `cpus` CPUs took.
    pub(crate) fn record_answers(&self, costs: &NotifyCosts, cpus: u64, took_ns: u64) {
        let expected_ns =
            costs.interrupt_ns.saturating_add(costs.interrupt_each_ns.saturating_mul(cpus));
        average_in(&self.answering_ns, took_ns.saturating_sub(expected_ns));
    }

    /// Records that the outstanding broadcasts took `took_ns` to complete.
    pub(crate) fn record_completion(&self, costs: &NotifyCosts, took_ns: u64) {
        let after_first = u64::from(self.outstanding.replace(0).saturating_sub(1));
        let unqueued_ns =
            costs.broadcast_ns.saturating_add(costs.operation_ns.saturating_mul(after_first));
        average_in(&self.queueing_ns, took_ns.saturating_sub(unqueued_ns));
    }
}

/// Moves the average `known_ns` towards a newly measured excess over the machine's figure.
fn average_in(known_ns: &Cell<u32>, measured_ns: u64) {
    let measured = i64::try_from(measured_ns).unwrap_or(i64::MAX);
    let known = i64::from(known_ns.get());
    let average = known + ((measured - known) >> MEASURED_SHIFT);
    known_ns.set(u32::try_from(average).unwrap_or(u32::MAX));
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
    fn cpus_favour_broadcasts_operations_favour_interrupts() {
        let policy = NotifyPolicy::new();
        assert_eq!(policy.choose(&COSTS, 1, 1), ByBroadcast);
        // 2500 ns, against 1000 ns and 100 ns for each operation but the first.
        assert_eq!(policy.choose(&COSTS, 1, 60), ByInterrupt);
        assert_eq!(policy.choose(&COSTS, 60, 60), ByBroadcast);
    }

    #[test]
    fn equal_costs_keep_the_method() {
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
    fn overflowing_costs_saturate() {
        let policy = NotifyPolicy::new();
        let dear = NotifyCosts { interrupt_each_ns: u64::MAX, interrupt_ns: 9, ..COSTS };
        assert_eq!(policy.choose(&dear, 4, 1), ByBroadcast);
        let dear = NotifyCosts { broadcast_ns: u64::MAX, operation_ns: 7, ..COSTS };
        assert_eq!(policy.choose(&dear, 4, 9), ByInterrupt);
        policy.record_completion(&COSTS, u64::MAX);
        assert_eq!(policy.choose(&COSTS, 4, 1), ByInterrupt);
    }

    /// A queue is detected within a few broadcasts, avoided for a while, and then tried again.
    #[test]
    fn queueing_is_measured_and_forgotten() {
        let policy = NotifyPolicy::new();
        let is_chosen = |chosen| policy.choose(&COSTS, 1, 1) == chosen;
        let broadcasts = (0..9).take_while(|_| is_chosen(ByBroadcast));
        let broadcasts = broadcasts.inspect(|_| policy.record_completion(&COSTS, 100_000)).count();
        assert!((1..=4).contains(&broadcasts), "{broadcasts}");
        let interrupts = 1 + (0..999).take_while(|_| is_chosen(ByInterrupt)).count();
        assert!((50..=400).contains(&interrupts), "{interrupts}");
    }

    /// If all CPUs flush, most of them poll their bells, and interrupts cost less than the
    /// machine's figure.
    #[test]
    fn coalesced_rings_make_interrupts_cheaper() {
        let policy = NotifyPolicy::new();
        let costs = NotifyCosts { broadcast_ns: 2000, ..COSTS };
        assert_eq!(policy.choose(&costs, 4, 1), ByBroadcast);
        policy.record_rings(0, 0);
        assert_eq!(policy.choose(&costs, 4, 1), ByBroadcast);
        (0..8).for_each(|_| policy.record_rings(1, 3));
        assert_eq!(policy.choose(&costs, 4, 1), ByInterrupt);
        (0..16).for_each(|_| policy.record_rings(4, 0));
        assert_eq!(policy.choose(&costs, 4, 1), ByBroadcast);
        policy.interrupts_of_128.set(64);
        assert_eq!(policy.discounted(12_800), 6400);
    }

    #[test]
    fn share_of_interrupts_has_a_floor() {
        let policy = NotifyPolicy::new();
        let discounted = [0, 15, 16, 17].map(|share| {
            policy.interrupts_of_128.set(share);
            policy.discounted(12_800)
        });
        assert_eq!(discounted, [1600, 1600, 1600, 1700]);
    }

    /// If broadcasts cost time for each CPU, interrupts are tried first, and later as often as the
    /// possible saving allows. If broadcasts cost the same for any number of CPUs, or interrupts
    /// are excluded, there is no trial.
    #[test]
    #[cfg_attr(miri, ignore = "thousands of steps, without unsafe code")]
    fn interrupts_are_tried_occasionally() {
        let trials = |costs: NotifyCosts| {
            let policy = NotifyPolicy::new();
            let tries = |count: u64| {
                (0..count).filter(|_| policy.choose(&costs, 2, 1) == ByInterrupt).count()
            };
            (tries(1), tries(1600))
        };
        assert_eq!(trials(COSTS), (0, 0));
        // 3000 ns against 1200 ns: one trial whenever 8 x 1800 ns have been spent, 200 ns a time.
        let by_target = NotifyCosts { broadcast_each_ns: 100, ..COSTS };
        assert_eq!(trials(by_target), (1, 1600 / 73));
        let alone = NotifyCosts { interrupt_ns: u64::MAX, ..by_target };
        assert_eq!(trials(alone), (0, 0));
    }

    #[test]
    fn many_operations_are_not_a_queue() {
        let policy = NotifyPolicy::new();
        (0..100).for_each(|_| policy.record_completion(&COSTS, COSTS.broadcast_ns + 8000));
        assert!((7990..=8000).contains(&policy.queueing_ns.get()), "a queue of 8 µs");
        for _ in 0..100 {
            policy.outstanding.set(50);
            policy.record_completion(&COSTS, COSTS.broadcast_ns + 49 * COSTS.operation_ns);
        }
        assert_eq!(policy.queueing_ns.get(), 0);
    }

    /// A virtual CPU that is not running answers after milliseconds.
    #[test]
    fn slow_answers_are_measured_and_forgotten() {
        let policy = NotifyPolicy::new();
        let costs = NotifyCosts { broadcast_ns: 5000, ..COSTS };
        let is_chosen = |chosen| policy.choose(&costs, 1, 1) == chosen;
        let slow = |_: &i32| policy.record_answers(&costs, 1, 10_000_000);
        let interrupts = (0..9).take_while(|_| is_chosen(ByInterrupt)).inspect(slow).count();
        assert_eq!(interrupts, 1);
        let broadcasts = 1 + (0..999).take_while(|_| is_chosen(ByBroadcast)).count();
        assert!((100..=700).contains(&broadcasts), "{broadcasts}");
        policy.record_answers(&costs, 1, 0);
        assert_eq!(
            policy.choose(&costs, 1, 1),
            ByInterrupt,
            "answers as fast as the machine's figure"
        );
    }

    #[test]
    fn broadcasts_only_never_interrupts() {
        let policy = NotifyPolicy::new();
        let costs = NotifyCosts { broadcast_each_ns: 100, ..COSTS }.broadcasts_only();
        for _ in 0..1000 {
            assert_eq!(policy.choose(&costs, 64, 9), ByBroadcast);
            policy.record_completion(&costs, 1_000_000);
            policy.record_rings(0, 1);
        }
    }

    proptest! {
        /// If costs vary by up to an eighth, the method does not change back. If one method costs
        /// less than half of the other, it is chosen.
        #[test]
        fn cheaper_method_is_chosen_and_kept(
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
            prop_assert!(changes <= 1, "the method changed back");
        }
    }
}
