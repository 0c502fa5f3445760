//! The time of each CPU, and the interrupts and invalidations on their way to or from it.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::counts::Counts;
use crate::invalidation::Broadcasting;
use crate::queue::{EventQueue, Key};
use crate::threads::ThreadId;
use crate::time::Time;
use crate::tlb::SpaceKey;

/// The part of each CPU that has to do with time, and the queue of their events.
#[derive(Debug)]
pub(crate) struct Clock {
    pub(crate) queue: EventQueue,
    /// Who would go beyond has to stop for good.
    pub(crate) end: Time,
    pub(crate) cpus: Vec<CpuClock>,
    /// When the broadcasts that have been issued leave the interconnect to others.
    pub(crate) interconnect_free_at: Time,
}

#[derive(Debug)]
pub(crate) struct CpuClock {
    pub(crate) now: Time,
    /// The one of its events in the queue that is meant; others are outdated.
    pub(crate) key: Key,
    /// How often interrupts were masked and not unmasked.
    pub(crate) masks: u32,
    /// Interrupts on their way, soonest first.
    pub(crate) arrivals: VecDeque<Arrival>,
    /// When the stores that wait in the store buffer have their lines.
    pub(crate) stored_at: Time,
    /// Waiting for something to do.
    pub(crate) parked: bool,
    /// Since when it has had no thread to run.
    pub(crate) idle_since: Option<Time>,
    /// Held up by an instruction that waits for other CPUs.
    pub(crate) stalled: bool,
    /// What others' broadcasts and remote fences took from it, and it has not yet lost.
    pub(crate) stolen: Time,
    /// When the remote fences that it was told of are done.
    pub(crate) fenced_until: Time,
    pub(crate) broadcasting: Broadcasting,
    /// The flush whose interrupts it sends.
    pub(crate) flushing: Option<Flushing>,
    pub(crate) counts: Counts,
}

impl CpuClock {
    /// What it did until `now`.
    pub(crate) fn counts_at(&self, now: Time) -> Counts {
        let idle = self.idle_since.map_or(Time::ZERO, |since| now.saturating_sub(since));
        Counts { idle: self.counts.idle + idle, ..self.counts }
    }
}

/// A flush whose interrupts are being sent: who is interrupted for nothing?
#[derive(Clone, Debug)]
pub(crate) struct Flushing {
    /// For those who have loaded one of these spaces, or any if there is none.
    pub(crate) spaces: Rc<[SpaceKey]>,
    pub(crate) since: Time,
}

/// What an interrupt is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vector {
    /// The kernel's flush interrupt.
    Flush,
    /// There is something to run.
    Reschedule,
    /// A thread has slept for long enough.
    Timer(ThreadId),
    /// A CPU that does not idle has its regular look at things.
    Tick,
}

/// An interrupt on its way to a CPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) at: Time,
    pub(crate) vector: Vector,
}

impl Arrival {
    /// Whether it was set by this CPU, perhaps for much later, and is not on its way.
    pub(crate) fn is_timer(&self) -> bool {
        matches!(self.vector, Vector::Timer(_) | Vector::Tick)
    }
}

impl CpuClock {
    /// Takes time from whatever it does, if it does anything.
    pub(crate) fn steal(&mut self, time: Time) {
        if !self.parked && !self.stalled {
            self.stolen += time;
        }
    }

    pub(crate) fn lose_stolen(&mut self) -> Time {
        let stolen = core::mem::take(&mut self.stolen);
        self.counts.stolen += stolen;
        stolen
    }
}

impl Clock {
    pub(crate) fn new(cpus: usize) -> Self {
        let cpu = |_| CpuClock {
            now: Time::ZERO,
            key: Key::NEVER,
            masks: 0,
            arrivals: VecDeque::new(),
            stored_at: Time::ZERO,
            parked: false,
            idle_since: None,
            stalled: false,
            stolen: Time::ZERO,
            fenced_until: Time::ZERO,
            broadcasting: Broadcasting::default(),
            flushing: None,
            counts: Counts::default(),
        };
        Self {
            queue: EventQueue::default(),
            end: Time::END,
            cpus: (0..cpus).map(cpu).collect(),
            interconnect_free_at: Time::ZERO,
        }
    }

    /// Moves a CPU's clock towards `target`, to the next interrupt that it may take. Returns
    /// whether other CPUs come first, and how far it went.
    #[inline]
    pub(crate) fn step(&mut self, number: usize, target: Time) -> (bool, Time) {
        let cpu = &mut self.cpus[number];
        let until = match cpu.arrivals.front() {
            Some(arrival) if cpu.masks == 0 => target.min(arrival.at.max(cpu.now)),
            _ => target,
        };
        let key = Key::new(until, number);
        if key <= self.queue.runner_up() && until <= self.end {
            cpu.now = until;
            return (false, until);
        }
        cpu.key = key;
        self.queue.replace_top(key);
        (true, until)
    }

    /// Has a CPU that waits, or that is not as far, act at `at` already.
    pub(crate) fn wake_at(&mut self, number: usize, at: Time) {
        let cpu = &mut self.cpus[number];
        let key = Key::new(at.max(cpu.now).min(Time::END), number);
        if key < cpu.key {
            cpu.key = key;
            self.queue.push(key);
        }
    }
}
