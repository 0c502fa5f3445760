//! A gate that opens when enough threads have arrived.

use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use ostd::sync::WaitQueue;

/// A count of threads that have arrived, and a queue of those that wait for them.
pub struct Gate {
    arrived: AtomicUsize,
    queue: WaitQueue,
}

impl Default for Gate {
    fn default() -> Self {
        Self { arrived: AtomicUsize::new(0), queue: WaitQueue::new() }
    }
}

impl Gate {
    pub fn arrive(&self) {
        self.arrived.fetch_add(1, SeqCst);
        self.queue.wake_all();
    }

    /// Counts a thread that may not wake others, because it runs with interrupts masked.
    pub fn arrive_quietly(&self) {
        self.arrived.fetch_add(1, SeqCst);
    }

    pub fn is_open(&self, threads: usize) -> bool {
        self.arrived.load(SeqCst) >= threads
    }

    /// Sleeps until this number of threads has arrived.
    pub fn wait_for(&self, threads: usize) {
        self.queue.wait_until(|| self.is_open(threads).then_some(()));
    }

    /// Waits without sleeping, so that nobody has to wake this thread.
    pub fn spin_until(&self, threads: usize) {
        while !self.is_open(threads) {
            ostd::task::Task::yield_now();
            core::hint::spin_loop();
        }
    }
}
