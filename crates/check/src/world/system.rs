//! What runs on a machine.

#![expect(unsafe_code, reason = "programs find what they are of by a pointer, for it may borrow")]

use std::cell::Cell;
use std::ptr;

/// What runs on a machine: made anew for each run.
pub trait System {
    /// What a CPU does, from its beginning to its end. After that it idles.
    fn run(&self, cpu: usize);
    /// The handler of its interrupt.
    fn interrupt(&self, cpu: usize);
}

/// What runs, whatever it is: a run's programs are found by it, and it may borrow.
#[derive(Clone, Copy)]
pub(crate) struct Erased {
    system: *const (),
    run: unsafe fn(*const (), usize),
    interrupt: unsafe fn(*const (), usize),
}

impl Erased {
    fn new<S: System>(system: &S) -> Self {
        unsafe fn run<S: System>(system: *const (), cpu: usize) {
            // SAFETY: called with what it was made from, while the run lasts.
            unsafe { &*system.cast::<S>() }.run(cpu);
        }
        unsafe fn interrupt<S: System>(system: *const (), cpu: usize) {
            // SAFETY: as above.
            unsafe { &*system.cast::<S>() }.interrupt(cpu);
        }
        Self { system: ptr::from_ref(system).cast(), run: run::<S>, interrupt: interrupt::<S> }
    }
}

impl System for Erased {
    fn run(&self, cpu: usize) {
        // SAFETY: it is used while the run lasts.
        unsafe { (self.run)(self.system, cpu) }
    }
    fn interrupt(&self, cpu: usize) {
        // SAFETY: as above.
        unsafe { (self.interrupt)(self.system, cpu) }
    }
}

thread_local! {
    static SYSTEM: Cell<Option<Erased>> = const { Cell::new(None) };
}

/// Calls `f` with what runs.
///
/// # Panics
///
/// If no run has begun.
pub(crate) fn with_system<R>(f: impl FnOnce(&Erased) -> R) -> R {
    f(&SYSTEM.get().expect("set before a routine begins"))
}

/// While it lives, a system runs on this thread of the host.
pub(crate) struct Running(Option<Erased>);

impl Running {
    pub(crate) fn enter<S: System>(system: &S) -> Self {
        Self(SYSTEM.replace(Some(Erased::new(system))))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        SYSTEM.set(self.0);
    }
}
