//! Published results and what the simulator says of them, as parts of a page.

mod choice;
mod scaling;

use std::fmt::Write as _;

use shootdown_sim::machine::Machine;

use crate::machines;
use crate::render::page::{Table, alarming, capitalised, escaped};
use crate::render::plot::{Bar, Of, Width, bars};
use crate::render::{grouped, of_some, significant, times, unit};
use crate::studies::{Pair, Results, Row, SHOOTDOWN, Scale};

/// The results, and the designs beside each other in each of them.
pub(crate) fn results(results: &Results) -> String {
    let mut part = "<h2 id=\"published\">Published results</h2>\n\
         <p>Each result was published for a change to a kernel. Predicted is what the simulator \
         says of the kernel before and after it; error is by how much the predicted gain is off \
         the published one. Shootdown is this engine on the same machine. Where nothing was \
         published, the designs are compared all the same.</p>\n"
        .to_owned();
    part += &summary(&results.rows);
    for row in &results.rows {
        let experiment = &row.experiment;
        let _ = write!(
            part,
            "<h3>{} {}</h3>\n<p>{} on {}; {} is better.</p>\n{}{}",
            escaped(experiment.seed),
            escaped(experiment.workload),
            capitalised(&escaped(experiment.metric)),
            escaped(&row.machine),
            experiment.better.name(),
            plot(row),
            designs(row)
        );
    }
    if let Some(scaling) = &results.scaling {
        part += &scaling::part(scaling);
    }
    part += &results.choice.as_ref().map(choice::part).unwrap_or_default();
    part
}

fn summary(rows: &[Row]) -> String {
    let names = ["Workload", "Published", "Predicted", "Error", "Shootdown", "Violations"];
    let mut table = Table::new(&names);
    for row in rows {
        let (experiment, predicted) = (&row.experiment, &row.predicted);
        let published = experiment.published;
        table.row([
            format!(
                "{} {} <small>{}</small>",
                escaped(experiment.seed),
                escaped(experiment.workload),
                escaped(unit(experiment.unit))
            ),
            published.map_or_else(nothing, |Pair { before, after }| {
                change(before, after, row.published_gain())
            }),
            change(predicted.before.value, predicted.after.value, Some(row.predicted_gain())),
            row.gain_error_percent().map_or_else(nothing, |error| format!("{error:+.1} %")),
            with_gain(row.shootdown.value, Some(row.shootdown_gain())),
            alarming(row.violations()),
        ]);
    }
    table.html()
}

fn nothing() -> String {
    "–".to_owned()
}

fn change(before: f64, after: f64, gain: Option<f64>) -> String {
    format!("{} → {}", significant(before), with_gain(after, gain))
}

fn with_gain(value: f64, gain: Option<f64>) -> String {
    let times = times(gain).map(|times| format!(" <small>{times}</small>"));
    significant(value) + &times.unwrap_or_default()
}

fn plot(row: &Row) -> String {
    let (published, predicted) = (row.experiment.published, &row.predicted);
    let names = row.experiment.designs;
    let bar = |what: &str, name: &str, of, value: f64| Bar {
        label: format!("{what}, {name}"),
        of,
        ends: vec![value],
        value: format!("{} {}", significant(value), unit(row.experiment.unit)),
    };
    let mut all = vec![
        bar("predicted", names.before, Of::Design, predicted.before.value),
        bar("predicted", names.after, Of::Design, predicted.after.value),
        bar("predicted", SHOOTDOWN, Of::Ours, row.shootdown.value),
    ];
    if let Some(published) = published {
        all.insert(0, bar("published", names.before, Of::Reality, published.before));
        all.insert(2, bar("published", names.after, Of::Reality, published.after));
    }
    bars(row.experiment.workload, Width::Full, &all)
}

fn designs(row: &Row) -> String {
    let unit = escaped(unit(row.experiment.unit));
    let mut groups = vec![("", 1), ("Interrupts", 3), ("Flushes", 2), ("", 3)];
    let mut names = vec![
        "Design",
        &unit,
        "sent",
        "to lazy",
        "to absent",
        "full",
        "ranged",
        "Violations",
        "Hazards",
        "Held",
    ];
    let of_some = of_some(row);
    for count in &of_some {
        names.push(count.name_in_group);
        match groups.last_mut() {
            Some((group, columns)) if *group == count.group => *columns += 1,
            _ => groups.push((count.group, 1)),
        }
    }
    let mut table = Table::grouped(&groups, &names);
    for (design, outcome) in row.designs() {
        let of_all = [
            escaped(design),
            significant(outcome.value),
            grouped(outcome.interrupts_sent),
            grouped(outcome.interrupts_to_lazy),
            grouped(outcome.interrupts_to_absent),
            grouped(outcome.flushes_full),
            grouped(outcome.flushes_ranged),
            alarming(outcome.violations),
            grouped(outcome.hazards),
            grouped(outcome.held_tables_peak),
        ];
        table.row(of_all.into_iter().chain(of_some.iter().map(|count| count.cell(outcome))));
    }
    let mut part = table.html();
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

/// Where a page's numbers are from.
pub(crate) fn provenance(results: &Results) -> String {
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

#[cfg(test)]
mod tests;
