//! Errors: one type for each set of operations that fail for the same reasons.

use thiserror::Error;

use crate::platform::OutOfMemory;

/// A range that is empty, is not made of whole pages, or is not at user addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not a range of whole pages at user addresses")]
pub struct BadRange;

/// The reason why `map` mapped nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MapError {
    /// The range, or the length, is not made of whole pages at user addresses.
    #[error("{BadRange}")]
    BadRange,
    /// No gap in the address space is long enough.
    #[error("no gap is long enough")]
    NoRoom,
    /// No frame is left for the page table that a split of a large page needs.
    #[error("{OutOfMemory}")]
    OutOfMemory,
}

/// The reason why a range was not unmapped or protected, or why not all of it was discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RangeError {
    /// The range is empty, is not made of whole pages, or is not at user addresses.
    #[error("{BadRange}")]
    BadRange,
    /// A part of the range is not in an area.
    #[error("part of the range is not mapped")]
    NoArea,
    /// No frame is left for the page table that a split of a large page needs.
    #[error("{OutOfMemory}")]
    OutOfMemory,
}

/// The reason why `remap` moved nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RemapError {
    /// A range is empty, is not made of whole pages, or is not at user addresses; or the two ranges
    /// overlap and begin at different addresses.
    #[error("not two ranges of whole pages at user addresses")]
    BadRange,
    /// A part of the source is not in an area.
    #[error("{}", RangeError::NoArea)]
    NoArea,
    /// Another area is where the last area would grow, or no gap is long enough.
    #[error("there is no room for the areas")]
    NoRoom,
    /// No frame is left for the page tables at the new addresses, or for the table that a split of
    /// a large page needs.
    #[error("{OutOfMemory}")]
    OutOfMemory,
}

/// The reason why a fault was not resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FaultError {
    /// The address is in no area: a segmentation fault.
    #[error("nothing is mapped at this address")]
    NoArea,
    /// The area does not allow the access: a segmentation fault.
    #[error("the mapping does not permit this access")]
    NotPermitted,
    /// No frame is left for the page or for a table above it.
    #[error("{OutOfMemory}")]
    OutOfMemory,
}

impl From<MapError> for RemapError {
    fn from(error: MapError) -> Self {
        match error {
            MapError::BadRange => Self::BadRange,
            MapError::NoRoom => Self::NoRoom,
            MapError::OutOfMemory => Self::OutOfMemory,
        }
    }
}

// Not `#[from]`, because that would put the error into the variant.
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
