//! The *method* with which a flush notifies other CPUs: interrupts or a broadcast, whichever costs
//! less.
//!
//! The machine states the cost of each method in the absence of delays. The delays are measured,
//! for both methods alike: broadcasts queue for one interconnect, and interrupts wait for CPUs that
//! mask them, or that a hypervisor does not run.

use core::cell::Cell;

use crate::base::costs::NotifyCosts;

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

/// The cheaper method for a flush, and what the choice depends on.
struct Weighed {
    chosen: NotifyMethod,
    /// The part of the broadcast's cost that interrupts may save.
    for_others_ns: u64,
    /// The additional cost of interrupts.
    price_ns: u64,
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
/// the lines of presence, bell and answer go from CPU to CPU: a third of a machine's figure for
/// each CPU, or more.
const SHARE_MIN: u64 = 48;
/// Threshold for a change of the method: the other one must cost less than seven eighths.
///
/// The costs are estimates, and a CPU that often changes the method measures both too late.
const WORTH_A_CHANGE: (u64, u64) = (7, 8);
/// Share of the possible saving that a trial of interrupts may cost: an eighth.
///
/// A CPU that only broadcasts never measures the cost of interrupts. Nor do its targets find out
/// that [entering lazy](crate::LazyEntryPredictor) in the kernel would save them interrupts,
/// because they take none. So the CPU occasionally interrupts instead. The possible saving is the
/// sum of what broadcasts have cost since the last trial for each CPU that was present. A queue of
/// broadcasts does not count: an interrupt of all CPUs that queue costs each of them more than the
/// one broadcast that it saves.
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
        if self.broadcasts(costs, cpus, operations) {
            return NotifyMethod::Broadcast;
        }
        let cheaper = self.weigh(costs, cpus, operations).chosen;
        self.adopt(cheaper);
        if cheaper == NotifyMethod::Broadcast {
            // A trial.
            self.untried_ns.set(0);
        }
        NotifyMethod::Interrupt
    }

    /// As [`choose`](Self::choose) if that would return the broadcast: returns `true`, and records
    /// the choice. Otherwise returns `false`, and leaves the choice to the caller.
    pub(crate) fn broadcasts(&self, costs: &NotifyCosts, cpus: u64, operations: u64) -> bool {
        if self.last.get().is_none() && costs.broadcast_each_ns != 0 {
            // Where a broadcast costs time for each CPU, interrupts may save most: try them first.
            self.untried_ns.set(u32::MAX);
        }
        let Weighed { chosen, for_others_ns, price_ns } = self.weigh(costs, cpus, operations);
        let for_others = u32::try_from(for_others_ns).unwrap_or(u32::MAX);
        let untried = self.untried_ns.get().saturating_add(for_others);
        let is_trial = for_others != 0 && u64::from(untried >> TRIAL_SHIFT) > price_ns;
        let broadcasts = chosen == NotifyMethod::Broadcast && !is_trial;
        if broadcasts {
            self.adopt(chosen);
            self.untried_ns.set(untried);
        }
        broadcasts
    }

    /// Compares the costs of the methods.
    fn weigh(&self, costs: &NotifyCosts, cpus: u64, operations: u64) -> Weighed {
        let interrupt =
            costs.interrupt_ns.saturating_add(costs.interrupt_each_ns.saturating_mul(cpus));
        let by_target = costs.broadcast_each_ns.saturating_mul(cpus);
        let queueing = u64::from(self.queueing_ns.get());
        let broadcast = costs
            .broadcast_ns
            .saturating_add(costs.operation_ns.saturating_mul(operations - 1))
            .saturating_add(by_target)
            .saturating_add(queueing);
        let answering = u64::from(self.answering_ns.get());
        let chosen = self.cheaper(self.discounted(interrupt).saturating_add(answering), broadcast);
        let price_ns = interrupt.saturating_add(answering).saturating_sub(broadcast);
        Weighed { chosen, for_others_ns: by_target, price_ns }
    }

    /// Makes `chosen` the last method, and forgets a part of the delays of the other one.
    fn adopt(&self, chosen: NotifyMethod) {
        self.last.set(Some(chosen));
        let of_other = match chosen {
            NotifyMethod::Interrupt => &self.queueing_ns,
            NotifyMethod::Broadcast => &self.answering_ns,
        };
        let known = of_other.get();
        of_other.set(known - known.div_ceil(1 << DECAY_SHIFT));
    }

    /// Returns `true` if broadcasts were the cheaper method for the last flush.
    #[inline]
    pub(crate) fn has_chosen_broadcast(&self) -> bool {
        self.last.get() == Some(NotifyMethod::Broadcast)
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
mod tests;
