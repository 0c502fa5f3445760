//! The engine's hot paths, each as a function that can be counted, with a budget of instructions.
//!
//! `benches/hot_paths` counts them under callgrind.
//!
//! In reading order: [`Plain`], hardware that does nothing; [`Harness`], a kernel for it;
//! [`System`], an engine in the state in which paths begin; [`Path`], with the table of paths, and
//! the [loops](Path::LOOPS) over all CPUs; [`Limits`], the budget of each path.

#![no_std]

extern crate alloc;

mod harness;
mod limits;
mod loops;
mod paths;
mod plain;
mod reuse;
mod system;

pub use harness::{Counted, Harness};
pub use limits::{Limits, STACK, WIDTHS, budget};
pub use paths::{Path, Stage};
pub use plain::{Plain, SharedTags};
pub use system::{Roots, System};
