//! The language of workloads, and its interpreter.
//!
//! [`operation`] defines the language: a thread's program is a sequence of operations. [`stream`]
//! encodes a workload as bytes, with the numbers of [`varint`]. [`interpreter`] performs the
//! operations on any machine that is a [`Host`](interpreter::Host).
//!
//! The crate needs `alloc`, and no operating system.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

// In reading order.
mod error;
pub mod interpreter;
pub mod operation;
pub mod stream;
pub mod varint;

pub use error::StepError;
pub use operation::{OnFault, Workload};
pub use varint::Malformed;
