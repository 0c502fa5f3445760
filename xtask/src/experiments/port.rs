//! The programs of the corpus on real Linux, as the distribution builds it and on the engine; and
//! the model of the engine, held against the latter.

use std::fmt::Write as _;
use std::fs;

use super::cell::{Cell, Counts, PORT, Place, REQUESTS, Recorded, is_within};
use super::corpus::{CORPUS, Program};
use super::{KERNELS, OPTIONS, is_loop, place, record_in_guest};
use crate::boots::golden;
use crate::command::{Failure, cargo, unwritable};
use crate::output;
use crate::setup;

/// The file with the table. The chapter on the port explains it.
const TABLE: &str = "docs/data/linux-programs.csv";

/// The chapter, and the number of CPUs of the guests.
const BOOK: &str = "docs/linux.md";
const CPUS: u32 = 4;

const HEAD: &str = "program,cpus,requests_stock,interrupts_stock,full_stock,ranged_stock,requests,\
                    interrupts,full,ranged,requests_linux,requests_model,model\n";

/// The columns of the chapter's table: requests of stock, of ours, and of the model of Linux;
/// interrupts of stock and of ours.
const COLUMNS: [usize; 5] = [2, 6, 10, 3, 7];

/// Runs all programs on both kernels in guests, one after the other, and writes the table. The
/// cache of guests must have the port.
pub(crate) fn compare() -> Result<(), Failure> {
    setup::guests()?;
    cargo("build --quiet --release -p shootdown-lab").run()?;
    let place = place(output().join("release/shootdown"))?;
    let [stock, ours] = [KERNELS[0], PORT].map(|kernel| recorded(kernel, &place));
    let mut rows = Vec::new();
    for ((stock, theirs), (port, found)) in stock.into_iter().zip(ours) {
        let failed = |cell: &Cell, why: String| {
            Failure::new(format!("{cell}: {why}"), "read the output above, and run it again")
        };
        let theirs = theirs.map_err(|why| failed(&stock, why))?;
        let found = found.map_err(|why| failed(&port, why))?;
        let counts = port.counts(&place);
        let counts = fs::read_to_string(&counts).map_err(unwritable(&counts))?;
        let requests = requests(&counts)
            .ok_or_else(|| failed(&port, "the engine's counters are missing".to_owned()))?;
        let (theirs, found) = (stock.replay(&place, &theirs)?, port.replay(&place, &found)?);
        let row = row(&port, (&theirs, &found), requests);
        print!("{row}");
        rows.push(row);
    }
    let table: String = [HEAD.to_owned()].into_iter().chain(rows).collect();
    golden::check_file(TABLE, &table)?;
    golden::check_part(BOOK, "programs", &summary(&table))
}

/// Records all programs, the loops in one guest and the others in another. CPUs take turns, and
/// instructions are the clock: with a thread of the host for each CPU, a busy host moves the times
/// of the records against each other, and the model is up to 13 % off.
fn recorded(kernel: &'static str, place: &Place) -> Vec<(Cell, Recorded)> {
    let cells = CORPUS.everywhere.iter().map(|program| Cell { program, kernel, cpus: CPUS });
    let (loops, programs): (Vec<_>, Vec<_>) = cells.partition(is_loop);
    let options = format!("--counted {OPTIONS}");
    let record = |cells: Vec<Cell>| record_in_guest(&cells, place, &options);
    let mut recorded = [loops, programs].map(record).concat();
    recorded.sort_by_key(|(cell, _)| position(cell.program));
    recorded
}

fn position(program: &Program) -> usize {
    CORPUS.everywhere.iter().position(|other| other.name == program.name).unwrap_or_default()
}

/// The requests between two readings of the engine's counters: one for each CPU that was asked to
/// flush, with or without an interrupt of its own. A recording has those with an interrupt.
fn requests(counts: &str) -> Option<u64> {
    let of = |name: &str| {
        let values = counts.lines().filter_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        let values: Vec<u64> = values.collect();
        values.get(1).zip(values.first()).map(|(after, before)| after - before)
    };
    Some(of("interrupts_sent ")? + of("rings_coalesced ")?)
}

fn row(cell: &Cell, (stock, ours): (&Counts, &Counts), requests: u64) -> String {
    let (linux, model) = (ours.requests.1, ours.engine.0);
    let verdict = if is_within(REQUESTS, (requests, model)) { "close" } else { "off" };
    format!(
        "{},{},{},{},{},{},{requests},{},{},{},{linux},{model},{verdict}\n",
        cell.program.name,
        cell.cpus,
        stock.requests.0,
        stock.interrupts.0,
        stock.full.0,
        stock.ranged.0,
        ours.interrupts.0,
        ours.full.0,
        ours.ranged.0,
    )
}

/// Returns a table in Markdown of each program and of the sums, and the number of rows in which the
/// model is close.
fn summary(table: &str) -> String {
    let mut text = "| program | requests, stock | ours | by Linux's rules | \
                    interrupts, stock | ours |\n|---|---:|---:|---:|---:|---:|\n"
        .to_owned();
    let mut add = |name: &str, counts: [u64; COLUMNS.len()]| {
        let counts = counts.map(|count| format!(" {count} |")).concat();
        // A string never refuses text.
        let _ = writeln!(text, "| {name} |{counts}");
    };
    let (mut sums, mut close, mut rows) = ([0; COLUMNS.len()], 0, 0);
    for row in table.strip_prefix(HEAD).unwrap_or_default().lines() {
        let row: Vec<&str> = row.split(',').collect();
        let counts = COLUMNS.map(|at| row[at].parse().unwrap_or(0));
        add(&format!("`{}`", row[0]), counts);
        sums = std::array::from_fn(|at| sums[at] + counts[at]);
        close += u32::from(row.last() == Some(&"close"));
        rows += 1;
    }
    add("all", sums);
    format!(
        "{text}\nIn {close} of {rows} rows, the requests of the simulated engine are close to \
         those of ours.\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::read_tracked;

    #[test]
    fn requests_are_the_difference_of_two_readings() {
        let reading = |sent, coalesced| {
            format!("requests 9\ninterrupts_sent {sent}\nrings_coalesced {coalesced}\n")
        };
        assert_eq!(requests(&(reading(5, 7) + &reading(8, 70))), Some(3 + 63));
        assert_eq!(requests(&reading(5, 7)), None);
    }

    #[test]
    fn row_has_both_kernels_and_the_model() {
        let cell = Cell { program: &CORPUS.everywhere[0], kernel: PORT, cpus: CPUS };
        let stock = Counts { requests: (100, 0), interrupts: (90, 0), ..Counts::default() };
        let ours = Counts {
            requests: (8, 140),
            interrupts: (8, 0),
            engine: (104, 0),
            ..Counts::default()
        };
        let row = |requests| row(&cell, (&stock, &ours), requests);
        assert_eq!(row(100), "loop madvise,4,100,90,0,0,100,8,0,0,140,104,close\n");
        assert!(row(1000).ends_with(",104,off\n"));
        let table = format!("{HEAD}{}{}", row(100), row(1000));
        let summary = summary(&table);
        assert!(summary.contains("\n| `loop madvise` | 100 | 100 | 140 | 90 | 8 |\n"), "{summary}");
        assert!(summary.contains("\n| all | 200 | 1100 | 280 | 180 | 16 |\n"), "{summary}");
        assert!(summary.contains("\nIn 1 of 2 rows"), "{summary}");
    }

    #[test]
    fn book_has_the_table() {
        let table = read_tracked(TABLE).expect("the file");
        assert_eq!(table.strip_prefix(HEAD).expect("the head").lines().count(), 17);
        golden::check_part(BOOK, "programs", &summary(&table)).expect("the table of the book");
    }
}
