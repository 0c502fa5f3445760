//! Verdicts as text for reading.

use super::fidelity::{Fidelity, Judgement};
use super::tables;
use super::verdict::{Recording, Verdict, saved, sentence};
use crate::error::shown;
use crate::render::table::Table;
use crate::render::{duration, grouped, significant};

/// Returns the recording, the figures of each design, and the fidelity of the replay.
pub(super) fn verdict(verdict: &Verdict) -> String {
    let Verdict { recording, kernel, .. } = verdict;
    let mut text = about(recording);
    text += &format!(
        "\nreplayed on {}, {} schedule{}\n\n{}",
        shown(&verdict.machine),
        verdict.schedule.name(),
        if verdict.runs > 1 { format!(", mean of {} runs", verdict.runs) } else { String::new() },
        tables::designs(verdict)
    );
    text += &format!("\n{}", tables::causes(verdict));
    text += &format!(
        "\nthe recorded kernel: {} requests, {} interrupts, {} full flushes, {} ranged\n",
        kernel.requests.map_or_else(|| "unknown".to_owned(), grouped),
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

/// Returns a line for each replay, with the interrupts of the recorded kernel, `linux-7.0` and
/// shootdown.
pub(crate) fn overview<'v>(verdicts: impl Iterator<Item = &'v Verdict>) -> String {
    let mut table = Table::default().left(["recording", "schedule"]).right([
        "kernel sent",
        "linux-7.0",
        "shootdown",
        "time saved",
        "violations",
    ]);
    for verdict in verdicts {
        let Some((ours, linux)) = verdict.ours_and_linux() else { continue };
        let kernel = match verdict.fidelity.ipis_ratio {
            Some(_) => grouped(verdict.kernel.ipis_sent),
            None => String::new(),
        };
        table.row([
            shown(&verdict.recording.file),
            verdict.schedule.name().to_owned(),
            kernel,
            grouped(linux.ipis_sent),
            grouped(ours.ipis_sent),
            saved(ours, linux),
            grouped(ours.violations),
        ]);
    }
    table.to_string()
}

/// Returns the recording in two lines.
fn about(recording: &Recording) -> String {
    let header = &recording.header;
    let command: Vec<_> = header.command.iter().map(shown).collect();
    let mut text = format!(
        "{}: {}\n{} on {} CPUs ({}, Linux {}): {} threads, {} address spaces, {} memory calls, \
         {} faults\n",
        shown(&recording.file),
        command.join(" "),
        duration(recording.time_ns),
        header.cpus,
        shown(&header.processor),
        shown(&header.kernel),
        grouped(recording.threads as u64),
        grouped(recording.spaces as u64),
        grouped(recording.calls),
        grouped(recording.faults),
    );
    if let Some(cut) = &recording.cut {
        text += &format!(
            "{cut}: these are its first {} records, of {}\n",
            grouped(recording.records),
            duration(recording.time_ns)
        );
    }
    if recording.lost > 0 {
        text += &format!("{} events were lost, so counts are too low\n", grouped(recording.lost));
    }
    if recording.ipis_by_others > 0 {
        text += &format!(
            "{} more interrupts had causes outside the program (reclaim, write-back) and are not \
             replayed\n",
            grouped(recording.ipis_by_others)
        );
    }
    if recording.is_hardly_parallel() {
        text += &format!(
            "threads of one space ran at once for {:.1} % of the program's time, so few flushes \
             needed an interrupt\n",
            100.0 * recording.parallel_share
        );
    }
    text
}

fn fidelity(fidelity: &Fidelity) -> String {
    let Some(verdict) = fidelity.verdict else { return String::new() };
    let times = |ratio: Option<f64>| ratio.map_or_else(|| "–".to_owned(), significant);
    let mut text = format!(
        "{} divided by the recorded kernel: requests {}, interrupts {}, full flushes {}, \
         ranged {}, all flushes {}\n",
        fidelity.model,
        times(fidelity.requests_ratio),
        times(fidelity.interrupts_ratio),
        times(fidelity.full_ratio),
        times(fidelity.ranged_ratio),
        times(fidelity.flushes_ratio),
    );
    text += match verdict {
        Judgement::Close => "fidelity: close (each count within 10 %, or within 10)\n",
        Judgement::Off => "fidelity: off (a count differs by more than 10 %)\n",
        Judgement::Unusable => {
            "fidelity: unusable (requests or flushes differ by more than a factor of 2): do not \
             believe these counts\n"
        }
    };
    text
}
