//! Contexts: coroutines that a CPU can execute, each with its own stack.

#![expect(unsafe_code, reason = "suspends coroutines by pointer, and drops those that never end")]

use core::cell::{Cell, RefCell};
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
    /// `None` while the context executes, and after its end.
    routines: RefCell<Vec<Option<Routine>>>,
    free: RefCell<Vec<ContextId>>,
    /// The yielder of the context that executes.
    yielder: Cell<*const Yielder<(), ()>>,
}

impl Contexts {
    /// Creates storage for `capacity` contexts.
    pub(crate) fn new(capacity: usize) -> io::Result<Self> {
        Ok(Self {
            slab: RefCell::new(StackSlab::new(capacity)?),
            routines: RefCell::new(Vec::new()),
            free: RefCell::new(Vec::new()),
            yielder: Cell::new(ptr::null()),
        })
    }

    /// Creates a context that will execute `body`.
    ///
    /// # Errors
    ///
    /// If no stack is left: [`QuotaExceeded`](io::ErrorKind::QuotaExceeded) if all are in use.
    pub(crate) fn create(&self, body: impl FnOnce() + 'static) -> io::Result<ContextId> {
        let Some(stack) = self.slab.borrow_mut().take()? else {
            return Err(io::Error::new(
                io::ErrorKind::QuotaExceeded,
                "the simulation has more threads than it was created for",
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
        let mut routine = routine.expect("only one CPU executes a context at a time");
        match routine.resume(()) {
            CoroutineResult::Yield(()) => self.routines.borrow_mut()[id.0] = Some(routine),
            CoroutineResult::Return(()) => {
                self.slab.borrow_mut().give_back(&routine.into_stack());
                self.free.borrow_mut().push(id);
            }
        }
    }

    /// Suspends the context that executes. Returns when it is resumed.
    pub(crate) fn suspend(&self) {
        let yielder = self.yielder.get();
        // SAFETY: the context that executes set this pointer when it began or was last resumed, and
        // a coroutine's yielder exists as long as the coroutine.
        unsafe { &*yielder }.suspend(());
        self.yielder.set(yielder);
    }
}

impl Drop for Contexts {
    fn drop(&mut self) {
        for routine in self.routines.get_mut().iter_mut().flatten() {
            if routine.started() && !routine.done() {
                // Unwinding would run destructors that wait for other CPUs, which do not run any
                // more. What the coroutine owns is leaked instead.
                // SAFETY: nothing outside a context points into its stack: contexts reach each
                // other's data only through heap objects.
                unsafe { routine.force_reset() };
            }
        }
    }
}
