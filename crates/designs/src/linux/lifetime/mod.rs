//! How long a space lives that no thread uses any more, while CPUs still have it loaded lazily.
//!
//! | lifetime | a lazy CPU | the end |
//! |---|---|---|
//! | [`Uncounted`] | costs nothing | the exit's flush interrupts all that may have it loaded |
//! | [`Counted`] | counts itself in and out | whoever counts down to zero frees |
//! | [`Shoot`] | costs nothing | all of the mask are interrupted, once more |
//! | [`Hazard`] | says so in a word of its own | who is found to hold it is handed a reference |
//!
//! In Linux these are `kernel/sched/core.c` and `kernel/fork.c`. Nothing else differs: all of them
//! keep TLBs coherent as [`Linux70`] does on x86, and where the hardware that a lifetime was made
//! for broadcasts invalidations, that is modelled for the last flush alone ([`ExitFlush`]). A flush
//! of a space that lives costs all of them alike, and on such a machine too much.
//!
//! Two things are not as in Linux. The memory manager gives page tables back together with their
//! root, when the last CPU has let go of it; Linux keeps but the root so long, and frees the others
//! at exit. So more memory is held here, and none is freed earlier. And where a reference is
//! dropped that a flush interrupt made superfluous, that is done at the CPU's next switch.
//!
//! Nor has Linux anything like [`reap`](shootdown_vm::Lifetimes::reap), and it does nothing here:
//! each CPU pins one dead space at most, or two while it switches, until it runs a thread with a
//! space again.

mod counted;
mod hazard;
mod shoot;

use std::fmt;
use std::rc::Rc;

use shootdown::Root;
use shootdown_vm::Retired;

use super::mm_count::Left;
use super::v7_0::{Linux70, Mm};
use crate::design::{Design, Purpose};

pub use counted::Counted;
pub use hazard::Hazard;
pub use shoot::Shoot;

impl Design {
    /// Linux 7.0 with lazy CPUs counted, as it does count them.
    pub const LINUX_COUNTED: Self = Self::new("linux-counted", Purpose::General, |sim| {
        Linux70::counted(sim, EXIT_FLUSH).into()
    });
    /// Linux 7.0 with lazy CPUs interrupted at exit, as on powerpc (seed 001).
    pub const POWERPC_SHOOT: Self =
        Self::new("powerpc-shoot", Purpose::General, |sim| Linux70::shoot(sim, EXIT_FLUSH).into());
    /// Linux 7.0 with lazy CPUs found by hazard pointers, as was proposed.
    pub const LINUX_HAZARD: Self =
        Self::new("linux-hazard", Purpose::General, |sim| Linux70::hazard(sim, EXIT_FLUSH).into());
}

/// The last flush of the three designs. If it interrupted lazy CPUs, as on x86, no lazy CPU would
/// be left for their lifetimes to differ on. The choice favours all three alike.
const EXIT_FLUSH: ExitFlush = ExitFlush::Broadcast;

/// How the last flush of a space, after which Linux frees page tables, reaches CPUs that are lazy
/// on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitFlush {
    /// It interrupts all CPUs of the mask, and the lazy ones switch to `init_mm` (x86).
    Interrupts,
    /// The hardware broadcasts it: powerpc's `tlbie`, arm64's `TLBI`. Lazy CPUs keep the root.
    ///
    /// In the model it takes no time, neither the sender's nor others', and leaves what is cached
    /// of a space that nobody returns to. That errs in favour of the design.
    Broadcast,
}

/// Who keeps a space while CPUs are lazy on it. All methods concern the CPU that calls them.
pub trait Lifetime: fmt::Debug {
    /// How the last flush of a space is made.
    fn exit_flush(&self) -> ExitFlush;

    /// A kernel thread, or the idle loop, borrows the space of the thread that ran here
    /// (`mmgrab_lazy_tlb`). That of another kernel thread is handed on, without a call.
    fn enter_lazy(&self, linux: &Linux70, mm: &Rc<Mm>) {
        let _ = (linux, mm);
    }

    /// A space was loaded to run a thread of it, whether or not there was a borrowed one before.
    fn enter_user(&self, linux: &Linux70) {
        let _ = linux;
    }

    /// A kernel thread goes on with `init_mm` loaded, instead of what it has borrowed.
    fn unlazied(&self, linux: &Linux70) {
        let _ = linux;
    }

    /// After a switch, with interrupts on: drops what is not borrowed any more. Returns the root of
    /// a space that nobody can walk since, if there is one (`finish_task_switch`).
    fn finish_switch(&self, linux: &Linux70) -> Option<Root> {
        let _ = linux;
        None
    }

    /// After the last flush of a space: its users' own reference is dropped (`__mmput`).
    fn put(&self, linux: &Linux70, mm: &Rc<Mm>) -> Retired;
}

/// Nobody counts: when the last flush is done, no CPU is lazy on the space any more.
#[derive(Clone, Copy, Debug)]
pub struct Uncounted;

impl Lifetime for Uncounted {
    fn exit_flush(&self) -> ExitFlush {
        ExitFlush::Interrupts
    }

    fn put(&self, _linux: &Linux70, _mm: &Rc<Mm>) -> Retired {
        Retired::Free
    }
}
