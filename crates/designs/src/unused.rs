//! The parts of the interface that a design does not use.

/// Implements the part of [`Flush`](shootdown_vm::Flush) that waits, for a design whose `flush`
/// returns when all CPUs have flushed.
macro_rules! synchronous {
    () => {
        type Pending = ();

        fn wait(&self, (): ()) -> shootdown::Horizon {
            shootdown::Horizon::CLEAR
        }
    };
}

/// Implements parts of the interface for a design that defers no flush, or batches no pages.
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
