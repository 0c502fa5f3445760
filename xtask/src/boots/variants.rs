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

/// A row of a table: boots of a workload, one for each value of an option.
struct Row {
    label: String,
    workload: &'static str,
    cpus: u32,
    option: &'static str,
    values: Vec<&'static str>,
    /// With a fault, CPUs must read wrong words. If this is `false`, those are only counted.
    shows: bool,
    /// For each column, the index of a value, and the name of a count in the kernel's report.
    cells: Vec<(usize, &'static str)>,
    /// A count that must be the same in all runs without a fault.
    same: Option<&'static str>,
    /// `true` if CI boots it.
    is_in_test: bool,
}

/// The values that are faults.
const FAULTS: [&str; 2] = ["untested", "unflushed"];

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
                &["batched", "per-page", "unflushed"],
                &["read_in", INTERRUPTS, WRONG],
            ),
        },
        Table {
            name: "moves",
            head: "| flushes of these pages | pages moved | interrupts | wrong words |\n",
            rows: of_values(
                ("moves", "--reclaim"),
                &["batched", "per-page", "unflushed"],
                &["migrated", INTERRUPTS, WRONG],
            ),
        },
        Table {
            name: "discards",
            head: "| release | pages discarded in place | freed later | interrupts \
                   | wrong words |\n",
            rows: of_values(
                ("arena", "--discards"),
                &["in-place", "immediate", "untested", "unflushed"],
                &["pages_discarded_in_place", "pages_discarded_freed", INTERRUPTS, WRONG],
            ),
        },
    ]
}

/// Returns a row for each value of an option. CI boots the first, and the faults.
fn of_values(
    (workload, option): (&'static str, &'static str),
    values: &[&'static str],
    counts: &[&'static str],
) -> Vec<Row> {
    let row = |&value: &&'static str| Row {
        label: value.to_owned(),
        workload,
        cpus: 4,
        option,
        values: vec![value],
        shows: true,
        cells: counts.iter().map(|count| (0, *count)).collect(),
        same: None,
        is_in_test: FAULTS.contains(&value) || value == values[0],
    };
    values.iter().map(row).collect()
}

/// Returns the row of a workload with upper page tables for each CPU. With the fault, flushes leave
/// those of other CPUs out, which shows if CPUs use memory that another CPU frees.
fn with_replicas(workload: &'static str, cpus: u32, shows: bool) -> Row {
    let [never, if_worth, always, fault] = [0, 1, 2, 3];
    Row {
        label: format!("`{workload}` | {cpus}"),
        workload,
        cpus,
        option: "--replicas",
        values: vec!["never", "if-worth", "always", "unflushed"],
        shows,
        cells: vec![
            (never, INTERRUPTS),
            (if_worth, INTERRUPTS),
            (always, INTERRUPTS),
            (always, "replica_links"),
            (fault, WRONG),
        ],
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
    /// Boots the workload with each value, and returns the row.
    fn boot(&self, built: &Built) -> Result<String, Failure> {
        let Self { workload, cpus, option, .. } = self;
        let output =
            |value: &&str| built.console(workload, &format!("--cpus {cpus} {option} {value}"));
        self.text(&self.values.iter().map(output).collect::<Result<Vec<_>, _>>()?)
    }

    /// Returns the row of the reports that the boots have printed.
    fn text(&self, outputs: &[String]) -> Result<String, Failure> {
        let count = |value: &str, output: &str, name: &str| {
            number(output, name).ok_or_else(|| self.failure(value, "has no report"))
        };
        let mut expected = None;
        for (value, output) in self.values.iter().zip(outputs) {
            let wrong = count(value, output, WRONG)?;
            let has_fault = FAULTS.contains(value);
            if has_fault && self.shows && wrong == 0 || !has_fault && wrong > 0 {
                return Err(self.failure(value, &format!("reads {wrong} wrong words")));
            }
            if let Some(name) = self.same.filter(|_| !has_fault) {
                let count = count(value, output, name)?;
                let expected = *expected.get_or_insert(count);
                if count != expected {
                    let cause = format!("has {name} {count}, not {expected}");
                    return Err(self.failure(value, &cause));
                }
            }
        }
        let mut text = format!("| {} |", self.label);
        for &(index, name) in &self.cells {
            let _ = write!(text, " {} |", count(self.values[index], &outputs[index], name)?);
        }
        Ok(text + "\n")
    }

    fn failure(&self, value: &str, cause: &str) -> Failure {
        let Self { workload, cpus, option, .. } = self;
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
