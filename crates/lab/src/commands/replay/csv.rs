//! A verdict as CSV: one line per design.

use shootdown_run::{Classes, MemoryCosts};
use shootdown_sim::Cause;

use super::fidelity::Fidelity;
use super::verdict::{DesignRow, Verdict};
use crate::error::shown;
use crate::render::table::{Cell, Table};

type Number = fn(&DesignRow) -> u64;

const NUMBERS: [(&str, Number); 17] = [
    ("time_ns", |it| it.time_ns),
    ("ipis_sent", |it| it.ipis_sent),
    ("ipis_coalesced", |it| it.ipis_coalesced),
    ("ipis_to_lazy", |it| it.ipis_to_lazy),
    ("ipis_to_non_users", |it| it.ipis_to_non_users),
    ("flushes_full", |it| it.flushes_full),
    ("flushes_ranged", |it| it.flushes_ranged),
    ("pages_invalidated", |it| it.pages_invalidated),
    ("tlb_refills", |it| it.tlb_refills),
    ("switches", |it| it.switches),
    ("switches_without_flush", |it| it.switches_without_flush),
    ("shootdown_wait_p50_ns", |it| it.shootdown_wait_ns.p50),
    ("shootdown_wait_p99_ns", |it| it.shootdown_wait_ns.p99),
    ("shootdown_wait_max_ns", |it| it.shootdown_wait_ns.max),
    ("interrupted_ns", |it| it.interrupted_ns),
    ("violations", |it| it.violations),
    ("hazards", |it| it.hazards),
];

/// Returns the designs below a line of column names.
pub(super) fn verdict(verdict: &Verdict) -> String {
    let mut table = Table::default()
        .left(["recording", "machine", "schedule", "seed", "design"])
        .left(NUMBERS.map(|(name, _)| name))
        .left(["kernel_ipis_sent", "kernel_flushes_full", "kernel_flushes_ranged"])
        .left(["ipis_ratio", "flushes_ratio", "kernel_requests", "requests_ratio", "requests"])
        .left(Cause::ALL.map(Cause::name_ns))
        .left(["lock_waits", "lock_sleep_ns"])
        .left(Classes::NAMES)
        .left(MemoryCosts::NAMES);
    let Verdict { kernel, fidelity, .. } = verdict;
    let Fidelity { ipis_ratio, flushes_ratio, requests_ratio, .. } = fidelity;
    let ratio = |ratio: &Option<f64>| ratio.map(|ratio| ratio.to_string()).unwrap_or_default();
    for row in &verdict.designs {
        let names = [&verdict.recording.file, &verdict.machine, verdict.schedule.name()].map(shown);
        let numbers = NUMBERS.map(|(_, number)| number(row)).into_iter();
        let numbers = numbers.chain([kernel.ipis_sent, kernel.flushes_full, kernel.flushes_ranged]);
        let cells = names.map(Cell::from).into_iter();
        let cells = cells.chain([Cell::Count(verdict.seed), row.design.name().into()]);
        let requests = kernel.requests.map(|count| count.to_string()).unwrap_or_default();
        let ratios = [ratio(ipis_ratio), ratio(flushes_ratio), requests, ratio(requests_ratio)];
        let ratios = ratios.map(Cell::from);
        let times = Cause::ALL.map(|cause| row.time_by_cause[cause].ns());
        let locks = [row.lock_waits, row.lock_sleep_ns];
        let more = [row.requests].into_iter().chain(times).chain(locks);
        let more = more.chain(row.classes.values()).chain(row.memory_costs.values());
        let more = more.map(Cell::Count);
        table.row(cells.chain(numbers.map(Cell::Count)).chain(ratios).chain(more));
    }
    table.csv()
}
