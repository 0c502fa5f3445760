//! The errors of operations.

use shootdown_vm::{BadRange, FaultError, MapError, OutOfMemory, RangeError, RemapError};
use thiserror::Error;

use crate::operation::{AreaId, LockId, OnFault};
use crate::varint::Malformed;

/// The reason why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StepError {
    /// The operation names an area that its process has not mapped.
    #[error("area {} is not mapped", .0.0)]
    UnknownArea(AreaId),
    /// The area cannot be mapped.
    #[error("cannot map: {0}")]
    Map(#[from] MapError),
    /// The pages cannot be moved to another node.
    #[error("cannot move: {0}")]
    Move(#[from] BadRange),
    /// The area cannot be moved, or change its size.
    #[error("cannot move: {0}")]
    Remap(#[from] RemapError),
    /// The pages cannot be changed.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// The access is a fault that the memory manager cannot resolve.
    #[error(transparent)]
    Fault(#[from] FaultError),
    /// A write that must be refused succeeded.
    #[error("a write that must be refused was not")]
    NotRefused,
    /// There is no memory left.
    #[error("{OutOfMemory}")]
    OutOfMemory,
    /// An access still faults after its fault was resolved
    /// [`FAULTS_MAX`](crate::interpreter::FAULTS_MAX) times.
    #[error("an access faults without end")]
    Stuck,
    /// The thread unlocks a lock that it does not hold.
    #[error("lock {} is not held by this thread", .0.0)]
    NotHeld(LockId),
    /// Pages are moved or paged out by a memory manager that does not record where they are mapped.
    #[error("the memory manager does not record where pages are mapped, and cannot find them")]
    NotRecorded,
    /// Pages are moved to a node that the machine lacks.
    #[error("there is no node {0}")]
    NoNode(usize),
    /// The thread moves to a CPU that the machine lacks.
    #[error("unsupported: there is no CPU {0}")]
    NoCpu(usize),
    /// The host cannot create another thread.
    #[error("no room for another thread")]
    NoThread,
    /// The machine does not support the operation, for this reason.
    #[error("unsupported: {0}")]
    Unsupported(&'static str),
    /// The encoded steps were damaged after they had been checked.
    #[error(transparent)]
    Damaged(#[from] Malformed),
}

impl StepError {
    /// Returns `true` if the thread continues after this error, which is a signal or a refused
    /// change, and the run survives such errors.
    #[must_use]
    pub const fn is_survived(&self, on_fault: OnFault) -> bool {
        matches!(on_fault, OnFault::Survived)
            && matches!(
                self,
                Self::UnknownArea(_)
                    | Self::Range(_)
                    | Self::Remap(RemapError::BadRange | RemapError::NoArea)
                    | Self::Fault(FaultError::NoArea | FaultError::NotPermitted)
            )
    }
}

impl From<OutOfMemory> for StepError {
    fn from(_: OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}
