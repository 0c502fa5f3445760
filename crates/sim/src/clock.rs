//! The time of each CPU, and the interrupts and invalidations that are in flight.

use core::ops::Range;
use std::collections::VecDeque;
use std::rc::Rc;

use crate::causes::Causes;
use crate::counts::Counts;
use crate::invalidation::PendingBroadcasts;
use crate::queue::{EventQueue, Key};
use crate::thread_id::ThreadId;
use crate::time::Time;
use crate::tlb::SpaceKey;
use crate::wait_loop::WaitLoop;

/// The state of each CPU that concerns time, and the queue of events.
#[derive(Debug)]
pub(crate) struct Clock {
    pub(crate) queue: EventQueue,
    /// End of the run. A CPU whose next step would end later is suspended for good.
    pub(crate) end: Time,
    pub(crate) cpus: Vec<CpuClock>,
    /// Time at which all broadcasts that were issued have left the interconnect.
    pub(crate) interconnect_free_at: Time,
}

#[derive(Debug, Default)]
pub(crate) struct CpuClock {
    pub(crate) now: Time,
    /// The only valid event of this CPU in the queue; its other events are outdated.
    pub(crate) key: Key,
    /// Nesting depth of masked interrupts; 0 if they are unmasked.
    pub(crate) masks: u32,
    /// Interrupts in flight, the earliest first.
    pub(crate) arrivals: VecDeque<Arrival>,
    /// Time at which the stores in the store buffer have their lines.
    pub(crate) stored_at: Time,
    /// Set while the CPU waits for an event.
    pub(crate) is_waiting: bool,
    /// Set while the CPU waits for an event because its thread spins.
    pub(crate) is_spinning: bool,
    /// Time since which the CPU has had no thread to run.
    pub(crate) idle_since: Option<Time>,
    /// Set while a thread computes, which can be preempted at any time.
    pub(crate) computes: bool,
    /// Set while an instruction waits for other CPUs.
    pub(crate) stalled: bool,
    /// Time that other CPUs' broadcasts and remote fences took from this CPU, not yet charged to
    /// it.
    pub(crate) stolen: Time,
    /// Time at which the remote fences that target this CPU are done.
    pub(crate) fenced_until: Time,
    pub(crate) broadcasts: PendingBroadcasts,
    pub(crate) wait_loop: WaitLoop,
    pub(crate) poll: Poll,
    /// The flush whose interrupts this CPU is sending.
    pub(crate) flushing: Option<Flushing>,
    pub(crate) counts: Counts,
    pub(crate) causes: Causes,
    pub(crate) vcpu: Vcpu,
}

/// The state of a virtual CPU, which its hypervisor and the CPUs of the guest share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Vcpu {
    #[default]
    Running,
    /// The hypervisor has stopped the CPU.
    Away,
    /// As `Away`; and the hypervisor will empty the CPU's TLB before it runs the CPU again.
    AwayWithRequest,
}

/// A loop whose iterations make no events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Poll {
    #[default]
    None,
    /// The CPU polls the word at this address.
    Of(usize),
    /// Another CPU accessed the word, with this key.
    Ended(Key),
}

impl CpuClock {
    /// The counts until `now`, including the current idle time.
    pub(crate) fn counts_at(&self, now: Time) -> Counts {
        let idle = self.idle_since.map_or(Time::ZERO, |since| now.saturating_sub(since));
        Counts { idle: self.counts.idle + idle, ..self.counts }
    }
}

/// Flushes whose interrupts are being sent. Used to classify interrupts.
#[derive(Clone, Debug)]
pub(crate) struct Flushing {
    /// The ranges that are flushed; empty for a flush that concerns every space.
    pub(crate) flushes: Rc<Vec<Flushed>>,
    /// Simulated time at which the first flush began.
    pub(crate) since: Time,
}

/// A range of a space that is flushed.
#[derive(Clone, Debug)]
pub(crate) struct Flushed {
    pub(crate) space: SpaceKey,
    /// The range of addresses; `None` for the whole space.
    pub(crate) range: Option<Range<u64>>,
    /// The oracle's number of the flush: older translations become stale.
    pub(crate) began: u64,
    /// Page tables above the range are freed after the flush.
    pub(crate) frees_tables: bool,
}

/// Purpose of an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vector {
    /// The kernel's flush interrupt.
    Flush,
    /// A thread is ready to run.
    Reschedule,
    /// The time for which a thread sleeps is over.
    Timer(ThreadId),
    /// The periodic timer of a CPU that is not idle.
    Tick,
    /// The hypervisor stops the CPU.
    Stop { until: Time },
}

/// An interrupt in flight to a CPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) at: Time,
    pub(crate) vector: Vector,
}

impl Arrival {
    /// Returns `true` for an event that may be far in the future: a timer of this CPU, or a stop.
    pub(crate) fn is_timer(&self) -> bool {
        matches!(self.vector, Vector::Timer(_) | Vector::Tick | Vector::Stop { .. })
    }
}

impl CpuClock {
    /// Counts time that the CPU waits for a line, if it does work of the kernel without another
    /// cause.
    #[inline]
    pub(crate) fn count_line_wait(&mut self, wait: Time) {
        if wait != Time::ZERO && self.causes.is_kernel() {
            self.counts.line_wait += wait;
        }
    }

    /// Takes time from this CPU, unless it is waiting or stalled.
    pub(crate) fn steal(&mut self, time: Time) {
        if !self.is_waiting && !self.stalled {
            self.stolen += time;
        }
    }

    /// Charges the time that was taken from this CPU, and returns it.
    pub(crate) fn charge_stolen(&mut self) -> Time {
        let stolen = core::mem::take(&mut self.stolen);
        self.counts.stolen += stolen;
        stolen
    }
}

/// Result of a [`Clock::step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The CPU reached its target.
    Reached,
    /// The CPU must take an interrupt now.
    Interrupted,
    /// Other CPUs act, or the run ends, before this CPU reaches the given time.
    Preceded(Time),
}

impl Clock {
    pub(crate) fn new(cpus: usize) -> Self {
        let cpu = |_| CpuClock { key: Key::NEVER, ..CpuClock::default() };
        Self {
            queue: EventQueue::default(),
            end: Time::END,
            cpus: (0..cpus).map(cpu).collect(),
            interconnect_free_at: Time::ZERO,
        }
    }

    /// Moves a CPU's clock towards `target`, at most to the next interrupt that it can take.
    #[inline]
    pub(crate) fn step(&mut self, number: usize, target: Time) -> Step {
        let cpu = &mut self.cpus[number];
        let interrupt_at = match cpu.arrivals.front() {
            Some(arrival) if cpu.masks == 0 => arrival.at.max(cpu.now),
            _ => Time::NEVER,
        };
        let until = target.min(interrupt_at);
        let key = Key::new(until, number);
        if key <= self.queue.runner_up() && until <= self.end {
            cpu.now = until;
            return if interrupt_at <= until { Step::Interrupted } else { Step::Reached };
        }
        cpu.key = key;
        self.queue.replace_top(key);
        Step::Preceded(until)
    }

    /// Makes a CPU act at `at`, if its next event is later or it has none.
    pub(crate) fn wake_at(&mut self, number: usize, at: Time) {
        let cpu = &mut self.cpus[number];
        let key = Key::new(at.max(cpu.now).min(Time::END), number);
        if key < cpu.key {
            cpu.key = key;
            self.queue.push(key);
        }
    }
}
