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
    let [figures, causes, hottest] = [figures, causes, hottest].map(|of| of(summaries));
    format!("machine: {}{seeds}\n\n{figures}\n{causes}\n{hottest}", first.machine)
}

/// Returns a table of times and counts.
pub(super) fn figures(summaries: &[Summary]) -> Table {
    let mut table = Table::default().left(["workload"]).right(["CPUs"]).left(["design"]).right([
        "time",
        "error",
        "±",
        "pass p50",
        "p99",
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
            Cell::Nanoseconds(it.pass_p50_ns),
            Cell::Nanoseconds(it.pass_p99_ns),
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
/// Kernel time has two columns: work, and waiting for cache lines.
pub(super) fn causes(summaries: &[Summary]) -> Table {
    let is_shown = |cause: &Cause| summaries.iter().any(|summary| summary.percent(*cause) >= 0.05);
    let shown: Vec<_> = Cause::ALL.into_iter().filter(is_shown).collect();
    let mut table = Table::default().left(["CPU time, %"]).right(["CPUs"]).left(["design"]);
    table = table.right(shown.iter().flat_map(|&cause| match cause {
        Cause::Kernel => vec!["kernel work".to_owned(), "kernel lines".to_owned()],
        cause => vec![cause.name().replace('_', " ")],
    }));
    for it in summaries {
        let start =
            [Cell::Text(it.workload.clone()), Cell::Count(it.cpus as u64), Cell::from(it.design)];
        let percents = shown.iter().flat_map(|&cause| match cause {
            Cause::Kernel => {
                vec![it.percent(cause) - it.percent_of_lines(), it.percent_of_lines()]
            }
            cause => vec![it.percent(cause)],
        });
        table.row(start.into_iter().chain(percents.map(percent)));
    }
    table
}

/// Returns a table of the lines and locks that were waited for longest.
pub(super) fn hottest(summaries: &[Summary]) -> Table {
    let mut table = Table::default().left(["hottest lines and locks"]).right(["CPUs"]);
    table = table.left(["design", "name"]).right(["line waits, %", "transfers"]);
    table = table.right(["lock waits, %", "waits"]);
    for it in summaries {
        for (spot, line, lock) in it.hottest() {
            let start = [it.workload.clone().into(), Cell::Count(it.cpus as u64)];
            let middle = [it.design.into(), spot.name.into()];
            let lines = [percent(line), Cell::Count(spot.transfers / it.seeds)];
            let locks = [percent(lock), Cell::Count(spot.lock_waits / it.seeds)];
            table.row(start.into_iter().chain(middle).chain(lines).chain(locks));
        }
    }
    table
}

fn percent(value: f64) -> Cell {
    Cell::Text(format!("{value:.1}"))
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
        .left(MemoryCosts::NAMES)
        .left(["line_wait_ns", "switches", "preemption_checks", "preemptions"])
        .left(["pass_p50_ns", "pass_p99_ns", "pass_max_ns", "hottest"]);
    for row in rows {
        let names = [row.workload.clone().into(), row.machine.clone().into()];
        let error = row.time_error_percent.map_or(Cell::from(""), Cell::Count);
        let numbers = [row.operations, row.requests, row.interrupts];
        let flushes = [row.flushes_full, row.flushes_ranged];
        let times = Cause::ALL.map(|cause| row.time_by_cause[cause].ns());
        let cells = names.into_iter().chain([Cell::Count(row.cpus as u64), row.design.into()]);
        let numbers = numbers.into_iter().chain(flushes).chain(times).chain([row.violations]);
        let numbers = numbers.chain(row.classes.values()).chain(row.memory_costs.values());
        let last = [row.line_wait_ns, row.switches, row.preemption_checks, row.preemptions];
        let passes = [row.pass_p50_ns, row.pass_p99_ns, row.pass_max_ns];
        let numbers = numbers.chain(last).chain(passes).map(Cell::Count);
        let hottest = row.hottest.first().map_or("", |it| it.name);
        let cells = cells.chain([row.seed, row.time_ns].map(Cell::Count)).chain([error]);
        table.row(cells.chain(numbers).chain([hottest.into()]));
    }
    table.csv()
}
