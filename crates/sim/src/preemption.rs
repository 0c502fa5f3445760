//! Threads that are preempted in the kernel, where they wait for other CPUs.
//!
//! A thread that holds a spin lock, or has masked interrupts, keeps its CPU (`preempt_count`). Only
//! a wait that asks for it is a point of preemption: see [`Sim::wait_point`].

use crate::sim::Sim;
use crate::time::Time;

impl Sim {
    /// One iteration of a loop that waits until other CPUs have flushed, in a thread that may be
    /// preempted there: if another thread should run on this CPU, it does so at once, as with
    /// Linux's `preempt=full`. The calling thread may continue on another CPU.
    ///
    /// The thread keeps its CPU while it holds a spin lock or the lock of a page table, while
    /// interrupts are masked, and if it [represents its CPU](Self::keep_cpu).
    pub fn wait_point(&self) {
        if self.is_preemptible() {
            self.preemption_point();
        }
        self.interruptibly(|_| self.flush_wait_hint());
    }

    /// Calls `f`, in which the calling thread keeps its CPU, as if it held a spin lock.
    pub fn without_preemption<R>(&self, f: impl FnOnce() -> R) -> R {
        self.spin_lock_taken();
        let result = f();
        self.spin_lock_released();
        result
    }

    /// Calls `wait`, which lets time pass until the thread is preempted at the latest, if it can be
    /// preempted. `wait` gets the end of the timeslice then.
    pub(crate) fn interruptibly<R>(&self, wait: impl FnOnce(Option<Time>) -> R) -> R {
        if !self.is_preemptible() {
            return wait(None);
        }
        let cpu = self.cpu();
        let slice_ends = self.scheduler.borrow().cpus[cpu].slice_ends;
        self.clock.borrow_mut().cpus[cpu].computes = true;
        let result = wait(Some(slice_ends));
        self.clock.borrow_mut().cpus[cpu].computes = false;
        result
    }

    fn is_preemptible(&self) -> bool {
        let scheduler = self.scheduler.borrow();
        let current = scheduler.current(self.cpu()).map(|id| scheduler.thread(id));
        current.is_some_and(|thread| thread.spin_locks == 0 && !thread.keeps_cpu)
            && !self.is_masked()
    }

    /// Records that the calling thread has taken a spin lock.
    pub(crate) fn spin_lock_taken(&self) {
        self.with_spin_locks(|locks| *locks += 1);
    }

    /// Records that the calling thread has released a spin lock.
    pub(crate) fn spin_lock_released(&self) {
        self.with_spin_locks(|locks| *locks -= 1);
    }

    /// Calls `f` with the number of spin locks that the calling thread holds. An idle CPU, and code
    /// outside of the run, are never preempted.
    fn with_spin_locks(&self, f: impl FnOnce(&mut u32)) {
        if self.is_in_context()
            && let Some(id) = self.current_thread()
        {
            f(&mut self.scheduler.borrow_mut().thread_mut(id).spin_locks);
        }
    }
}
