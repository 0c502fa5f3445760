//! Counts the instructions of the hot paths and the bytes of stack of a flush. Each has a budget, 2
//! % above the last measurement.
//!
//! The counts are callgrind's, of optimised x86-64 code with one codegen unit. They are the same on
//! every host and differ a little between compilers; the budgets are for rustc 1.95. A count does
//! *not* include the time of a cache miss or of a locked instruction.
//!
//! The code is compiled as a kernel is, so that the counts agree with `shootdown boot --paths` to 6
//! %:
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

use shootdown_hot_paths::{Path, Plain, Roots, Stage, System};

use crate::table::Row;

/// A new stage in the state in which `path` begins.
fn prepare<const W: usize>(path: &Path<Plain, W>) -> &'static mut Stage<Plain, W> {
    // SAFETY: there are no interrupts, and loading a root does nothing.
    (path.prepare)(&unsafe { System::new(Plain, &Roots::NONE) })
}

/// The cost of every path, at every width.
#[cfg(target_arch = "x86_64")]
fn measure() -> Result<Vec<Row>, String> {
    let mut rows = count::all()?;
    rows.push(stack::row());
    Ok(rows)
}

#[cfg(not(target_arch = "x86_64"))]
fn measure() -> Result<Vec<Row>, String> {
    Err("the budgets are of x86-64 code".to_owned())
}

fn main() -> ExitCode {
    #[cfg(target_arch = "x86_64")]
    if count::is_under_callgrind() {
        count::run();
        return ExitCode::SUCCESS;
    }
    let rows = match measure() {
        Ok(rows) => rows,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    print!("{}", table::text(&rows));
    let over: Vec<_> = rows.iter().filter(|row| row.is_over_budget()).collect();
    if cfg!(not(panic = "abort")) {
        println!("budgets not enforced: this code unwinds; try: cargo xtask bench paths");
    } else if !over.is_empty() {
        let names: Vec<_> = over.iter().map(|row| row.name).collect();
        eprintln!("error: above the budget: {}", names.join(", "));
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
