//! What becomes of a step, whoever does it: on the simulated machine, or on one that boots.

use core::fmt;

use shootdown_vm::{
    self as vm, BadRange, FaultError, MapError, OutOfMemory, Protection, RangeError,
};

use crate::operation::{Access, AreaId, LockId, Operation, Permission, Refusals};
use crate::varint::Malformed;

/// So often an access is tried again before it is given up: far more often than a page is ever
/// taken away, or claimed by another CPU, between a fault and the next try.
pub const FAULTS_MAX: u32 = 100_000;

/// What became of a step.
#[derive(Debug)]
pub enum Step {
    /// It is done.
    Done,
    /// It does not concern memory.
    NotOfMemory(Operation),
}

/// What a thread did that it must not, or cannot where it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StepError {
    /// It named an area that it had not mapped.
    UnknownArea(AreaId),
    /// It mapped what cannot be mapped.
    Map(MapError),
    /// It unmapped what cannot be.
    Unmap(BadRange),
    /// It changed what is not there.
    Range(RangeError),
    /// It used what it may not.
    Fault(FaultError),
    /// It could write where it was to be refused.
    NotRefused,
    /// There is no memory left.
    OutOfMemory,
    /// An access faults for ever, though every fault is resolved.
    Stuck,
    /// It let go of a lock that it did not have.
    NotHeld(LockId),
    /// It moved to a CPU that is not there.
    NoCpu(usize),
    /// The machine that it runs on does not do that, for this reason.
    Unsupported(&'static str),
    /// The steps were damaged after they had been looked at.
    Damaged(Malformed),
}

impl StepError {
    /// Whether a program may go on after it, which got a signal.
    #[must_use]
    pub const fn is_admitted(&self, refusals: Refusals) -> bool {
        matches!(refusals, Refusals::Survived)
            && matches!(
                self,
                Self::UnknownArea(_)
                    | Self::Range(_)
                    | Self::Fault(FaultError::NoArea | FaultError::NotPermitted)
            )
    }
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownArea(area) => write!(f, "area {} is not mapped", area.0),
            Self::Map(error) => write!(f, "cannot map: {error}"),
            Self::Unmap(error) => write!(f, "cannot unmap: {error}"),
            Self::Range(error) => error.fmt(f),
            Self::Fault(error) => error.fmt(f),
            Self::NotRefused => f.write_str("a write that must be refused was not"),
            Self::OutOfMemory => OutOfMemory.fmt(f),
            Self::Stuck => f.write_str("an access faults for ever"),
            Self::NotHeld(lock) => write!(f, "lock {} is not its own to let go of", lock.0),
            Self::NoCpu(cpu) => write!(f, "unsupported: there is no CPU {cpu}"),
            Self::Unsupported(why) => write!(f, "unsupported: {why}"),
            Self::Damaged(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for StepError {}

macro_rules! from {
    ($($error:ident => $variant:ident;)*) => {$(
        impl From<$error> for StepError {
            fn from(error: $error) -> Self {
                Self::$variant(error)
            }
        }
    )*};
}

from! {
    MapError => Map; BadRange => Unmap; RangeError => Range; FaultError => Fault;
    Malformed => Damaged;
}

impl From<OutOfMemory> for StepError {
    fn from(_: OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}

impl From<Access> for vm::Access {
    fn from(access: Access) -> Self {
        match access {
            Access::Read => Self::Read,
            Access::Write => Self::Write,
        }
    }
}

impl From<Permission> for Protection {
    fn from(permission: Permission) -> Self {
        match permission {
            Permission::None => Self::empty(),
            Permission::Read => Self::READ,
            Permission::ReadWrite => Self::READ | Self::WRITE,
        }
    }
}
