//! The chapter with the curves of loops over the number of CPUs.

use shootdown_designs::Design;

use crate::render::curves::{Axes, Band, Curve as Line, curves};
use crate::render::page::escaped;
use crate::render::plot::Of;
use crate::render::table::Table;
use crate::render::{grouped, significant};
use crate::studies::{Curves, Point};

/// Returns the chapter: for each loop, its rate, its interrupts, and a table of both.
pub(super) fn part(all: &[Curves]) -> String {
    let mut part = "<h2 id=\"sizes\">Loops on more and fewer CPUs</h2>\n<p>Each loop has one task \
         for each CPU. Linux is the newest design for the machine. Both axes are logarithmic. In \
         plots of rates, the grey band shows proportional growth. In plots of interrupts, \
         <em>bound</em> is the number that would do if the engine knew each TLB, and a size \
         without interrupts has no point.</p>\n"
        .to_owned();
    for loop_ in all {
        part += &format!(
            "<h3>{} on {}</h3>\n<p>{}</p>\n<div class=\"plots\">",
            escaped(loop_.workload),
            escaped(loop_.machine),
            escaped(&loop_.about)
        );
        let line = |label: &str, of, value: &dyn Fn(&Point) -> f64| Line {
            label: label.to_owned(),
            of,
            points: loop_.points.iter().map(|point| (point.cpus as f64, value(point))).collect(),
        };
        let rates = [
            line(loop_.linux.name(), Of::Design, &|point| point.linux.rate),
            line(Design::SHOOTDOWN.name(), Of::Ours, &|point| point.ours.rate),
        ];
        let axes = Axes { across: "CPUs", up: "operations per second", band: Band::Proportion };
        part += &curves(&format!("{}: rate", loop_.workload), axes, &rates);
        let interrupts = [
            line("bound", Of::Reality, &|point| point.bound),
            line(loop_.linux.name(), Of::Design, &|point| point.linux.interrupts),
            line(Design::SHOOTDOWN.name(), Of::Ours, &|point| point.ours.interrupts),
        ];
        let axes = Axes { across: "CPUs", up: "interrupts per operation", band: Band::None };
        let has_interrupts =
            interrupts.iter().flat_map(|line| &line.points).any(|point| point.1 > 0.0);
        part += &if has_interrupts {
            curves(&format!("{}: interrupts", loop_.workload), axes, &interrupts)
        } else {
            "<p>No flush sends an interrupt.</p>".to_owned()
        };
        part += "</div>\n";
        part += &table(loop_).html();
    }
    part
}

fn table(curves: &Curves) -> Table {
    let linux = curves.linux.name();
    let mut table = Table::default().left(["CPUs"]).right([
        format!("{linux}, per second"),
        "shootdown".to_owned(),
        "ratio".to_owned(),
        format!("{linux}, interrupts"),
        "shootdown".to_owned(),
        "bound".to_owned(),
    ]);
    for Point { cpus, linux, ours, bound } in &curves.points {
        let rates = [linux.rate, ours.rate].map(|rate| grouped(rate as u64));
        let others = [ours.rate / linux.rate, linux.interrupts, ours.interrupts, *bound];
        let cells = rates.into_iter().chain(others.map(significant));
        table.row([cpus.to_string()].into_iter().chain(cells));
    }
    table
}
