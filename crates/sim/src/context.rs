//! Contexts: coroutines that a CPU can execute, each with a stack of its own.

#![expect(unsafe_code, reason = "suspends coroutines by pointer, and drops those that never end")]

use core::cell::{Cell, RefCell};
use core::fmt;
use core::ptr;
use std::io;

use corosensei::{Coroutine, CoroutineResult, Yielder};

use crate::sim::with_running;
use crate::stack::{SlabStack, StackSlab};

/// A context's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContextId(usize);

type Routine = Coroutine<(), (), (), SlabStack>;

/// All contexts of a simulation.
pub(crate) struct Contexts {
    slab: RefCell<StackSlab>,
    /// `None` while it executes, and when it is over.
    routines: RefCell<Vec<Option<Routine>>>,
    free: RefCell<Vec<ContextId>>,
    /// Of the context that executes.
    yielder: Cell<*const Yielder<(), ()>>,
}

impl Contexts {
    /// Room for so many.
    pub(crate) fn new(capacity: usize) -> io::Result<Self> {
        Ok(Self {
            slab: RefCell::new(StackSlab::new(capacity)?),
            routines: RefCell::new(Vec::new()),
            free: RefCell::new(Vec::new()),
            yielder: Cell::new(ptr::null()),
        })
    }

    /// A context that will execute `body`.
    ///
    /// # Errors
    ///
    /// If there is no room for its stack.
    pub(crate) fn create(&self, body: impl FnOnce() + 'static) -> io::Result<ContextId> {
        let Some(stack) = self.slab.borrow_mut().take()? else {
            return Err(io::Error::new(
                io::ErrorKind::OutOfMemory,
                "more threads than the simulation was made for",
            ));
        };
        let routine = Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
            with_running(|sim| sim.contexts.yielder.set(ptr::from_ref(yielder)));
            body();
        });
        let mut routines = self.routines.borrow_mut();
        if let Some(id) = self.free.borrow_mut().pop() {
            routines[id.0] = Some(routine);
            return Ok(id);
        }
        routines.push(Some(routine));
        Ok(ContextId(routines.len() - 1))
    }

    /// Executes a context until it suspends or ends.
    pub(crate) fn resume(&self, id: ContextId) {
        let routine = self.routines.borrow_mut()[id.0].take();
        let mut routine = routine.expect("a context is executed by one CPU at a time");
        match routine.resume(()) {
            CoroutineResult::Yield(()) => self.routines.borrow_mut()[id.0] = Some(routine),
            CoroutineResult::Return(()) => {
                self.slab.borrow_mut().give_back(&routine.into_stack());
                self.free.borrow_mut().push(id);
            }
        }
    }

    /// Suspends the context that executes, until it is resumed.
    pub(crate) fn suspend(&self) {
        let yielder = self.yielder.get();
        // SAFETY: it was set by the context that executes, when it began or when it was resumed
        // last, and a coroutine's yielder lives as long as the coroutine.
        unsafe { &*yielder }.suspend(());
        self.yielder.set(yielder);
    }
}

impl Drop for Contexts {
    fn drop(&mut self) {
        for routine in self.routines.get_mut().iter_mut().flatten() {
            if routine.started() && !routine.done() {
                // To unwind it would run destructors that wait for other CPUs, which do not run any
                // more. What it owns is leaked instead.
                // SAFETY: nothing outside a context points into its stack: other contexts reach
                // each other's data through heap objects alone.
                unsafe { routine.force_reset() };
            }
        }
    }
}

impl fmt::Debug for Contexts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contexts").field("count", &self.routines.borrow().len()).finish()
    }
}
