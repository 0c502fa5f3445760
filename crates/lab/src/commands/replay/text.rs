//! A verdict for people.

use super::verdict::{Fidelity, Recording, Verdict, chance_ns, percent, sentence};
use crate::commands::reproduce::text::{Align, Table};
use crate::error::shown;
use crate::render::{duration, grouped, significant};

/// What was recorded, what each design did with it, and how far to trust that.
pub(crate) fn verdict(verdict: &Verdict) -> String {
    let Verdict { recording, kernel, .. } = verdict;
    let mut text = about(&verdict.trace, recording);
    text += &format!(
        "\nreplayed on {}, {} schedule{}\n\n{}",
        shown(&verdict.machine),
        verdict.schedule,
        if verdict.runs > 1 { format!(", mean of {} runs", verdict.runs) } else { String::new() },
        designs(verdict)
    );
    text += &format!(
        "\nthe recorded kernel: {} interrupts, {} full flushes, {} ranged\n",
        grouped(kernel.ipis_sent),
        grouped(kernel.flushes_full),
        grouped(kernel.flushes_ranged),
    );
    text += &fidelity(&verdict.fidelity);
    if let Some((ours, linux)) = verdict.ours_and_linux() {
        text += &format!("{}\n", sentence(ours, linux));
    }
    text
}

/// A line for each replay: the recorded kernel, today's Linux, and this engine.
pub(crate) fn overview<'v>(verdicts: impl Iterator<Item = &'v Verdict>) -> String {
    let mut table = Table::new([("recording", Align::Left), ("schedule", Align::Left)])
        .column("kernel sent", Align::Right)
        .column("linux-7.0", Align::Right)
        .column("shootdown", Align::Right)
        .column("time saved", Align::Right)
        .column("violations", Align::Right);
    for verdict in verdicts {
        let Some((ours, linux)) = verdict.ours_and_linux() else { continue };
        let kernel = match verdict.fidelity.ipis_ratio {
            Some(_) => grouped(verdict.kernel.ipis_sent),
            None => String::new(),
        };
        let chance_ns = chance_ns(ours, linux);
        let saved = match ours.time_ns.abs_diff(linux.time_ns) {
            difference_ns if chance_ns > 0 && difference_ns <= chance_ns => {
                format!("± {:.2} %", percent(linux.time_ns, linux.time_ns + chance_ns))
            }
            _ => format!("{:.2} %", -percent(linux.time_ns, ours.time_ns)),
        };
        table.row([
            shown(&verdict.trace),
            verdict.schedule.to_owned(),
            kernel,
            grouped(linux.ipis_sent),
            grouped(ours.ipis_sent),
            saved,
            grouped(ours.violations),
        ]);
    }
    table.to_string()
}

/// What was recorded, in two lines.
fn about(trace: &str, recording: &Recording) -> String {
    let command: Vec<_> = recording.command.iter().map(shown).collect();
    let mut text = format!(
        "{}: {}\n{} on {} CPUs ({}, Linux {}): {} threads, {} address spaces, {} memory calls, \
         {} faults\n",
        shown(trace),
        command.join(" "),
        duration(recording.time_ns),
        recording.cpus,
        shown(&recording.processor),
        shown(&recording.kernel),
        grouped(recording.threads as u64),
        grouped(recording.spaces as u64),
        grouped(recording.calls),
        grouped(recording.faults),
    );
    if recording.lost > 0 {
        text += &format!("{} events were lost: counts are too low\n", grouped(recording.lost));
    }
    if recording.ipis_by_others > 0 {
        text += &format!(
            "{} interrupts more came from outside of the program (reclaim, write-back), and are \
             not replayed\n",
            grouped(recording.ipis_by_others)
        );
    }
    text
}

fn designs(verdict: &Verdict) -> Table {
    let mut table = Table::new([("design", Align::Left)])
        .column("time", Align::Right)
        .column("interrupts", Align::Right)
        .column("spared", Align::Right)
        .column("to lazy", Align::Right)
        .column("to absent", Align::Right)
        .column("full flushes", Align::Right)
        .column("ranged", Align::Right)
        .column("refills", Align::Right)
        .column("wait p50", Align::Right)
        .column("p99", Align::Right)
        .column("max", Align::Right)
        .column("violations", Align::Right);
    for row in &verdict.designs {
        table.row([
            row.design.to_owned(),
            duration(row.time_ns),
            grouped(row.ipis_sent),
            grouped(row.ipis_coalesced),
            grouped(row.ipis_to_lazy),
            grouped(row.ipis_to_absent),
            grouped(row.flushes_full),
            grouped(row.flushes_ranged),
            grouped(row.tlb_refills),
            duration(row.shootdown_wait_ns.p50),
            duration(row.shootdown_wait_ns.p99),
            duration(row.shootdown_wait_ns.max),
            grouped(row.violations),
        ]);
    }
    table
}

fn fidelity(fidelity: &Fidelity) -> String {
    let (Some(ipis), Some(flushes)) = (fidelity.ipis_ratio, fidelity.flushes_ratio) else {
        return String::new();
    };
    format!(
        "linux-7.0 sent {} times the interrupts that the kernel did, and flushed {} times as \
         often\n",
        significant(ipis),
        significant(flushes),
    )
}
