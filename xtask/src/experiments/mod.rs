//! Experiments with real programs: the model `linux-7.0` held against kernels in guests and the
//! kernel of this host, and the predictions of `explain` held against programs with a known cause
//! of shootdowns.

mod batch;
mod cell;
mod corpus;
pub(crate) mod culprits;
pub(crate) mod loops;
pub(crate) mod port;
mod table;

use std::fs;
use std::path::PathBuf;

use crate::command::{Failure, cargo, unwritable};
use crate::setup;
use crate::test::builds;
use cell::{Cell, Counts, HOST, Place, Recorded, is_within};
use corpus::CORPUS;
use table::{GUESTS, HOST_ALONE, Rows, Table};

/// The kernels of the corpus, and the numbers of CPUs.
const KERNELS: [&str; 2] = ["6.12", "7.0"];
const CPUS: [u32; 6] = [2, 4, 8, 16, 32, 64];

/// Number of threads or processes of a program on this host.
const CPUS_OF_HOST: u32 = 2;

/// The options of all guests of the corpus. Huge pages are not modelled.
const OPTIONS: &str = "--limit 7200 --append transparent_hugepage=never";

/// The size of each of the kernel's buffers, in KiB, as `shootdown guest` has it.
const BUFFER_KIB: u32 = 4096;

/// The largest relative error of the requests in CI, in percent. The guest's clock counts
/// instructions, so a busy host has no effect; three such runs were 2.0 to 2.2 % off.
const SAMPLE_PERCENT: u64 = 10;

/// The number of CPUs of the guest that CI boots. One of 16 CPUs takes twice the time.
const SAMPLE_CPUS: u32 = 8;

/// Records two programs in a guest, and checks that the model requests as many flushes as the
/// kernel. Skips itself where the kernel's package is not to be had.
pub(crate) fn check() -> Result<(), Failure> {
    let place = place(builds::lab()?)?;
    let cell = Cell { program: &CORPUS.sample, kernel: KERNELS[0], cpus: SAMPLE_CPUS };
    let recorded = batch::record(&[cell], &place, &format!("--counted {OPTIONS}"), 1024)?;
    let path = match recorded.into_iter().next() {
        Some((_, Ok(path))) => path,
        missing => {
            println!(
                "skipped: {}",
                missing.map_or_else(String::new, |(_, why)| format!("{why:?}"))
            );
            return Ok(());
        }
    };
    let counts = cell.replay(&place, &path)?;
    println!("Linux {} on {} CPUs: {counts:?}", cell.kernel, cell.cpus);
    if counts.requests.0 == 0 || !is_within(SAMPLE_PERCENT, counts.requests) {
        let (kernel, model) = counts.requests;
        return Err(Failure::new(
            format!("the kernel requested {kernel} flushes, and the model {model}"),
            format!("shootdown replay {} --machine xeon-2s", path.display()),
        ));
    }
    Ok(())
}

/// Records the cells of the corpus that have all these words: a program, a kernel, a number of
/// CPUs. Those of one kernel and number of CPUs are recorded in one or two guests. Writes the
/// tables of verdicts. Cells that were recorded before are only replayed, so an interrupted run
/// continues. With the word `known`, only writes the tables.
pub(crate) fn guests(words: &[&str]) -> Result<(), Failure> {
    let programs = || CORPUS.everywhere.iter();
    let cell = |(kernel, cpus)| programs().map(move |program| Cell { program, kernel, cpus });
    let places = CPUS.iter().flat_map(|&cpus| KERNELS.map(|kernel| (kernel, cpus)));
    let cells: Vec<Cell> = places.flat_map(cell).collect();
    if words != ["known"] && !cells.iter().any(|cell| has_words(cell, words)) {
        let names: Vec<_> = programs().map(|program| program.name.as_str()).collect();
        return Err(Failure::usage(
            "there is no such cell in the corpus",
            format!("cargo xtask soak guests with one of: {}, a kernel and CPUs", names.join(", ")),
        ));
    }
    setup::guests()?;
    soak(&cells, words, &GUESTS)
}

/// Records each program on this host, and writes the table of verdicts.
pub(crate) fn fidelity() -> Result<(), Failure> {
    let programs = CORPUS.everywhere.iter().chain(&CORPUS.host);
    let cell = |program| Cell { program, kernel: HOST, cpus: CPUS_OF_HOST };
    soak(&programs.map(cell).collect::<Vec<_>>(), &[], &HOST_ALONE)
}

fn has_words(cell: &Cell, words: &[&str]) -> bool {
    let of_cell = [cell.program.name.as_str(), cell.kernel, &cell.cpus.to_string()];
    words.iter().all(|word| of_cell.contains(word))
}

/// Records the cells with these words, unless they were recorded before, replays all recordings,
/// and writes a table.
fn soak(cells: &[Cell], words: &[&str], table: &Table) -> Result<(), Failure> {
    cargo("build --quiet --release -p shootdown-lab").run()?;
    let place = place(crate::output().join("release/shootdown"))?;
    let mut rows = Rows::new();
    let mut insert = |cell: &Cell, counts: Result<Counts, Failure>| {
        println!("{cell}: {counts:?}");
        let is_it = |other: &Cell| other.file() == cell.file();
        let number = cells.iter().position(is_it).unwrap_or_default();
        let counts = counts.map_err(|failure| failure.cause().to_owned());
        rows.insert((first(cells, cell), number), (*cell, counts));
        table.write(&rows)
    };
    for cell in cells {
        if let Some(path) = cell.known(&place) {
            insert(cell, cell.replay(&place, &path))?;
        }
    }
    let is_missing = |cell: &Cell| has_words(cell, words) && cell.known(&place).is_none();
    for together in cells.chunk_by(is_same_guest) {
        let missing: Vec<Cell> = together.iter().copied().filter(is_missing).collect();
        for (cell, recorded) in record(&missing, &place) {
            let path = recorded.map_err(|why| Failure::missing(why, "read the output above"));
            insert(&cell, path.and_then(|path| cell.replay(&place, &path)))?;
        }
    }
    Ok(())
}

/// Returns the position of the first cell of the same program, by which rows are ordered.
fn first(cells: &[Cell], cell: &Cell) -> usize {
    cells.iter().position(|other| other.program.name == cell.program.name).unwrap_or_default()
}

fn is_loop(cell: &Cell) -> bool {
    cell.program.name.starts_with("loop ")
}

/// Returns `true` if both cells are recorded in one guest: it runs all loops, or all real programs.
fn is_same_guest(one: &Cell, other: &Cell) -> bool {
    (one.kernel, one.cpus, is_loop(one)) == (other.kernel, other.cpus, is_loop(other))
}

/// Records cells in one guest, or on this host. If that fails, others may succeed.
fn record(cells: &[Cell], place: &Place) -> Vec<(Cell, Recorded)> {
    let failed = |failure: Failure| Err(failure.cause().to_owned());
    if cells.first().is_some_and(|cell| cell.kernel == HOST) {
        let record = |cell: &Cell| (*cell, cell.record_on_host(place).unwrap_or_else(failed));
        return cells.iter().map(record).collect();
    }
    record_in_guest(cells, place, OPTIONS)
}

fn record_in_guest(cells: &[Cell], place: &Place, options: &str) -> Vec<(Cell, Recorded)> {
    batch::record(cells, place, options, BUFFER_KIB).unwrap_or_else(|failure| {
        cells.iter().map(|cell| (*cell, Err(failure.cause().to_owned()))).collect()
    })
}

/// Returns the directories, which exist.
fn place(lab: PathBuf) -> Result<Place, Failure> {
    let root = std::path::absolute(crate::output().join("guests")).unwrap_or_default();
    let lab = std::path::absolute(&lab).unwrap_or(lab);
    let (work, recordings) = (corpus::work_directory(&root)?, root.join("recordings"));
    let place = Place { lab, work, recordings };
    fs::create_dir_all(&place.recordings).map_err(unwritable(&root))?;
    Ok(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_select_cells() {
        let cell = Cell { program: &CORPUS.everywhere[1], kernel: "7.0", cpus: 4 };
        assert!(has_words(&cell, &[]) && has_words(&cell, &["loop mprotect", "7.0", "4"]));
        assert!(!has_words(&cell, &["7.0", "8"]) && !has_words(&cell, &["known"]));
    }
}
