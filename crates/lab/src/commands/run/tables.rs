//! The rows as text and as CSV.

use shootdown_run::text::Row;
use shootdown_run::{Classes, MemoryCosts};
use shootdown_sim::Cause;

use super::summary::Summary;
use crate::render::table::{Cell, Table};
use crate::render::{significant, times};
use crate::workloads::EMBEDDED;

/// Returns the workloads that the command has.
pub(super) fn list() -> String {
    let mut table = Table::default().left(["workload", "about"]);
    for workload in EMBEDDED {
        table.row([workload.name, workload.about()]);
    }
    format!("{table}\n`shootdown run NAME` runs one; workloads/*.workload are the files.\n")
}

/// Returns the means as tables for reading.
pub(super) fn text(summaries: &[Summary]) -> String {
    let Some(first) = summaries.first() else { return String::new() };
    let seeds =
        if first.seeds > 1 { format!(", mean of {} seeds", first.seeds) } else { String::new() };
    format!("machine: {}{seeds}\n\n{}\n{}", first.machine, figures(summaries), causes(summaries))
}

/// Returns a table of times and counts.
pub(super) fn figures(summaries: &[Summary]) -> Table {
    let mut table = Table::default().left(["workload"]).right(["CPUs"]).left(["design"]).right([
        "time",
        "error",
        "±",
        "operations",
        "per second",
        "requests",
        "interrupts",
        "useful",
        "early",
        "in vain",
        "of bound",
        "full flushes",
        "ranged",
        "late pages",
        "violations",
    ]);
    for it in summaries {
        let error = it.time_error_percent.map_or("not known".to_owned(), |it| format!("±{it} %"));
        let spread =
            if it.seeds > 1 { format!("{:.1} %", it.spread_percent) } else { String::new() };
        table.row([
            Cell::Text(it.workload.clone()),
            Cell::Count(it.cpus as u64),
            Cell::from(it.design),
            Cell::Nanoseconds(it.time_ns),
            Cell::Text(error),
            Cell::Text(spread),
            Cell::Count(it.operations),
            Cell::Text(it.rate().map(significant).unwrap_or_default()),
            Cell::Count(it.requests),
            Cell::Count(it.interrupts),
            Cell::Count(it.classes.interrupts_useful),
            Cell::Count(it.classes.interrupts_early),
            Cell::Count(it.classes.interrupts_in_vain),
            Cell::Text(times(it.classes.ratio()).unwrap_or_default()),
            Cell::Count(it.flushes_full),
            Cell::Count(it.flushes_ranged),
            Cell::Count(it.memory_costs.pages_reclaimable_max),
            Cell::Alarm(it.violations),
        ]);
    }
    table
}

/// Returns a table of the causes of CPU time, in percent, without causes that are rare everywhere.
pub(super) fn causes(summaries: &[Summary]) -> Table {
    let is_shown = |cause: &Cause| summaries.iter().any(|summary| summary.percent(*cause) >= 0.05);
    let shown: Vec<_> = Cause::ALL.into_iter().filter(is_shown).collect();
    let mut table = Table::default().left(["CPU time, %"]).right(["CPUs"]).left(["design"]);
    table = table.right(shown.iter().map(|cause| cause.name().replace('_', " ")));
    for it in summaries {
        let start =
            [Cell::Text(it.workload.clone()), Cell::Count(it.cpus as u64), Cell::from(it.design)];
        let times = shown.iter().map(|&cause| Cell::Text(format!("{:.1}", it.percent(cause))));
        table.row(start.into_iter().chain(times));
    }
    table
}

/// Returns one line for each row, with the keys of the JSON.
pub(super) fn csv(rows: &[Row]) -> String {
    let mut table = Table::default()
        .left(["workload", "machine", "cpus", "design", "seed", "time_ns", "time_error_percent"])
        .left(["operations"])
        .left(["requests", "interrupts", "flushes_full", "flushes_ranged"])
        .left(Cause::ALL.map(Cause::name_ns))
        .left(["violations"])
        .left(Classes::NAMES)
        .left(MemoryCosts::NAMES);
    for row in rows {
        let names = [row.workload.clone().into(), row.machine.clone().into()];
        let error = row.time_error_percent.map_or(Cell::from(""), Cell::Count);
        let numbers = [row.operations, row.requests, row.interrupts];
        let flushes = [row.flushes_full, row.flushes_ranged];
        let times = Cause::ALL.map(|cause| row.time_by_cause[cause].ns());
        let cells = names.into_iter().chain([Cell::Count(row.cpus as u64), row.design.into()]);
        let numbers = numbers.into_iter().chain(flushes).chain(times).chain([row.violations]);
        let numbers = numbers.chain(row.classes.values()).chain(row.memory_costs.values());
        let cells = cells.chain([row.seed, row.time_ns].map(Cell::Count)).chain([error]);
        table.row(cells.chain(numbers.map(Cell::Count)));
    }
    table.csv()
}
