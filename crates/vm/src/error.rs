//! Errors, one small type for each set of operations that fail alike.

use thiserror::Error;

use crate::platform::OutOfMemory;

/// The range is empty, or not of whole pages, or not at user addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not a range of whole pages at user addresses")]
pub struct BadRange;

/// Why nothing was mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MapError {
    /// The range, or the length, is not a number of whole pages at user addresses.
    #[error("{BadRange}")]
    BadRange,
    /// No gap is long enough.
    #[error("no gap is long enough")]
    NoRoom,
    /// There is no frame for the page table that a large page in its place is split into.
    #[error("{OutOfMemory}")]
    OutOfMemory,
}

/// Why a range was not unmapped or protected, or not all of it discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RangeError {
    /// The range is empty, or not of whole pages, or not at user addresses.
    #[error("{BadRange}")]
    BadRange,
    /// Part of the range is not in an area.
    #[error("part of the range is not mapped")]
    NoArea,
    /// There is no frame for the page table that a large page is split into.
    #[error("{OutOfMemory}")]
    OutOfMemory,
}

/// Why nothing was moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RemapError {
    /// A range is empty, or not of whole pages, or not at user addresses; or the two ranges overlap
    /// and do not begin at the same address.
    #[error("not two ranges of whole pages at user addresses")]
    BadRange,
    /// Part of the source is not in an area.
    #[error("{}", RangeError::NoArea)]
    NoArea,
    /// There is something where the last area would grow.
    #[error("there is no room to grow in place")]
    NoRoom,
    /// There is no frame for the page tables at the new addresses, or that a large page is split
    /// into.
    #[error("{OutOfMemory}")]
    OutOfMemory,
}

/// Why a fault was not resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FaultError {
    /// The address is in no area: a segmentation fault.
    #[error("nothing is mapped at this address")]
    NoArea,
    /// The area does not allow the access: a segmentation fault.
    #[error("the mapping does not permit this access")]
    NotPermitted,
    /// There is no frame for the page or for a table above it.
    #[error("{OutOfMemory}")]
    OutOfMemory,
}

// Not by `#[from]`, which would put the error into the variant.
macro_rules! from {
    ($($error:ident => $($to:ident),*;)*) => {$($(
        impl From<$error> for $to {
            fn from(_: $error) -> Self {
                Self::$error
            }
        }
    )*)*};
}

from! {
    BadRange => MapError, RangeError, RemapError;
    OutOfMemory => MapError, RangeError, RemapError, FaultError;
}
