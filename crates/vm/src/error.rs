//! What can go wrong, one small type for each set of operations that fail alike.

use core::error::Error;
use core::fmt;

use crate::platform::OutOfMemory;

/// The range is empty, or not of whole pages, or not where user areas may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadRange;

/// Why nothing was mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// The range, or the length, is no number of whole pages where user areas may be.
    BadRange,
    /// No gap is as long as that.
    NoRoom,
    /// There is no frame for the page table that a large page in its place is split into.
    OutOfMemory,
}

/// Why a range was not unmapped or protected, or not all of it discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeError {
    /// The range is empty, or not of whole pages, or not where user areas may be.
    BadRange,
    /// Part of it is no area.
    NoArea,
    /// There is no frame for the page table that a large page is split into.
    OutOfMemory,
}

/// Why nothing was moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemapError {
    /// A range is empty, or not of whole pages, or not where user areas may be; or the two overlap
    /// and do not begin at the same address.
    BadRange,
    /// Part of what is to be moved is no area.
    NoArea,
    /// There is something where the last area would grow.
    NoRoom,
    /// There is no frame for the page tables at the new addresses, or that a large page is split
    /// into.
    OutOfMemory,
}

/// Why a fault was not resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultError {
    /// The address is in no area: a segmentation fault.
    NoArea,
    /// The area does not allow the access: a segmentation fault.
    NotPermitted,
    /// There is no frame for the page or for a table above it.
    OutOfMemory,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no frame left")
    }
}

impl fmt::Display for BadRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a range of whole pages at user addresses")
    }
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadRange => BadRange.fmt(f),
            Self::NoRoom => f.write_str("no gap is long enough"),
            Self::OutOfMemory => OutOfMemory.fmt(f),
        }
    }
}

impl fmt::Display for RangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadRange => BadRange.fmt(f),
            Self::NoArea => f.write_str("part of the range is not mapped"),
            Self::OutOfMemory => OutOfMemory.fmt(f),
        }
    }
}

impl fmt::Display for RemapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadRange => f.write_str("not two ranges of whole pages at user addresses"),
            Self::NoArea => RangeError::NoArea.fmt(f),
            Self::NoRoom => f.write_str("there is no room to grow in place"),
            Self::OutOfMemory => OutOfMemory.fmt(f),
        }
    }
}

impl fmt::Display for FaultError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoArea => f.write_str("nothing is mapped at this address"),
            Self::NotPermitted => f.write_str("the mapping does not permit this access"),
            Self::OutOfMemory => OutOfMemory.fmt(f),
        }
    }
}

impl Error for OutOfMemory {}
impl Error for BadRange {}
impl Error for MapError {}
impl Error for RangeError {}
impl Error for RemapError {}
impl Error for FaultError {}

impl From<BadRange> for MapError {
    fn from(_: BadRange) -> Self {
        Self::BadRange
    }
}

impl From<BadRange> for RangeError {
    fn from(_: BadRange) -> Self {
        Self::BadRange
    }
}

impl From<BadRange> for RemapError {
    fn from(_: BadRange) -> Self {
        Self::BadRange
    }
}

impl From<OutOfMemory> for MapError {
    fn from(_: OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}

impl From<OutOfMemory> for RangeError {
    fn from(_: OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}

impl From<OutOfMemory> for RemapError {
    fn from(_: OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}

impl From<OutOfMemory> for FaultError {
    fn from(_: OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}
