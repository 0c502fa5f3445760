//! Recordings, replayed by both schedules, as parts of a page.
//!
//! All that is said of a recording comes from a file that anybody may have made: it goes through
//! [`visible`].

use std::fmt::Write as _;
use std::path::Path;

use shootdown_sim::Machine;

use super::run::{Request, run};
use super::verdict::{DesignRow, Kernel, Recording, Verdict, percent, sentence};
use super::{DEFAULT_DESIGNS, DEFAULT_RUNS, Schedule, designs, violated};
use crate::error::Failure;
use crate::render::page::{Table, alarming, escaped, visible};
use crate::render::plot::{Bar, OPACITIES, Of, Width, bars};
use crate::render::{duration, grouped};

/// A recording, replayed by both schedules on one machine.
#[derive(Debug)]
pub(crate) struct Comparison {
    /// What came of it, the recorded schedule's first if the machine has CPUs enough for that.
    verdicts: Vec<Verdict>,
    /// Why there is none of the recorded schedule.
    too_few_cpus: Option<Failure>,
}

impl Comparison {
    /// What came of each schedule.
    pub(crate) fn verdicts(&self) -> impl Iterator<Item = &Verdict> {
        self.verdicts.iter()
    }

    /// Replays a recording under the usual designs, and shows progress meanwhile.
    ///
    /// # Errors
    ///
    /// If it cannot be read or not be replayed. That the machine has fewer CPUs than the recorder
    /// is none: it is said on the page.
    pub(crate) fn of(trace: &Path, machine: &Machine, seed: u64) -> Result<Self, Failure> {
        let designs = designs(&DEFAULT_DESIGNS.map(str::to_owned))?;
        let by = |schedule| {
            run(&Request { trace, machine, designs: &designs, schedule, seed, runs: DEFAULT_RUNS })
        };
        let mut comparison = Self { verdicts: Vec::new(), too_few_cpus: None };
        match by(Schedule::Recorded) {
            Ok(verdict) => comparison.verdicts.push(verdict),
            Err(failure @ Failure::TooFewCpus { .. }) => comparison.too_few_cpus = Some(failure),
            Err(failure) => return Err(failure),
        }
        comparison.verdicts.push(by(Schedule::Simulated)?);
        Ok(comparison)
    }

    /// Fails if this engine let a dead translation be used.
    pub(crate) fn violated(&self) -> Result<(), Failure> {
        self.verdicts.iter().try_for_each(violated)
    }

    /// The one to speak of if only one is spoken of.
    fn main(&self) -> &Verdict {
        &self.verdicts[0]
    }
}

/// All recordings, a line each and then a chapter each.
pub(crate) fn comparisons(comparisons: &[Comparison]) -> String {
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
    let groups = [("Interrupts", 1 + DEFAULT_DESIGNS.len()), ("Shootdown", 2)];
    let [before, after, ours] = DEFAULT_DESIGNS;
    let names = ["Recording", "recorded", before, after, ours, "saves", "violations"];
    let mut table = Table::grouped(&groups, &names);
    for (number, comparison) in comparisons.iter().enumerate() {
        let verdict = comparison.main();
        let name = format!("<a href=\"#recording-{number}\">{}</a>", file_name(verdict));
        let saved = verdict.ours_and_linux().map_or_else(String::new, |(ours, linux)| {
            // Less than what is shown has no sign.
            match -percent(linux.time_ns, ours.time_ns) {
                -0.005..0.005 => "0.00 %".to_owned(),
                saved => format!("{saved:+.2} %"),
            }
        });
        let ours =
            comparison.verdicts.iter().filter_map(Verdict::ours_and_linux).map(|(ours, _)| ours);
        let violations = ours.map(|ours| ours.violations).sum();
        table.row(
            [name, grouped(verdict.kernel.ipis_sent)]
                .into_iter()
                .chain(verdict.designs.iter().map(|row| grouped(row.ipis_sent)))
                .chain([saved, alarming(violations)]),
        );
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
        let (schedule, sentence) = (verdict.schedule, sentence(ours, linux));
        let _ = writeln!(part, "<p class=\"{class}\">By the {schedule} schedule, {sentence}</p>");
    }
    part += &facts(comparison);
    part += "<h3>The replay against the real kernel</h3>\n";
    part += &fidelity(comparison);
    part += "<h3>The designs side by side</h3>\n";
    part += &plots(&comparison.verdicts);
    part += &table(&comparison.verdicts);
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

/// How often it was replayed by each schedule.
fn times(verdicts: &[Verdict]) -> String {
    let times = |verdict: &Verdict| match verdict.runs {
        1 => format!("once by the {} schedule", verdict.schedule),
        runs => format!(
            "{runs} times by the {} schedule from seed {}, of which the mean is shown",
            verdict.schedule, verdict.seed
        ),
    };
    verdicts.iter().map(times).collect::<Vec<_>>().join(", ")
}

/// How far `linux-7.0` did what the kernel did.
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
    let mut table = Table::new(&["", "the recorded kernel", "linux-7.0, replayed", "ratio", ""]);
    table.row([
        "Interrupts sent".to_owned(),
        grouped(ipis_sent),
        grouped(linux.ipis_sent),
        ratio(verdict.fidelity.ipis_ratio),
        closeness(verdict.fidelity.ipis_ratio, linux.ipis_sent.abs_diff(ipis_sent)),
    ]);
    table.row([
        "Flushes, full + ranged".to_owned(),
        sum(flushes_full, flushes_ranged),
        sum(linux.flushes_full, linux.flushes_ranged),
        ratio(verdict.fidelity.flushes_ratio),
        closeness(
            verdict.fidelity.flushes_ratio,
            linux.flushes().abs_diff(verdict.kernel.flushes()),
        ),
    ]);
    table.html()
}

fn too_few_cpus(failure: &Failure) -> String {
    let Failure::TooFewCpus { recorded, machine, known, .. } = failure else {
        return String::new();
    };
    let mut text = format!(" {recorded} CPUs were recorded, and this machine has {machine}");
    if let [first, ..] = known[..] {
        let _ = write!(text, "; <code>--machine {}</code> has enough", escaped(first));
    }
    text + "."
}

fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.3}"))
}

/// In words; a few more or less are many percent of little.
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
    // What it stands for stays with its sign.
    let sign = |what: &str, opacity: f64| {
        format!("<span><i style=\"opacity:{opacity}\"></i> {what}</span>")
    };
    let [first, second, third] = OPACITIES;
    let mut part = "<div class=\"plots\">\n".to_owned();
    let mut figures = |what: &str, legend: &str, of: fn(&Verdict) -> Vec<Bar>| {
        for verdict in verdicts {
            let name = format!("{what}, {} schedule", verdict.schedule);
            let plot = bars(&name, Width::Half, &of(verdict));
            let _ = writeln!(
                part,
                "<figure><figcaption><b>{what}</b>, {} schedule{legend}</figcaption>\n\
                 {plot}</figure>",
                verdict.schedule
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
    with_kernel(
        verdict,
        verdict.kernel.ipis_sent,
        |sent| vec![sent as f64],
        grouped,
        |row| row.ipis_sent,
    )
}

fn flushes(verdict: &Verdict) -> Vec<Bar> {
    let Kernel { flushes_full, flushes_ranged, .. } = verdict.kernel;
    with_kernel(
        verdict,
        (flushes_full, flushes_ranged),
        |(full, ranged)| vec![full as f64, (full + ranged) as f64],
        |(full, ranged)| sum(full, ranged),
        |row| (row.flushes_full, row.flushes_ranged),
    )
}

/// Bars of the recorded kernel and of each design.
fn with_kernel<T: Copy>(
    verdict: &Verdict,
    kernel: T,
    ends: fn(T) -> Vec<f64>,
    value: fn(T) -> String,
    of: fn(&DesignRow) -> T,
) -> Vec<Bar> {
    let bar = |label: &str, of, counted| Bar {
        label: label.to_owned(),
        of,
        ends: ends(counted),
        value: value(counted),
    };
    let designs =
        verdict.designs.iter().map(|row| bar(row.design, Of::design(row.design), of(row)));
    [bar("recorded kernel", Of::Reality, kernel)].into_iter().chain(designs).collect()
}

fn waits(verdict: &Verdict) -> Vec<Bar> {
    let bar = |row: &DesignRow| {
        let waits =
            [row.shootdown_wait_ns.p50, row.shootdown_wait_ns.p99, row.shootdown_wait_ns.max];
        Bar {
            label: row.design.to_owned(),
            of: Of::design(row.design),
            ends: waits.map(|ns| ns as f64).to_vec(),
            value: waits.map(duration).join(", "),
        }
    };
    verdict.designs.iter().map(bar).collect()
}

/// A line of the table: its name, and a design's value.
type Line = (&'static str, fn(&DesignRow) -> String);

/// A name over lines, and those.
type Part = (&'static str, &'static [Line]);

const PARTS: [Part; 5] = [
    ("Time", &[("simulated", |row| duration(row.time_ns))]),
    (
        "Interrupts",
        &[
            ("sent", |row| grouped(row.ipis_sent)),
            ("spared", |row| grouped(row.ipis_coalesced)),
            ("to lazy CPUs", |row| grouped(row.ipis_to_lazy)),
            ("to absent CPUs", |row| grouped(row.ipis_to_absent)),
            ("interrupted, all CPUs", |row| duration(row.interrupted_ns)),
        ],
    ),
    (
        "Flushes",
        &[
            ("full", |row| grouped(row.flushes_full)),
            ("ranged", |row| grouped(row.flushes_ranged)),
            ("at a switch", |row| grouped(row.flushes_at_switch)),
            ("TLB refills", |row| grouped(row.tlb_refills)),
        ],
    ),
    (
        "Wait for a flush",
        &[
            ("p50", |row| duration(row.shootdown_wait_ns.p50)),
            ("p99", |row| duration(row.shootdown_wait_ns.p99)),
            ("max", |row| duration(row.shootdown_wait_ns.max)),
        ],
    ),
    (
        "Safety",
        &[("violations", |row| alarming(row.violations)), ("hazards", |row| grouped(row.hazards))],
    ),
];

/// A column for each design, for each schedule.
fn table(verdicts: &[Verdict]) -> String {
    let names: Vec<_> =
        verdicts.iter().map(|verdict| format!("{} schedule", verdict.schedule)).collect();
    let groups: Vec<_> = names
        .iter()
        .zip(verdicts)
        .map(|(name, verdict)| (name.as_str(), verdict.designs.len()))
        .collect();
    let rows = || verdicts.iter().flat_map(|verdict| &verdict.designs);
    let columns: Vec<_> = [""].into_iter().chain(rows().map(|row| row.design)).collect();
    let mut table = Table::grouped(&groups, &columns);
    for (name, lines) in PARTS {
        table.part(name);
        for (name, value) in lines {
            table.row([(*name).to_owned()].into_iter().chain(rows().map(value)));
        }
    }
    table.html()
}

/// What an interrupt costs here.
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
