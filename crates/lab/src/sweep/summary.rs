//! The result of a sweep in a few lines: errors, violations, and the coverage of campaigns.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde::Deserialize;

use crate::error::shown;
use crate::render::grouped;

/// The sum of rows that were added in the order of their cells. The first error or violation is
/// therefore the one with the lowest cell, whichever finished first.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    rows: u64,
    errors: u64,
    first_error: Option<(u64, String)>,
    /// Number of rows in which shootdown used a translation after its flush.
    violations: u64,
    first_violation: Option<u64>,
    campaigns: Campaigns,
}

/// The sum of the rows of the checker.
#[derive(Debug, Default)]
struct Campaigns {
    cells: u64,
    runs: u64,
    steps: u64,
    failed: u64,
    /// The lowest cell that failed, its violation, and the command that repeats it.
    first_failed: Option<(u64, String, Option<String>)>,
    undecided: u64,
    covered: BTreeSet<String>,
    uncovered: BTreeSet<String>,
}

/// The members of rows that are summed.
#[derive(Deserialize)]
struct Row {
    cell: u64,
    command: String,
    #[serde(default)]
    design: String,
    error: Option<String>,
    #[serde(default)]
    violations: u64,
    verdict: Option<String>,
    #[serde(default)]
    failed: bool,
    #[serde(default)]
    runs: u64,
    #[serde(default)]
    steps: u64,
    violation: Option<String>,
    repeat: Option<String>,
    #[serde(default)]
    covered: BTreeSet<String>,
    #[serde(default)]
    uncovered: BTreeSet<String>,
}

impl Summary {
    /// Adds a row. A line that is not a row counts as an error.
    pub(crate) fn add(&mut self, row: &str) {
        self.rows += 1;
        let row: Row = match serde_json::from_str(row) {
            Ok(row) => row,
            Err(error) => {
                self.errors += 1;
                self.first_error.get_or_insert((0, error.to_string()));
                return;
            }
        };
        if let Some(error) = row.error {
            self.errors += 1;
            self.first_error.get_or_insert((row.cell, error));
        } else if row.command == "check" {
            self.campaigns.add(row);
        } else if row.violations > 0 && row.design.starts_with("shootdown") {
            self.violations += 1;
            self.first_violation.get_or_insert(row.cell);
        }
    }

    /// Returns `true` if a cell has an error, or found a violation that it should not find.
    pub(crate) const fn has_findings(&self) -> bool {
        self.errors + self.violations + self.campaigns.failed > 0
    }

    /// Returns the summary as lines for reading.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("{} rows", grouped(self.rows));
        if let Some((cell, error)) = &self.first_error {
            let count = grouped(self.errors);
            let _ = write!(text, "\n{count} errors; the first is of cell {cell}: {}", shown(error));
        }
        if let Some(cell) = self.first_violation {
            let count = grouped(self.violations);
            let _ = write!(
                text,
                "\nVIOLATIONS under shootdown in {count} rows; the first is in cell {cell}"
            );
        }
        if self.campaigns.cells > 0 {
            self.campaigns.write(&mut text);
        }
        text + "\n"
    }
}

impl Campaigns {
    fn add(&mut self, row: Row) {
        self.cells += 1;
        self.runs += row.runs;
        self.steps += row.steps;
        self.undecided += u64::from(row.verdict.as_deref() == Some("undecided"));
        if row.failed {
            self.failed += 1;
            let violation = row.violation.unwrap_or_else(|| "the known bug was not found".into());
            self.first_failed.get_or_insert((row.cell, violation, row.repeat));
        }
        self.covered.extend(row.covered);
        self.uncovered.extend(row.uncovered);
    }

    fn write(&self, text: &mut String) {
        let [cells, runs, steps] = [self.cells, self.runs, self.steps].map(grouped);
        let _ = write!(text, "\nchecks: {cells} cells, {runs} runs, {steps} steps");
        if self.undecided > 0 {
            let count = grouped(self.undecided);
            let _ = write!(text, "\n{count} cells reached their limit of states without a result");
        }
        for situation in self.uncovered.difference(&self.covered) {
            let _ = write!(text, "\nnever occurred: {situation}");
        }
        match &self.first_failed {
            None => text.push_str("\nno unexpected verdict"),
            Some((cell, violation, repeat)) => {
                let count = grouped(self.failed);
                let _ = write!(text, "\nFAILED in {count} cells; the first is cell {cell}: ");
                text.push_str(violation);
                if let Some(repeat) = repeat {
                    let _ = write!(text, "\nto repeat it: {repeat}");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lowest_failed_cell_is_reported_and_coverage_merged() {
        let mut summary = Summary::default();
        for row in [
            json!({"cell": 0, "verdict": "none", "runs": 2, "covered": ["a"],
                   "uncovered": ["b", "c"]}),
            json!({"cell": 4, "verdict": "violation", "violation": "stale", "failed": true,
                   "repeat": "again", "covered": ["b"], "uncovered": ["c"]}),
            json!({"cell": 7, "verdict": "violation", "violation": "other", "failed": true}),
            json!({"cell": 8, "error": "no such file"}),
            json!({"cell": 9, "design": "naive", "violations": 3}),
        ] {
            let mut row = row;
            row["command"] = json!(if row["cell"] == 9 { "replay" } else { "check" });
            summary.add(&row.to_string());
        }
        assert!(summary.has_findings());
        assert_eq!(
            summary.text(),
            "5 rows\n1 errors; the first is of cell 8: no such file\n\
             checks: 3 cells, 2 runs, 0 steps\nnever occurred: c\n\
             FAILED in 2 cells; the first is cell 4: stale\nto repeat it: again\n"
        );
    }
}
