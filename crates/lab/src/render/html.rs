//! The rows as one page that needs nothing else, neither files nor network.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use shootdown_sim::machine::Machine;

use super::{grouped, plot, significant, unit};
use crate::experiment::{Row, Scale};
use crate::machines;

/// What the page says about the run, beside its rows.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    pub(crate) seed: u64,
    pub(crate) scale: Scale,
    pub(crate) machines: &'a [Machine],
}

/// Whether a page could be written there, before minutes are spent on what it says.
pub(crate) fn check(path: &Path) -> io::Result<()> {
    let unfinished = unfinished(path)?;
    File::create_new(&unfinished)?;
    fs::remove_file(unfinished)
}

/// Writes the page to a neighbour first, so that nothing leaves half a page behind.
pub(crate) fn write(path: &Path, page: &str) -> io::Result<()> {
    let unfinished = unfinished(path)?;
    let result = File::create(&unfinished)
        .and_then(|mut file| {
            file.write_all(page.as_bytes())?;
            // Some disks are full only when it comes to this.
            file.sync_all()
        })
        .and_then(|()| fs::rename(&unfinished, path));
    if result.is_err() {
        // What failed is reported; this only tidies up after it.
        let _ = fs::remove_file(&unfinished);
    }
    result
}

fn unfinished(path: &Path) -> io::Result<PathBuf> {
    let is_file = !path.is_dir();
    let name = path.file_name().filter(|_| is_file).ok_or(io::ErrorKind::IsADirectory)?;
    let name = format!(".{}.{}.unfinished", name.to_string_lossy(), std::process::id());
    Ok(path.with_file_name(name))
}

/// The page.
pub(crate) fn page(rows: &[Row], run: &Run<'_>) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>shootdown: reproduce</title>\n<style>{STYLE}</style>\n\
         <h1>TLB shootdowns: published, predicted, and with this engine</h1>\n\
         <p>Each result was published for a change to a kernel. Predicted is what the simulator \
         says of the kernel before and after it; error is by how much the predicted gain is off \
         the published one.</p>\n"
    );
    page += &summary(rows);
    for row in rows {
        let experiment = &row.experiment;
        let _ = write!(
            page,
            "<h2>{} {}</h2>\n<p>{} on {}; {} is better.</p>\n{}{}",
            escaped(experiment.seed),
            escaped(experiment.workload),
            capitalised(&escaped(experiment.metric)),
            escaped(&row.machine),
            experiment.better.name(),
            plot::bars(row),
            designs(row)
        );
    }
    page + &provenance(run) + "</html>\n"
}

fn summary(rows: &[Row]) -> String {
    let mut table =
        "<div class=\"wide\"><table>\n<tr><th>Workload<th class=\"unit\">Unit<th>Published\
        <th>Predicted<th>Error<th>Shootdown<th>Violations\n"
            .to_owned();
    for row in rows {
        let (experiment, predicted) = (&row.experiment, &row.predicted);
        let published = experiment.published;
        let violations = row.violations();
        let bad = if violations > 0 { " class=\"bad\"" } else { "" };
        let _ = writeln!(
            table,
            "<tr><td>{} {}<td class=\"unit\">{}<td>{}<td>{}<td>{:+.1} %<td>{}<td{bad}>{}",
            escaped(experiment.seed),
            escaped(experiment.workload),
            escaped(unit(experiment.unit)),
            change(published.before, published.after, row.published_gain()),
            change(predicted.before.value, predicted.after.value, row.predicted_gain()),
            row.gain_error_percent(),
            with_gain(row.shootdown.value, row.shootdown_gain()),
            grouped(violations),
        );
    }
    table + "</table></div>\n"
}

fn change(before: f64, after: f64, gain: f64) -> String {
    format!("{} → {}", significant(before), with_gain(after, gain))
}

fn with_gain(value: f64, gain: f64) -> String {
    format!("{} <small>×{}</small>", significant(value), significant(gain))
}

fn designs(row: &Row) -> String {
    let mut table = format!(
        "<div class=\"wide\"><table>\n<tr><th>Design<th>{}<th>Interrupts<th>to lazy<th>to absent\
         <th>Full flushes<th>Ranged<th>Violations<th>Hazards\n",
        escaped(unit(row.experiment.unit))
    );
    for (design, outcome) in row.designs() {
        let bad = if outcome.violations > 0 { " class=\"bad\"" } else { "" };
        let _ = writeln!(
            table,
            "<tr><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td{bad}>{}<td>{}",
            escaped(design),
            significant(outcome.value),
            grouped(outcome.interrupts_sent),
            grouped(outcome.interrupts_to_lazy),
            grouped(outcome.interrupts_to_absent),
            grouped(outcome.flushes_full),
            grouped(outcome.flushes_ranged),
            grouped(outcome.violations),
            grouped(outcome.hazards),
        );
    }
    if let Some(measurement) = row.experiment.calibrated_on {
        let measurement = escaped(measurement);
        return format!(
            "{table}</table></div>\n<p>Something was fitted to one of these figures \
             ({measurement}): that one is no prediction.</p>\n"
        );
    }
    table + "</table></div>\n"
}

fn provenance(run: &Run<'_>) -> String {
    let scale = match run.scale {
        Scale::Full => "as much work as was published",
        Scale::Quick => "less work than was published (--quick)",
    };
    let mut text = format!(
        "<h2>Where this is from</h2>\n<p>shootdown {}, seed {}, {scale}. Violations are uses of a \
         translation after a flush that covered it was waited for; hazards are freed page tables \
         that a CPU’s speculation could still have walked.</p>\n",
        env!("CARGO_PKG_VERSION"),
        run.seed
    );
    for machine in run.machines {
        let _ = writeln!(
            text,
            "<h3>{}</h3>\n<p>{}. {} numbers; <code>shootdown machines {0}</code> shows them all \
             with their sources.</p>",
            escaped(&machine.name),
            escaped(&machine.about),
            machine.numbers().len()
        );
        let mut fitted = machines::calibrated(machine).peekable();
        if fitted.peek().is_none() {
            text += "<p>None was fitted to a published measurement.</p>\n";
            continue;
        }
        text += "<ul>\n";
        for (number, measurement) in fitted {
            let key = format!("{}.{}", number.section, number.key);
            let (key, measurement) = (escaped(&key), escaped(measurement));
            let _ = writeln!(
                text,
                "<li><code>{key} = {}</code>, fitted to {measurement}. {}",
                number.value,
                capitalised(&escaped(&number.source))
            );
        }
        text += "</ul>\n";
    }
    text
}

/// Text that is nothing but text to a browser.
pub(crate) fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;").replace('\'', "&#39;")
}

fn capitalised(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().map(|first| first.to_uppercase().chain(rest).collect()).unwrap_or_default()
}

const STYLE: &str = "\
:root{color-scheme:light dark}\
body{font:15px/1.5 system-ui,sans-serif;max-width:58rem;margin:2.5rem auto;padding:0 1rem}\
h1{font-size:1.5rem;line-height:1.2}h2{font-size:1.15rem;margin-top:2.5rem}h3{font-size:1rem}\
table{border-collapse:collapse;width:100%;margin:1rem 0}.wide{overflow-x:auto}\
th,td{padding:.3rem .5rem;text-align:right;white-space:nowrap;\
border-bottom:1px solid color-mix(in srgb,currentColor 20%,transparent)}\
th{font-weight:600}th:first-child,td:first-child,.unit{text-align:left}\
small{opacity:.7}.bad{color:#d0323c;font-weight:700}svg{width:100%;height:auto}\
code{font-size:.9em}li{margin:.4rem 0}";

#[cfg(test)]
mod tests;
