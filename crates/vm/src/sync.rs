//! The words on which the orderings of CPUs depend: atomics of the machine, and of loom in this
//! crate's own tests.
//!
//! Counters and hints, on which no other access depends, are atomics of the machine in tests also.

#[cfg(test)]
pub(crate) use crate::rules::tests::words::{AtomicU64, OwnedWord};
#[cfg(not(test))]
pub(crate) use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicU64 as OwnedWord};
#[cfg(test)]
pub(crate) use loom::sync::atomic::AtomicPtr;
