//! Findings as text for reading. The first line is the answer.

use super::findings::{AdviceRow, Balanced, Findings, SiteRow, Total};
use crate::error::shown;
use crate::render::table::Table;
use crate::render::{duration, grouped, significant};

/// Number of calls that are printed of a call stack.
const FRAMES_MAX: usize = 12;

/// Returns the answer, the totals, the causes, and `sites_max` call sites with advice.
pub(super) fn findings(findings: &Findings, sites_max: usize) -> String {
    let Findings { total, sites, .. } = findings;
    let mut text = answer(findings);
    let command = format!("`{}`", shown(findings.recording.command.join(" ")));
    text += &format!("\n{}\n", totals(findings, &command));
    if total.requests == 0 {
        return text;
    }
    text += &format!("\n{}", causes(findings));
    for (number, site) in (1..).zip(sites.iter().take(sites_max)) {
        text += &format!("\n{}", one(number, site));
    }
    if sites.len() > sites_max {
        text += &format!("\n{} more call sites: --sites N\n", sites.len() - sites_max);
    }
    text + &notes(findings)
}

/// Returns the first line: the most expensive call site, and what to change.
pub(super) fn answer(findings: &Findings) -> String {
    let Some(site) = findings.sites.first() else {
        return "no shootdowns: no thread asked another CPU to flush\n".to_owned();
    };
    let place = site.caller.as_deref().map_or("an unknown place", |caller| caller);
    let change = site.advice.first().map(|advice| format!(": {}", shown(&advice.change)));
    format!(
        "{} causes {} of the shootdown cost by {}{}\n",
        shown(place),
        percent(site.share),
        shown(&site.cause),
        change.unwrap_or_default(),
    )
}

/// Returns the CPU time of the program, which is called `name`, and the sums of its shootdowns.
pub(super) fn totals(findings: &Findings, name: &str) -> String {
    let Total { requests, interrupts, in_vain, cpu_ns, measured_ns, cpu_share, program_ns, .. } =
        findings.total;
    format!(
        "{name} used {} of CPU time in {}. Its shootdowns: {} requests, {} interrupts, {} of \
         CPU time ({} of the program's; {} of it measured, the rest modelled). {} requests went \
         to CPUs that were idle or ran another program.",
        duration(program_ns),
        duration(findings.recording.time_ns),
        grouped(requests),
        grouped(interrupts),
        duration(cpu_ns),
        percent(cpu_share),
        duration(measured_ns),
        grouped(in_vain),
    )
}

fn causes(findings: &Findings) -> String {
    let mut table = Table::default()
        .left(["cause"])
        .right(["requests", "interrupts", "in vain", "CPU time", "share"])
        .left(["controlled by"]);
    for row in &findings.causes {
        table.row([
            shown(&row.cause),
            grouped(row.requests),
            grouped(row.interrupts),
            grouped(row.in_vain),
            duration(row.cpu_ns),
            percent(row.share),
            row.setting.clone().unwrap_or_default(),
        ]);
    }
    table.to_string()
}

fn one(number: usize, site: &SiteRow) -> String {
    let mut text = format!(
        "{number}. {}: {} requests, {} interrupts, {} in vain, {} of CPU time ({})\n",
        shown(&site.cause),
        grouped(site.requests),
        grouped(site.interrupts),
        grouped(site.in_vain),
        duration(site.cpu_ns),
        percent(site.share),
    );
    if site.frames.is_empty() {
        text += "     (no call stack was sampled)\n";
    }
    for frame in site.frames.iter().take(FRAMES_MAX) {
        text += &format!("     {}\n", shown(frame));
    }
    if site.frames.len() > FRAMES_MAX {
        text += &format!("     … {} more\n", site.frames.len() - FRAMES_MAX);
    }
    for AdviceRow { change, saves, by, price, source } in &site.advice {
        let (saves, change) = (grouped(*saves), shown(change));
        text += &format!("   advice: {change}\n");
        text += &format!("     removes {saves} requests (by {by}); price: {price}\n");
        text += &format!("     evidence: {source}\n");
    }
    text
}

fn notes(findings: &Findings) -> String {
    let Findings { overhead, total, lost, balance, .. } = findings;
    let mut text = format!(
        "\nThe cause is known of {} of {} requests ({}). {} call stacks were sampled, for {} of \
         the program's flushes",
        grouped(total.attributed),
        grouped(total.requests),
        percent(total.attributed_share),
        grouped(overhead.stacks),
        percent(overhead.stacks_coverage),
    );
    if let Some(rate) = overhead.stack_rate_hz {
        text += &format!(", at most {rate} per second and CPU (--stack-rate)");
    }
    if let Some(lost) = overhead.stacks_lost.filter(|lost| *lost > 0) {
        text += &format!("; {} were lost", grouped(lost));
    }
    text += ".\n";
    if let Some(cpu_ns) = overhead.recorder_cpu_ns {
        let events = grouped(overhead.events);
        text +=
            &format!("The recorder used {} of CPU time for {events} events.\n", duration(cpu_ns));
    }
    if let Some(Balanced { recorded, counted, difference }) = balance {
        let numbers = [*recorded, *counted].map(grouped);
        text += &format!(
            "Shootdown interrupts of all programs: {} recorded, {} counted by the kernel (TLB in \
             /proc/interrupts).\n",
            numbers[0], numbers[1]
        );
        if let Some(reason) = difference {
            text += &format!("warning: these differ by more than 2 %: {reason}\n");
        }
    }
    if *lost > 0 {
        text += &format!("warning: {} events were lost, so counts are too small\n", grouped(*lost));
    }
    if overhead.stacks == 0 {
        text += "try:   record again with call stacks: shootdown explain -- COMMAND\n";
    }
    text
}

pub(super) fn percent(part: f64) -> String {
    format!("{} %", significant(part * 100.0))
}
