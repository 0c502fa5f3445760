//! The space that each CPU has loaded (`active_mm`), and the references of lazy CPUs
//! (`MMU_LAZY_TLB_REFCOUNT`), on the architectures other than x86 and powerpc.
//!
//! A CPU that switches from a thread with a space to a kernel thread or to idle keeps the space,
//! and takes a reference to it. It drops the reference when it loads another space or runs a thread
//! of this one. The CPU that drops the last reference frees the root of the page tables. Unlike in
//! Linux, it frees all page tables with the root.

use core::cell::{Cell, RefCell};
use std::rc::Rc;

use shootdown::Root;
use shootdown_vm::Retired;

use super::mm_count::{MmCount, retired};

/// A space to which lazy CPUs have references.
pub(crate) trait CountedMm {
    /// The references to the space.
    fn mm_count(&self) -> &MmCount;
}

/// The spaces that all CPUs have loaded.
#[derive(Debug)]
pub(crate) struct ActiveMms<M>(Vec<Rq<M>>);

/// A CPU's private state (`rq`).
#[derive(Debug)]
struct Rq<M> {
    active_mm: RefCell<Option<Rc<M>>>,
    /// The CPU runs a kernel thread or idles, and has a reference to `active_mm`.
    is_borrowed: Cell<bool>,
    /// Roots of the spaces whose last reference this CPU dropped.
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

    /// The space that a CPU has loaded, lazily or not.
    pub(crate) fn active(&self, cpu: usize) -> Option<Rc<M>> {
        self.0[cpu].active_mm.borrow().clone()
    }

    /// Returns `true` if a CPU has this space loaded, lazily or not.
    pub(crate) fn has_loaded(&self, cpu: usize, mm: &Rc<M>) -> bool {
        self.0[cpu].active_mm.borrow().as_ref().is_some_and(|active| Rc::ptr_eq(active, mm))
    }

    /// Returns `true` if a CPU runs no thread of its loaded space.
    pub(crate) fn is_lazy(&self, cpu: usize) -> bool {
        self.0[cpu].is_borrowed.get()
    }

    /// Takes a reference for a CPU that switches to a kernel thread or to idle.
    pub(crate) fn borrow(&self, cpu: usize) {
        let rq = &self.0[cpu];
        let Some(mm) = self.active(cpu) else { return };
        if !rq.is_borrowed.replace(true) {
            mm.mm_count().grab(1);
        }
    }

    /// Records that a CPU loaded a space to run a thread of it, and drops its reference as a lazy
    /// CPU.
    pub(crate) fn activate(&self, cpu: usize, mm: &Rc<M>) {
        let rq = &self.0[cpu];
        let before = rq.active_mm.replace(Some(Rc::clone(mm)));
        if rq.is_borrowed.take()
            && let Some(borrowed) = before
        {
            rq.free.borrow_mut().extend(borrowed.mm_count().drop(1));
        }
    }

    /// Takes the root of a space whose last reference this CPU dropped.
    pub(crate) fn take_free(&self, cpu: usize) -> Option<Root> {
        self.0[cpu].free.borrow_mut().pop()
    }
}

/// Drops the reference of a space's users (`__mmput`).
pub(crate) fn put(mm: &impl CountedMm) -> Retired {
    retired(mm.mm_count().drop(1))
}
