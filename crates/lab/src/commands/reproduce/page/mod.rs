//! The results as a page, of which they may be one part.

use std::fmt::Write as _;

use shootdown_designs::Design;
use shootdown_sim::machine::Machine;

use super::tables;
use super::text::{UNCOUNTED, verdict};
use crate::machines;
use crate::render::curves::{Axes, Curve as Line, curves};
use crate::render::page::{capitalised, escaped, page};
use crate::render::plot::{Bar, Of, Width, bars};
use crate::render::table::Medium;
use crate::render::{significant, unit};
use crate::studies::{Choice, Curve, Results, Row, Scale, Scaling};

/// The parts of a page besides the results, as markup.
#[derive(Clone, Debug, Default)]
pub(crate) struct Others {
    /// The part before the results.
    pub(crate) before: String,
    /// The part after them.
    pub(crate) after: String,
    /// Words to explain besides those of the results.
    pub(crate) words: &'static str,
    /// The part after the words.
    pub(crate) limits: &'static str,
}

/// The page of the results, and of other parts.
pub(crate) fn page_of(results: &Results, others: &Others) -> String {
    let Others { before, after, words, limits } = others;
    let (part, provenance) = (part(results), provenance(results));
    let body = format!(
        "{INTRODUCTION}{before}{part}{after}<h2 id=\"words\">The words</h2>\n<dl>\n{WORDS}{words}\
         </dl>\n{limits}{provenance}"
    );
    page("TLB shootdowns, and who could do without them", &body)
}

/// The results, and the designs beside each other in each of them.
fn part(results: &Results) -> String {
    let mut part = "<h2 id=\"published\">Published results</h2>\n\
         <p>Each result was published for a change to a kernel. Predicted is what the simulator \
         says of the kernel before and after it; error is by how much the predicted gain is off \
         the published one. Shootdown is this engine on the same machine. Where nothing was \
         published, the designs are compared all the same.</p>\n"
        .to_owned();
    part += &tables::summary(&results.rows, Medium::Page).html();
    for row in &results.rows {
        let experiment = &row.experiment;
        let _ = write!(
            part,
            "<h3>{} {}</h3>\n<p>{} on {}; {} is better.</p>\n{}{}",
            experiment.study.number(),
            escaped(experiment.workload),
            capitalised(&escaped(experiment.metric)),
            escaped(&row.machine),
            experiment.better.name(),
            plot(row),
            designs(row)
        );
    }
    part += &results.scaling.as_ref().map(scaling).unwrap_or_default();
    part + &results.choice.as_ref().map(choice).unwrap_or_default()
}

fn plot(row: &Row) -> String {
    let names = row.experiment.designs;
    let bar = |what: &str, design: Design, of, value: f64| Bar {
        label: format!("{what}, {design}"),
        of,
        ends: vec![value],
        value: format!("{} {}", significant(value), unit(row.experiment.unit)),
    };
    let mut all = vec![
        bar("predicted", names.before, Of::Design, row.before().value),
        bar("predicted", names.after, Of::Design, row.after().value),
        bar("predicted", Design::SHOOTDOWN, Of::Ours, row.shootdown().value),
    ];
    if let Some(published) = row.experiment.published {
        all.insert(0, bar("published", names.before, Of::Reality, published.before));
        all.insert(2, bar("published", names.after, Of::Reality, published.after));
    }
    bars(row.experiment.workload, Width::Full, &all)
}

fn designs(row: &Row) -> String {
    let mut part = tables::designs(row, Medium::Page).html();
    if let Some(measurement) = row.experiment.calibrated_on {
        let _ = writeln!(
            part,
            "<p>Something was fitted to one of these figures ({}): that one is no prediction.</p>",
            escaped(measurement)
        );
    }
    if let Some(note) = row.experiment.note {
        let _ = writeln!(part, "<p>{}</p>", escaped(&note.replace(" us", " µs")));
    }
    part
}

/// A plot of all designs, and a table of some of its points.
fn scaling(scaling: &Scaling) -> String {
    let line = |curve: &Curve| Line {
        label: curve.design.name().to_owned(),
        of: if curve.design == Design::SHOOTDOWN { Of::Ours } else { Of::Design },
        points: curve.points.iter().map(|point| (point.cpus as f64, point.rate)).collect(),
    };
    let lines: Vec<_> = scaling.curves.iter().map(line).collect();
    format!(
        "<h3 id=\"scaling\">{} with more and fewer CPUs</h3>\n<p>On {}, resized. Both axes are \
         logarithmic; the grey band is growth in proportion. “Of linear” is the \
         rate per CPU where it is least, in percent of that with the fewest CPUs. {UNCOUNTED}</p>\n\
         {}{}",
        escaped(scaling.workload),
        escaped(&scaling.machine),
        curves("rate by CPUs", Axes { across: "CPUs", up: unit(scaling.unit) }, &lines),
        tables::curves(scaling, Medium::Page).html()
    )
}

/// A table for each machine.
fn choice(choice: &Choice) -> String {
    let mut part = format!(
        "<h3 id=\"choice\">Interrupt or broadcast</h3>\n<p>On machines that have both, this engine \
         with either way alone, and choosing; times in µs. “Worse by” is what choosing costs \
         over the better of the two. {}</p>\n",
        escaped(&verdict(choice))
    );
    for cells in choice.cells.chunk_by(|one, other| one.machine == other.machine) {
        let table = tables::choice(cells, Medium::Page).html();
        part += &format!("<h4>{}</h4>\n{table}", escaped(cells[0].machine));
    }
    part
}

/// The origin of the page's numbers.
fn provenance(results: &Results) -> String {
    let scale = match results.scale {
        Scale::Full => "as much work as was published",
        Scale::Quick => "less work than was published (--quick)",
    };
    let mut part = format!(
        "<h2>Where this is from</h2>\n<p>shootdown {}, seed {}; for the published results, \
         {scale}.</p>\n",
        env!("CARGO_PKG_VERSION"),
        results.seed
    );
    for machine in &results.machines {
        part += &provenance_of(machine);
    }
    part
}

fn provenance_of(machine: &Machine) -> String {
    let mut part = format!(
        "<h3>{}</h3>\n<p>{}. {} numbers; <code>shootdown machines {0}</code> shows them all with \
         their sources.</p>\n",
        escaped(&machine.name),
        escaped(&machine.about),
        machine.numbers().len()
    );
    let mut fitted = machines::calibrated(machine).peekable();
    if fitted.peek().is_none() {
        part += "<p>None was fitted to a published measurement.</p>\n";
        return part;
    }
    part += "<ul>\n";
    for (number, measurement) in fitted {
        let key = format!("{}.{}", number.section, number.key);
        let (key, measurement) = (escaped(&key), escaped(measurement));
        let _ = writeln!(
            part,
            "<li><code>{key} = {}</code>, fitted to {measurement}. {}",
            number.value,
            capitalised(&escaped(&number.source))
        );
    }
    part + "</ul>\n"
}

const INTRODUCTION: &str = "\
<p>Every CPU keeps translations of addresses in its TLB. Whoever changes a page table has to \
make sure that no CPU goes on using the old translation: the kernel interrupts the CPUs that \
may have it, and waits until all have flushed it. That is a TLB shootdown. Whoever is \
interrupted loses the time of the interrupt and what was flushed from its TLB; whoever waits, \
waits for the slowest. Many of these interrupts are for nothing: they reach CPUs that are idle, \
or elsewhere, or never had the translation. <a href=\"#words\">The words</a> are explained \
below.</p>\n";

const WORDS: &str = "\
<dt>interrupts sent<dd>One for each CPU that was to be told at once.\n\
<dt>to lazy<dd>Interrupts for nothing: the CPU had the address space loaded, but was idle or in \
a kernel thread, and could have caught up when it came back.\n\
<dt>to absent<dd>Interrupts for nothing: the CPU did not have the address space at all.\n\
<dt>full, ranged<dd>A full flush drops all translations of an address space, a ranged one only \
those of the pages that changed.\n\
<dt>violations<dd>Uses of a translation after a flush that covered it was waited for: the \
program reads or writes memory that is no longer its own. Anything but 0 is a bug.\n\
<dt>hazards<dd>Freed page tables that a CPU’s speculation could still have walked.\n\
<dt>held<dd>Page tables out of use that were held back because a CPU could still walk them: the \
most at any time. When there are more than 1024, CPUs are interrupted to have them back.\n";

const _: () = assert!(shootdown_vm::QUARANTINED_TABLES_MAX == 1024, "as it says above");

#[cfg(test)]
mod tests;
