//! The parts of the seam that a design does not use.

/// Implements parts of the seam for a design that defers no flush, or puts no pages into batches.
macro_rules! unused {
    ($design:ty: Defer) => {
        impl shootdown_vm::Defer for $design {
            type Deferred = core::convert::Infallible;
        }
    };
    ($design:ty: Defer, Batching) => {
        unused!($design: Defer);
        impl shootdown_vm::Batching for $design {
            type Batch = ();
        }
    };
}
