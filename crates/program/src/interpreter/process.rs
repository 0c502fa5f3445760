//! A process, as the interpreter and its host share it.

use core::sync::atomic::{AtomicU32, Ordering};

use shootdown_vm::{AddressSpace, System};

/// A process: its address space, the number of threads in it, and the host's data.
#[derive(Debug)]
pub struct Process<S: System, D> {
    space: AddressSpace<S>,
    threads: AtomicU32,
    /// Data of the host.
    pub data: D,
}

impl<S: System, D> Process<S, D> {
    /// Creates a process without threads.
    pub const fn new(space: AddressSpace<S>, data: D) -> Self {
        Self { space, threads: AtomicU32::new(0), data }
    }

    /// Returns the process's memory.
    pub const fn space(&self) -> &AddressSpace<S> {
        &self.space
    }

    /// Adds a thread.
    pub fn enter(&self) {
        self.threads.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a thread. Returns `true` if it was the last one, or if there was none.
    pub fn leave(&self) -> bool {
        let less = |threads: u32| threads.checked_sub(1);
        // AcqRel: the thread that takes the memory down must observe all accesses of the others.
        // Each decrement releases the accesses of its thread, and the last one acquires them.
        let left = self.threads.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less);
        left.is_ok_and(|threads| threads == 1) || left.is_err()
    }
}
