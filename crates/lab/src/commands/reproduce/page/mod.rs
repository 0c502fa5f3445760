//! The results as a page, which may contain other parts.

use std::fmt::Write as _;

use shootdown_designs::Design;
use shootdown_sim::machine::Machine;

use super::tables;
use super::text::{PREDICTIONS, UNCOUNTED};
use crate::machines;
use crate::render::curves::{Axes, Band, Curve as Line, curves};
use crate::render::page::{capitalised, escaped, page};
use crate::render::plot::{Bar, Of, Width, bars};
use crate::render::table::Medium;
use crate::render::{significant, unit};
use crate::studies::{Curve, Prediction, Results, Row, Scale, Scaling};

/// The parts of a page besides the results, as markup.
#[derive(Clone, Debug, Default)]
pub(crate) struct Others {
    /// The part before the introduction, which the page is about if there is one.
    pub(crate) first: String,
    /// The part before the results.
    pub(crate) before: String,
    /// The part after the results.
    pub(crate) after: String,
    /// The glossary entries besides those of the results.
    pub(crate) words: &'static str,
    /// The part before the origin of the numbers.
    pub(crate) limits: &'static str,
}

/// Returns a page of the results and of other parts.
pub(crate) fn page_of(results: &Results, others: &Others) -> String {
    let Others { first, before, after, words, limits } = others;
    let published = if results.rows.is_empty() { String::new() } else { part(results) };
    let predictions = predictions(&results.predictions);
    let content = format!("{before}{published}{predictions}{after}{limits}{}", provenance(results));
    let terms = format!("<h2 id=\"words\">Terms on this page</h2>\n<dl>\n{WORDS}{words}</dl>\n");
    let title = "TLB shootdowns: interrupts and times under several designs";
    if first.is_empty() {
        let body =
            format!("{INTRODUCTION}{}{terms}{content}", contents(&format!("{terms}{content}")));
        return page(title, &body);
    }
    // The reader's program comes first, and what other designs would do for it, second.
    let content = format!(
        "{first}<h2 id=\"designs\">Designs of TLB coherence</h2>\n{INTRODUCTION}{content}{terms}"
    );
    let contents = contents(&content);
    let body = format!("<details><summary>Contents</summary>\n{contents}</details>\n{content}");
    page("TLB shootdowns: causes, call sites, and other designs", &body)
}

/// Returns links to the chapters, which are the headings of the second level with an `id`.
fn contents(content: &str) -> String {
    let chapter = |rest: &str| {
        let (id, rest) = rest.split_once("\">")?;
        let (title, _) = rest.split_once("</h2>")?;
        Some(format!("<li><a href=\"#{id}\">{title}</a>\n"))
    };
    let chapters: String = content.split("<h2 id=\"").skip(1).filter_map(chapter).collect();
    format!("<nav><ul>\n{chapters}</ul></nav>\n")
}

/// Returns the results, with the designs side by side for each of them.
fn part(results: &Results) -> String {
    let mut part = "<h2 id=\"published\">Published measurements, reproduced</h2>\n\
         <p>Each row is a change to a kernel. <em>Published</em> gives the measurement of its \
         author before → after the change, and the gain in parentheses. <em>Predicted</em> gives \
         the same from the simulator. <em>Error</em> is the relative error of the predicted gain. \
         <em>Shootdown</em> gives the prediction for the engine of this project on the same \
         machine, and its gain over the kernel before the change. A star marks a figure that a \
         parameter was fitted to; it is not a prediction. A row without a published figure \
         compares the designs only.</p>\n"
        .to_owned();
    part += &tables::summary(&results.rows, Medium::Page).html();
    for row in &results.rows {
        let experiment = &row.experiment;
        let _ = write!(
            part,
            "<h3>{}: {}</h3>\n<p>{} on {}; {} is better.</p>\n{}{}",
            experiment.study.name(),
            escaped(experiment.workload),
            capitalised(&escaped(experiment.metric)),
            escaped(&row.machine),
            experiment.better.name(),
            plot(row),
            designs(row)
        );
    }
    part + &results.scaling.as_ref().map(scaling).unwrap_or_default()
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
            "<p>A parameter was fitted to this figure, so it is not a prediction: {}.</p>",
            escaped(measurement)
        );
    }
    if let Some(note) = row.experiment.note {
        let _ = writeln!(part, "<p>{}</p>", escaped(&note.replace(" us", " µs")));
    }
    part
}

/// Returns a plot of all designs, and a table of some of its points.
fn scaling(scaling: &Scaling) -> String {
    let line = |curve: &Curve| Line {
        label: curve.design.name().to_owned(),
        of: if curve.design == Design::SHOOTDOWN { Of::Ours } else { Of::Design },
        points: curve.points.iter().map(|point| (point.cpus as f64, point.rate)).collect(),
    };
    let lines: Vec<_> = scaling.curves.iter().map(line).collect();
    format!(
        "<h3 id=\"scaling\">{} with more and fewer CPUs</h3>\n<p>The machine is {} with another \
         number of CPUs. Both axes are logarithmic. The grey band shows proportional growth. “Of \
         linear” is the smallest rate per CPU, in percent of the rate per CPU with the fewest \
         CPUs. {UNCOUNTED}</p>\n{}{}",
        escaped(scaling.workload),
        escaped(&scaling.machine),
        curves(
            "rate by CPUs",
            Axes { across: "CPUs", up: unit(scaling.unit), band: Band::Proportion },
            &lines
        ),
        tables::curves(scaling).html()
    )
}

/// Returns the predictions, with the origin of each.
fn predictions(predictions: &[Prediction]) -> String {
    if predictions.is_empty() {
        return String::new();
    }
    let mut part = format!(
        "<h2 id=\"predictions\">Predictions</h2>\n<p>{}</p>\n{}<dl>\n",
        capitalised(PREDICTIONS),
        tables::predictions(predictions).html()
    );
    for Prediction { name, about, publication, source, machine, cpus, frozen, learnt, .. } in
        predictions
    {
        let [name, about, publication] = [name, about, publication].map(|it| escaped(it));
        let [source, machine, learnt] = [source, machine, learnt].map(|it| escaped(it));
        let [recorded, model] = [&frozen.recorded, &frozen.model].map(|it| escaped(it));
        let _ = writeln!(
            part,
            "<dt>{name}<dd>{}, on {machine} with {cpus} CPUs. Published: {publication}; {source}. \
             Frozen: {recorded}; model: {model}. {learnt}",
            capitalised(&about)
        );
    }
    part + "</dl>\n"
}

/// Returns the origin of the page's numbers.
fn provenance(results: &Results) -> String {
    let scale = match results.scale {
        _ if results.rows.is_empty() => "",
        Scale::Full => {
            "; for the reproduced measurements, as much work as in the published measurements"
        }
        Scale::Quick => {
            "; for the reproduced measurements, less work than in the published measurements \
             (--quick)"
        }
    };
    let mut part = format!(
        "<h2 id=\"origin\">Origin of the numbers</h2>\n<p>Version {} of shootdown; random numbers \
         from seed {}{scale}.</p>\n",
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
        "<h3>{}</h3>\n<p>{}. The file has {} numbers; <code>shootdown machines {0}</code> shows \
         each with its source.</p>\n",
        escaped(&machine.name),
        escaped(&machine.about),
        machine.numbers().len()
    );
    let mut fitted = machines::calibrated(machine).peekable();
    if fitted.peek().is_none() {
        part += "<p>No number was fitted to a published measurement.</p>\n";
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

const INTRODUCTION: &str = include_str!("introduction.html");

const WORDS: &str = include_str!("words.html");

const _: () = assert!(shootdown_vm::QUARANTINED_TABLES_MAX == 1024, "WORDS contains this number");

#[cfg(test)]
mod tests;
