//! Variants of designs: the same flushes under another policy of the memory manager.

use shootdown_vm::{Discards, DynCoherence, ErasedCoherence, Policy, Replication};

/// A design with another policy.
struct Variant<C> {
    design: ErasedCoherence,
    change: C,
}

impl<C: Fn(Policy) -> Policy> DynCoherence for Variant<C> {
    fn inner(&self) -> &dyn DynCoherence {
        &*self.design
    }

    fn policy(&self) -> Policy {
        (self.change)(self.design.policy())
    }
}

/// Returns a design that flushes as this one, but whose `madvise` frees pages in the call. Each
/// discard then flushes: for comparisons of the ways in which CPUs are notified.
#[must_use]
pub fn discarding_immediately(design: ErasedCoherence) -> ErasedCoherence {
    let change = |policy| Policy { discards: Discards::Immediate, ..policy };
    Box::new(Variant { design, change })
}

/// Returns a design that flushes as this one, but whose CPUs all load the same page tables. A flush
/// then concerns all CPUs of a space: for comparisons of the ways in which CPUs are notified, and
/// with kernels that have no replicas.
#[must_use]
pub fn without_replicas(design: ErasedCoherence) -> ErasedCoherence {
    let change = |policy| Policy { replication: Replication::Never, ..policy };
    Box::new(Variant { design, change })
}

/// Returns a design that flushes as this one, after each `pages` pages that reclaim or a migration
/// has unmapped.
pub(crate) fn with_batches_of(design: ErasedCoherence, pages: usize) -> ErasedCoherence {
    let change =
        move |policy| Policy { reclaim_batch_pages: pages, migration_batch_pages: pages, ..policy };
    Box::new(Variant { design, change })
}
