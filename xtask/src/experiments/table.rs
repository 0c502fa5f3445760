//! The tables of verdicts on the model: files with all cells.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::cell::{Cell, Counts, HOST, Verdict};
use crate::boots::golden;
use crate::command::Failure;

/// The table of the cells in guests. The chapter on guests explains it.
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
};

/// The table of the programs on this host. The chapter on replays explains it.
pub(super) const HOST_ALONE: Table = Table {
    file: "docs/data/fidelity.csv",
    head: "program,requests,requests_model,full,full_model,ranged,ranged_model,verdict,cause",
    columns: &[|counts| counts.requests, |counts| counts.full, |counts| counts.ranged],
};

/// The rows of a table, by the first cell of their program and by their own position.
pub(super) type Rows = BTreeMap<(usize, usize), (Cell, Result<Counts, String>)>;

/// Returns the kernel's count and the model's.
type Column = fn(&Counts) -> (u64, u64);

pub(super) struct Table {
    file: &'static str,
    head: &'static str,
    /// The pairs of counts.
    columns: &'static [Column],
}

impl Table {
    /// Writes the cells that were run.
    pub(super) fn write(&self, rows: &Rows) -> Result<(), Failure> {
        golden::check_file(self.file, &self.csv(rows))
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
    fn chapter_has_the_number_of_each_verdict() {
        let rows = crate::command::read_tracked(GUESTS.file).unwrap();
        let count = |verdict: &str| rows.lines().filter(|row| row.ends_with(verdict)).count();
        let [close, kinds, flushes, requests] =
            [",close", ",kinds", ",flushes", ",requests"].map(count);
        let chapter = crate::command::read_tracked("docs/guests.md").unwrap();
        let words = chapter.split_whitespace().collect::<Vec<_>>().join(" ");
        let sentence = format!(
            "Of the {} recordings, {close} are close, {kinds} differ in kinds, {flushes} in \
             flushes and {requests} in requests.",
            rows.lines().count() - 1
        );
        assert!(words.contains(&sentence), "docs/guests.md lacks: {sentence}");
    }
}
