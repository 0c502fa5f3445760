//! Designs that discard no page in place.

use shootdown_vm::{Discards, DynCoherence, ErasedCoherence, Policy};

/// A design whose `madvise` frees pages in the call.
struct Immediate(ErasedCoherence);

impl DynCoherence for Immediate {
    fn inner(&self) -> &dyn DynCoherence {
        &*self.0
    }

    fn policy(&self) -> Policy {
        Policy { discards: Discards::Immediate, ..self.0.policy() }
    }
}

/// Returns a design that flushes as this one, but whose `madvise` frees pages in the call. Each
/// discard then flushes: for comparisons of the ways in which CPUs are notified.
#[must_use]
pub fn discarding_immediately(design: ErasedCoherence) -> ErasedCoherence {
    Box::new(Immediate(design))
}
