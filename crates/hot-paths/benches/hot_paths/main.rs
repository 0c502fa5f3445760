//! Counts the instructions of the hot paths and the bytes of stack of a flush. Each has a budget, 2
//! % above the last measurement.
//!
//! The counts are callgrind's, of optimised x86-64 code with one codegen unit. They are the same on
//! every host and differ a little between compilers; the budgets are for rustc 1.95. A count does
//! *not* include the time of a cache miss or of a locked instruction.
//!
//! The code is compiled as a kernel is:
//!
//! - It does not unwind (`RUSTFLAGS=-Cpanic=abort`, which `cargo xtask bench` sets). Code that
//!   unwinds moves a returned value once more. Without this flag, the budgets are not enforced.
//! - It copies and clears memory as `core` does without a C library: see [`memory`].

#![expect(unsafe_code, reason = "no real hardware; sends requests; replaces memcpy and the stack")]

#[cfg(target_arch = "x86_64")]
mod count;
#[cfg(target_arch = "x86_64")]
mod memory;
#[cfg(target_arch = "x86_64")]
mod stack;
mod table;

use std::process::ExitCode;

use crate::table::{Row, report};

/// The cost of every path, at every width; `None` in the run that is counted.
#[cfg(target_arch = "x86_64")]
fn measure() -> Option<Result<Vec<Row>, String>> {
    use shootdown_hot_paths::{Path, Plain};
    if count::is_under_callgrind() {
        count::run(&Path::<Plain, 1>::ALL, 2);
        count::run(&Path::<Plain, 8>::ALL, 2);
        count::run(&Path::<Plain, 64>::ALL, 2);
        return None;
    }
    let paths = Path::<Plain, 1>::ALL.map(|path| (path.name, path.limits));
    Some(count::rows(&paths).map(|rows| rows.into_iter().chain([stack::row()]).collect()))
}

#[cfg(not(target_arch = "x86_64"))]
fn measure() -> Option<Result<Vec<Row>, String>> {
    Some(Err("the budgets are of x86-64 code".to_owned()))
}

fn main() -> ExitCode {
    measure().map_or(ExitCode::SUCCESS, report)
}
