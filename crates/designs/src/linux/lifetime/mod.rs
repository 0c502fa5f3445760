//! The lifetime of a space that no thread uses any more, while CPUs still have it loaded lazily.
//!
//! | lifetime | a lazy CPU | the end of the space |
//! |---|---|---|
//! | [`Uncounted`] | does nothing | the exit's flush interrupts all CPUs that may have it loaded |
//! | [`Counted`] | has a reference | the CPU that drops the last reference frees it |
//! | [`Shoot`] | does nothing | all CPUs of the mask are interrupted once more |
//! | [`Hazard`] | publishes a hazard pointer | each lazy CPU is given a reference |
//!
//! In Linux these are in `kernel/sched/core.c` and `kernel/fork.c`. Nothing else differs: all keep
//! TLBs coherent as [`Linux70`] does on x86. If a lifetime was made for hardware that broadcasts
//! invalidations, that is modelled only for the last flush ([`ExitFlush`]). Flushes of live spaces
//! cost all lifetimes the same, which is too much on such hardware.
//!
//! There are two differences from Linux. First, the memory manager frees page tables together with
//! their root, when the last CPU has unloaded it. Linux keeps only the root that long, and frees
//! the other tables at exit. So the model uses more memory, and frees none earlier. Second, a
//! reference that a flush interrupt made superfluous is dropped at the CPU's next switch.
//!
//! Linux has nothing like [`reap`](shootdown_vm::Lifetimes::reap), so `reap` does nothing here.
//! Each CPU pins at most one dead space, or two while it switches, until it runs a thread with a
//! space again.

mod counted;
mod hazard;
mod shoot;

use std::fmt;
use std::rc::Rc;

use shootdown::Root;
use shootdown_vm::Retired;

use super::v7_0::{Linux70, Mm};

pub use counted::Counted;
pub use hazard::Hazard;
pub use shoot::Shoot;

/// The last flush of the three designs. If it interrupted lazy CPUs, as on x86, none would be left,
/// and the lifetimes would not differ. The choice favours all three alike.
pub(crate) const EXIT_FLUSH: ExitFlush = ExitFlush::Broadcast;

/// The method by which the last flush of a space, after which Linux frees page tables, reaches CPUs
/// that are lazy on the space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitFlush {
    /// Interrupts to all CPUs of the mask, which make lazy ones switch to `init_mm` (x86).
    Interrupts,
    /// A broadcast by hardware: powerpc's `tlbie`, arm64's `TLBI`. Lazy CPUs keep the root.
    ///
    /// In the model it takes no time on any CPU, and leaves the cached entries of the space, which
    /// no thread uses again. That errs in favour of the design.
    Broadcast,
}

/// The component that keeps a space while CPUs are lazy on it. All methods concern the calling CPU.
pub trait Lifetime: fmt::Debug {
    /// A kernel thread or the idle loop borrows the space of the thread that ran before
    /// (`mmgrab_lazy_tlb`). A switch between kernel threads passes the space on without a call.
    fn enter_lazy(&self, _linux: &Linux70, _mm: &Rc<Mm>) {}

    /// The CPU loaded a space to run a thread of it, whether or not it was lazy before.
    fn enter_user(&self, _linux: &Linux70) {}

    /// A kernel thread continues with `init_mm` loaded, instead of the space that it had borrowed.
    fn unlazied(&self, _linux: &Linux70) {}

    /// Called after a switch, with interrupts unmasked: drops the reference to a space that is not
    /// borrowed any more. Returns the root of a space that no CPU can walk any more, if there is
    /// one (`finish_task_switch`).
    fn finish_switch(&self, _linux: &Linux70) -> Option<Root> {
        None
    }

    /// Called after the last flush of a space: drops the reference of its users (`__mmput`).
    fn put(&self, linux: &Linux70, mm: &Rc<Mm>) -> Retired;
}

/// No references: after the last flush, no CPU is lazy on the space any more.
#[derive(Clone, Copy, Debug)]
pub struct Uncounted;

impl Lifetime for Uncounted {
    fn put(&self, _linux: &Linux70, _mm: &Rc<Mm>) -> Retired {
        Retired::Free
    }
}
