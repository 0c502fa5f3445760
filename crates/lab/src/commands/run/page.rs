//! The rows as a page with plots.

use shootdown_designs::Design;
use shootdown_run::text::Text;
use shootdown_sim::machine::Machine;

use super::summary::Summary;
use super::tables;
use crate::render::curves::{Axes, Band, Curve, curves};
use crate::render::page::{self, visible};
use crate::render::plot::{Bar, Of, Width, bars};
use crate::render::{duration, significant};

/// A value of a summary that is plotted.
struct Figure {
    title: &'static str,
    /// The name of the axis.
    axis: &'static str,
    value: fn(&Summary) -> f64,
    shown: fn(f64) -> String,
}

const RATE: Figure = Figure {
    title: "Operations per second",
    axis: "operations per second",
    value: |it| it.rate().unwrap_or_default(),
    shown: significant,
};
const TIME: Figure = Figure {
    title: "Time",
    axis: "ns",
    value: |it| it.time_ns as f64,
    shown: |ns| duration(ns as u64),
};
const INTERRUPTS: Figure = Figure {
    title: "Interrupts",
    axis: "interrupts",
    value: |it| it.interrupts as f64,
    shown: |count| format!("{count}"),
};

/// Returns the page.
pub(super) fn page(summaries: &[Summary], text: &Text, machine: &Machine) -> String {
    let mut body = format!(
        "<p>Simulated on {}: {}. Grey bands in plots show proportional growth.</p>\n",
        visible(&machine.name),
        visible(&machine.about)
    );
    for part in summaries.chunk_by(|one, other| one.workload == other.workload) {
        body += &format!("<h2>{}</h2>\n<div class=\"plots\">\n", visible(&part[0].workload));
        let main = if part.iter().all(|it| it.rate().is_some()) { &RATE } else { &TIME };
        for figure in [main, &INTERRUPTS] {
            body += &plot(figure, part);
        }
        body += "</div>\n";
        body += &tables::figures(part).html();
        body += "<h3>Time of all CPUs by its cause, in percent</h3>\n";
        body += &tables::causes(part).html();
        body += "<h3>Lines and locks that were waited for longest</h3>\n";
        body += &tables::hottest(part).html();
    }
    body += &format!("<h2>The workload</h2>\n<pre>{}</pre>\n", source(text));
    page::page(&format!("{}: simulated designs of TLB coherence", visible(text.name())), &body)
}

/// Returns the text as markup. The lines stay lines.
fn source(text: &Text) -> String {
    text.source().lines().map(|line| visible(line) + "\n").collect()
}

/// Returns a plot over the numbers of CPUs, or bars if there is one number.
fn plot(figure: &Figure, summaries: &[Summary]) -> String {
    let mut designs: Vec<&'static str> = Vec::new();
    for summary in summaries {
        if !designs.contains(&summary.design) {
            designs.push(summary.design);
        }
    }
    let of = |design| if design == Design::SHOOTDOWN.name() { Of::Ours } else { Of::Design };
    let first = summaries[0].cpus;
    let name = format!("{} of {}", figure.title, visible(&summaries[0].workload));
    let svg = if summaries.iter().any(|it| it.cpus != first) {
        let curve = |&design: &&'static str| {
            let own = summaries.iter().filter(|it| it.design == design);
            let mut points: Vec<_> = own.map(|it| (it.cpus as f64, (figure.value)(it))).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Curve { label: design.to_owned(), of: of(design), points }
        };
        let all: Vec<_> = designs.iter().map(curve).collect();
        curves(&name, Axes { across: "CPUs", up: figure.axis, band: Band::Proportion }, &all)
    } else {
        let bar = |it: &Summary| {
            let value = (figure.value)(it);
            let (label, value_text) = (it.design.to_owned(), (figure.shown)(value));
            Bar { label, of: of(it.design), ends: vec![value], value: value_text }
        };
        bars(&name, Width::Full, &summaries.iter().map(bar).collect::<Vec<_>>())
    };
    format!("<figure><figcaption>{}</figcaption>\n{svg}</figure>\n", figure.title)
}
