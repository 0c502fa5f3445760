//! Workloads with each value of an option, under instruction counting. Some values are faults,
//! which must show as wrong words.

use std::fmt::Write as _;

use super::{Built, Part, golden, number};
use crate::command::Failure;
use crate::parallel;

/// The golden file with the tables.
const FILE: &str = "kernel/variants.md";

/// A table of the file.
struct Table {
    /// The name of the table's marks.
    name: &'static str,
    head: &'static str,
    rows: Vec<Row>,
}

/// A row of a table.
struct Row {
    label: String,
    runs: Vec<Run>,
    /// For each column, the index of a run, and the name of a count in the kernel's report.
    cells: Vec<(usize, &'static str)>,
    /// A count that must be the same in all runs without a fault.
    same: Option<&'static str>,
    /// `true` if CI boots it.
    is_in_test: bool,
}

/// A boot of a workload with a value of an option.
#[derive(Clone, Copy, Debug)]
struct Run {
    workload: &'static str,
    cpus: u32,
    option: &'static str,
    value: &'static str,
    /// The value is a fault.
    has_fault: bool,
    /// CPUs must read wrong words. If this is `false`, those of a fault are only counted.
    shows: bool,
}

const INTERRUPTS: &str = "ipis_sent";
const WRONG: &str = "violations";

fn tables() -> Vec<Table> {
    vec![
        // Its rows take longest.
        Table {
            name: "replicas",
            head: "| workload | CPUs | never | if worth | always | links | wrong words |\n",
            rows: vec![
                with_replicas("threads", 4, false),
                with_replicas("crowd", 4, false),
                with_replicas("beside", 4, false),
                with_replicas("arena", 4, true),
                with_replicas("reclaim", 4, true),
                Row { is_in_test: true, ..with_replicas("moves", 4, true) },
                with_replicas("traces/go.shootdown", 2, false),
            ],
        },
        Table {
            name: "reclaim",
            head: "| flushes of these pages | pages read in | interrupts | wrong words |\n",
            rows: of_values(
                ("reclaim", "--reclaim"),
                (&["batched", "per-page"], &["unflushed"]),
                &["read_in", INTERRUPTS, WRONG],
            ),
        },
        Table {
            name: "moves",
            head: "| flushes of these pages | pages moved | interrupts | wrong words |\n",
            rows: of_values(
                ("moves", "--reclaim"),
                (&["batched", "per-page"], &["unflushed"]),
                &["migrated", INTERRUPTS, WRONG],
            ),
        },
        Table {
            name: "discards",
            head: "| release | pages discarded in place | freed later | interrupts \
                   | wrong words |\n",
            rows: of_values(
                ("arena", "--discards"),
                (&["in-place", "immediate"], &["untested", "unflushed"]),
                &["pages_discarded_in_place", "pages_discarded_freed", INTERRUPTS, WRONG],
            ),
        },
    ]
}

/// Returns a row for each value of an option: those that are right, of which CI boots the first,
/// and the faults.
fn of_values(
    (workload, option): (&'static str, &'static str),
    (right, faults): (&[&'static str], &[&'static str]),
    counts: &[&'static str],
) -> Vec<Row> {
    let row = |&value: &&'static str| {
        let is_fault = faults.contains(&value);
        Row {
            label: value.to_owned(),
            runs: vec![Run {
                workload,
                cpus: 4,
                option,
                value,
                has_fault: is_fault,
                shows: is_fault,
            }],
            cells: counts.iter().map(|count| (0, *count)).collect(),
            same: None,
            is_in_test: is_fault || value == right[0],
        }
    };
    right.iter().chain(faults).map(row).collect()
}

/// Returns the row of a workload with upper page tables for each CPU. With the fault, flushes leave
/// those of other CPUs out, which shows if CPUs use memory that another CPU frees.
fn with_replicas(workload: &'static str, cpus: u32, shows: bool) -> Row {
    const ALWAYS: usize = 2;
    const FAULT: usize = 3;
    let run = |value| {
        let has_fault = value == "unflushed";
        let shows = has_fault && shows;
        Run { workload, cpus, option: "--replicas", value, has_fault, shows }
    };
    Row {
        label: format!("`{workload}` | {cpus}"),
        runs: ["never", "if-worth", "always", "unflushed"].map(run).to_vec(),
        cells: [0, 1, ALWAYS]
            .map(|run| (run, INTERRUPTS))
            .into_iter()
            .chain([(ALWAYS, "replica_links"), (FAULT, WRONG)])
            .collect(),
        // All tables of replicas are freed. In a workload that is short of memory, the frames in
        // use depend on the pages of its file.
        same: (workload != "reclaim").then_some("frames_in_use"),
        is_in_test: false,
    }
}

/// Boots each workload with the values of its options, and compares the counts with [`FILE`].
pub(super) fn compare(built: &Built, part: Part) -> Result<(), Failure> {
    let tables = tables();
    let is_wanted = |row: &&Row| matches!(part, Part::All) || row.is_in_test;
    let rows: Vec<(&Table, &Row)> = tables
        .iter()
        .flat_map(|table| table.rows.iter().filter(is_wanted).map(move |row| (table, row)))
        .collect();
    let texts = parallel::map(&rows, |(_, row)| row.boot(built));
    let texts: Vec<String> = texts.into_iter().collect::<Result<_, _>>()?;
    for table in &tables {
        let of_table = rows.iter().zip(&texts).filter(|((of, _), _)| of.name == table.name);
        let text: String = of_table.map(|(_, text)| text.as_str()).collect();
        match part {
            Part::Sample => golden::has_lines(FILE, &text)?,
            Part::All => {
                let rule = "|---".repeat(table.head.matches('|').count() - 1);
                golden::check_part(FILE, table.name, &format!("{}{rule}|\n{text}", table.head))?;
            }
        }
    }
    Ok(())
}

impl Row {
    /// Boots the runs, and returns the row.
    fn boot(&self, built: &Built) -> Result<String, Failure> {
        let output = |Run { workload, cpus, option, value, .. }: &Run| {
            built.console(workload, &format!("--cpus {cpus} {option} {value}"))
        };
        self.text(&self.runs.iter().map(output).collect::<Result<Vec<_>, _>>()?)
    }

    /// Returns the row of the reports that the runs have printed.
    fn text(&self, outputs: &[String]) -> Result<String, Failure> {
        let mut expected = None;
        for (run, output) in self.runs.iter().zip(outputs) {
            let wrong = run.count(output, WRONG)?;
            if run.shows && wrong == 0 || !run.has_fault && wrong > 0 {
                return Err(run.failure(&format!("reads {wrong} wrong words")));
            }
            if let Some(name) = self.same.filter(|_| !run.has_fault) {
                let count = run.count(output, name)?;
                let expected = *expected.get_or_insert(count);
                if count != expected {
                    return Err(run.failure(&format!("has {name} {count}, not {expected}")));
                }
            }
        }
        let mut text = format!("| {} |", self.label);
        for &(run, name) in &self.cells {
            let _ = write!(text, " {} |", self.runs[run].count(&outputs[run], name)?);
        }
        Ok(text + "\n")
    }
}

impl Run {
    fn count(&self, output: &str, name: &str) -> Result<u64, Failure> {
        number(output, name).ok_or_else(|| self.failure("has no report"))
    }

    fn failure(&self, cause: &str) -> Failure {
        let Self { workload, cpus, option, value, .. } = self;
        Failure::new(
            format!("`{workload}` with {option} {value} {cause}"),
            format!(
                "shootdown boot --workload {workload} --cpus {cpus} {option} {value} --counts \
                 --console"
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(wrong: u64, frames: u64) -> String {
        format!(
            "{{\"ipis_sent\":7,\"violations\":{wrong},\"read_in\":9,\"replica_links\":2,\
             \"frames_in_use\":{frames}}}"
        )
    }

    #[test]
    fn only_faults_may_and_must_show() {
        let rows = &tables()[1].rows;
        let row = |row: usize, wrong| rows[row].text(&[report(wrong, 4)]);
        assert_eq!(row(0, 0).unwrap(), "| batched | 9 | 7 | 0 |\n");
        assert_eq!(row(2, 5).unwrap(), "| unflushed | 9 | 7 | 5 |\n");
        assert!(row(0, 1).is_err() && row(2, 0).is_err());
        assert!(rows[0].text(&["no report".to_owned()]).is_err());
        assert_eq!(rows.iter().filter(|row| row.is_in_test).count(), 2);
    }

    #[test]
    fn frames_that_stay_are_detected() {
        let text = |workload, frames: [u64; 4]| {
            let report = |index: usize| report(if index == 3 { 5 } else { 0 }, frames[index]);
            with_replicas(workload, 4, true).text(&[0, 1, 2, 3].map(report))
        };
        let expected = "| `moves` | 4 | 7 | 7 | 7 | 2 | 5 |\n";
        assert_eq!(text("moves", [4, 4, 4, 9]).unwrap(), expected);
        assert!(text("moves", [4, 4, 5, 4]).is_err());
        // Whether this fault shows there depends on the moments at which CPUs meet.
        let unseen = [0, 1, 2, 3].map(|_| report(0, 4));
        assert!(with_replicas("crowd", 4, false).text(&unseen).is_ok());
        assert!(with_replicas("moves", 4, true).text(&unseen).is_err());
        assert!(text("reclaim", [4, 4, 5, 4]).is_ok());
    }

    #[test]
    fn heads_have_a_column_for_each_cell() {
        for table in tables() {
            let columns = table.head.matches('|').count() - 1;
            let is_whole =
                |row: &Row| row.label.matches('|').count() + 1 + row.cells.len() == columns;
            assert!(table.rows.iter().all(is_whole), "{}", table.name);
        }
    }
}
