//! Switches that take effect later than they were recorded.
//!
//! The kernel traces a switch before it makes it. On a real CPU, less than a microsecond passes in
//! between. An emulated CPU may have to wait for milliseconds, until the host runs it again.
//! Flushes show that:
//!
//! - A flush does not ask a CPU that is about to load the space. So a switch to the program takes
//!   effect after the last flush that should have asked the CPU and did not.
//! - A CPU that no longer runs a thread of the program does not flush when it is asked: it leaves
//!   the space. So a switch to another program or to idle takes effect after the last flush that
//!   other CPUs have requested of this one.
//!
//! Any other record of the CPU shows that the switch has taken effect before. So does one of
//! another CPU that runs the thread which was running.

use std::collections::HashMap;

use shootdown_recording::Tracker;
use shootdown_recording::record::{Event, FlushReason, Record, SpaceId, TaskId};

/// For each record of a switch that took effect later, the record after which it did; both by
/// number.
pub(super) type LateSwitches = HashMap<u64, u64>;

/// Finds switches that took effect later.
#[derive(Debug, Default)]
pub(super) struct SwitchSurvey {
    /// Number of records so far.
    read: u64,
    /// For each CPU whose last record is a switch, the switch.
    switching: HashMap<u32, Switching>,
    /// For each CPU that requested a flush and has not chosen its targets, the space.
    choosing: HashMap<u32, SpaceId>,
    late: LateSwitches,
}

/// A switch between two spaces, of which the program has one at least.
#[derive(Clone, Copy, Debug)]
struct Switching {
    number: u64,
    /// The task that ran before, and its space.
    from: Option<(TaskId, SpaceId)>,
    to: Option<SpaceId>,
}

impl SwitchSurvey {
    /// Follows a record, before the tracker does.
    pub(super) fn record(&mut self, record: &Record, tracker: &Tracker) {
        self.read += 1;
        let cpu = record.cpu;
        let before = self.switching.remove(&cpu);
        let space_of = |task| tracker.task(task).map(|task| task.space);
        let running = tracker.recorded(cpu).and_then(|task| Some((task, space_of(task)?)));
        let space = running.map(|(_, space)| space);
        match &record.event {
            Event::Switch { next, .. } => {
                self.choosing.remove(&cpu);
                self.switching.retain(|_, it| it.from.is_none_or(|(task, _)| task != *next));
                let to = space_of(*next);
                if to != space {
                    let switching = Switching { number: self.read, from: running, to };
                    self.switching.insert(cpu, switching);
                }
            }
            Event::Flush { reason: FlushReason::Remote, .. } => {
                if let Some(left) = before.filter(|it| it.from.is_some() && it.to.is_none()) {
                    self.late.insert(left.number, self.read);
                    self.switching.insert(cpu, left);
                }
            }
            Event::Flush { reason: FlushReason::Request, .. } => {
                self.choosing.extend(space.map(|space| (cpu, space)));
            }
            Event::Requests { targets } => self.chosen(cpu, targets),
            Event::Flush { reason: FlushReason::LocalSpace, .. } => self.chosen(cpu, &[]),
            _ => {}
        }
    }

    /// A CPU has chosen the targets of a flush, unless it did before.
    fn chosen(&mut self, cpu: u32, targets: &[u32]) {
        let Some(flushed) = self.choosing.remove(&cpu) else { return };
        let Self { read, switching, late, .. } = self;
        switching.retain(|other, it| it.to != Some(flushed) || !targets.contains(other));
        for entering in switching.values().filter(|it| it.to == Some(flushed)) {
            late.insert(entering.number, *read);
        }
    }

    pub(super) fn found(self) -> LateSwitches {
        self.late
    }
}
