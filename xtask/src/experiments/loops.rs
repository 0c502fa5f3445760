//! The same programs on all: on real Linux, on the model of that Linux, on the engine in the
//! simulator, and on the engine in the kernel that boots.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::cell::{Cell, Place};
use super::corpus::CORPUS;
use super::{CPUS, KERNELS, place, record};
use crate::boots::golden;
use crate::command::{Command, Failure, cargo};
use crate::setup::{self, emulators};
use crate::{output, parallel};

/// The version of Linux.
const KERNEL: &str = KERNELS[1];

/// The operations of all CPUs together, as in the corpus.
const ITERATIONS: u32 = 512;

/// The file with the table. The chapter on guests explains it.
const TABLE: &str = "docs/data/loops.csv";

const TARGET: &str = "x86_64-unknown-none";

/// The largest number of CPUs on which the kernel boots here. It can boot with 16, but a counted
/// run of `loop fault` then takes over ten minutes.
const BOOTED_CPUS_MAX: u32 = 8;

/// Records the loops on one CPU, and on more CPUs where no recording is known, runs all of them on
/// the model, on the engine and on the kernel that boots, and writes the table.
pub(crate) fn compare() -> Result<(), Failure> {
    setup::guests()?;
    cargo("build --quiet --release -p shootdown-lab").run()?;
    emulators::build_kernels("bench", &[TARGET])?;
    let place = place(output().join("release/shootdown"))?;
    let kernel = output().join(TARGET).join("release/shootdown-kernel");
    let rows: Vec<_> = recorded(&place)?;
    let lines = parallel::map(&rows, |(cell, path)| line(cell, path, &place, &kernel));
    let mut text = "loop,cpus,requests,interrupts,full,ranged,model_requests,model_interrupts,\
                    model_full,model_ranged,engine_requests,engine_interrupts,engine_flushes,\
                    booted_requests,booted_interrupts,booted_flushes\n"
        .to_owned();
    for line in lines {
        text += &line?;
    }
    golden::check_file(TABLE, &text)
}

/// Returns the recordings of the loops, by loop and number of CPUs.
fn recorded(place: &Place) -> Result<Vec<(Cell, PathBuf)>, Failure> {
    let all = CORPUS.everywhere.iter();
    let loops = || all.clone().filter(|program| program.name.starts_with("loop "));
    for cpus in [1].into_iter().chain(CPUS) {
        let cells = loops().map(|program| Cell { program, kernel: KERNEL, cpus });
        let missing: Vec<Cell> = cells.filter(|cell| cell.known(place).is_none()).collect();
        for (cell, recorded) in record(&missing, place) {
            if let Err(why) = recorded {
                return Err(Failure::missing(format!("{cell}: {why}"), "read the output above"));
            }
        }
    }
    let cells = loops().flat_map(|program| {
        [1].into_iter().chain(CPUS).map(move |cpus| Cell { program, kernel: KERNEL, cpus })
    });
    Ok(cells.filter_map(|cell| Some((cell, cell.known(place)?))).collect())
}

/// Returns the row of a recording.
fn line(cell: &Cell, path: &Path, place: &Place, kernel: &Path) -> Result<String, Failure> {
    let counts = cell.replay(place, path)?;
    let [linux, model] = [|pair: (u64, u64)| pair.0, |pair: (u64, u64)| pair.1].map(|side| {
        per_operation(&[counts.requests, counts.interrupts, counts.full, counts.ranged].map(side))
    });
    let engine = per_operation(&[counts.engine.0, counts.engine.1, counts.engine_flushes]);
    let booted = match cell.cpus {
        ..=BOOTED_CPUS_MAX => per_operation(&booted(cell, path, place, kernel)?),
        _ => ",,".to_owned(),
    };
    let (name, cpus) = (cell.program.name.trim_start_matches("loop "), cell.cpus);
    let mut line = String::new();
    // A string never refuses text.
    let _ = writeln!(line, "{name},{cpus},{linux},{model},{engine},{booted}");
    Ok(line)
}

/// Runs a recording on the kernel that boots, with counted instructions: CPUs take turns, and the
/// counts are the same on any host. Returns requests, interrupts and flushes.
fn booted(cell: &Cell, path: &Path, place: &Place, kernel: &Path) -> Result<[u64; 3], Failure> {
    let boot =
        Command::new(&place.lab).args("boot --counts --arch x86_64 --format csv --patience 1800");
    let boot = boot.arg("--kernel").arg(kernel).arg("--cpus").arg(cell.cpus.to_string());
    let printed = boot.arg("--workload").arg(path).output()?;
    let count = |name: &str| {
        let fields = printed.lines().map(|line| line.split(',').rev().take(3).collect::<Vec<_>>());
        let mut found = fields.filter(|fields| fields.get(2) == Some(&name));
        found.next().and_then(|fields| fields[1].parse::<u64>().ok()).ok_or_else(|| {
            Failure::new(format!("the kernel did not print {name} of {cell}"), "try it by hand")
        })
    };
    let sent = count("ipis_sent")?;
    let requests = sent + count("ipis_coalesced")?;
    Ok([requests, sent, count("flushes_full")? + count("flushes_ranged")?])
}

/// Returns counts divided by the number of operations.
fn per_operation(counts: &[u64]) -> String {
    let each = |&count: &u64| format!("{:.2}", count as f64 / f64::from(ITERATIONS));
    counts.iter().map(each).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_divided_by_operations() {
        assert_eq!(per_operation(&[0, 512, 515, 32_256]), "0.00,1.00,1.01,63.00");
    }
}
