//! Switches that take effect later than they were recorded, and `exec`, which takes effect earlier.
//!
//! The kernel traces a switch, and since 6.16 the end of a task, before it makes it. About a
//! microsecond passes in between on a real CPU; an emulated one may wait for milliseconds until the
//! host runs it again. Flushes show that:
//!
//! - A flush does not ask a CPU that is about to load the space. So a switch to the program takes
//!   effect after the last flush that should have asked the CPU and did not.
//! - A flush asks a CPU that has not left the space yet. So a switch to another space, and the end
//!   of a task, take effect after the last flush that asked the CPU.
//! - A CPU that no longer runs a thread of the program does not flush when it is asked: it leaves
//!   the space. So a switch to idle takes effect after the last flush that other CPUs have
//!   requested of this one.
//!
//! Any other record of the CPU shows that the switch has taken effect before. So does one of
//! another CPU that runs the thread which was running, and a flush of the space that agrees with
//! the switch.
//!
//! The kernel traces `exec` when the new program is loaded. It has left the old space by then, and
//! has given up the pages that it shared with the task that forked, which no longer copies them.
//! The flush that belongs to no call and no fault shows when.

use std::collections::HashMap;

use shootdown_recording::Tracker;
use shootdown_recording::record::{Event, FlushReason, Record, SpaceId, TaskId};

/// For each record of a switch that took effect later, the record after which it did; both by
/// number.
pub(super) type LateSwitches = HashMap<u64, u64>;

/// For each record at which a task left its old space by `exec`, by number, the new space; for the
/// later record of the `exec`, `None`.
pub(super) type EarlyExecs = HashMap<u64, Option<SpaceId>>;

/// Finds switches that took effect later, and every `exec` that took effect earlier.
#[derive(Debug, Default)]
pub(super) struct SwitchSurvey {
    /// Number of records so far.
    read: u64,
    /// For each CPU whose last record is a switch, the switch.
    switching: HashMap<u32, Switching>,
    /// For each CPU that requested a flush and has not chosen its targets, the space.
    choosing: HashMap<u32, SpaceId>,
    late: LateSwitches,
    /// For each task, its first flush that no call or fault of the task explains, by number; `None`
    /// while one may.
    leaving: HashMap<TaskId, Option<u64>>,
    early: EarlyExecs,
}

/// A switch between two spaces, of which the program has one at least.
#[derive(Clone, Copy, Debug)]
struct Switching {
    number: u64,
    /// The task that ran before, and its space.
    from: Option<(TaskId, SpaceId)>,
    to: Option<SpaceId>,
    /// The task ends, and leaves its space before the next switch.
    ends: bool,
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
        let (number, from) = (self.read, running);
        let switching = |to, ends| Switching { number, from, to, ends };
        if let Some((task, _)) = running {
            self.leaves(task, &record.event);
        }
        match &record.event {
            Event::Switch { next, .. } => {
                self.choosing.remove(&cpu);
                self.switching.retain(|_, it| it.from.is_none_or(|(task, _)| task != *next));
                let to = space_of(*next);
                if to != space {
                    self.switching.insert(cpu, switching(to, false));
                }
            }
            Event::Exit => self.switching.extend([(cpu, switching(None, true))]),
            Event::Wake { .. } | Event::Flush { reason: FlushReason::WrongCpu, .. } => {
                self.switching.extend(before.filter(|it| it.ends).map(|it| (cpu, it)));
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
            Event::Requests { targets: asked } | Event::Interrupts { targets: asked } => {
                self.chosen(cpu, asked);
            }
            Event::Flush { reason: FlushReason::LocalSpace, .. } => self.chosen(cpu, &[]),
            _ => {}
        }
    }

    /// Follows an event of a task for the flush with which `exec` leaves the old space.
    fn leaves(&mut self, task: TaskId, event: &Event) {
        use FlushReason::{LocalSpace, Request};
        match event {
            Event::Call(_) => self.leaving.extend([(task, None)]),
            Event::Fault { code, .. } if code.was_present() => self.leaving.extend([(task, None)]),
            Event::Fault { code, .. } if !code.is_user() => {}
            Event::Flush { reason, .. } if [Request, LocalSpace].contains(reason) => {
                let first = *self.leaving.entry(task).or_insert(Some(self.read));
                if first.is_none() && *reason == LocalSpace {
                    // It was that of the call or fault.
                    self.leaving.remove(&task);
                }
            }
            Event::Fault { .. } | Event::Return { .. } | Event::Spawn { .. } => {
                self.leaving.remove(&task);
            }
            Event::Exec { space, .. } => {
                if let Some(left) = self.leaving.remove(&task).flatten() {
                    self.early.extend([(left, Some(*space)), (self.read, None)]);
                }
            }
            _ => {}
        }
    }

    /// A CPU has chosen the targets of a flush, unless it did before.
    fn chosen(&mut self, cpu: u32, targets: &[u32]) {
        let Some(flushed) = self.choosing.remove(&cpu) else { return };
        let Self { read, switching, late, .. } = self;
        switching.retain(|other, it| {
            let is_from = it.from.is_some_and(|(_, space)| space == flushed);
            let has_left = is_from && (it.to.is_some() || it.ends);
            let is_late = match targets.contains(other) {
                true => has_left,
                false => it.to == Some(flushed),
            };
            if is_late {
                late.insert(it.number, *read);
            }
            is_late || !has_left && it.to != Some(flushed)
        });
    }

    pub(super) fn found(self) -> (LateSwitches, EarlyExecs) {
        (self.late, self.early)
    }
}
