//! The system that runs on a machine.

#![expect(unsafe_code, reason = "programs find their system by a pointer, because it may borrow")]

use std::cell::Cell;
use std::mem::transmute;

/// A system that runs on a machine. It is created anew for each run.
pub trait System {
    /// Executes the program of a CPU. The CPU idles after that.
    fn run(&self, cpu: usize);
    /// Handles an interrupt of a CPU.
    fn handle_interrupt(&self, cpu: usize);
}

thread_local! {
    static SYSTEM: Cell<Option<*const dyn System>> = const { Cell::new(None) };
}

/// Calls `f` with the system that runs on this host thread.
///
/// # Panics
///
/// If no run has begun.
pub(crate) fn with_system<R>(f: impl FnOnce(&dyn System) -> R) -> R {
    let system = SYSTEM.get().expect("the run sets it before the first program begins");
    // SAFETY: `Running` borrows the system further down the stack.
    f(unsafe { &*system })
}

/// While it lives, a system runs on this host thread.
pub(crate) struct Running(Option<*const dyn System>);

impl Running {
    pub(crate) fn enter<S: System>(system: &S) -> Self {
        let system: *const (dyn System + '_) = system;
        // SAFETY: this only extends the lifetime bound of the trait object. The pointer is only
        // dereferenced during the run, which `system` outlives.
        #[expect(clippy::transmute_ptr_to_ptr, reason = "a cast cannot extend the bound")]
        let system = unsafe { transmute::<*const (dyn System + '_), *const dyn System>(system) };
        Self(SYSTEM.replace(Some(system)))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        SYSTEM.set(self.0);
    }
}
