//! Operations that gather translations at the same time (`mm->tlb_flush_pending`).
//!
//! Two threads may gather from the same page tables, for example if both call `madvise`. The second
//! finds entries empty that the first has cleared and not flushed yet, and may find tables gone. It
//! does not look at which addresses the other gathers: since 5.2, an operation that ends while
//! another of the space gathers flushes all of the space, and as if it had freed page tables
//! (`tlb_finish_mmu`, 7a30df49f63a). Idle CPUs are interrupted as well.
//!
//! The count is in a word of the space that each operation changes twice. Its line costs no time
//! here, as other lines of `mm_struct` do not.

use core::cell::Cell;

/// Number of operations that gather translations of a space now (`mm->tlb_flush_pending`).
#[derive(Debug, Default)]
pub(crate) struct TlbFlushPending(Cell<u32>);

impl TlbFlushPending {
    /// `inc_tlb_flush_pending`.
    pub(crate) fn begin(&self) {
        self.0.set(self.0.get() + 1);
    }

    /// `dec_tlb_flush_pending`.
    pub(crate) fn end(&self) {
        self.0.set(self.0.get() - 1);
    }

    /// `mm_tlb_flush_nested`.
    pub(crate) fn is_nested(&self) -> bool {
        self.0.get() > 1
    }
}

/// Implements the methods of [`Flush`](shootdown_vm::Flush) about operations that gather, for a
/// design whose spaces have a field `tlb_flush_pending`.
macro_rules! gathers {
    () => {
        fn gather_begins(&self, mm: &Rc<Mm>) {
            mm.tlb_flush_pending.begin();
        }

        fn gather_ends(&self, mm: &Rc<Mm>) {
            mm.tlb_flush_pending.end();
        }

        fn is_nested(&self, mm: &Rc<Mm>) -> bool {
            mm.tlb_flush_pending.is_nested()
        }
    };
}
pub(crate) use gathers;
