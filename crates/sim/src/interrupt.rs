//! Interrupts from one CPU to others, over the interconnect, and through a hypervisor if there is
//! one.

use crate::causes::Cause;
use crate::clock::{Arrival, Flushing, Vector};
use crate::machine::Distance;
use crate::sim::Sim;
use crate::thread_id::ThreadId;
use crate::time::Time;

impl Sim {
    /// Sends the flush interrupt to CPUs, for the flush that this CPU has
    /// [begun](Self::flush_began). If a target has not yet taken an earlier flush interrupt, it
    /// takes one for both.
    pub fn send_flush_interrupt(&self, targets: impl IntoIterator<Item = usize>) {
        self.report_sending();
        let flush = self.clock.borrow().cpus[self.cpu()].flushing.clone();
        let mut group = None;
        for target in targets {
            let group_of_target = target / self.machine.interrupt.targets_per_send.max(1);
            if group.replace(group_of_target) != Some(group_of_target) {
                self.spend(self.machine.interrupt.send);
            }
            let (to_lazy, to_absent) = self.classify_target(target, flush.as_ref());
            self.count(|counts| {
                counts.interrupts_sent += 1;
                counts.interrupts_to_lazy += u64::from(to_lazy);
                counts.interrupts_to_absent += u64::from(to_absent);
            });
            if let Some(flushing) = &flush {
                self.classify_sent(target, &flushing.flushes);
            }
            self.deliver(target, Vector::Flush);
        }
    }

    /// Reports to the kernel that a flush on this CPU has been counted, and has not chosen its
    /// targets yet.
    pub fn report_counted(&self) {
        if let Some(kernel) = self.kernel() {
            kernel.flush_counted();
        }
    }

    /// Reports to the kernel that a flush on this CPU has chosen its targets.
    pub(crate) fn report_sending(&self) {
        if let Some(kernel) = self.kernel() {
            kernel.flush_sending();
        }
    }

    /// Counts CPUs that were notified of a flush without an interrupt.
    #[inline]
    pub fn count_coalesced(&self, cpus: usize) {
        self.count(|counts| counts.interrupts_coalesced += cpus as u64);
    }

    /// Classifies the target of a flush as lazy (the space is loaded and not in use) or absent (the
    /// space is not loaded). A target that switched after the flush began is neither, because the
    /// interrupt was justified when the flush began.
    fn classify_target(&self, target: usize, flush: Option<&Flushing>) -> (bool, bool) {
        let scheduler = self.scheduler.borrow();
        let Some(Flushing { flushes, since }) = flush else { return (false, false) };
        let queue = &scheduler.cpus[target];
        if queue.switching || queue.switched_at >= *since {
            return (false, false);
        }
        let loaded = self.tlbs.borrow()[target].space;
        if !flushes.is_empty() && flushes.iter().all(|flushed| flushed.space != loaded) {
            return (false, true);
        }
        (!scheduler.runs_user_thread(target), false)
    }

    /// Sends an interrupt. The CPU whose turn was last is the sender, also outside of a turn.
    pub(crate) fn deliver(&self, target: usize, vector: Vector) {
        let from = self.cpu();
        let cost = &self.machine.interrupt;
        let wire = match self.machine.topology.distance(from, target) {
            Distance::Core | Distance::Cluster | Distance::Socket => cost.deliver_socket,
            Distance::System => cost.deliver_system,
            Distance::Far => self.machine.far.deliver,
        };
        let late = match vector {
            Vector::Flush => self.kernel().and_then(|kernel| kernel.flush_delivery(target)),
            _ => None,
        };
        let wire = late.map_or(wire, |late| late.max(wire));
        let at = self.clock.borrow().cpus[from].now + wire + Time::TICK;
        self.deliver_at(target, vector, at);
    }

    /// Interrupts this CPU at the given time, to wake a thread.
    pub(crate) fn set_timer(&self, thread: ThreadId, at: Time) {
        self.deliver_at(self.cpu(), Vector::Timer(thread), at);
    }

    /// Sets this CPU's timer to the next multiple of the kernel's interval, if it has one.
    pub(crate) fn set_tick(&self) {
        let Some(interval) = self.kernel().and_then(|kernel| kernel.tick_interval()) else {
            return;
        };
        let ticks = self.now().ps() / interval.ps().max(1) + 1;
        self.deliver_at(self.cpu(), Vector::Tick, interval * ticks);
    }

    pub(crate) fn deliver_at(&self, target: usize, vector: Vector, at: Time) {
        let mut clock = self.clock.borrow_mut();
        let cpu = &mut clock.cpus[target];
        if cpu.arrivals.iter().any(|arrival| arrival.vector == vector) {
            return;
        }
        let place = cpu.arrivals.partition_point(|arrival| arrival.at <= at);
        cpu.arrivals.insert(place, Arrival { at, vector });
        if cpu.masks == 0 {
            clock.wake_at(target, at);
        }
    }

    pub(crate) fn interrupt_is_due(&self) -> bool {
        let clock = self.clock.borrow();
        let cpu = &clock.cpus[self.cpu()];
        cpu.masks == 0 && cpu.arrivals.front().is_some_and(|arrival| arrival.at <= cpu.now)
    }

    /// Takes the interrupt that arrived first.
    pub(crate) fn take_interrupt(&self) {
        let (arrival, start) = {
            let mut clock = self.clock.borrow_mut();
            let cpu = &mut clock.cpus[self.cpu()];
            let Some(arrival) = cpu.arrivals.pop_front() else { return };
            cpu.masks += 1;
            (arrival, cpu.now)
        };
        match arrival.vector {
            Vector::Tick => return self.take_tick(),
            Vector::Stop { until } => {
                self.take_stop(until);
                self.clock.borrow_mut().cpus[self.cpu()].masks -= 1;
                return;
            }
            Vector::Flush | Vector::Reschedule | Vector::Timer(_) => {}
        }
        let is_flush = arrival.vector == Vector::Flush;
        if is_flush {
            self.classify_taken();
        }
        let before = self.set_cause(if is_flush { Cause::Interrupts } else { Cause::Kernel });
        let cost = &self.machine.interrupt;
        self.spend(cost.entry + cost.acknowledge);
        match arrival.vector {
            Vector::Flush => {
                if let Some(kernel) = self.kernel() {
                    kernel.flush_interrupt();
                }
            }
            Vector::Reschedule => {}
            Vector::Timer(thread) => self.wake(thread),
            Vector::Tick | Vector::Stop { .. } => unreachable!("handled above"),
        }
        self.spend(cost.exit);
        let mut clock = self.clock.borrow_mut();
        let cpu = &mut clock.cpus[self.cpu()];
        cpu.masks -= 1;
        cpu.causes.change(before, cpu.now);
        if is_flush {
            cpu.counts.interrupts_taken += 1;
            cpu.counts.interrupted += cpu.now - start;
        }
    }

    fn take_tick(&self) {
        if let Some(kernel) = self.kernel() {
            kernel.tick();
        }
        // An idle CPU gets no tick until there is a thread to run.
        if self.current_thread().is_some() {
            self.set_tick();
        }
        self.clock.borrow_mut().cpus[self.cpu()].masks -= 1;
    }
}
