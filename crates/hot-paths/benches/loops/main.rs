//! Counts the instructions of the loops over all CPUs, as `hot_paths` counts those of the paths.
//!
//! This is another program, because further callers of the same functions change the counts of the
//! paths by up to two instructions.

#![expect(unsafe_code, reason = "no real hardware; sends requests; replaces memcpy")]

#[cfg(target_arch = "x86_64")]
#[path = "../hot_paths/count.rs"]
mod count;
#[cfg(target_arch = "x86_64")]
#[path = "../hot_paths/memory.rs"]
mod memory;
#[path = "../hot_paths/table.rs"]
mod table;

use std::process::ExitCode;

use crate::table::{Row, report};

/// The cost of every loop, at every width; `None` in the run that is counted.
#[cfg(target_arch = "x86_64")]
fn measure() -> Option<Result<Vec<Row>, String>> {
    use shootdown_hot_paths::{Path, Plain, SharedTags};
    fn run<const W: usize>() {
        count::run(&Path::<SharedTags, W>::LOOPS_OF_TAGS, 64 * W);
        count::run(&Path::<Plain, W>::LOOPS, 64 * W);
        count::run(&Path::<Plain, W, true>::LOOPS_OF_REUSE, 64 * W);
    }
    if count::is_under_callgrind() {
        run::<1>();
        run::<8>();
        run::<64>();
        return None;
    }
    let loops = Path::<Plain, 1>::LOOPS.iter().chain(&Path::LOOPS_OF_TAGS);
    let loops = loops.map(|path| (path.name, path.limits));
    let of_reuse = Path::<Plain, 1, true>::LOOPS_OF_REUSE.map(|path| (path.name, path.limits));
    Some(count::rows(&loops.chain(of_reuse).collect::<Vec<_>>()))
}

#[cfg(not(target_arch = "x86_64"))]
fn measure() -> Option<Result<Vec<Row>, String>> {
    Some(Err("the budgets are of x86-64 code".to_owned()))
}

fn main() -> ExitCode {
    measure().map_or(ExitCode::SUCCESS, report)
}
