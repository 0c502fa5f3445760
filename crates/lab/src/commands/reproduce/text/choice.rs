//! Interrupt or broadcast, as tables for people.

use super::{Align, Table};
use crate::render::{grouped, significant};
use crate::studies::{Cell, Choice};

/// A table for each machine, and what is too much worse.
pub(super) fn part(choice: &Choice) -> String {
    let mut text = "\nInterrupt or broadcast, on machines that have both: this engine with either \
                    way alone, and choosing, in µs\n"
        .to_owned();
    for cells in choice.cells.chunk_by(|one, other| one.machine == other.machine) {
        text += &format!("\n{}\n\n{}", cells[0].machine, table(cells));
    }
    text + &verdict(choice)
}

fn table(cells: &[Cell]) -> Table {
    let mut table = Table::new([("workload", Align::Left), ("interrupts", Align::Right)])
        .column("broadcasts", Align::Right)
        .column("chosen", Align::Right)
        .column("worse by", Align::Right)
        .column("interrupts sent", Align::Right)
        .column("broadcasts sent", Align::Right);
    let peers = cells.first().into_iter().flat_map(|cell| &cell.peers);
    table = peers.fold(table, |table, (name, _)| table.column(*name, Align::Right));
    for cell in cells {
        let times = [cell.interrupts, cell.broadcasts, cell.chosen].map(|told| told.time_us);
        let worse = format!("{:+.1} %", cell.percent_worse());
        let sent = [cell.chosen.interrupts_sent, cell.chosen.broadcasts].map(grouped);
        let peers = cell.peers.iter().map(|(_, told)| significant(told.time_us));
        let named = [cell.workload.clone()].into_iter().chain(times.map(significant));
        table.row(named.chain([worse]).chain(sent).chain(peers));
    }
    table
}

/// In how many cells the choice is no more than so much worse.
pub(crate) fn verdict(choice: &Choice) -> String {
    format!(
        "\nThe choice is at most {} % worse than the better way in {} of {} cells.\n",
        Choice::PERCENT_MAX,
        choice.cells.len() - choice.worse().count(),
        choice.cells.len()
    )
}
