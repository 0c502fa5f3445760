//! Exact counts of workloads under instruction counting, compared with a golden file. Each change
//! of the engine or the kernel shows in `git diff`.

use std::fmt::Write as _;

use super::{Built, Part, WORKLOADS, golden, with_workload};
use crate::command::{Command, Failure, read_tracked};
use crate::parallel;

/// The golden file.
const COUNTS: &str = "kernel/counts.csv";

/// The numbers of CPUs on each architecture.
///
/// LoongArch64 is left out. Its `core` is prebuilt on some hosts and built from source on others,
/// where it contains the paths of its source files. The code's position in memory then differs, and
/// so does the number of instructions, because a TLB refill takes some.
const CPUS: [(&str, &[u32]); 2] = [("x86_64", &[1, 2, 4]), ("aarch64", &[1, 2])];

/// Returns `true` if the golden file has counts of this architecture.
pub(super) fn is_golden(arch: &str) -> bool {
    CPUS.iter().any(|(golden, _)| *golden == arch)
}

/// The numbers of CPUs that CI counts.
const CPUS_IN_TEST: [(&str, u32); 2] = [("x86_64", 4), ("aarch64", 2)];

/// The recordings that ship, and the architecture and number of CPUs on which they run.
const RECORDINGS: [&str; 6] = [
    "traces/go.shootdown",
    "traces/ls.shootdown",
    "traces/node.shootdown",
    "traces/postgres.shootdown",
    "traces/sort.shootdown",
    "traces/xz.shootdown",
];
const RECORDED_ON: (&str, u32) = ("x86_64", 2);
/// The number of recordings that CI counts, the first ones: the others take a minute of CPU.
const RECORDINGS_IN_TEST: usize = 2;

/// The versions that the golden file is for. Another compiler generates other code, and another
/// emulator has other devices.
const COUNTED_WITH: [&str; 2] = ["rustc 1.95.", "QEMU emulator version 10.0."];

/// The largest number of runs of a workload whose counts are new.
const RUNS_MAX: usize = 3;

/// The header of the golden file.
const HEADER: &str = "arch,workload,cpus,count,booted,simulated\n";

/// Architecture, workload or recording, and number of CPUs.
type Run = (&'static str, &'static str, u32);

/// Returns `true` if this host's compiler and emulator are those of the counts in the repository.
/// If they are not, prints the reason.
pub(super) fn are_for_this_host() -> Result<bool, Failure> {
    let compiler = Command::new("rustc").args("--version").output()?;
    let emulator = Command::new("qemu-system-x86_64").args("--version").output()?;
    for (wanted, found) in COUNTED_WITH.into_iter().zip([&compiler, &emulator]) {
        if !found.starts_with(wanted) {
            let found = found.lines().next().unwrap_or_default();
            println!("skipped: {COUNTS} is for {wanted}x, and this is {found}");
            return Ok(false);
        }
    }
    Ok(true)
}

/// Counts workloads and recordings, and compares the counts with the golden file.
pub(super) fn compare(built: &Built, part: Part) -> Result<(), Failure> {
    let runs = match part {
        Part::Sample => all_runs().into_iter().filter(is_in_sample).collect(),
        Part::All => all_runs(),
    };
    let known = read_tracked(COUNTS)?;
    let counted = parallel::map(&runs, |run| counted_surely(built, run, &known));
    let counted: String = counted.into_iter().collect::<Result<_, _>>()?;
    println!("{} runs counted", runs.len());
    match part {
        Part::Sample => golden::has_lines(COUNTS, &counted),
        Part::All => golden::check_file(COUNTS, &format!("{HEADER}{counted}")),
    }
}

/// Returns the runs of the golden file, in its order.
fn all_runs() -> Vec<Run> {
    let mut runs = Vec::new();
    for (arch, cpus) in CPUS {
        for workload in WORKLOADS {
            runs.extend(cpus.iter().map(|cpus| (arch, workload, *cpus)));
        }
    }
    runs.extend(RECORDINGS.map(|recording| (RECORDED_ON.0, recording, RECORDED_ON.1)));
    runs
}

fn is_in_sample((arch, name, cpus): &Run) -> bool {
    if RECORDINGS.contains(name) {
        RECORDINGS[..RECORDINGS_IN_TEST].contains(name)
    } else {
        CPUS_IN_TEST.contains(&(arch, *cpus))
    }
}

/// Returns the lines of one workload, as the golden file has them or as two runs agree on them.
///
/// Of 24 counted runs of node's recording, three of which ran at a time, two gave the same other
/// counts. The kernel and its workload were the same to the byte, so the emulator decides.
fn counted_surely(
    built: &Built,
    &(arch, workload, cpus): &Run,
    known: &str,
) -> Result<String, Failure> {
    let mut seen = Vec::new();
    for _ in 0..RUNS_MAX {
        let lines = counted(built, arch, workload, cpus)?;
        if seen.contains(&lines) || golden::missing(known, &lines).is_empty() {
            return Ok(lines);
        }
        println!(
            "{workload} on {cpus} CPUs of {arch} is counted again, because its counts are new"
        );
        seen.push(lines);
    }
    Err(Failure::new(
        format!("{RUNS_MAX} counted runs of {workload} on {cpus} CPUs of {arch} all differ"),
        "find what depends on the host",
    ))
}

/// Returns the lines of one run.
fn counted(built: &Built, arch: &str, workload: &str, cpus: u32) -> Result<String, Failure> {
    let command = with_workload(built.count(arch), workload).args("--cpus");
    let printed = command.arg(cpus.to_string()).output()?;
    // The printed line has the architecture after the count's name; here it comes first.
    let mut counts = String::new();
    for (_, rest) in printed.lines().skip(1).filter_map(|line| line.split_once(',')) {
        let rest = rest.strip_prefix(arch).unwrap_or(rest);
        let _ = writeln!(counts, "{arch},{workload}{rest}");
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_has_every_workload_on_both_architectures() {
        let sample: Vec<Run> = all_runs().into_iter().filter(is_in_sample).collect();
        assert_eq!(sample.len(), 2 * WORKLOADS.len() + RECORDINGS_IN_TEST);
    }
}
