//! What each CPU has loaded (`active_mm`), and the references that lazy CPUs hold
//! (`MMU_LAZY_TLB_REFCOUNT`), on the architectures other than x86 and powerpc.
//!
//! A CPU that goes from a thread with a space to a kernel thread, or to idle, keeps the space, and
//! counts itself in; when it loads another, or comes back, it counts itself out. Whoever counts
//! down to zero frees the root of the page tables, and, other than in Linux, all of them with it.

use core::cell::{Cell, RefCell};
use std::rc::Rc;

use shootdown::Root;
use shootdown_vm::Retired;

use super::mm_count::{Left, MmCount};

/// A space that lazy CPUs count.
pub(crate) trait CountedMm {
    /// By how many it is held.
    fn mm_count(&self) -> &MmCount;
    /// Its page tables.
    fn root(&self) -> Root;
}

/// What all CPUs have loaded.
#[derive(Debug)]
pub(crate) struct ActiveMms<M>(Vec<Rq<M>>);

/// A CPU's private state (`rq`).
#[derive(Debug)]
struct Rq<M> {
    active_mm: RefCell<Option<Rc<M>>>,
    /// No thread of the space runs: it is borrowed.
    is_borrowed: Cell<bool>,
    /// The roots of what nobody holds any more since this CPU let go of it.
    free: RefCell<Vec<Root>>,
}

impl<M: CountedMm> ActiveMms<M> {
    pub(crate) fn new(cpus: usize) -> Self {
        let rq = |_| Rq {
            active_mm: RefCell::new(None),
            is_borrowed: Cell::new(false),
            free: RefCell::default(),
        };
        Self((0..cpus).map(rq).collect())
    }

    /// What a CPU has loaded, lazily or not.
    pub(crate) fn active(&self, cpu: usize) -> Option<Rc<M>> {
        self.0[cpu].active_mm.borrow().clone()
    }

    /// Whether a CPU has this space loaded, lazily or not.
    pub(crate) fn has_loaded(&self, cpu: usize, mm: &Rc<M>) -> bool {
        self.0[cpu].active_mm.borrow().as_ref().is_some_and(|active| Rc::ptr_eq(active, mm))
    }

    /// Whether a CPU runs no thread of what it has loaded.
    pub(crate) fn is_lazy(&self, cpu: usize) -> bool {
        self.0[cpu].is_borrowed.get()
    }

    /// A CPU goes on to a kernel thread, or to idle, with what it has loaded.
    pub(crate) fn borrow(&self, cpu: usize) {
        let rq = &self.0[cpu];
        let Some(mm) = self.active(cpu) else { return };
        if !rq.is_borrowed.replace(true) {
            mm.mm_count().grab(1);
        }
    }

    /// A CPU has loaded a space to run a thread of it, and drops what it had borrowed.
    pub(crate) fn activate(&self, cpu: usize, mm: &Rc<M>) {
        let rq = &self.0[cpu];
        let before = rq.active_mm.replace(Some(Rc::clone(mm)));
        if rq.is_borrowed.take()
            && let Some(borrowed) = before
            && borrowed.mm_count().drop(1) == Left::Nobody
        {
            rq.free.borrow_mut().push(borrowed.root());
        }
    }

    /// The root of a space that nobody holds since this CPU let go of it.
    pub(crate) fn take_free(&self, cpu: usize) -> Option<Root> {
        self.0[cpu].free.borrow_mut().pop()
    }
}

/// The users of a space drop their reference to it (`__mmput`).
pub(crate) fn put(mm: &impl CountedMm) -> Retired {
    match mm.mm_count().drop(1) {
        Left::Nobody => Retired::Free,
        Left::Others => Retired::Loaded,
    }
}
