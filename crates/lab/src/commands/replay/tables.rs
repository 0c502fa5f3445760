//! The figures of a design, and the tables of these figures.

use shootdown_sim::Cause;

use super::verdict::{DesignRow, Verdict};
use crate::render::table::{Cell, Figure, Medium, Table, figure};
use crate::render::times;

/// The figures of a design. Text tables have those with a name for text.
const FIGURES: [Figure<DesignRow>; 38] = [
    figure("time", "Time", "simulated time", |it| Cell::Nanoseconds(it.time_ns)),
    figure("requests", "Interrupts", "requested flushes of a CPU", |it| Cell::Count(it.requests)),
    figure("interrupts", "Interrupts", "sent", |it| Cell::Count(it.ipis_sent)),
    figure("", "Interrupts", "coalesced", |it| Cell::Count(it.ipis_coalesced)),
    figure("to lazy", "Interrupts", "to lazy CPUs", |it| Cell::Count(it.ipis_to_lazy)),
    figure("to non-users", "Interrupts", "to non-users", |it| Cell::Count(it.ipis_to_non_users)),
    figure("", "Interrupts", "useful", |it| Cell::Count(it.classes.interrupts_useful)),
    figure("", "Interrupts", "early", |it| Cell::Count(it.classes.interrupts_early)),
    figure("in vain", "Interrupts", "in vain", |it| Cell::Count(it.classes.interrupts_in_vain)),
    figure("of bound", "Interrupts", "sent, divided by the bound", |it| {
        Cell::Text(times(it.classes.ratio()).unwrap_or_default())
    }),
    figure("", "Interrupts", "time in interrupts, all CPUs", |it| {
        Cell::Nanoseconds(it.interrupted_ns)
    }),
    figure("full flushes", "Flushes", "full", |it| Cell::Count(it.flushes_full)),
    figure("ranged", "Flushes", "ranged", |it| Cell::Count(it.flushes_ranged)),
    figure("", "Flushes", "at a switch", |it| Cell::Count(it.flushes_at_switch)),
    figure("refills", "Flushes", "TLB refills", |it| Cell::Count(it.tlb_refills)),
    figure("wait p50", WAIT, "p50", |it| Cell::Nanoseconds(it.shootdown_wait_ns.p50)),
    figure("p99", WAIT, "p99", |it| Cell::Nanoseconds(it.shootdown_wait_ns.p99)),
    figure("max", WAIT, "max", |it| Cell::Nanoseconds(it.shootdown_wait_ns.max)),
    figure("violations", "Safety", "violations", |it| Cell::Alarm(it.violations)),
    figure("", "Safety", "hazards", |it| Cell::Count(it.hazards)),
    figure("", CAUSES, "user mode", |it| spent(it, Cause::User)),
    figure("", CAUSES, "kernel", |it| spent(it, Cause::Kernel)),
    figure("", CAUSES, "waiting for flushes", |it| spent(it, Cause::FlushWait)),
    figure("", CAUSES, "waiting for locks", |it| spent(it, Cause::LockWait)),
    figure("", CAUSES, "flush interrupts", |it| spent(it, Cause::Interrupts)),
    figure("", CAUSES, "invalidations", |it| spent(it, Cause::Invalidations)),
    figure("", CAUSES, "TLB refills", |it| spent(it, Cause::Refills)),
    figure("", CAUSES, "idle", |it| spent(it, Cause::Idle)),
    figure("", LATE, "pages discarded in place", |it| {
        Cell::Count(it.memory_costs.pages_discarded_in_place)
    }),
    figure("late pages", LATE, "reclaimable pages, at most", |it| {
        Cell::Count(it.memory_costs.pages_reclaimable_max)
    }),
    figure("", LATE, "time, all pages", |it| Cell::Nanoseconds(it.memory_costs.late_page_ns)),
    figure("", PREDICTED, "pages", |it| Cell::Count(it.memory_costs.pages_predicted)),
    figure("", PREDICTED, "in vain", |it| Cell::Count(it.memory_costs.pages_predicted_in_vain)),
    figure("", REPLICAS, "page tables", |it| Cell::Count(it.memory_costs.replica_tables)),
    figure("", REPLICAS, "links", |it| Cell::Count(it.memory_costs.replica_links)),
    figure("", REPLICAS, "faults for links", |it| Cell::Count(it.memory_costs.replica_link_faults)),
    figure("", "Locks", "waits", |it| Cell::Count(it.lock_waits)),
    figure("", "Locks", "time that threads slept", |it| Cell::Nanoseconds(it.lock_sleep_ns)),
];

/// Returns the time that all CPUs together spent for a cause.
fn spent(row: &DesignRow, cause: Cause) -> Cell {
    Cell::Nanoseconds(row.time_by_cause[cause].ns())
}

const PREDICTED: &str = "Predicted writes";
const REPLICAS: &str = "Replicas of page tables";
const CAUSES: &str = "CPU time, all CPUs";

const LATE: &str = "Memory given back late";

const WAIT: &str = "Wait for a flush";

/// Returns a table with a line for each design.
pub(super) fn designs(verdict: &Verdict) -> Table {
    let figures = || FIGURES.iter().filter(|figure| !figure.in_text.is_empty());
    let table = Table::default().left(["design"]);
    let mut table = figures().fold(table, |table, figure| table.figure(figure, Medium::Text));
    for row in &verdict.designs {
        let cells = figures().map(|figure| (figure.cell)(row));
        table.row([row.design.name().into()].into_iter().chain(cells));
    }
    table
}

/// Returns a table with a line for each cause of CPU time that any design has, in percent.
pub(super) fn causes(verdict: &Verdict) -> Table {
    let rows = &verdict.designs;
    let mut table =
        Table::default().left(["CPU time, %"]).right(rows.iter().map(|row| row.design.name()));
    for cause in Cause::ALL {
        let percent = |row: &DesignRow| {
            let all = row.time_by_cause.total().ps().max(1);
            100.0 * row.time_by_cause[cause].ps() as f64 / all as f64
        };
        if rows.iter().any(|row| percent(row) > 0.0) {
            let name = Cell::from(cause.name().replace('_', " "));
            let cells = rows.iter().map(|row| Cell::from(format!("{:.2}", percent(row))));
            table.row([name].into_iter().chain(cells));
        }
    }
    table
}

/// Returns a table with a column for each schedule and design.
pub(super) fn side_by_side(verdicts: &[Verdict]) -> Table {
    let mut table = Table::default().left([""]);
    for verdict in verdicts {
        let designs = verdict.designs.iter().map(|row| row.design.name());
        table = table.group(&format!("{} schedule", verdict.schedule.name()), designs);
    }
    for part in FIGURES.chunk_by(|one, other| one.on_page.0 == other.on_page.0) {
        table.part(part[0].on_page.0);
        for Figure { on_page: (_, name), cell, .. } in part {
            let cells = verdicts.iter().flat_map(|verdict| &verdict.designs).map(cell);
            table.row([Cell::from(*name)].into_iter().chain(cells));
        }
    }
    table
}
