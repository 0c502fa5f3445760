//! Earliest eligible virtual deadline first: Linux's scheduler since 6.6
//! (`Documentation/scheduler/sched-eevdf.rst`, `kernel/sched/fair.c` of 6.12).
//!
//! A thread's virtual runtime is the time that it has run, and the queue's virtual time is the mean
//! of those of its threads. A thread behind the mean has *lag*, and is *eligible*. Of the eligible
//! threads, the one with the earliest deadline runs. A sleeper keeps its lag: if it was owed time,
//! it is eligible when it wakes, and the thread that runs is not, so the sleeper preempts it. With
//! `RUN_TO_PARITY`, a thread that runs is not preempted as long as it is eligible, until it has
//! used the slice for which it was picked.
//!
//! # Differences from Linux
//!
//! - All threads have the same weight and slice (the machine's `timeslice_us`), and no groups.
//! - A sleeper that is ahead of the mean leaves the queue at once. Its lag shrinks as virtual time
//!   passes, as that of a delayed dequeue does.
//! - A slice ends exactly, and not at a tick.
//! - A thread is preempted where it returns to user mode, and in the kernel only where it
//!   [waits](crate::Sim::wait_point) for a flush under a design that lets it.

use crate::machine::Policy;
use crate::thread_id::ThreadId;
use crate::threads::{NextState, Scheduler, State};
use crate::time::Time;

/// The virtual times of a thread, in picoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Virtual {
    runtime: i64,
    deadline: i64,
    /// The queue's virtual time minus the runtime, when the thread left the queue.
    lag: i64,
    /// The queue's virtual time then.
    left_at: i64,
    has_run: bool,
    /// The thread was picked, and has not used its slice since.
    is_protected: bool,
}

impl Scheduler {
    /// Adds the time since the last call to the runtime of the thread that a CPU runs.
    pub(crate) fn charge(&mut self, cpu: usize, now: Time) {
        let queue = &mut self.cpus[cpu];
        let ran = now.saturating_sub(queue.charged_until);
        queue.charged_until = now.max(queue.charged_until);
        if let Some(id) = queue.current {
            self.thread_mut(id).times.runtime += ran.ps() as i64;
        }
    }

    /// Returns the virtual time of a queue, which is the last one if the queue is empty.
    fn virtual_time(&mut self, cpu: usize) -> i64 {
        let queue = &self.cpus[cpu];
        let current = queue.current.filter(|&id| self.is_queued(id));
        let (mut sum, mut count) = (0_i128, 0);
        for &id in queue.ready.iter().chain(&current) {
            sum += i128::from(self.thread(id).times.runtime);
            count += 1;
        }
        if count > 0 {
            self.cpus[cpu].virtual_time = sum.div_euclid(count) as i64;
        }
        self.cpus[cpu].virtual_time
    }

    /// Returns `true` if the current thread of a CPU competes for it.
    fn is_queued(&self, id: ThreadId) -> bool {
        matches!(self.thread(id).state, State::Running | State::Leaving(NextState::Ready))
    }

    /// Records the lag of the current thread of a CPU, which blocks.
    pub(crate) fn block_current(&mut self, cpu: usize, id: ThreadId, slice: Time) {
        let (now, limit) = (self.virtual_time(cpu), 2 * slice.ps() as i64);
        let times = &mut self.thread_mut(id).times;
        times.lag = (now - times.runtime).clamp(-limit, limit);
        times.left_at = now;
    }

    /// Gives virtual times to a thread that enters the queue of a CPU. `from` is the CPU on which
    /// it was preempted; `None` if it slept.
    pub(crate) fn enter(&mut self, id: ThreadId, cpu: usize, from: Option<usize>, slice: Time) {
        if from == Some(cpu) {
            return;
        }
        if let Some(from) = from {
            self.set_lag_on(id, from);
        }
        let home = self.thread(id).cpu;
        let home_now = self.virtual_time(home);
        let now = self.virtual_time(cpu);
        let queue = &self.cpus[cpu];
        let others = (queue.ready.len() + usize::from(queue.current.is_some())) as i64;
        let slice = slice.ps() as i64;
        let times = &mut self.thread_mut(id).times;
        if times.lag < 0 {
            times.lag = (times.lag + (home_now - times.left_at).max(0)).min(0);
        }
        // The thread's own entry moves the mean, so that its lag would shrink.
        let lag = if others == 0 { 0 } else { times.lag * (others + 1) / others };
        times.runtime = now - lag;
        times.deadline = times.runtime + if times.has_run { slice } else { slice / 2 };
        times.has_run = true;
    }

    /// Records the lag of a thread that moves from the queue of a CPU to that of another.
    pub(crate) fn set_lag_on(&mut self, id: ThreadId, cpu: usize) {
        let now = self.virtual_time(cpu);
        let times = &mut self.thread_mut(id).times;
        (times.lag, times.left_at) = (now - times.runtime, now);
    }

    /// Returns the place in the queue of the ready thread that runs next.
    pub(crate) fn first_eligible(&mut self, cpu: usize) -> Option<usize> {
        let now = self.virtual_time(cpu);
        let times = |id: ThreadId| self.thread(id).times;
        let ready = || self.cpus[cpu].ready.iter().map(|&id| times(id)).enumerate();
        let eligible = ready().filter(|(_, it)| it.runtime <= now);
        let first = eligible.min_by_key(|(_, it)| it.deadline);
        first.or_else(|| ready().min_by_key(|(_, it)| it.runtime)).map(|(place, _)| place)
    }

    /// Returns the ready thread that should replace the current thread of a CPU.
    pub(crate) fn successor(&mut self, cpu: usize, policy: Policy) -> Option<ThreadId> {
        let current = self.cpus[cpu].current?;
        let place = self.first_eligible(cpu)?;
        let first = self.cpus[cpu].ready[place];
        let now = self.virtual_time(cpu);
        let (current, first_times) = (self.thread(current).times, self.thread(first).times);
        let is_eligible = current.runtime <= now;
        let is_protected = policy == Policy::Eevdf && current.is_protected;
        let stays = is_eligible
            && (is_protected
                || current.deadline <= first_times.deadline
                || first_times.runtime > now);
        (!stays).then_some(first)
    }

    /// Prepares a thread for running on a CPU. Returns the rest of its slice.
    pub(crate) fn begin_slice(&mut self, id: ThreadId, slice: Time) -> Time {
        let times = &mut self.thread_mut(id).times;
        times.is_protected = true;
        self.rest_of_slice(id, slice)
    }

    /// Returns the rest of a thread's slice. If the thread has used it, it gets another, without
    /// protection.
    pub(crate) fn rest_of_slice(&mut self, id: ThreadId, slice: Time) -> Time {
        let times = &mut self.thread_mut(id).times;
        if times.runtime >= times.deadline {
            times.deadline = times.runtime + slice.ps() as i64;
            times.is_protected = false;
        }
        Time::from_ps((times.deadline - times.runtime) as u64)
    }

    /// Moves the deadline of a thread that yields by a slice.
    pub(crate) fn yield_slice(&mut self, id: ThreadId, slice: Time) {
        let times = &mut self.thread_mut(id).times;
        times.deadline += slice.ps() as i64;
        times.is_protected = false;
    }
}
