//! Replayed recordings as parts of a page.
//!
//! A recording is a file of an unknown author, so all its texts are printed with [`visible`].

use std::fmt::Write as _;
use std::path::Path;

use shootdown_designs::Design;
use shootdown_recording::Header;

use super::comparison::{Comparison, DESIGNS};
use super::fidelity::ratio;
use super::replays::TooFewCpus;
use super::tables;
use super::verdict::{DesignRow, Kernel, Shortfall, Verdict, Wait, saved, sentence};
use crate::render::page::{alarming, escaped, visible};
use crate::render::plot::{Bar, OPACITIES, Of, Width, bars};
use crate::render::table::{Cell, Table};
use crate::render::{duration, grouped};

/// Returns an overview of all recordings, and a chapter for each.
pub(crate) fn part(comparisons: &[Comparison]) -> String {
    let mut part = "<h2 id=\"recordings\">What other designs would do</h2>\n\
         <p>Each program ran on a real Linux kernel, which recorded its system calls, page faults \
         and context switches. Here the program runs again on a simulated machine under three \
         designs: Linux before the changes of the published studies (<code>linux-4.12</code>), \
         current Linux (<code>linux-7.0</code>), and the engine of this project \
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
        .left(["recording"])
        .group("Interrupts", ["recorded"].into_iter().chain(DESIGNS.map(Design::name)))
        .group("Shootdown", ["time saved", "violations"]);
    for (number, comparison) in comparisons.iter().enumerate() {
        let verdict = comparison.main();
        let name = format!("<a href=\"#recording-{number}\">{}</a>", file_name(verdict));
        let both = verdict.ours_and_linux();
        let saved = both.map_or_else(String::new, |(ours, linux)| saved(ours, linux));
        let all = comparison.verdicts.iter().filter_map(Verdict::ours_and_linux);
        let violations = all.map(|(ours, _)| ours.violations).sum();
        let sent = verdict.designs.iter().map(|row| Cell::Count(row.ipis_sent));
        let recorded = [Cell::Markup(name), Cell::Count(verdict.kernel.ipis_sent)];
        let shootdown = [saved.into(), Cell::Alarm(violations)];
        table.row(recorded.into_iter().chain(sent).chain(shootdown));
    }
    table.html()
        + "<p><small><em>Recorded</em> is the number of interrupts that the real kernel sent. The \
           other counts are from the replay under the recorded schedule, or under the simulated \
           schedule if the simulated machine has too few CPUs. <em>Time saved</em> is the \
           simulated time that shootdown saves, in percent of the time under linux-7.0. The \
           recorded schedule has no random choices, so a single run has no statistical error; \
           under the simulated schedule, a result of ± is smaller than two standard errors. \
           <em>Violations</em> are those of shootdown under both schedules.</small></p>\n"
}

fn chapter(number: usize, comparison: &Comparison) -> String {
    let verdict = comparison.main();
    let mut part = format!("<h2 id=\"recording-{number}\">{}</h2>\n", file_name(verdict));
    if verdict.recording.lost > 0 {
        let lost = alarming(verdict.recording.lost);
        let _ = writeln!(
            part,
            "<p class=\"verdict bad\">{lost} events were lost while recording, so all counts are \
             too low.</p>"
        );
    }
    if let Err(error) = comparison.accounted() {
        let advice = match error.shortfall {
            Shortfall::Cut(_) => "These counts are for a part of the recording",
            Shortfall::Dropped(_) | Shortfall::Flushes => "Do not use these counts",
        };
        let error = visible(&error.to_string());
        let _ = writeln!(part, "<p class=\"verdict bad\">{advice}. {error}.</p>");
    }
    if verdict.recording.is_hardly_parallel() {
        let percent = 100.0 * verdict.recording.parallel_share;
        let _ = writeln!(
            part,
            "<p>Threads of one address space ran at once for only {percent:.1} % of the program’s \
             time, so few flushes needed an interrupt.</p>"
        );
    }
    for verdict in &comparison.verdicts {
        let Some((ours, linux)) = verdict.ours_and_linux() else { continue };
        let class = class(ours, linux);
        let (schedule, sentence) = (verdict.schedule.name(), sentence(ours, linux));
        let _ =
            writeln!(part, "<p class=\"{class}\">Under the {schedule} schedule, {sentence}</p>");
    }
    part += &facts(comparison);
    part += "<h3>The replay compared with the real kernel</h3>\n";
    part += &fidelity(comparison);
    part += "<h3>The designs side by side</h3>\n";
    part += &plots(&comparison.verdicts);
    part += &tables::side_by_side(&comparison.verdicts).html();
    part
}

/// Returns the class of the sentence that compares two designs. It is green only for a difference
/// that a reader would call one: a tenth of the interrupts, and no more time.
fn class(ours: &DesignRow, linux: &DesignRow) -> &'static str {
    let has_fewer = linux.ipis_sent > 0 && ours.ipis_sent * 10 <= linux.ipis_sent * 9;
    match (ours.violations, has_fewer && ours.time_ns <= linux.time_ns) {
        (1.., _) => "verdict bad",
        (0, true) => "verdict",
        (0, false) => "verdict even",
    }
}

/// Returns the properties of the recording and of its replays.
fn facts(comparison: &Comparison) -> String {
    let verdict = comparison.main();
    let recording = &verdict.recording;
    let Header { command, kernel, processor, cpus, .. } = &recording.header;
    let command: Vec<_> = command.iter().map(|word| visible(word)).collect();
    let mut part = format!(
        "<dl>\n<dt>File<dd><code>{}</code>\n<dt>Command<dd><code>{}</code>\n\
         <dt>Recorded on<dd>{cpus} CPUs, {}, Linux {}\n\
         <dt>Program<dd>{} threads in {} address spaces\n\
         <dt>Recorded time<dd>{}. Simulated times differ from it under all designs alike: see \
         <a href=\"#limits\">the limits of a replay</a>\n\
         <dt>Requests<dd>{} calls of mmap, munmap, mprotect, madvise, mremap and brk, and {} page \
         faults, in {} records\n\
         <dt>Replayed on<dd>{}, {}\n",
        visible(&recording.file),
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
        runs(&comparison.verdicts),
    );
    if recording.ipis_by_others > 0 {
        let _ = writeln!(
            part,
            "<dt>Not replayed<dd>{} more interrupts, which had causes outside the program \
             (reclaim, write-back)",
            grouped(recording.ipis_by_others)
        );
    }
    part + "</dl>\n"
}

/// Returns the number of replays under each schedule.
fn runs(verdicts: &[Verdict]) -> String {
    let runs = |verdict: &Verdict| match verdict.runs {
        1 => format!("once under the {} schedule", verdict.schedule.name()),
        runs => format!(
            "{runs} times under the {} schedule, with random numbers from seed {} (the page shows \
             means)",
            verdict.schedule.name(),
            verdict.seed
        ),
    };
    verdicts.iter().map(runs).collect::<Vec<_>>().join(", ")
}

/// Returns the counts of the closest model of Linux beside those of the recorded kernel.
fn fidelity(comparison: &Comparison) -> String {
    let verdict = comparison.main();
    let Kernel { requests, ipis_sent, flushes_full, flushes_ranged } = verdict.kernel;
    let model = verdict.fidelity.model;
    let linux = verdict.designs.iter().find(|row| row.design.name() == model);
    let (Some(linux), None) = (linux, &comparison.too_few_cpus) else {
        return format!(
            "<p>The recorded kernel sent {} interrupts and did {} full and {} ranged flushes. \
             These counts cannot be compared with a replay under another schedule.{}</p>\n",
            grouped(ipis_sent),
            grouped(flushes_full),
            grouped(flushes_ranged),
            comparison.too_few_cpus.as_ref().map_or_else(String::new, too_few_cpus),
        );
    };
    let replayed = format!("{model}, replayed");
    let names = ["recorded kernel", &replayed, "ratio", ""];
    let mut table = Table::default().left([""]).right(names);
    let requests = requests.map(|real| ("flushes requested", real, linux.requests));
    let counts = [
        ("interrupts sent", ipis_sent, linux.ipis_sent),
        ("full flushes", flushes_full, linux.flushes_full),
        ("ranged flushes", flushes_ranged, linux.flushes_ranged),
        ("all flushes", verdict.kernel.flushes(), linux.flushes()),
    ];
    for (name, real, predicted) in requests.into_iter().chain(counts) {
        let ratio = ratio(predicted, real);
        table.row([
            name.to_owned(),
            grouped(real),
            grouped(predicted),
            ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.3}")),
            closeness(ratio, predicted.abs_diff(real)),
        ]);
    }
    table.html()
}

fn too_few_cpus(error: &TooFewCpus) -> String {
    let TooFewCpus { recorded, machine, known, .. } = error;
    let mut text = format!(" The recording is of {recorded} CPUs, and this machine has {machine}");
    if let Some(first) = known.first() {
        let _ = write!(text, "; <code>--machine {}</code> has enough", escaped(first));
    }
    text + "."
}

/// Returns a ratio in words, with the difference, because a small difference is many percent of a
/// small number.
fn closeness(ratio: Option<f64>, difference: u64) -> String {
    let Some(ratio) = ratio else { return "the kernel did none".to_owned() };
    let percent = (ratio - 1.0).abs() * 100.0;
    if percent <= 10.0 {
        "within 10 %".to_owned()
    } else {
        format!("off by {}, {percent:.0} %", grouped(difference))
    }
}

/// Returns plots of interrupts, flushes and waits, each for each schedule.
fn plots(verdicts: &[Verdict]) -> String {
    // A sign of the legend and its name stay on one line.
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
    figures("Interrupts sent", "", interrupts);
    let legend = format!(
        ": {} + {} + {}",
        sign("full", first),
        sign("ranged", second),
        sign("at a switch (designs only)", third)
    );
    figures("Flushes", &legend, flushes);
    let legend = [sign("p50", first), sign("p99", second), sign("max", third)].join(" ");
    figures("Wait for a flush", &format!(": {legend}"), waits);
    part + "</div>\n"
}

fn interrupts(verdict: &Verdict) -> Vec<Bar> {
    let ends = |sent| (vec![sent as f64], grouped(sent));
    bars_of(verdict, Some(ends(verdict.kernel.ipis_sent)), |row| ends(row.ipis_sent))
}

fn flushes(verdict: &Verdict) -> Vec<Bar> {
    let ends = |parts: &[u64]| {
        let end = |sum: &mut u64, part: &u64| {
            *sum += part;
            Some(*sum as f64)
        };
        let value = parts.iter().map(|part| grouped(*part)).collect::<Vec<_>>().join(" + ");
        (parts.iter().scan(0, end).collect(), value)
    };
    // The kernel traces a flush at a switch even if nothing is invalidated, so its number of them
    // is not comparable.
    let Kernel { flushes_full, flushes_ranged, .. } = verdict.kernel;
    bars_of(verdict, Some(ends(&[flushes_full, flushes_ranged])), |row| {
        ends(&[row.flushes_full, row.flushes_ranged, row.flushes_at_switch])
    })
}

fn waits(verdict: &Verdict) -> Vec<Bar> {
    bars_of(verdict, None, |row| {
        let Wait { p50, p99, max } = row.shootdown_wait_ns;
        let ends = [p50, p99, max];
        (ends.map(|ns| ns as f64).to_vec(), ends.map(duration).join(", "))
    })
}

/// The ends of the parts of a bar, and its value in words.
type Ends = (Vec<f64>, String);

/// Returns a bar for the recorded kernel, if it has one, and a bar for each design.
fn bars_of(
    verdict: &Verdict,
    kernel: Option<Ends>,
    ends_of: impl Fn(&DesignRow) -> Ends,
) -> Vec<Bar> {
    let bar = |label: &str, of, (ends, value)| Bar { label: label.to_owned(), of, ends, value };
    let kernel = kernel.map(|ends| bar("recorded kernel", Of::Reality, ends));
    let designs = verdict.designs.iter().map(|row| {
        let of = if row.design == Design::SHOOTDOWN { Of::Ours } else { Of::Design };
        bar(row.design.name(), of, ends_of(row))
    });
    kernel.into_iter().chain(designs).collect()
}

fn file_name(verdict: &Verdict) -> String {
    let name = Path::new(&verdict.recording.file).file_name().unwrap_or_default();
    visible(&name.to_string_lossy())
}

#[cfg(test)]
mod tests;
