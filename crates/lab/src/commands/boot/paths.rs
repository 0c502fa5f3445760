//! Instruction counts of the engine's hot paths on bare metal. `kernel/src/kernel/paths.rs` makes
//! them.

use serde::{Deserialize, Serialize};

use super::console::Line;
use super::options::Boot;
use crate::render::Printed;
use crate::render::table::Table;

/// A line of the kernel about a path.
#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Count {
    path: String,
    /// The code that loads roots, drops entries and masks interrupts, or [`NO_HARDWARE`].
    hardware: String,
    instructions: f64,
    budget: u64,
}

/// The kernel's name of hardware code that does nothing.
const NO_HARDWARE: &str = "none";

/// The counts of a path.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Row {
    path: String,
    /// Instructions of the engine without hardware code.
    instructions: Option<f64>,
    /// Instructions of the engine and of the hardware code. The engine may take another branch
    /// here.
    with_processor: Option<f64>,
    /// The budget for the engine without hardware code, on an x86-64 host.
    budget: u64,
}

/// The counts of all paths on one machine.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    arch: &'static str,
    rows: Vec<Row>,
}

impl Report {
    pub(crate) fn new(options: &Boot, lines: &[Line]) -> Self {
        let counts = lines.iter().filter_map(|line| serde_json::from_str(&line.0).ok());
        Self { arch: options.arch.name(), rows: rows(counts) }
    }
}

impl Printed for Report {
    fn csv(&self) -> String {
        let names = ["arch", "path", "instructions", "with_processor", "budget"];
        let mut table = Table::default().left(names);
        for Row { path, instructions, with_processor, budget } in &self.rows {
            let (alone, with) = (shown(*instructions), shown(*with_processor));
            table.row([self.arch, path, &alone, &with, &budget.to_string()]);
        }
        table.csv()
    }

    fn text(&self) -> String {
        let mut table = Table::default().left(["path"]).right([
            "engine alone",
            "with processor",
            "budget on x86-64 hosts",
        ]);
        for Row { path, instructions, with_processor, budget } in &self.rows {
            let name = path.replace('_', " ");
            table.row([name, shown(*instructions), shown(*with_processor), budget.to_string()]);
        }
        format!("{}, instructions on bare metal\n\n{table}", self.arch)
    }
}

/// Returns a row for each path, in the order of the kernel's lines.
fn rows(counts: impl Iterator<Item = Count>) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for Count { path, hardware, instructions, budget } in counts {
        let place = rows.iter().position(|row| row.path == path).unwrap_or_else(|| {
            rows.push(Row { path, instructions: None, with_processor: None, budget });
            rows.len() - 1
        });
        let row = &mut rows[place];
        let cell =
            if hardware == NO_HARDWARE { &mut row.instructions } else { &mut row.with_processor };
        *cell = Some(instructions);
    }
    rows
}

fn shown(instructions: Option<f64>) -> String {
    instructions.map_or(String::new(), |instructions| format!("{instructions:.1}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::Format;

    #[test]
    fn lines_of_kernel_become_one_row_per_path() {
        let line = |path, hardware, instructions| {
            Line(format!(
                "{{\"path\":\"{path}\",\"hardware\":\"{hardware}\",\
                 \"instructions\":{instructions},\"budget\":11}}"
            ))
        };
        let lines = [
            Line("boot x86_64 cpus=1 memory=0x3ffd7000".to_owned()),
            line("enter_lazy", "none", "11.0"),
            line("answer", "none", "122.0"),
            line("enter_lazy", "x86_64", "12.3"),
        ];
        let counts = lines.iter().filter_map(|line| serde_json::from_str(&line.0).ok());
        let report = Report { arch: "x86_64", rows: rows(counts) };
        let text = report.in_format(Format::Csv);
        assert_eq!(
            text,
            "arch,path,instructions,with_processor,budget\n\
             x86_64,enter_lazy,11.0,12.3,11\n\
             x86_64,answer,122.0,,11\n"
        );
    }
}
