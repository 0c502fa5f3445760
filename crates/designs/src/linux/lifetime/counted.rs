//! Lazy CPUs are counted: `MMU_LAZY_TLB_REFCOUNT`, which Linux uses on all architectures except
//! one.
//!
//! Each switch from user to kernel and back costs two locked operations on one line of the space,
//! on every CPU that runs its threads. A switch between kernel threads passes the reference on, and
//! a switch between user threads has none.

use core::cell::RefCell;
use std::rc::Rc;

use shootdown::Root;
use shootdown_sim::Sim;
use shootdown_vm::Retired;

use super::{ExitFlush, Lifetime};
use crate::linux::mm_count::retired;
use crate::linux::v7_0::{Linux70, Mm};

/// The lifetime with a count of lazy CPUs.
#[derive(Debug)]
pub struct Counted(Vec<Rq>);

/// A CPU's private state (`rq`).
#[derive(Debug, Default)]
struct Rq {
    /// The space that the running kernel thread has borrowed. The CPU may have unloaded it.
    active_mm: RefCell<Option<Rc<Mm>>>,
    /// Roots of the spaces whose last reference this CPU dropped.
    free: RefCell<Vec<Root>>,
}

impl Linux70 {
    /// Creates the design `linux-7.0` on this machine, with interrupts at exit, or
    /// `powerpc-counted`, with a broadcast.
    pub fn counted(sim: Rc<Sim>, exit_flush: ExitFlush) -> Self {
        let rqs = (0..sim.machine().cpu_count()).map(|_| Rq::default()).collect();
        Self::with_lifetime(sim, exit_flush, Counted(rqs))
    }
}

impl Lifetime for Counted {
    fn enter_lazy(&self, linux: &Linux70, mm: &Rc<Mm>) {
        mm.mm_count.grab(1);
        let before = self.0[linux.cpu()].active_mm.replace(Some(Rc::clone(mm)));
        debug_assert!(before.is_none(), "the CPU came from user mode");
    }

    /// Linux drops the reference a moment later, in `finish_task_switch`.
    fn enter_user(&self, linux: &Linux70) {
        let rq = &self.0[linux.cpu()];
        let Some(mm) = rq.active_mm.take() else { return };
        rq.free.borrow_mut().extend(mm.mm_count.drop(1));
    }

    fn finish_switch(&self, linux: &Linux70) -> Option<Root> {
        self.0[linux.cpu()].free.borrow_mut().pop()
    }

    fn put(&self, _linux: &Linux70, mm: &Rc<Mm>) -> Retired {
        retired(mm.mm_count.drop(1))
    }
}
