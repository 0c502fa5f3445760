//! Reclaim's batches, as far as they are the same on all architectures (`mm/rmap.c`, Linux 7.0).
//!
//! Who takes pages collects whom a flush is to reach, and not what it is to flush; the flush itself
//! is each architecture's own. The batch (`current->tlb_ubc`) is its task's alone, and costs no
//! shared line. What the rest of the kernel can see of it is a word of each space
//! (`mm->tlb_flush_batched`), in which every page that is put off is counted. Who is about to rely
//! on what it finds in page tables compares that with what has been flushed since, and flushes all
//! of the space if there is more (`flush_tlb_batched_pending`).
//!
//! A batch that is flushed does not know its spaces, and tells them nothing: each looks held back
//! until the next `munmap`, `mprotect`, `mremap` or `madvise`, which then flushes all of it once,
//! mostly for nothing.
//!
//! # What differs
//!
//! - Linux clears an entry and counts it in one hold of the page table's lock, which whoever looks
//!   for the entry takes, too. PinnedCpu there is no such lock, and a space counts as held back for
//!   as long as a batch has it. So the second of two who look during one batch flushes, too.
//! - Linux looks once for each page table, flushes, and then flushes what the operation itself has
//!   changed. Here the flush of all of the space stands for both. That favours these designs.
//! - The two generations have 32 bits each, Linux's 15, which are set back in time.
//! - A dirty page is flushed before it is written out (`try_to_unmap_flush_dirty`) if its owner
//!   flushes the batch first: that is the memory manager's to do.

use core::cell::Cell;
use core::sync::atomic::Ordering::Relaxed;
use std::collections::BTreeSet;
use std::rc::Rc;

use shootdown::Word;
use shootdown_sim::SimWord;
use shootdown_vm::{Cause, Change, Freed};

use super::CachePadded;

/// Pages that were taken, and not flushed yet (`tlbflush_unmap_batch`).
#[derive(Debug, Default)]
pub struct UnmapBatch {
    /// Whether anything was put off.
    flush_required: bool,
    /// The CPUs that may use any of it (`arch.cpumask`).
    cpumask: BTreeSet<usize>,
    /// The spaces' words, for [`TlbFlushBatched::batches`] alone: no flush looks at them.
    mms: Vec<Rc<TlbFlushBatched>>,
}

/// A space's word (`mm->tlb_flush_batched`).
#[derive(Debug)]
pub(crate) struct TlbFlushBatched {
    /// How many pages were put off, and above [`FLUSHED`], how many of these a flush of all of the
    /// space covers.
    generations: CachePadded<SimWord>,
    /// Whether the two differ: for flushes, since those who call them have just looked.
    is_pending: Cell<bool>,
    /// How many batches have the space. In place of the page tables' locks.
    batches: Cell<u32>,
}

/// `TLB_FLUSH_BATCH_FLUSHED_SHIFT`.
const FLUSHED: u32 = 32;

const fn pending(generations: u64) -> u64 {
    generations & ((1 << FLUSHED) - 1)
}

impl TlbFlushBatched {
    pub(crate) fn new() -> Rc<Self> {
        Rc::new(Self {
            generations: CachePadded(SimWord::with(0)),
            is_pending: Cell::new(false),
            batches: Cell::new(0),
        })
    }

    /// Whether who finds an entry without a page must flush.
    pub(crate) fn is_batched(&self) -> bool {
        let generations = self.generations.0.load(Relaxed);
        self.batches.get() > 0 || pending(generations) != generations >> FLUSHED
    }

    /// Flushes what was changed; or all of the space, if batches have put off anything of it and
    /// the operation is one that relies on what it finds (`flush_tlb_batched_pending`).
    pub(crate) fn flush_with_pending(&self, change: &Change, flush: impl FnOnce(&Change)) {
        let looks =
            matches!(change.cause, Cause::Unmap | Cause::Advise | Cause::Protect | Cause::Move);
        if !looks || !self.is_pending.get() {
            return flush(change);
        }
        let before = self.generations.0.load(Relaxed);
        // `flush_tlb_mm`.
        flush(&Change::whole(Freed::Tables));
        let flushed = pending(before) | pending(before) << FLUSHED;
        // What was put off meanwhile may not be covered, and stays pending.
        if self.generations.0.compare_exchange(before, flushed, Relaxed, Relaxed).is_ok() {
            self.is_pending.set(false);
        }
    }
}

/// Implements [`Batching`](shootdown_vm::Batching) for a design by its own `try_to_unmap` and
/// `arch_tlbbatch_flush`.
macro_rules! unmap_batches {
    ($design:ty) => {
        impl Batching for $design {
            type Batch = UnmapBatch;

            fn add_space(&self, batch: &mut UnmapBatch, mm: &Rc<Mm>) -> Result<(), BatchIsFull> {
                batch.add_space(&mm.tlb_flush_batched);
                Ok(())
            }

            fn unmapped(&self, batch: &mut UnmapBatch, mm: &Rc<Mm>, at: u64, _: StaleWrites) {
                self.try_to_unmap(batch, mm, at);
            }

            fn flush_batch(&self, batch: UnmapBatch) {
                self.arch_tlbbatch_flush(&batch);
                batch.finish();
            }

            fn is_batched(&self, mm: &Rc<Mm>) -> bool {
                mm.tlb_flush_batched.is_batched()
            }
        }
    };
}
pub(crate) use unmap_batches;

impl UnmapBatch {
    /// Entries of the space are about to be cleared.
    pub(crate) fn add_space(&mut self, mm: &Rc<TlbFlushBatched>) {
        // The last one is the likeliest.
        if !self.mms.iter().rev().any(|held| Rc::ptr_eq(held, mm)) {
            mm.batches.set(mm.batches.get() + 1);
            self.mms.push(Rc::clone(mm));
        }
    }

    /// A page was taken from the space, and these CPUs may use it until the batch is flushed
    /// (`set_tlb_ubc_flush_pending`).
    pub(crate) fn add_pending(
        &mut self,
        mm: &TlbFlushBatched,
        cpus: impl IntoIterator<Item = usize>,
    ) {
        self.cpumask.extend(cpus);
        self.flush_required = true;
        mm.generations.0.fetch_add(1, Relaxed);
        mm.is_pending.set(true);
    }

    pub(crate) const fn is_flush_required(&self) -> bool {
        self.flush_required
    }

    pub(crate) fn contains(&self, cpu: usize) -> bool {
        self.cpumask.contains(&cpu)
    }

    /// The CPUs that may use any of it, in order.
    pub(crate) fn cpus(&self) -> Vec<usize> {
        self.cpumask.iter().copied().collect()
    }

    /// All of them but one.
    pub(crate) fn others(&self, but: usize) -> Vec<usize> {
        self.cpumask.iter().copied().filter(|&cpu| cpu != but).collect()
    }

    /// Nobody uses any of it any more.
    pub(crate) fn finish(self) {
        for mm in self.mms {
            mm.batches.set(mm.batches.get() - 1);
        }
    }
}
