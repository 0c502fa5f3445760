//! Spinning for a sleeping lock, as long as its owner runs (`rwsem_optimistic_spin`).
//!
//! A CPU that spins lets simulated time pass, and takes interrupts, but makes no events: it is
//! woken when the lock changes, when the owner leaves its CPU, when it becomes the first in the
//! queue, and at the end of the time for which it may spin.

use crate::lock::queue::Spinner;
use crate::lock::sleeping::{CONTENDED, EXCLUSIVE, HANDOFF, READERS, SleepingLock};
use crate::lock::waiting::LockWaiting;
use crate::sim::Sim;
use crate::thread_id::ThreadId;
use crate::threads::State;
use crate::time::Time;
use shootdown::Word;
use std::sync::atomic::Ordering::Relaxed;

/// Whether a writer may continue to spin.
enum Owner {
    /// No thread has the lock.
    None,
    /// A writer has the lock, and runs.
    Runs(Option<ThreadId>),
    /// This number of readers have the lock.
    Readers(u64),
    /// Spinning is useless, or not allowed.
    NotSpinnable,
}

impl SleepingLock {
    /// Spins for the lock as a writer. Returns `true` if the thread has the lock.
    pub(super) fn spin(&self, sim: &Sim, thread: ThreadId) -> bool {
        if matches!(self.owner_seen(sim), Owner::NotSpinnable) || sim.needs_reschedule() {
            return false;
        }
        let began = sim.now();
        // The tail of the queue of spinners is in the line of the lock.
        self.word.fetch_or(0, Relaxed);
        let spinner = Spinner { thread, cpu: sim.cpu(), owner: None };
        sim.lock_queues.borrow_mut().add_spinner(self.key(), spinner);
        let has_lock = self.spin_in_queue(sim, thread);
        let next = sim.lock_queues.borrow_mut().remove_spinner(self.key(), thread);
        if let Some(next) = next {
            sim.notify_spinner(next.cpu);
        }
        let spun = sim.now() - began;
        sim.count(|counts| counts.lock_spin += spun);
        has_lock
    }

    fn spin_in_queue(&self, sim: &Sim, thread: ThreadId) -> bool {
        let mut readers_until = None;
        loop {
            if sim.needs_reschedule() {
                return false;
            }
            let mut until = None;
            if self.is_first_spinner(sim, thread) {
                // The line was written when the lock changed.
                self.word.load(Relaxed);
                match self.owner_seen(sim) {
                    Owner::NotSpinnable => return false,
                    Owner::None => {
                        if self.try_overtake(thread) {
                            return true;
                        }
                        // Only a thread that waits for long may have the lock now.
                        if self.word.peek() & HANDOFF != 0 {
                            return false;
                        }
                        continue;
                    }
                    Owner::Runs(owner) => {
                        readers_until = None;
                        self.note_owner(sim, owner);
                    }
                    Owner::Readers(readers) => {
                        self.note_owner(sim, None);
                        let limit = sim.now() + readers_time(readers);
                        let end = *readers_until.get_or_insert(limit);
                        if sim.now() >= end {
                            self.set_nonspinnable();
                            return false;
                        }
                        until = Some(end);
                    }
                }
            }
            sim.spin_until_notified(until);
        }
    }

    /// Takes the lock before all sleepers, if no thread has it.
    fn try_overtake(&self, thread: ThreadId) -> bool {
        let before = self.word.fetch_or(0, Relaxed);
        let is_free = before & (EXCLUSIVE | HANDOFF | READERS) == 0;
        if is_free {
            self.word.set(before & CONTENDED | EXCLUSIVE);
            self.set_owner(Some(thread));
        }
        is_free
    }

    fn owner_seen(&self, sim: &Sim) -> Owner {
        let word = self.word.peek();
        if word & EXCLUSIVE != 0 {
            let owner = self.owner();
            let runs = owner.is_none_or(|owner| sim.is_on_cpu(owner));
            return if runs { Owner::Runs(owner) } else { Owner::NotSpinnable };
        }
        match word & READERS {
            _ if !self.is_spinnable() => Owner::NotSpinnable,
            0 => Owner::None,
            readers if sim.lock_waiting.get() == LockWaiting::SpinOnAll => Owner::Readers(readers),
            _ => Owner::NotSpinnable,
        }
    }

    fn is_first_spinner(&self, sim: &Sim, thread: ThreadId) -> bool {
        let queues = sim.lock_queues.borrow();
        let first = queues.find(self.key()).and_then(|queue| queue.spinners.front());
        first.is_some_and(|first| first.thread == thread)
    }

    fn note_owner(&self, sim: &Sim, owner: Option<ThreadId>) {
        if let Some(first) = sim.lock_queues.borrow_mut().of(self.key()).spinners.front_mut() {
            first.owner = owner;
        }
    }

    /// Notifies the first spinner that the lock has changed.
    pub(super) fn notify_first_spinner(&self, sim: &Sim) {
        let queues = sim.lock_queues.borrow();
        if !queues.has_spinners() {
            return;
        }
        let first = queues.find(self.key()).and_then(|queue| queue.spinners.front());
        if let Some(cpu) = first.map(|first| first.cpu) {
            drop(queues);
            sim.notify_spinner(cpu);
        }
    }
}

/// Time for which a writer spins while readers have the lock (`rwsem_rspin_threshold`).
fn readers_time(readers: u64) -> Time {
    Time::from_ns((20 + readers.min(30)) * 500)
}

impl Sim {
    /// Makes all sleeping locks behave as those of another version of Linux.
    pub fn set_lock_waiting(&self, waiting: LockWaiting) {
        self.lock_waiting.set(waiting);
    }

    /// Returns `true` if a CPU executes the thread.
    fn is_on_cpu(&self, thread: ThreadId) -> bool {
        let scheduler = self.scheduler.borrow();
        matches!(scheduler.thread(thread).state, State::Running | State::WaitingOnCpu)
    }

    /// Returns `true` if another thread should run on this CPU (`need_resched`).
    fn needs_reschedule(&self) -> bool {
        let scheduler = self.scheduler.borrow();
        let queue = &scheduler.cpus[self.cpu()];
        queue.must_reschedule || !queue.ready.is_empty() && self.now() >= queue.slice_ends
    }

    /// Lets time pass until another CPU [notifies](Self::notify_spinner) this one, the timeslice
    /// ends, or it is `until`. Takes interrupts.
    fn spin_until_notified(&self, until: Option<Time>) {
        let slice_ends = {
            let scheduler = self.scheduler.borrow();
            let queue = &scheduler.cpus[self.cpu()];
            (!queue.ready.is_empty()).then_some(queue.slice_ends)
        };
        self.clock.borrow_mut().cpus[self.cpu()].is_spinning = true;
        self.wait_for_event(until.into_iter().chain(slice_ends).min());
        self.clock.borrow_mut().cpus[self.cpu()].is_spinning = false;
        self.spend(Time::ZERO);
    }

    /// Makes a CPU that spins look at what it waits for, when the line that this CPU has just
    /// written reaches it.
    pub(crate) fn notify_spinner(&self, cpu: usize) {
        let is_spinning = self.clock.borrow().cpus[cpu].is_spinning;
        if is_spinning {
            let at = self.now() + self.line_time(cpu) + Time::TICK;
            self.clock.borrow_mut().wake_at(cpu, at);
        }
    }

    /// Time in which a line goes from this CPU to another.
    pub(crate) fn line_time(&self, to: usize) -> Time {
        self.lines.borrow().between(self.cpu(), to)
    }

    /// Notifies the threads that spin because this thread, which leaves its CPU, has a lock.
    pub(crate) fn owner_leaves(&self, owner: ThreadId) {
        let cpus = self.lock_queues.borrow().spinners_on(owner);
        cpus.into_iter().for_each(|cpu| self.notify_spinner(cpu));
    }
}
