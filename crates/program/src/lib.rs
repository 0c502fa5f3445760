//! The language of workloads.
//!
//! [`operation`] defines the language: a thread's program is a sequence of operations. [`stream`]
//! encodes a workload as bytes, for a kernel that boots. [`step`] defines the results of an
//! operation, wherever it is performed. [`varint`] encodes numbers.
//!
//! The crate needs `alloc`, and no operating system.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

// In reading order.
pub mod operation;
pub mod step;
pub mod stream;
pub mod varint;

pub use operation::{Refusals, Workload};
pub use step::StepError;
pub use varint::Malformed;
