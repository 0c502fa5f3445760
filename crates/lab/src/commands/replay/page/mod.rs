//! Recordings, replayed by both schedules, as parts of a page.
//!
//! All texts of a recording are from a file of an unknown author: they are printed with
//! [`visible`].

use std::fmt::Write as _;
use std::path::Path;

use shootdown_designs::Design;

use super::comparison::{Comparison, DESIGNS};
use super::replays::TooFewCpus;
use super::tables;
use super::verdict::{DesignRow, Kernel, Recording, Verdict, Wait, percent, sentence};
use crate::render::page::{alarming, escaped, visible};
use crate::render::plot::{Bar, OPACITIES, Of, Width, bars};
use crate::render::table::{Cell, Table};
use crate::render::{duration, grouped};

/// All recordings: a line each, and then a chapter each.
pub(crate) fn part(comparisons: &[Comparison]) -> String {
    let mut part = "<h2>Recorded programs, replayed</h2>\n\
         <p>Each program ran on a real kernel, which was watched. Here it runs again on a \
         simulated machine, under the Linux of before the published changes \
         (<code>linux-4.12</code>), the Linux of today (<code>linux-7.0</code>), and this engine \
         (<code>shootdown</code>).</p>\n"
        .to_owned();
    part += &overview(comparisons);
    for (number, comparison) in comparisons.iter().enumerate() {
        part += &chapter(number, comparison);
    }
    part
}

fn overview(comparisons: &[Comparison]) -> String {
    let mut table = Table::default()
        .left(["Recording"])
        .group("Interrupts", ["recorded"].into_iter().chain(DESIGNS.map(Design::name)))
        .group("Shootdown", ["saves", "violations"]);
    for (number, comparison) in comparisons.iter().enumerate() {
        let verdict = comparison.main();
        let name = format!("<a href=\"#recording-{number}\">{}</a>", file_name(verdict));
        let saved = verdict.ours_and_linux().map_or_else(String::new, |(ours, linux)| {
            // A number that is shown as 0 has no sign.
            match -percent(linux.time_ns, ours.time_ns) {
                -0.005..0.005 => "0.00 %".to_owned(),
                saved => format!("{saved:+.2} %"),
            }
        });
        let both = comparison.verdicts.iter().filter_map(Verdict::ours_and_linux);
        let violations = both.map(|(ours, _)| ours.violations).sum();
        let sent = verdict.designs.iter().map(|row| Cell::Count(row.ipis_sent));
        let recorded = [Cell::Markup(name), Cell::Count(verdict.kernel.ipis_sent)];
        let shootdown = [saved.into(), Cell::Alarm(violations)];
        table.row(recorded.into_iter().chain(sent).chain(shootdown));
    }
    table.html()
        + "<p><small>By the recorded schedule, where the machine has as many CPUs as the \
           recorder’s. Saves: simulated time, of that under linux-7.0. Violations: by either \
           schedule.</small></p>\n"
}

fn chapter(number: usize, comparison: &Comparison) -> String {
    let verdict = comparison.main();
    let mut part = format!("<h2 id=\"recording-{number}\">{}</h2>\n", file_name(verdict));
    for verdict in &comparison.verdicts {
        let Some((ours, linux)) = verdict.ours_and_linux() else { continue };
        let class = if ours.violations > 0 { "verdict bad" } else { "verdict" };
        let (schedule, sentence) = (verdict.schedule.name(), sentence(ours, linux));
        let _ = writeln!(part, "<p class=\"{class}\">By the {schedule} schedule, {sentence}</p>");
    }
    part += &facts(comparison);
    part += "<h3>The replay against the real kernel</h3>\n";
    part += &fidelity(comparison);
    part += "<h3>The designs side by side</h3>\n";
    part += &plots(&comparison.verdicts);
    part += &tables::side_by_side(&comparison.verdicts).html();
    if let Some((ours, linux)) = verdict.ours_and_linux() {
        part += &cost(ours, linux);
    }
    part
}

/// What was recorded.
fn facts(comparison: &Comparison) -> String {
    let verdict = comparison.main();
    let Recording { command, kernel, processor, cpus, lost, ipis_by_others, .. } =
        &verdict.recording;
    let recording = &verdict.recording;
    let command: Vec<_> = command.iter().map(|word| visible(word)).collect();
    let mut part = format!(
        "<dl>\n<dt>File<dd><code>{}</code>\n<dt>Command<dd><code>{}</code>\n\
         <dt>Recorded on<dd>{cpus} CPUs, {}, Linux {}\n\
         <dt>Program<dd>{} threads in {} address spaces, {}\n\
         <dt>Asked for<dd>{} memory calls and {} page faults ({} records)\n\
         <dt>Replayed on<dd>{}, {}\n",
        visible(&verdict.trace),
        command.join(" "),
        visible(processor),
        visible(kernel),
        grouped(recording.threads as u64),
        grouped(recording.spaces as u64),
        duration(recording.time_ns),
        grouped(recording.calls),
        grouped(recording.faults),
        grouped(recording.records),
        visible(&verdict.machine),
        times(&comparison.verdicts),
    );
    if *lost > 0 {
        let _ = writeln!(part, "<dt>Lost<dd>{} events: counts are too low", alarming(*lost));
    }
    if *ipis_by_others > 0 {
        let _ = writeln!(
            part,
            "<dt>Left out<dd>{} more interrupts that came from outside of the program (reclaim, \
             write-back)",
            grouped(*ipis_by_others)
        );
    }
    part + "</dl>\n"
}

/// The number of replays by each schedule.
fn times(verdicts: &[Verdict]) -> String {
    let times = |verdict: &Verdict| match verdict.runs {
        1 => format!("once by the {} schedule", verdict.schedule.name()),
        runs => format!(
            "{runs} times by the {} schedule from seed {}, of which the mean is shown",
            verdict.schedule.name(),
            verdict.seed
        ),
    };
    verdicts.iter().map(times).collect::<Vec<_>>().join(", ")
}

/// `linux-7.0` beside the recorded kernel.
fn fidelity(comparison: &Comparison) -> String {
    let verdict = comparison.main();
    let Kernel { ipis_sent, flushes_full, flushes_ranged } = verdict.kernel;
    let linux = verdict.ours_and_linux().map(|(_, linux)| linux);
    let (Some(linux), None) = (linux, &comparison.too_few_cpus) else {
        return format!(
            "<p>The recorded kernel sent {} interrupts, and did {} full and {} ranged flushes. It \
             cannot be compared with a replay by another schedule.{}</p>\n",
            grouped(ipis_sent),
            grouped(flushes_full),
            grouped(flushes_ranged),
            comparison.too_few_cpus.as_ref().map_or_else(String::new, too_few_cpus),
        );
    };
    let names = ["the recorded kernel", "linux-7.0, replayed", "ratio", ""];
    let mut table = Table::default().left([""]).right(names);
    table.row([
        "Interrupts sent".to_owned(),
        grouped(ipis_sent),
        grouped(linux.ipis_sent),
        ratio(verdict.fidelity.ipis_ratio),
        closeness(verdict.fidelity.ipis_ratio, linux.ipis_sent.abs_diff(ipis_sent)),
    ]);
    let difference = linux.flushes().abs_diff(verdict.kernel.flushes());
    table.row([
        "Flushes, full + ranged".to_owned(),
        sum(flushes_full, flushes_ranged),
        sum(linux.flushes_full, linux.flushes_ranged),
        ratio(verdict.fidelity.flushes_ratio),
        closeness(verdict.fidelity.flushes_ratio, difference),
    ]);
    table.html()
}

fn too_few_cpus(error: &TooFewCpus) -> String {
    let TooFewCpus { recorded, machine, known, .. } = error;
    let mut text = format!(" {recorded} CPUs were recorded, and this machine has {machine}");
    if let Some(first) = known.first() {
        let _ = write!(text, "; <code>--machine {}</code> has enough", escaped(first));
    }
    text + "."
}

fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.3}"))
}

/// A ratio in words. A small difference is many percent of a small number.
fn closeness(ratio: Option<f64>, difference: u64) -> String {
    let Some(ratio) = ratio else { return "the kernel did none".to_owned() };
    let percent = (ratio - 1.0).abs() * 100.0;
    if percent <= 10.0 {
        "within 10 %".to_owned()
    } else {
        format!("off by {}, {percent:.0} %", grouped(difference))
    }
}

fn sum(full: u64, ranged: u64) -> String {
    format!("{} + {}", grouped(full), grouped(ranged))
}

/// Interrupts, flushes and waits, each by each schedule.
fn plots(verdicts: &[Verdict]) -> String {
    // A sign and its meaning stay in one line.
    let sign = |what: &str, opacity: f64| {
        format!("<span><i style=\"opacity:{opacity}\"></i> {what}</span>")
    };
    let [first, second, third] = OPACITIES;
    let mut part = "<div class=\"plots\">\n".to_owned();
    let mut figures = |what: &str, legend: &str, of: fn(&Verdict) -> Vec<Bar>| {
        for verdict in verdicts {
            let schedule = verdict.schedule.name();
            let plot = bars(&format!("{what}, {schedule} schedule"), Width::Half, &of(verdict));
            let _ = writeln!(
                part,
                "<figure><figcaption><b>{what}</b>, {schedule} schedule{legend}</figcaption>\n\
                 {plot}</figure>"
            );
        }
    };
    figures("Interrupts", "", interrupts);
    let legend = format!(": {} + {}", sign("full", first), sign("ranged", second));
    figures("Flushes", &legend, flushes);
    let legend = [sign("p50", first), sign("p99", second), sign("max", third)].join(" ");
    figures("Wait", &format!(": {legend}"), waits);
    part + "</div>\n"
}

fn interrupts(verdict: &Verdict) -> Vec<Bar> {
    let bar = |label: &str, of, sent| bar(label, of, vec![sent as f64], grouped(sent));
    let designs = verdict.designs.iter().map(|row| bar(row.design.name(), of(row), row.ipis_sent));
    [bar(KERNEL, Of::Reality, verdict.kernel.ipis_sent)].into_iter().chain(designs).collect()
}

fn flushes(verdict: &Verdict) -> Vec<Bar> {
    let bar = |label: &str, of, full, ranged| {
        bar(label, of, vec![full as f64, (full + ranged) as f64], sum(full, ranged))
    };
    let Kernel { flushes_full, flushes_ranged, .. } = verdict.kernel;
    let designs = verdict
        .designs
        .iter()
        .map(|row| bar(row.design.name(), of(row), row.flushes_full, row.flushes_ranged));
    [bar(KERNEL, Of::Reality, flushes_full, flushes_ranged)].into_iter().chain(designs).collect()
}

fn waits(verdict: &Verdict) -> Vec<Bar> {
    let wait = |row: &DesignRow| {
        let Wait { p50, p99, max } = row.shootdown_wait_ns;
        let ends = [p50, p99, max];
        let value = ends.map(duration).join(", ");
        bar(row.design.name(), of(row), ends.map(|ns| ns as f64).to_vec(), value)
    };
    verdict.designs.iter().map(wait).collect()
}

/// The label of a bar of the recorded kernel.
const KERNEL: &str = "recorded kernel";

fn bar(label: &str, of: Of, ends: Vec<f64>, value: String) -> Bar {
    Bar { label: label.to_owned(), of, ends, value }
}

fn of(row: &DesignRow) -> Of {
    if row.design == Design::SHOOTDOWN { Of::Ours } else { Of::Design }
}

/// The cost of an interrupt on this machine.
fn cost(ours: &DesignRow, linux: &DesignRow) -> String {
    let Some(each_ns) = linux.interrupted_ns.checked_div(linux.ipis_sent) else {
        return String::new();
    };
    format!(
        "<p>Under linux-7.0, an interrupt took {} from the CPU that it hit, {} in all; under \
         shootdown, interrupts took {} in all.</p>\n",
        duration(each_ns),
        duration(linux.interrupted_ns),
        duration(ours.interrupted_ns),
    )
}

fn file_name(verdict: &Verdict) -> String {
    let name = Path::new(&verdict.trace).file_name().unwrap_or_default();
    visible(&name.to_string_lossy())
}

#[cfg(test)]
mod tests;
