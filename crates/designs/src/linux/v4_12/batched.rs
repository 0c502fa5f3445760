//! With seed 004, as merged for Linux 4.3: what reclaim takes is flushed many pages at a time, by
//! one interrupt for each CPU. In all else it is [`Linux412`].
//!
//! Read in the patches as posted, and as merged: `should_defer_flush`, `set_tlb_ubc_flush_pending`,
//! `try_to_unmap_flush` and `percpu_flush_tlb_batch_pages`. If another CPU is in the mask of the
//! space, a page's entry is cleared, and the mask added to the batch's; if none is, the page is
//! flushed at once, which interrupts nobody. The batch's flush empties this CPU's TLB, if it is in
//! the mask, and then interrupts all others there, each of which empties its own: the batch knows
//! of no page and no space. A lazy CPU is told, too. It does not leave, as it would if told of one
//! space, and so it is told of the next batch as well.
//!
//! # What differs
//!
//! - Linux 4.3 had a bug: a page that was put off and not yet flushed was not there for `mprotect`
//!   and `munmap`, which then flushed nothing, and other CPUs went on using it. 3ea277194daa mended
//!   that for 4.13, by a mark on the space, and it is mended here; by generations, as later Linux
//!   has them (`batch.rs`), where 4.13 had one bit.
//! - A batch's calls went by `smp_call_function_many` in 4.3, with a function of their own. Later
//!   versions send them as all flushes (`flush_tlb_others`, of no space), and lazy CPUs leave.

#![expect(unsafe_code, reason = "the seam's `switch` is unsafe")]

use core::convert::Infallible;
use std::rc::Rc;

use shootdown::{BatchIsFull, Horizon, Root, StaleWrites};
use shootdown_sim::Sim;
use shootdown_vm::{Change, Coherence, ExtraFlushes, Retired, Taking, UnmapLock};

use super::{Linux412, Mm};
use crate::linux::batch::TlbFlushBatched;
use crate::linux::{FlushInfo, LinuxRule, NO_MM, UnmapBatch};

/// The design: `unmap-batched`.
#[derive(Debug)]
pub struct UnmapBatched {
    linux: Linux412,
    broken: Option<LinuxRule>,
}

/// A space (`mm_struct`, of which Linux 4.13 has one word more).
#[derive(Debug)]
pub struct MmBatched {
    mm: Rc<Mm>,
    tlb_flush_batched: Rc<TlbFlushBatched>,
}

impl UnmapBatched {
    /// On this machine.
    #[must_use]
    pub fn new(sim: Rc<Sim>) -> Self {
        Self::with_broken_rule(sim, None)
    }

    /// One that breaks a rule, for tests that expect the oracle to notice.
    #[must_use]
    pub fn with_broken_rule(sim: Rc<Sim>, broken: Option<LinuxRule>) -> Self {
        Self { linux: Linux412::new(sim), broken }
    }

    pub(super) fn has_loaded(&self, ctx_id: u64) -> bool {
        self.linux.has_loaded(ctx_id)
    }

    /// The local flush, and what others are to do.
    pub(super) fn flush_locally(&self, space: &MmBatched, change: &Change) -> Rc<FlushInfo> {
        self.linux.flush_locally(&space.mm, change)
    }

    /// `try_to_unmap_flush`.
    fn try_to_unmap_flush(&self, batch: &UnmapBatch) {
        let sim = &self.linux.sim;
        if batch.contains(sim.cpu()) {
            self.percpu_flush_tlb_batch_pages();
        }
        let targets = batch.others(sim.cpu());
        if !targets.is_empty() {
            self.linux.calls.call(sim, &targets, &Rc::new(FlushInfo::of_batch()), || {});
        }
    }

    /// Whatever is loaded, lazily or not.
    fn percpu_flush_tlb_batch_pages(&self) {
        self.linux.sim.invalidate_tag();
    }
}

impl MmBatched {
    /// The CPUs that may use the space, but one.
    pub(super) fn others(&self, but: usize) -> Vec<usize> {
        self.mm.cpumask.others(but)
    }
}

impl Coherence for UnmapBatched {
    type Space = Rc<MmBatched>;
    type Pending = ();
    type Batch = UnmapBatch;
    type Parked = Infallible;

    const UNMAP_LOCK: UnmapLock = Linux412::UNMAP_LOCK;
    const TAKING: Taking = Taking::Batched;
    const EXTRA_FLUSHES: ExtraFlushes = Linux412::EXTRA_FLUSHES;

    fn space(&self, root: Root) -> Rc<MmBatched> {
        let tlb_flush_batched = TlbFlushBatched::new();
        Rc::new(MmBatched { mm: self.linux.space(root), tlb_flush_batched })
    }

    fn flush(&self, space: &Rc<MmBatched>, change: &Change) {
        let flush = |change: &Change| self.linux.flush(&space.mm, change);
        space.tlb_flush_batched.flush_with_pending(change, flush);
    }

    fn wait(&self, (): ()) -> Horizon {
        Horizon::CLEAR
    }

    fn hold_back(&self, batch: &mut Self::Batch, space: &Rc<MmBatched>) -> Result<(), BatchIsFull> {
        batch.hold_back(&space.tlb_flush_batched);
        Ok(())
    }

    fn taken(&self, batch: &mut Self::Batch, space: &Rc<MmBatched>, address: u64, _: StaleWrites) {
        let cpumask = &space.mm.cpumask;
        // `should_defer_flush`: to flush one page here costs less than to flush all later.
        if cpumask.others(self.linux.sim.cpu()).is_empty() {
            return self.linux.flush(&space.mm, &Change::taken(address));
        }
        batch.add_pending(&space.tlb_flush_batched, cpumask.members());
    }

    fn flush_batch(&self, batch: Self::Batch) {
        if batch.is_flush_required() && self.broken != Some(LinuxRule::FlushBatch) {
            self.try_to_unmap_flush(&batch);
        }
        batch.finish();
    }

    fn is_held_back(&self, space: &Rc<MmBatched>) -> bool {
        self.broken != Some(LinuxRule::MarkBatched) && space.tlb_flush_batched.is_held_back()
    }

    fn retire(&self, space: &Rc<MmBatched>) -> Retired {
        self.linux.retire(&space.mm)
    }

    unsafe fn switch(&self, space: &Rc<MmBatched>) {
        // SAFETY: as our caller promises.
        unsafe { self.linux.switch(&space.mm) }
    }

    fn enter_lazy(&self) {
        self.linux.enter_lazy();
    }

    fn leave(&self) {
        self.linux.leave();
    }

    fn interrupt(&self) {
        let linux = &self.linux;
        linux.calls.serve(&linux.sim, |info| match info.mm {
            NO_MM => self.percpu_flush_tlb_batch_pages(),
            _ => linux.flush_func(info),
        });
    }
}
