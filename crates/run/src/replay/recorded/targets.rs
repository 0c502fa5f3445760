//! The time at which a flush of a replay chooses its targets.

use shootdown_sim::{Time, WaitMode};

use super::super::steps::{Action, Step};
use super::Replay;

/// The longest time for which a flush waits for a step of another CPU beyond its recorded time,
/// before it chooses its targets. A step that waits for no lock begins within a few microseconds.
const PATIENCE: Time = Time::from_ns(100_000);

impl Replay {
    /// Before a flush: waits for other CPUs that switch, if the recorded ones had time to do so.
    /// They may leave the space, and the flush then asks them no more.
    pub(super) fn wait_for_switches(&self, cpu: usize) {
        while let Some(until) = self.switches_until(cpu)
            && self.sim.now() < until
        {
            self.sim.wait_on_cpu(WaitMode::Busy, Some(until));
        }
    }

    /// If the next step, on this CPU, is a flush, and a CPU switches, returns the time up to which
    /// the flush waits for it.
    fn switches_until(&self, cpu: usize) -> Option<Time> {
        let cursor = self.cursor.borrow();
        let next = cursor.next.as_ref().filter(|next| next.cpu == cpu)?;
        if !matches!(next.action, Action::Flushing { .. } | Action::ChoosesTargets) {
            return None;
        }
        let performing = self.performing.borrow();
        let switching = performing.iter().filter(|it| it.is_switching);
        switching.map(|it| it.began + Time::from_ns(next.at_ns - it.at_ns)).max()
    }

    /// A flush on this CPU has been counted. If it chooses its targets at a later step, waits until
    /// that step begins. Until then, other CPUs perform the steps in between. One of these may wait
    /// for a lock that this CPU holds, because a call that waited for the lock in the recorded
    /// kernel takes effect at its beginning in the replay; then the targets are chosen now.
    pub(super) fn wait_to_choose(&self) {
        let cpu = self.sim.cpu();
        let performing = self.performing.borrow()[cpu];
        if !performing.chooses_later {
            return;
        }
        self.performing.borrow_mut()[cpu].chooses_later = false;
        self.advance_if_held(cpu);
        let due = |at_ns| performing.began + Time::from_ns(at_ns - performing.at_ns);
        let elsewhere = || {
            let cursor = self.cursor.borrow();
            cursor.next.as_ref().filter(|step| step.cpu != cpu).map(|step| step.at_ns)
        };
        while let Some(at_ns) = elsewhere() {
            let latest = due(at_ns) + PATIENCE;
            if self.sim.now() >= latest {
                return;
            }
            self.sim.wait_on_cpu(WaitMode::Busy, Some(latest));
        }
        let chooses = |step: &&Step| step.cpu == cpu && step.action == Action::ChoosesTargets;
        let at_ns = self.cursor.borrow().next.as_ref().filter(chooses).map(|step| step.at_ns);
        let Some(at_ns) = at_ns else { return };
        let due = due(at_ns);
        self.sim.spend(due.saturating_sub(self.sim.now()));
        self.wait_for_switches(cpu);
        self.cursor.borrow_mut().next = None;
        self.before.set((at_ns, self.sim.now()));
        self.performing.borrow_mut()[cpu].at_ns = at_ns;
        self.held_by.set(Some(cpu));
    }

    /// The recorded time of this CPU's step.
    pub(super) fn performing_at_ns(&self) -> u64 {
        self.performing.borrow()[self.sim.cpu()].at_ns
    }
}
