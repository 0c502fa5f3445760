//! Lazy CPUs are counted: `MMU_LAZY_TLB_REFCOUNT`, which is what Linux does on all architectures
//! but one.
//!
//! Two locked operations on one line of the space for each way from user to kernel and back, by
//! every CPU that runs threads of it. From one kernel thread to another the reference is handed on,
//! and from one user thread to another there is none.

use core::cell::RefCell;
use std::rc::Rc;

use shootdown::Root;
use shootdown_sim::Sim;
use shootdown_vm::Retired;

use super::{ExitFlush, Left, Lifetime};
use crate::linux::v7_0::{Linux70, Mm};

/// The lifetime.
#[derive(Debug)]
pub struct Counted {
    exit_flush: ExitFlush,
    rqs: Vec<Rq>,
}

/// A CPU's private state (`rq`).
#[derive(Debug, Default)]
struct Rq {
    /// What the kernel thread that runs has borrowed. The CPU may have let go of it.
    active_mm: RefCell<Option<Rc<Mm>>>,
    /// The roots of what nobody holds any more since this CPU let go of it.
    free: RefCell<Vec<Root>>,
}

impl Linux70 {
    /// Linux as it is, on this machine: `linux-counted`.
    #[must_use]
    pub fn counted(sim: Rc<Sim>, exit_flush: ExitFlush) -> Self {
        let rqs = (0..sim.machine().cpu_count()).map(|_| Rq::default()).collect();
        Self::with_lifetime(sim, Counted { exit_flush, rqs })
    }
}

impl Lifetime for Counted {
    fn exit_flush(&self) -> ExitFlush {
        self.exit_flush
    }

    fn enter_lazy(&self, linux: &Linux70, mm: &Rc<Mm>) {
        mm.mm_count.grab(1);
        let before = self.rqs[linux.cpu()].active_mm.replace(Some(Rc::clone(mm)));
        debug_assert!(before.is_none(), "it came from user mode");
    }

    /// Linux drops it a moment later, in `finish_task_switch`.
    fn enter_user(&self, linux: &Linux70) {
        let rq = &self.rqs[linux.cpu()];
        let Some(mm) = rq.active_mm.take() else { return };
        if mm.mm_count.drop(1) == Left::Nobody {
            rq.free.borrow_mut().push(mm.root());
        }
    }

    fn finish_switch(&self, linux: &Linux70) -> Option<Root> {
        self.rqs[linux.cpu()].free.borrow_mut().pop()
    }

    fn put(&self, _linux: &Linux70, mm: &Rc<Mm>) -> Retired {
        match mm.mm_count.drop(1) {
            Left::Nobody => Retired::Free,
            Left::Others => Retired::Loaded,
        }
    }
}
