//! The tables of verdicts on the model: a file with all cells, and for guests a summary in the
//! book.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::cell::{Cell, Counts, HOST, Verdict};
use crate::boots::golden;
use crate::command::Failure;

/// The table of the cells in guests. The summary is a part of the chapter on guests.
pub(super) const GUESTS: Table = Table {
    file: "docs/data/guests.csv",
    head: "program,linux,cpus,requests,requests_model,interrupts,interrupts_model,full,full_model,\
           ranged,ranged_model,verdict",
    columns: &[
        |counts| counts.requests,
        |counts| counts.interrupts,
        |counts| counts.full,
        |counts| counts.ranged,
    ],
    summary: Some(("docs/guests.md", "corpus")),
};

/// The table of the programs on this host. The chapter on replays explains it.
pub(super) const HOST_ALONE: Table = Table {
    file: "docs/data/fidelity.csv",
    head: "program,requests,requests_model,full,full_model,ranged,ranged_model,verdict,cause",
    columns: &[|counts| counts.requests, |counts| counts.full, |counts| counts.ranged],
    summary: None,
};

/// The smallest number of CPUs that the summary counts.
const SUMMARY_CPUS_MIN: u32 = 8;

/// The rows of a table, by the first cell of their program and by their own position.
pub(super) type Rows = BTreeMap<(usize, usize), (Cell, Result<Counts, String>)>;

/// Returns the kernel's count and the model's.
type Column = fn(&Counts) -> (u64, u64);

pub(super) struct Table {
    file: &'static str,
    head: &'static str,
    /// The pairs of counts.
    columns: &'static [Column],
    /// The page of the book with a summary, and the mark of the summary.
    summary: Option<(&'static str, &'static str)>,
}

impl Table {
    /// Writes the cells that were run, and their summary.
    pub(super) fn write(&self, rows: &Rows, cells: usize) -> Result<(), Failure> {
        golden::check_file(self.file, &self.csv(rows))?;
        self.summary
            .map_or(Ok(()), |(page, mark)| golden::check_part(page, mark, &summary(rows, cells)))
    }

    /// Returns the cells that were run, as CSV.
    fn csv(&self, rows: &Rows) -> String {
        let mut text = format!("{}\n", self.head);
        for (Cell { program, kernel, cpus }, counts) in rows.values() {
            let place = if *kernel == HOST { String::new() } else { format!("{kernel},{cpus},") };
            let (pairs, verdict) = match counts {
                Ok(counts) => {
                    let pairs = self.columns.iter().map(|column| column(counts));
                    let pairs: Vec<_> = pairs.map(|(one, two)| format!("{one},{two}")).collect();
                    (pairs.join(","), counts.verdict().name())
                }
                Err(_) => (",".repeat(2 * self.columns.len() - 1), "not recorded"),
            };
            let is_close = matches!(counts, Ok(counts) if counts.verdict() == Verdict::Close);
            let cause = match (*kernel, &program.known) {
                (HOST, Some(cause)) if !is_close => format!(",{cause}"),
                (HOST, _) => ",".to_owned(),
                _ => String::new(),
            };
            // A string never refuses text.
            let _ = writeln!(text, "{},{place}{pairs},{verdict}{cause}", program.name);
        }
        text
    }
}

/// Returns a row for each program, the sum over the cells of many CPUs, and a line about all cells,
/// as Markdown.
fn summary(rows: &Rows, cells: usize) -> String {
    let mut programs = BTreeMap::<&str, ([u64; 3], [u64; 2])>::new();
    let mut verdicts = BTreeMap::<Verdict, usize>::new();
    for (cell, counts) in rows.values() {
        let Ok(counts) = counts else { continue };
        let verdict = counts.verdict();
        *verdicts.entry(verdict).or_default() += 1;
        if cell.cpus < SUMMARY_CPUS_MIN {
            continue;
        }
        let (sums, [close, all]) = programs.entry(&cell.program.name).or_default();
        let found = [counts.requests.0, counts.requests.1, counts.interrupts.1];
        sums.iter_mut().zip(found).for_each(|(sum, count)| *sum += count);
        *close += u64::from(verdict == Verdict::Close);
        *all += 1;
    }
    let mut text = "| program | requests: Linux | model | interrupts: model | cells close |\n\
                    |---|---:|---:|---:|---:|\n"
        .to_owned();
    for (name, ([linux, model, sent], [close, all])) in programs {
        // A string never refuses text.
        let _ = writeln!(text, "| {name} | {linux} | {model} | {sent} | {close} of {all} |");
    }
    let count: usize = verdicts.values().sum();
    let shares = verdicts.iter().map(|(verdict, share)| format!("{share} {}", verdict.name()));
    let shares = shares.collect::<Vec<_>>().join(", ");
    text + &format!("\n{count} of the {cells} cells are recorded: {shares}.\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::corpus::CORPUS;

    /// Rows of one program with these numbers of CPUs, of which one could not be recorded.
    fn rows(kernel: &'static str, counts: Counts) -> Rows {
        let python = CORPUS.everywhere.iter().find(|program| program.name == "python").unwrap();
        let row = |(number, cpus)| {
            let counts = if cpus == 2 { Err("it is not installed".to_owned()) } else { Ok(counts) };
            ((0, number), (Cell { program: python, kernel, cpus }, counts))
        };
        [2, 4, 8, 16].into_iter().enumerate().map(row).collect()
    }

    #[test]
    fn files_have_a_row_for_each_cell() {
        let off = Counts { requests: (100, 200), ..Counts::default() };
        let columns = |line: &str| line.matches(',').count();
        let host = HOST_ALONE.csv(&rows(HOST, off));
        assert!(host.lines().all(|line| columns(line) == 8), "{host}");
        assert!(
            host.contains("python,100,200,0,0,0,0,requests,switches during a flush\n"),
            "{host}"
        );
        assert!(host.contains("python,,,,,,,not recorded,"), "{host}");
        let guest = GUESTS.csv(&rows("7.0", off));
        assert!(guest.lines().all(|line| columns(line) == 11), "{guest}");
        assert!(guest.contains("python,7.0,4,100,200,0,0,0,0,0,0,requests\n"), "{guest}");
    }

    #[test]
    fn summary_adds_cells_of_many_cpus() {
        let close = Counts { requests: (100, 101), interrupts: (90, 91), ..Counts::default() };
        let text = summary(&rows("7.0", close), 5);
        assert!(text.contains("| python | 200 | 202 | 182 | 2 of 2 |\n"), "{text}");
        assert!(text.ends_with("3 of the 5 cells are recorded: 3 close.\n"), "{text}");
    }
}
