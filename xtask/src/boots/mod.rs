//! The kernel boots on every architecture, and passes its own tests; and the book says what they
//! find.

mod counts;
mod written;

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use crate::command::{Command, Failure, cargo};
use crate::setup::emulators::{self, ARCHITECTURES};

/// For each architecture, of three.
const SOAK_IN_TEST: Duration = Duration::from_secs(40);

/// The book's chapter.
const BOOK: &str = "docs/bare-metal.md";

/// All that `shootdown boot --workload` knows by name.
const WORKLOADS: [&str; 9] =
    ["migrate", "mprotect", "heap", "crowd", "threads", "pairs", "beside", "exits", "sort"];

/// On one CPU; for two minutes on four, with as many threads of the host's; and twice where time is
/// the number of instructions, to the same bytes.
pub(crate) fn all() -> Result<(), Failure> {
    let ready = emulators::for_boots()?;
    let mut found = Vec::new();
    for arch in &ready {
        boot(arch).args("--cpus 1").run()?;
        soak_on(&format!("--arch {arch}"), SOAK_IN_TEST, 1)?;
        let counted = || boot(arch).args("--counts --format csv").output();
        let trials = counted()?;
        if trials != counted()? {
            return Err(Failure::new(
                format!("two runs on {arch} that count instructions differ"),
                format!("compare two of `shootdown boot --arch {arch} --counts --console`"),
            ));
        }
        println!("{arch}: the same, twice, where instructions are counted");
        found.extend(trials.lines().skip(1).map(str::to_owned));
    }
    if ready.len() < ARCHITECTURES.len() {
        return Ok(());
    }
    written::part_of(BOOK, "trials", &table(&found))?;
    counts::compare()
}

/// Four CPUs of each architecture, for so long each; and as long on Bochs, if that can be had.
pub(crate) fn soak(each: Duration, seed: u64) -> Result<(), Failure> {
    for arch in emulators::for_boots()? {
        soak_on(&format!("--arch {arch}"), each, seed)?;
    }
    if let Err(failure) = emulators::bochs() {
        println!("skipped on Bochs: {}", failure.cause());
        return Ok(());
    }
    soak_on("--emulator bochs", each, seed)
}

/// All trials and storms, and each workload, again and again, with another seed each time. Whatever
/// is violated fails the boot, and so does a kernel that says nothing for a minute.
fn soak_on(machine: &str, time: Duration, seed: u64) -> Result<(), Failure> {
    /// Some 50 ms a round and storm, where four CPUs spin on two of the host's.
    const ROUNDS: u64 = 100;
    let start = Instant::now();
    let mut boots = 0;
    let mut is_over = || {
        boots += 1;
        start.elapsed() >= time
    };
    let mut seed = seed;
    loop {
        let storms = boot_with(machine).args("--cpus 4 --rounds").arg(ROUNDS.to_string());
        storms.output_or_show()?;
        for workload in WORKLOADS {
            if is_over() {
                println!("{machine}: {boots} boots with 4 CPUs, the last with seed {seed}");
                return Ok(());
            }
            boot_with(machine)
                .args("--cpus 4 --workload")
                .arg(workload)
                .arg("--seed")
                .arg(seed.to_string())
                .output_or_show()?;
        }
        seed = seed.wrapping_add(1);
    }
}

fn boot(arch: &str) -> Command {
    boot_with(&format!("--arch {arch}"))
}

fn boot_with(options: &str) -> Command {
    cargo("run --quiet -p shootdown-lab -- boot").args(options)
}

/// A row for each way to be missed and each fault, a column for each machine.
///
/// Of lines as `shootdown boot --format csv` prints them: machine, way, fault, verdict.
fn table(found: &[String]) -> String {
    let cells: Vec<[&str; 4]> = found
        .iter()
        .filter_map(|line| line.split(',').collect::<Vec<_>>().try_into().ok())
        .collect();
    let mut rows: Vec<(&str, &str)> = Vec::new();
    for [_, way, fault, _] in &cells {
        if !rows.contains(&(way, fault)) {
            rows.push((way, fault));
        }
    }
    let names = ARCHITECTURES.map(|(arch, ..)| arch);
    let mut text = format!("| a CPU that | fault | {} |\n|---|---|", names.join(" | "));
    text += &"---|".repeat(names.len());
    text.push('\n');
    for (way, fault) in rows {
        let _ = write!(text, "| {} | {fault} |", way.replace('-', " "));
        for arch in names {
            let is_it = |cell: &&[&str; 4]| cell[..3] == [arch, way, fault];
            let verdict = cells.iter().find(is_it).map_or("", |[.., verdict]| verdict);
            let _ = write!(text, " {verdict} |");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_machines_find_is_side_by_side() {
        let found = ["x86_64,reads-all,none,fresh", "aarch64,reads-all,none,stale"];
        let table = table(&found.map(str::to_owned));
        let rows: Vec<_> = table.lines().collect();
        assert_eq!(rows[0], "| a CPU that | fault | x86_64 | aarch64 | loongarch64 |");
        assert_eq!(rows[2], "| reads all | none | fresh | stale |  |");
        assert_eq!(rows.len(), 3);
    }
}
