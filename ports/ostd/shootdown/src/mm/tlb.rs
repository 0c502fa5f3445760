//! TLB flushes: the framework's interface, by the shootdown engine.

use core::{mem, ops::Range};

use shootdown::{Extent, ExtentSet, PageSize};

use super::{
    PAGE_SIZE, Vaddr,
    coherence::{self, CoherentTable, FlushPending, Unmapped},
    frame::{Frame, meta::AnyFrameMeta},
};
use crate::{
    const_assert,
    cpu::{AtomicCpuSet, PinCurrentCpu},
    sync::RcuDrop,
};

const_assert!(PAGE_SIZE == 4096);

/// Collects TLB flushes, sends them to the CPUs that may be using the translations, and waits.
///
/// Dropping a flusher sends what was issued and not dispatched. It does not wait: frames stay
/// allocated until their flush is done.
pub struct TlbFlusher<'a, G: PinCurrentCpu> {
    /// `None` for kernel pages.
    table: Option<&'a CoherentTable>,
    /// Adjacent pages that were issued last, and are not in `extents` yet. Most operations are
    /// about one run of pages.
    run: Range<Vaddr>,
    extents: ExtentSet,
    unmapped: Unmapped,
    /// The flushes that were sent, and what they have unmapped.
    pending: Option<FlushPending>,
    sent: Unmapped,
    _pin: G,
}

impl<'a, G: PinCurrentCpu> TlbFlusher<'a, G> {
    /// A flusher of kernel pages, on all CPUs that are online. The CPUs are not chosen by the
    /// caller any more, because every CPU uses kernel pages.
    pub fn new(_target_cpus: &'a AtomicCpuSet, pin: G) -> Self {
        Self::with_table(None, pin)
    }

    /// A flusher of user memory, on those CPUs that may be using it.
    pub(crate) fn for_table(table: &'a CoherentTable, pin: G) -> Self {
        Self::with_table(Some(table), pin)
    }

    #[inline]
    fn with_table(table: Option<&'a CoherentTable>, pin: G) -> Self {
        Self {
            table,
            run: 0..0,
            extents: ExtentSet::new(),
            unmapped: Unmapped::new(),
            pending: None,
            sent: Unmapped::new(),
            _pin: pin,
        }
    }

    /// Adds a flush, which [`dispatch_tlb_flush`](Self::dispatch_tlb_flush) will send.
    pub fn issue_tlb_flush(&mut self, op: TlbFlushOp) {
        let pages = op.pages();
        if pages.start == self.run.end && !pages.is_empty() && !self.run.is_empty() {
            self.run.end = pages.end;
            return;
        }
        self.end_run();
        if pages.is_empty() {
            self.extents.add(op.0);
        } else {
            self.run = pages;
        }
    }

    /// Moves the run to the extents.
    fn end_run(&mut self) {
        if !self.run.is_empty() {
            let run = mem::take(&mut self.run);
            self.extents.add(TlbFlushOp::for_range(run).0);
        }
    }

    /// Adds the flush of a page, and keeps the page until the flush is done and the RCU grace
    /// period is over.
    pub fn issue_tlb_flush_with(
        &mut self,
        op: TlbFlushOp,
        drop_after_flush: RcuDrop<Frame<dyn AnyFrameMeta>>,
    ) {
        self.unmapped.pages.keep(drop_after_flush);
        self.issue_tlb_flush(op);
    }

    /// Adds the flush of a page table that was unhooked, and of the `frame_count` frames that it
    /// maps. Keeps the table until no CPU can walk it.
    pub(crate) fn issue_table_flush_with(
        &mut self,
        frame_count: usize,
        op: TlbFlushOp,
        drop_after_flush: RcuDrop<Frame<dyn AnyFrameMeta>>,
    ) {
        self.unmapped.keep_table(drop_after_flush, frame_count);
        self.extents.add(op.0.freeing_tables());
    }

    /// Sends the flushes that were added. CPUs may use the old translations until
    /// [`sync_tlb_flush`](Self::sync_tlb_flush) returns.
    pub fn dispatch_tlb_flush(&mut self) {
        self.end_run();
        if self.extents.is_empty() {
            return;
        }
        let pending = match self.table {
            Some(table) => Some(table.flush(&self.extents)),
            None => coherence::flush_kernel(&self.extents),
        };
        self.extents = ExtentSet::new();
        if self.pending.is_some() && (self.sent.has_tables() || self.unmapped.has_tables()) {
            // Tables wait for the horizon of their own flush.
            self.sync_tlb_flush();
        }
        self.sent.append(&mut self.unmapped);
        match (&mut self.pending, pending) {
            (Some(before), Some(pending)) => before.join(pending),
            (None, pending @ Some(_)) => self.pending = pending,
            (_, None) => mem::take(&mut self.sent).free(),
        }
    }

    /// Waits until no CPU can use the old translations of the flushes that were sent, and frees the
    /// frames that waited for them.
    ///
    /// Interrupts are masked during the wait. They may also be masked before it.
    pub fn sync_tlb_flush(&mut self) {
        if let Some(pending) = &mut self.pending {
            coherence::wait(pending);
            let unmapped = mem::take(&mut self.sent);
            match self.table {
                Some(table) => table.release(pending.horizon(), unmapped),
                None => unmapped.free(),
            }
            self.pending = None;
        }
    }
}

impl<G: PinCurrentCpu> Drop for TlbFlusher<'_, G> {
    #[inline]
    fn drop(&mut self) {
        self.dispatch_tlb_flush();
        let Some(table) = self.table else { return self.sync_tlb_flush() };
        if let Some(pending) = self.pending.take() {
            table.defer(pending, mem::take(&mut self.sent));
        }
    }
}

/// The translations that a flush drops.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TlbFlushOp(Extent);

impl TlbFlushOp {
    /// Drops the translations on the current CPU only.
    pub fn perform_on_current(&self) {
        if self.0.is_whole() {
            coherence::reload_current_root();
        } else {
            self.0
                .addresses()
                .for_each(|address| crate::arch::mm::tlb_flush_addr(address as Vaddr));
        }
    }

    /// The addresses; empty for all.
    #[inline]
    fn pages(&self) -> Range<Vaddr> {
        let start = self.0.start() as Vaddr;
        start..start + self.0.page_count() * PAGE_SIZE
    }

    /// All translations, except those of global pages.
    pub const fn for_all() -> Self {
        Self(Extent::whole())
    }

    /// The translation of the page at `addr`.
    pub const fn for_single(addr: Vaddr) -> Self {
        Self(Extent::page(addr as u64))
    }

    /// The translations of a range of pages. A range that is too large to name is everything.
    ///
    /// # Panics
    ///
    /// If the range is empty, or its ends are not at page boundaries.
    pub const fn for_range(range: Range<Vaddr>) -> Self {
        assert!(range.start.is_multiple_of(PAGE_SIZE), "the range must start at a page boundary");
        assert!(range.end.is_multiple_of(PAGE_SIZE), "the range must end at a page boundary");
        assert!(range.start < range.end, "the range must not be empty");
        Self(Extent::range(range.start as u64..range.end as u64, PageSize::SIZE_4K))
    }
}
