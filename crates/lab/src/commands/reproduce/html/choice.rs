//! Interrupt or broadcast, as a part of a page.

use crate::commands::reproduce::text::verdict;
use crate::render::page::{Table, alarming, escaped};
use crate::render::{grouped, significant};
use crate::studies::{Cell, Choice};

/// A table for each machine.
pub(super) fn part(choice: &Choice) -> String {
    let mut part = format!(
        "<h3 id=\"choice\">Interrupt or broadcast</h3>\n<p>On machines that have both, this engine \
         with either way alone, and choosing; times in µs. “Worse by” is what choosing costs \
         over the better of the two.{}</p>\n",
        escaped(verdict(choice).trim_end()).replace('\n', " ")
    );
    for cells in choice.cells.chunk_by(|one, other| one.machine == other.machine) {
        part += &format!("<h4>{}</h4>\n{}", escaped(cells[0].machine), table(cells));
    }
    part
}

fn table(cells: &[Cell]) -> String {
    let peers = cells.first().map_or(&[][..], |cell| &cell.peers);
    let mut groups = vec![("One way", 2), ("Choosing", 4)];
    let mut names = vec![
        "Workload",
        "interrupts",
        "broadcasts",
        "time",
        "worse by",
        "interrupts",
        "broadcasts",
    ];
    if !peers.is_empty() {
        groups.push(("Kernels", peers.len()));
        names.extend(peers.iter().map(|(name, _)| *name));
    }
    groups.push(("", 1));
    names.push("Violations");
    let mut table = Table::grouped(&groups, &names);
    for cell in cells {
        let times = [cell.interrupts, cell.broadcasts, cell.chosen].map(|told| told.time_us);
        let worse = format!("{:+.1} %", cell.percent_worse());
        let is_bad = cell.percent_worse() > Choice::PERCENT_MAX;
        let worse = if is_bad { format!("<b class=\"bad\">{worse}</b>") } else { worse };
        let sent = [cell.chosen.interrupts_sent, cell.chosen.broadcasts].map(grouped);
        let peers = cell.peers.iter().map(|(_, told)| significant(told.time_us));
        let violations = cell.designs().map(|(_, told)| told.violations).sum();
        let named = [escaped(&cell.workload)].into_iter().chain(times.map(significant));
        let ours = named.chain([worse]).chain(sent);
        table.row(ours.chain(peers).chain([alarming(violations)]));
    }
    table.html()
}
