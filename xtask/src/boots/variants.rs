//! Workloads with each value of an option, under instruction counting. Some values are faults,
//! which must show as wrong words.

use std::fmt::Write as _;

use super::{BOOK, Built, Part, golden, number};
use crate::command::Failure;
use crate::parallel;

/// A table of the book.
struct Table {
    /// The name of the table's marks.
    name: &'static str,
    workload: &'static str,
    option: &'static str,
    /// The heading of the column with the option's values.
    heading: &'static str,
    /// The values that are right. CI boots the first.
    right: &'static [&'static str],
    /// The values that are faults.
    faults: &'static [&'static str],
    /// The headings of the columns, and the names of their counts in the kernel's report.
    columns: &'static [(&'static str, &'static str)],
}

const INTERRUPTS: (&str, &str) = ("interrupts", "ipis_sent");
const WRONG: (&str, &str) = ("wrong words", "violations");

const TABLES: [Table; 4] = [
    Table {
        name: "reclaim",
        workload: "reclaim",
        option: "--reclaim",
        heading: "flushes of these pages",
        right: &["batched", "per-page"],
        faults: &["unflushed"],
        columns: &[("pages read in", "read_in"), INTERRUPTS, WRONG],
    },
    Table {
        name: "fault-around",
        workload: "reclaim",
        option: "--fault-around",
        heading: "neighbours",
        right: &["unmarked", "marked", "never"],
        faults: &["unaged"],
        columns: &[
            ("pages read in", "read_in"),
            ("mapped around", "mapped_around"),
            INTERRUPTS,
            WRONG,
        ],
    },
    Table {
        name: "moves",
        workload: "moves",
        option: "--reclaim",
        heading: "flushes of these pages",
        right: &["batched", "per-page"],
        faults: &["unflushed"],
        columns: &[("pages moved", "migrated"), INTERRUPTS, WRONG],
    },
    Table {
        name: "discards",
        workload: "arena",
        option: "--discards",
        heading: "release",
        right: &["in-place", "immediate"],
        faults: &["untested", "unflushed"],
        columns: &[
            ("pages discarded in place", "pages_discarded_in_place"),
            ("freed later", "pages_discarded_freed"),
            INTERRUPTS,
            WRONG,
        ],
    },
];

/// Boots each workload with the values of its option, and compares the counts with the book.
pub(super) fn compare(built: &Built, part: Part) -> Result<(), Failure> {
    for table in &TABLES {
        match part {
            Part::Sample => golden::has_lines(BOOK, &table.rows(built, &table.right[..1])?)?,
            Part::All => {
                let text = table.head() + &table.rows(built, table.right)?;
                golden::check_part(BOOK, table.name, &text)?;
            }
        }
    }
    Ok(())
}

impl Table {
    fn head(&self) -> String {
        let mut text = format!("| {} |", self.heading);
        for (heading, _) in self.columns {
            let _ = write!(text, " {heading} |");
        }
        text + "\n|---|" + &"---|".repeat(self.columns.len()) + "\n"
    }

    /// Returns the rows of these right values, and of all faults.
    fn rows(&self, built: &Built, right: &[&str]) -> Result<String, Failure> {
        let values = [right, self.faults].concat();
        let rows = parallel::map(&values, |value| {
            let options = format!("--cpus 4 {} {value}", self.option);
            self.row(value, &built.console(self.workload, &options)?)
        });
        rows.into_iter().collect()
    }

    /// Returns the row of a value, with which the kernel has printed `output`.
    fn row(&self, value: &str, output: &str) -> Result<String, Failure> {
        let Self { workload, option, .. } = self;
        let failure = |cause: &str| {
            Failure::new(
                format!("`{workload}` with {option} {value} {cause}"),
                format!("shootdown boot --workload {workload} {option} {value} --counts --console"),
            )
        };
        let mut row = format!("| {value} |");
        for (_, name) in self.columns {
            let count = number(output, name).ok_or_else(|| failure("has no report"))?;
            if *name == WRONG.1 && self.faults.contains(&value) != (count != 0) {
                return Err(failure(&format!("reads {count} wrong words")));
            }
            let _ = write!(row, " {count} |");
        }
        Ok(row + "\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(value: &str, wrong: u64) -> Result<String, Failure> {
        let output = format!(r#"{{"ipis_sent":7,"violations":{wrong},"read_in":9}}"#);
        TABLES[0].row(value, &output)
    }

    #[test]
    fn row_has_a_cell_for_each_column() {
        assert_eq!(row("batched", 0).unwrap(), "| batched | 9 | 7 | 0 |\n");
        assert_eq!(row("unflushed", 5).unwrap(), "| unflushed | 9 | 7 | 5 |\n");
        assert!(TABLES[0].row("batched", "no report").is_err());
        let columns = |text: &str| text.lines().map(|line| line.matches('|').count()).max();
        assert_eq!(columns(&TABLES[0].head()), columns(&row("batched", 0).unwrap()));
    }

    #[test]
    fn only_faults_may_and_must_show() {
        assert!(row("batched", 1).is_err());
        assert!(row("unflushed", 0).is_err());
    }
}
