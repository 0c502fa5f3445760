//! Interrupt or broadcast, for programs.

use serde::Serialize;

use crate::studies::{Cell, Choice};

#[derive(Serialize)]
pub(super) struct JsonChoice<'a> {
    cells: Vec<JsonCell<'a>>,
}

#[derive(Serialize)]
struct JsonCell<'a> {
    machine: &'a str,
    workload: &'a str,
    percent_worse: f64,
    designs: Vec<JsonTold<'a>>,
}

#[derive(Serialize)]
struct JsonTold<'a> {
    design: &'a str,
    time_us: f64,
    interrupts_sent: u64,
    broadcasts: u64,
    violations: u64,
}

impl<'a> From<&'a Choice> for JsonChoice<'a> {
    fn from(choice: &'a Choice) -> Self {
        Self { cells: choice.cells.iter().map(cell).collect() }
    }
}

fn cell(cell: &Cell) -> JsonCell<'_> {
    let told = |(design, told): (&'static str, crate::studies::Told)| JsonTold {
        design,
        time_us: told.time_us,
        interrupts_sent: told.interrupts_sent,
        broadcasts: told.broadcasts,
        violations: told.violations,
    };
    JsonCell {
        machine: cell.machine,
        workload: &cell.workload,
        percent_worse: cell.percent_worse(),
        designs: cell.designs().map(told).collect(),
    }
}
