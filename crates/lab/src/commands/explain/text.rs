//! Findings as text for reading. The first line is the answer.

use shootdown_explain::Sum;

use super::findings::{AdviceRow, Balanced, Findings, Run, SiteRow, SufferedRow, Total};
use crate::error::shown;
use crate::render::table::Table;
use crate::render::{duration, grouped, significant};

/// Number of senders that are printed.
const SUFFERED_MAX: usize = 10;
/// Number of calls that are printed of a call stack.
const FRAMES_MAX: usize = 12;

/// The smallest part of the program's CPU time for which a change is advised.
const WORTH_MIN: f64 = 0.001;

/// Returns the answer, the totals, the causes, and `sites_max` callers with advice.
pub(super) fn findings(findings: &Findings, sites_max: usize) -> String {
    let Findings { total, callers, .. } = findings;
    let mut text = answer(findings);
    let command = format!("`{}`", shown(findings.recording.command.join(" ")));
    text += &format!("\n{}\n", totals(findings, &command));
    text += &spread(&findings.runs);
    if total.sum.requests > 0 {
        text += &format!("\n{}", causes(findings));
        for (number, caller) in (1..).zip(callers.iter().take(sites_max)) {
            text += &format!("\n{}", one(number, caller, is_worth_it(findings)));
        }
        if callers.len() > sites_max {
            text += &format!("\n{} more callers: --sites N\n", callers.len() - sites_max);
        }
    }
    text += &suffered(findings);
    text + &notes(findings)
}

/// Returns the spread of several runs, which are sorted by requests.
fn spread(runs: &[Run]) -> String {
    let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return String::new() };
    let median = runs[(runs.len() - 1) / 2];
    let share = |pick: fn(f64, f64) -> f64| {
        percent(runs.iter().map(|run| run.cpu_share).reduce(pick).unwrap_or_default())
    };
    format!(
        "{} runs: {} to {} requests, median {}; {} to {} of CPU time. This is the run with the \
         median.\n",
        runs.len(),
        grouped(first.requests),
        grouped(last.requests),
        grouped(median.requests),
        share(f64::min),
        share(f64::max),
    )
}

/// Returns `true` if shootdowns take enough of the program's CPU time to advise a change.
pub(super) fn is_worth_it(findings: &Findings) -> bool {
    findings.total.sum.requests > 0 && findings.total.cpu_share >= WORTH_MIN
}

/// Returns the first line: the size of the cost, and if a change can gain something, the caller
/// that costs most, and the change.
pub(super) fn answer(findings: &Findings) -> String {
    let share = percent(findings.total.cpu_share);
    let mut text = match findings.callers.first() {
        None if findings.is_blind => format!(
            "unknown: the recording names no CPU that was asked by its {} flushes",
            grouped(findings.announced)
        ),
        None => "no shootdowns: no thread asked another CPU to flush".to_owned(),
        Some(_) if !is_worth_it(findings) => format!(
            "nothing to gain: shootdowns take {share} of the program's CPU time, and a change is \
             advised from {} on",
            percent(WORTH_MIN)
        ),
        Some(caller) => {
            let change = caller.advice.first();
            let change = change.map(|advice| format!(": {}", shown(&advice.change)));
            format!(
                "{share} of the program's CPU time: {} by {} {}{}",
                part(caller.share),
                shown(&caller.cause),
                place(caller),
                change.unwrap_or_default(),
            )
        }
    };
    let others: u64 = findings.suffered.iter().map(|it| it.sum.requests).sum();
    if let Some(first) = findings.suffered.first().filter(|_| others > findings.total.sum.requests)
    {
        text += &format!(
            "; others interrupted the program {} times, mostly {} by {}",
            grouped(others),
            sender(first),
            shown(&first.cause)
        );
    }
    text + "\n"
}

/// Returns a part of the cost in words, if that is exact enough.
fn part(share: f64) -> String {
    match share {
        0.995.. => "all".to_owned(),
        0.95.. => "nearly all".to_owned(),
        _ => percent(share),
    }
}

fn place(site: &SiteRow) -> String {
    match (&site.caller, site.without_calls) {
        (Some(caller), _) => format!("in {}", shown(caller)),
        (None, Some(reason)) => format!("at an unknown place ({reason})"),
        (None, None) => "at an unknown place".to_owned(),
    }
}

/// Returns the thread that requested flushes.
fn sender(row: &SufferedRow) -> String {
    let kind = if row.is_kernel { "a thread of the kernel" } else { "another program" };
    row.sender.as_deref().map_or(kind.to_owned(), shown)
}

/// Returns the flushes that other programs and the kernel requested from the program's CPUs.
fn suffered(findings: &Findings) -> String {
    if findings.suffered.is_empty() {
        return String::new();
    }
    let mut table = Table::default()
        .left(["interrupted by", "cause"])
        .right(["requests", "interrupts", "CPU time"])
        .left(["controlled by"]);
    for row in findings.suffered.iter().take(SUFFERED_MAX) {
        table.row([
            sender(row),
            shown(&row.cause),
            grouped(row.sum.requests),
            grouped(row.sum.interrupts),
            duration(row.sum.cpu_ns),
            row.setting.clone().unwrap_or_default(),
        ]);
    }
    format!("\nRequests of others to CPUs that ran the program:\n{table}")
}

/// Returns the CPU time of the program, which is called `name`, and the sums of its shootdowns.
pub(super) fn totals(findings: &Findings, name: &str) -> String {
    let Total { sum, cpu_share, program_ns, parallel_share, .. } = findings.total;
    let Sum { requests, interrupts, in_vain, cpu_ns, measured_ns, .. } = sum;
    format!(
        "{name} used {} of CPU time in {}. Its shootdowns: {} requests, {} interrupts, {} of \
         CPU time ({} of the program's; {} of it measured, the rest modelled). {} requests went \
         to CPUs that were idle or ran another program. Two threads of one space ran at once for \
         {} of the time: only then does a flush need another CPU. Faults and waits for locks \
         that a change saves are not included.",
        duration(program_ns),
        duration(findings.recording.time_ns),
        grouped(requests),
        grouped(interrupts),
        duration(cpu_ns),
        percent(cpu_share),
        duration(measured_ns),
        grouped(in_vain),
        percent(parallel_share),
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
            grouped(row.sum.requests),
            grouped(row.sum.interrupts),
            grouped(row.sum.in_vain),
            duration(row.sum.cpu_ns),
            percent(row.share),
            row.setting.clone().unwrap_or_default(),
        ]);
    }
    table.to_string()
}

fn one(number: usize, site: &SiteRow, is_worth_it: bool) -> String {
    let mut text = format!(
        "{number}. {} {}: {} requests, {} interrupts, {} in vain, {} of CPU time ({})\n",
        shown(&site.cause),
        place(site),
        grouped(site.sum.requests),
        grouped(site.sum.interrupts),
        grouped(site.sum.in_vain),
        duration(site.sum.cpu_ns),
        percent(site.share),
    );
    for frame in site.frames.iter().take(FRAMES_MAX) {
        text += &format!("     {}\n", shown(frame));
    }
    if site.frames.len() > FRAMES_MAX {
        text += &format!("     … {} more\n", site.frames.len() - FRAMES_MAX);
    }
    if site.stacks > 1 {
        text += &format!("     (the most expensive of {} call stacks)\n", grouped(site.stacks));
    }
    for AdviceRow { change, saves, saves_in_all, by, doubt, price, source } in
        site.advice.iter().filter(|_| is_worth_it)
    {
        let in_all = saves_in_all.filter(|in_all| in_all > saves);
        let in_all = in_all.map(|in_all| format!(", and {} in all", grouped(in_all)));
        let (saves, change) = (grouped(*saves), shown(change));
        let doubt = doubt.map(|doubt| format!(", since {doubt}")).unwrap_or_default();
        text += &format!("   advice: {change}\n");
        // A replay has the effect of the change; a count has all that it could remove.
        let most = if *by == "count" { "at most " } else { "" };
        text += &format!(
            "     removes {most}{saves} requests{} (by {by}{doubt}); price: {price}\n",
            in_all.unwrap_or_default()
        );
        text += &format!("     evidence: {source}\n");
    }
    text
}

fn notes(findings: &Findings) -> String {
    let Findings { overhead, total, balance, .. } = findings;
    let mut text = format!(
        "\nThe cause is known of {} of {} requests ({}). {} call stacks were sampled, for {} of \
         the program's flushes",
        grouped(total.attributed),
        grouped(total.sum.requests),
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
    if overhead.stacks == 0 && total.sum.requests > 0 {
        text += "try:   record again with call stacks: shootdown explain -- COMMAND\n";
    }
    text
}

pub(super) fn percent(part: f64) -> String {
    format!("{} %", significant(part * 100.0))
}
