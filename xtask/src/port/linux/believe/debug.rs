//! The programs, the checks and the storm on a kernel with lockdep, KASAN and `DEBUG_VM`.

use crate::command::Failure;
use crate::port::linux::configuration::Configuration;
use crate::port::linux::guest;
use crate::port::linux::kernel;
use crate::port::machine::Clock;
use crate::port::source::Variant;

/// A boot for each line. A report of the kernel fails it.
const RUNS: [(&str, &str); 3] = [
    (
        "pti=off",
        "purge,20:purge-moving,10:purge-idle,20:tables-idle,10:protect-idle,20:\
                 alone-moving,10:exec,3:exec-threads,3:exit,3:turns-idle,20:turns-purge,10:\
                 turns-processes,20:mmap,10:mprotect,20:reclaim,2",
    ),
    ("pti=off", "replace,20:protect,20:paging,10:filters,10:compact,20:ldt,20"),
    ("pti=on", "storm,30:replace,10:protect,10"),
];

const CPUS: u32 = 4;

pub(super) fn run() -> Result<(), Failure> {
    let kernel = kernel::build_with(Configuration::Debug, Variant::Shootdown)?;
    let archive = guest::archive(&kernel)?;
    println!("| words | program | operations | wrong | reports |\n|---|---|---:|---:|---:|");
    for (words, run) in RUNS {
        let (rows, _) = kernel.boot(&archive, (CPUS, Clock::Host), words, run).rows()?;
        for row in &rows {
            let (count, wrong) = (row.count("operations"), row.count("wrong"));
            println!("| `{words}` | `{}` | {count} | {wrong} | 0 |", row.scenario);
        }
        if rows.iter().any(|row| row.count("wrong") > 0) {
            return Err(Failure::new("stale reads, or lost or late writes", "find the cause"));
        }
    }
    println!();
    Ok(())
}
