//! Real Linux in guests: the model `linux-7.0` held against the kernels of a corpus of recordings.

mod batch;
mod cell;
mod corpus;
pub(crate) mod loops;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use crate::boots::golden;
use crate::command::{Failure, cargo};
use crate::setup;
use crate::test::builds;
use cell::{Cell, Place, Recorded, is_within};
pub(crate) use cell::{Counts, Verdict, counts};
pub(crate) use corpus::{PROGRAMS, Program, copied, words, written};

/// The kernels of the corpus, and the numbers of CPUs.
const KERNELS: [&str; 2] = ["6.12", "7.0"];
const CPUS: [u32; 6] = [2, 4, 8, 16, 32, 64];

/// The options of all guests of the corpus. Huge pages are not modelled.
const OPTIONS: &str = "--limit 7200 --append transparent_hugepage=never";

/// The largest relative error of the requests in CI, in percent. The guest's clock counts
/// instructions, so a busy host has no effect; three such runs were 2.0 to 2.2 % off.
const SAMPLE_PERCENT: u64 = 10;

/// The number of CPUs of the guest that CI boots. One of 16 CPUs takes twice the time.
const SAMPLE_CPUS: u32 = 8;

/// The page with the summary of the corpus, the mark of the summary, and the file with all cells.
const BOOK: &str = "docs/guests.md";
const MARK: &str = "corpus";
const CELLS: &str = "docs/data/guests.csv";

/// The smallest number of CPUs that the summary counts.
const SUMMARY_CPUS_MIN: u32 = 8;

/// Two programs in one guest, because a boot takes longer than both.
const SAMPLE: Program = Program {
    name: "sample",
    needs: "xz",
    inputs: |work| {
        let inputs = corpus::numbers(work, "data", 60_000)?;
        corpus::loops(work)?;
        Ok([inputs, vec![work.join("loops")]].concat())
    },
    command: |cpus| {
        let script =
            format!("xz -0 -T{cpus} --block-size=32KiB -k -f data; ./loops madvise {cpus} 64");
        vec!["sh".to_owned(), "-c".to_owned(), script]
    },
};

/// Records two programs in a guest, and checks that the model requests as many flushes as the
/// kernel. Skips itself where the kernel's package is not to be had.
pub(crate) fn check() -> Result<(), Failure> {
    let place = place(builds::lab()?)?;
    let Some(files) = SAMPLE.prepare(&place.work)? else {
        println!("skipped: {} is not installed", SAMPLE.needs);
        return Ok(());
    };
    let cell = Cell { program: &SAMPLE, kernel: KERNELS[0], cpus: SAMPLE_CPUS };
    let path =
        match cell.record(&place, &files, &format!("--counted --buffer-kib 1024 {OPTIONS}"))? {
            Recorded::At(path) => path,
            Recorded::Missing(why) => {
                println!("skipped: {why}");
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

/// The cells that a run records, before it writes the table of all that are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Selection<'a> {
    All,
    /// None: the recordings that there are.
    Known,
    /// All cells of a kernel and a number of CPUs.
    Guest {
        kernel: &'a str,
        cpus: &'a str,
    },
    /// The cell of a program, a kernel and a number of CPUs.
    Cell {
        program: &'a str,
        kernel: &'a str,
        cpus: &'a str,
    },
}

impl Selection<'_> {
    fn has(self, cell: &Cell) -> bool {
        match self {
            Self::All => true,
            Self::Known => false,
            Self::Guest { kernel, cpus } => {
                (kernel, cpus) == (cell.kernel, cell.cpus.to_string().as_str())
            }
            Self::Cell { program, kernel, cpus } => {
                program == cell.program.name && Self::Guest { kernel, cpus }.has(cell)
            }
        }
    }
}

/// Records the selected cells of the corpus, those of one kernel and number of CPUs in one or two
/// guests, and writes the table of verdicts into the book. Cells that were recorded before are only
/// replayed, so an interrupted run continues.
pub(crate) fn soak(selection: Selection<'_>) -> Result<(), Failure> {
    let cell = |(kernel, cpus)| PROGRAMS.iter().map(move |program| Cell { program, kernel, cpus });
    let places = CPUS.iter().flat_map(|&cpus| KERNELS.map(|kernel| (kernel, cpus)));
    let cells: Vec<Cell> = places.flat_map(cell).collect();
    let is_known = |selection: Selection<'_>| selection == Selection::Known;
    if !is_known(selection) && !cells.iter().any(|cell| selection.has(cell)) {
        let names: Vec<_> = PROGRAMS.iter().map(|program| program.name).collect();
        return Err(Failure::usage(
            "there is no such cell in the corpus",
            format!("cargo xtask soak guests with one of: {}, a kernel and CPUs", names.join(", ")),
        ));
    }
    setup::guests()?;
    cargo("build --quiet --release -p shootdown-lab").run()?;
    let place = place(crate::output().join("release/shootdown"))?;
    let mut rows = Rows::new();
    for (number, cell) in cells.iter().enumerate() {
        if let Some(path) = cell.known(&place) {
            insert(&mut rows, number, cell, cell.replay(&place, &path));
        }
    }
    let is_missing = |cell: &Cell| selection.has(cell) && cell.known(&place).is_none();
    for together in cells.chunk_by(is_same_guest) {
        let missing: Vec<Cell> = together.iter().copied().filter(is_missing).collect();
        for (cell, recorded) in record(&missing, &place)? {
            let counts = match recorded {
                Recorded::At(path) => cell.replay(&place, &path),
                Recorded::Missing(why) => Err(Failure::missing(why, "read the output above")),
            };
            let number = cells.iter().position(|it| *it == cell).unwrap_or_default();
            insert(&mut rows, number, &cell, counts);
            write(&rows, cells.len())?;
        }
    }
    write(&rows, cells.len())
}

/// Returns `true` if both cells are recorded in one guest: it runs all loops, or all real programs.
fn is_same_guest(one: &Cell, other: &Cell) -> bool {
    let is_loop = |cell: &Cell| cell.program.name.starts_with("loop ");
    (one.kernel, one.cpus, is_loop(one)) == (other.kernel, other.cpus, is_loop(other))
}

/// Records cells in one guest.
fn record(cells: &[Cell], place: &Place) -> Result<Vec<(Cell, Recorded)>, Failure> {
    let batch::Prepared { ready, files, absent } = batch::Prepared::new(cells, &place.work)?;
    // The other guests may succeed.
    let recorded = batch::record(&ready, place, &files, OPTIONS)
        .unwrap_or_else(|failure| vec![Recorded::Missing(failure.cause().into()); ready.len()]);
    let absent = absent
        .into_iter()
        .map(|cell| (cell, Recorded::Missing(format!("{} is not installed", cell.program.needs))));
    Ok(ready.iter().copied().zip(recorded).chain(absent).collect())
}

/// The rows of the table, by the order of the cells.
type Rows = BTreeMap<(&'static str, usize), (Cell, Result<Counts, String>)>;

fn insert(rows: &mut Rows, number: usize, cell: &Cell, counts: Result<Counts, Failure>) {
    println!("{}, Linux {}, {} CPUs: {counts:?}", cell.program.name, cell.kernel, cell.cpus);
    let counts = counts.map_err(|failure| failure.cause().to_owned());
    rows.insert((cell.program.name, number), (*cell, counts));
}

/// Returns the directories, which exist.
fn place(lab: PathBuf) -> Result<Place, Failure> {
    let root = std::path::absolute(crate::output().join("guests")).unwrap_or_default();
    let lab = std::path::absolute(&lab).unwrap_or(lab);
    let place = Place { lab, work: root.join("work"), recordings: root.join("recordings") };
    for directory in [&place.work, &place.recordings] {
        fs::create_dir_all(directory).map_err(|error| {
            Failure::new(format!("{}: {error}", directory.display()), "free some disk space")
        })?;
    }
    Ok(place)
}

/// Writes the file with the cells that were run, and their summary.
fn write(rows: &Rows, cells: usize) -> Result<(), Failure> {
    golden::check_file(CELLS, &csv(rows))?;
    golden::check_part(BOOK, MARK, &summary(rows, cells))
}

/// Returns the cells that were recorded, as CSV.
fn csv(rows: &Rows) -> String {
    let mut text = "program,linux,cpus,requests,requests_model,interrupts,interrupts_model,full,\
                    full_model,ranged,ranged_model,engine_requests,engine_interrupts,verdict\n"
        .to_owned();
    for (Cell { program, kernel, cpus }, counts) in rows.values() {
        let Ok(counts) = counts else { continue };
        let Counts { requests, interrupts, full, ranged, engine, .. } = *counts;
        let pairs = [requests, interrupts, full, ranged, engine];
        let pairs = pairs.map(|(one, other)| format!("{one},{other}")).join(",");
        let verdict = counts.verdict().name();
        // A string never refuses text.
        let _ = writeln!(text, "{},{kernel},{cpus},{pairs},{verdict}", program.name);
    }
    text
}

/// Returns a row for each program, the sum over the cells of many CPUs, and a line about all cells,
/// as Markdown.
fn summary(rows: &Rows, cells: usize) -> String {
    let mut programs = BTreeMap::<&str, ([u64; 4], [u64; 2])>::new();
    let mut verdicts = BTreeMap::<Verdict, usize>::new();
    for (cell, counts) in rows.values() {
        let Ok(counts) = counts else { continue };
        let verdict = counts.verdict();
        *verdicts.entry(verdict).or_default() += 1;
        if cell.cpus < SUMMARY_CPUS_MIN {
            continue;
        }
        let (sums, [close, all]) = programs.entry(cell.program.name).or_default();
        let (requests, interrupts) = (counts.requests, counts.interrupts.1);
        let found = [requests.0, requests.1, interrupts, counts.engine.1];
        sums.iter_mut().zip(found).for_each(|(sum, count)| *sum += count);
        *close += u64::from(verdict == Verdict::Close);
        *all += 1;
    }
    let mut text =
        "| program | requests: Linux | model | interrupts: model | engine | cells close \
                    |\n|---|---:|---:|---:|---:|---:|\n"
            .to_owned();
    for (name, ([linux, model, sent, engine], [close, all])) in programs {
        // A string never refuses text.
        let _ =
            writeln!(text, "| {name} | {linux} | {model} | {sent} | {engine} | {close} of {all} |");
    }
    let count: usize = verdicts.values().sum();
    let shares = verdicts.iter().map(|(verdict, share)| format!("{share} {}", verdict.name()));
    let shares = shares.collect::<Vec<_>>().join(", ");
    text + &format!("\n{count} of the {cells} cells are recorded: {shares}.\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_adds_cells_of_many_cpus() {
        let mut rows = Rows::new();
        for (number, cpus) in [4, 8, 16].into_iter().enumerate() {
            let cell = Cell { program: &SAMPLE, kernel: KERNELS[0], cpus };
            let counts = Counts {
                requests: (100, 101),
                interrupts: (90, 91),
                engine: (3, 2),
                ..Counts::default()
            };
            insert(&mut rows, number, &cell, Ok(counts));
        }
        let text = summary(&rows, 5);
        assert!(text.contains("| sample | 200 | 202 | 182 | 4 | 2 of 2 |\n"), "{text}");
        assert!(text.ends_with("3 of the 5 cells are recorded: 3 close.\n"), "{text}");
        assert!(csv(&rows).contains("sample,6.12,4,100,101,90,91,0,0,0,0,3,2,close\n"));
    }
}
