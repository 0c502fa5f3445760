//! A verdict for spreadsheets: a line for each design.

use super::verdict::{Fidelity, Verdict};
use crate::error::shown;
use crate::render::table::{Cell, Table};

const COLUMNS: &str = "trace,machine,schedule,seed,design,time_ns,ipis_sent,ipis_coalesced,\
    ipis_to_lazy,ipis_to_absent,flushes_full,flushes_ranged,pages_invalidated,tlb_refills,\
    switches,switches_without_flush,shootdown_wait_p50_ns,shootdown_wait_p99_ns,\
    shootdown_wait_max_ns,interrupted_ns,violations,hazards,kernel_ipis_sent,\
    kernel_flushes_full,kernel_flushes_ranged,ipis_ratio,flushes_ratio";

/// The designs under a line of names.
pub(super) fn verdict(verdict: &Verdict) -> String {
    let mut table = Table::default().left(COLUMNS.split(','));
    let Verdict { kernel, fidelity: Fidelity { ipis_ratio, flushes_ratio }, .. } = verdict;
    let ratio = |ratio: &Option<f64>| ratio.map(|ratio| ratio.to_string()).unwrap_or_default();
    for row in &verdict.designs {
        let names = [&verdict.trace, &verdict.machine, verdict.schedule.name()].map(shown);
        let numbers = [
            row.time_ns,
            row.ipis_sent,
            row.ipis_coalesced,
            row.ipis_to_lazy,
            row.ipis_to_absent,
            row.flushes_full,
            row.flushes_ranged,
            row.pages_invalidated,
            row.tlb_refills,
            row.switches,
            row.switches_without_flush,
            row.shootdown_wait_ns.p50,
            row.shootdown_wait_ns.p99,
            row.shootdown_wait_ns.max,
            row.interrupted_ns,
            row.violations,
            row.hazards,
            kernel.ipis_sent,
            kernel.flushes_full,
            kernel.flushes_ranged,
        ];
        let cells = names.map(Cell::from).into_iter();
        let cells = cells.chain([Cell::Count(verdict.seed), row.design.name().into()]);
        let ratios = [ratio(ipis_ratio), ratio(flushes_ratio)].map(Cell::from);
        table.row(cells.chain(numbers.map(Cell::Count)).chain(ratios));
    }
    table.csv()
}
