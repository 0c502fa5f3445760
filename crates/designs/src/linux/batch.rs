//! Reclaim's batches, as far as they are the same on all architectures (`mm/rmap.c`, Linux 7.0).
//!
//! A thread that reclaims pages collects the CPUs that a flush must reach, and not the addresses.
//! The flush itself depends on the architecture. The batch (`current->tlb_ubc`) is private to its
//! task, and costs no shared line. The rest of the kernel sees one word of each space
//! (`mm->tlb_flush_batched`), which counts every page that is deferred. An operation that relies on
//! the entries that it finds compares that count with the pages flushed since. If there are more,
//! it flushes the whole space (`flush_tlb_batched_pending`).
//!
//! A batch does not record its spaces, so its flush does not update their counts. Each space looks
//! batched until the next `munmap`, `mprotect`, `mremap` or `madvise`. That flushes the whole space
//! once, mostly without need.
//!
//! # Differences from Linux
//!
//! - Linux clears an entry and counts the page under one hold of the page table's lock, and a
//!   thread that looks for the entry also takes that lock. The model has no such lock. A space
//!   counts as batched while a batch has it, so the second of two threads that look during one
//!   batch also flushes.
//! - Linux looks once for each page table, flushes, and then flushes the changes of the operation
//!   itself. Here the flush of the whole space replaces both, which favours these designs.
//! - The two generations have 32 bits each. Linux's have 15, and are reset in time.
//! - A dirty page is flushed before it is written out (`try_to_unmap_flush_dirty`) because its
//!   owner flushes the batch first. That is the memory manager's task.

use core::cell::Cell;
use core::sync::atomic::Ordering::Relaxed;
use std::collections::BTreeSet;
use std::rc::Rc;

use shootdown::Word;
use shootdown_sim::SimWord;
use shootdown_vm::{Cause, Change, Freed};

use super::CachePadded;

/// Pages that were unmapped and not yet flushed (`tlbflush_unmap_batch`).
#[derive(Debug, Default)]
pub struct UnmapBatch {
    /// Set if a flush was deferred.
    flush_required: bool,
    /// The CPUs that may use one of the pages (`arch.cpumask`).
    cpumask: BTreeSet<usize>,
    /// The spaces' words, only for [`TlbFlushBatched::batches`]: no flush uses them.
    mms: Vec<Rc<TlbFlushBatched>>,
}

/// A space's word (`mm->tlb_flush_batched`).
#[derive(Debug)]
pub(crate) struct TlbFlushBatched {
    /// Number of deferred pages, and above [`FLUSHED`], how many of these a flush of the whole
    /// space covers.
    generations: CachePadded<SimWord>,
    /// Set if the two numbers differ. A copy for flushes, whose callers have just read the word.
    is_pending: Cell<bool>,
    /// Number of batches that have the space. It replaces the page tables' locks.
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

    /// Returns `true` if an operation that finds an entry without a page must flush.
    pub(crate) fn is_batched(&self) -> bool {
        let generations = self.generations.0.load(Relaxed);
        self.batches.get() > 0 || pending(generations) != generations >> FLUSHED
    }

    /// Flushes the range that was changed. If batches have deferred pages of the space, and the
    /// operation relies on the entries that it finds, flushes the whole space instead
    /// (`flush_tlb_batched_pending`).
    pub(crate) fn flush_with_pending(&self, change: &Change, flush: impl FnOnce(&Change)) {
        let relies_on_entries =
            matches!(change.cause, Cause::Unmap | Cause::Advise | Cause::Protect | Cause::Move);
        if !relies_on_entries || !self.is_pending.get() {
            return flush(change);
        }
        let before = self.generations.0.load(Relaxed);
        // `flush_tlb_mm`.
        flush(&Change::whole(Freed::Tables));
        let flushed = pending(before) | pending(before) << FLUSHED;
        // Pages that were deferred during the flush may not be covered, and stay pending.
        if self.generations.0.compare_exchange(before, flushed, Relaxed, Relaxed).is_ok() {
            self.is_pending.set(false);
        }
    }
}

/// Implements [`Batching`](shootdown_vm::Batching) for a design by its own `try_to_unmap` and
/// `arch_tlbbatch_flush`, or by methods that flush or defer a batch.
macro_rules! unmap_batches {
    ($design:ty) => {
        unmap_batches!($design {
            fn flush_batch(&self, batch: UnmapBatch) {
                self.arch_tlbbatch_flush(&batch);
                batch.finish();
            }
        });
    };
    ($design:ty { $($flush:item)* }) => {
        impl Batching for $design {
            type Batch = UnmapBatch;

            fn add_space(&self, batch: &mut UnmapBatch, mm: &Rc<Mm>) -> Result<(), BatchIsFull> {
                batch.add_space(&mm.tlb_flush_batched);
                Ok(())
            }

            fn unmapped(&self, batch: &mut UnmapBatch, mm: &Rc<Mm>, at: u64, _: StaleWrites) {
                self.try_to_unmap(batch, mm, at);
            }

            $($flush)*

            fn is_batched(&self, mm: &Rc<Mm>) -> bool {
                mm.tlb_flush_batched.is_batched()
            }
        }
    };
}
pub(crate) use unmap_batches;

impl UnmapBatch {
    /// Adds a space whose entries are about to be cleared.
    pub(crate) fn add_space(&mut self, mm: &Rc<TlbFlushBatched>) {
        // Consecutive pages are likely to belong to the same space.
        if !self.mms.iter().rev().any(|added| Rc::ptr_eq(added, mm)) {
            mm.batches.set(mm.batches.get() + 1);
            self.mms.push(Rc::clone(mm));
        }
    }

    /// Adds a page that was unmapped from the space, and that these CPUs may use until the batch is
    /// flushed (`set_tlb_ubc_flush_pending`).
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

    /// Keeps only the CPUs for which `may_use` returns `true`.
    pub(crate) fn retain(&mut self, mut may_use: impl FnMut(usize) -> bool) {
        self.cpumask.retain(|&cpu| may_use(cpu));
        self.flush_required = !self.cpumask.is_empty();
    }

    /// The CPUs that may use one of the pages, in order.
    pub(crate) fn cpus(&self) -> Vec<usize> {
        self.cpumask.iter().copied().collect()
    }

    /// The CPUs that may use one of the pages, without CPU `but`.
    pub(crate) fn others(&self, but: usize) -> Vec<usize> {
        self.cpumask.iter().copied().filter(|&cpu| cpu != but).collect()
    }

    /// Ends the batch, whose pages no CPU uses any more.
    pub(crate) fn finish(self) {
        for mm in self.mms {
            mm.batches.set(mm.batches.get() - 1);
        }
    }
}
