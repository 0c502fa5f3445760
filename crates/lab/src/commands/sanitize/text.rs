//! Faults and totals as text.

use std::fmt::Write as _;

use shootdown_sanitizer::report::{Deed, Mode, Report, Totals};

use super::plugin::Plugin;
use super::symbols::Symbols;
use crate::render::grouped;

/// A fault, in a few lines.
pub(super) fn fault(report: &Report, number: usize, symbols: &Symbols, plugin: &Plugin) -> String {
    let Report { mode, cpu, page, frame, at, filled, act, .. } = report;
    let place = |pc: u64| symbols.place(pc);
    let (what, may) = match mode {
        Mode::Reuse => ("frame", "has a new owner"),
        Mode::Permission => ("frame", "is not mapped with this permission any more"),
        Mode::Tables => ("page table", "has a new owner"),
        Mode::Speculation => ("page or table", "must not be used, and may be cached unused"),
    };
    let verb = if report.is_used { "uses" } else { "can use" };
    let privilege = if report.in_user_mode { "user mode" } else { "the kernel" };
    let writable = if report.is_writable && *mode != Mode::Tables { ", writable" } else { "" };
    let tag = report.tag.map_or("global".to_owned(), |tag| format!("tag {tag}"));
    let mut text = format!(
        "fault {number} ({}): CPU {cpu} {verb} an old entry in {privilege}, at {}\n  \
         entry     {} of {} for {page:#x} ({tag}{writable}), which {may}: {what} {frame:#x}\n",
        mode.name(),
        place(at.pc),
        if *mode == Mode::Tables { "pointer" } else { "translation" },
        bytes(report.bytes),
    );
    let _ = match mode {
        Mode::Speculation => {
            writeln!(text, "  allowed   from time {} on, and not used", filled.time)
        }
        _ => writeln!(text, "  filled    at time {}, by {}", filled.time, place(filled.pc)),
    };
    match report.change {
        Some(change) => {
            let (time, by, pc) = (change.at.time, change.cpu, place(change.at.pc));
            let _ = writeln!(text, "  changed   at time {time}, by CPU {by} at {pc}");
        }
        None => text += "  changed   not seen: the page table is as it was\n",
    }
    let (time, by, hook) = (act.at.time, act.cpu, plugin.hook(act.deed));
    let event = match act.deed {
        Deed::Reused(_) => "new owner",
        Deed::Settled(_) => "settled  ",
    };
    let _ = writeln!(text, "  {event} at time {time}, by CPU {by} in {hook}");
    if report.later.is_empty() {
        text += "  since     no invalidation on this CPU\n";
    }
    for later in &report.later {
        let (time, pc, left) = (later.at.time, place(later.at.pc), later.left.text());
        let _ = writeln!(text, "  since     at time {time}, {pc}: {left}");
    }
    text
}

fn bytes(count: u64) -> String {
    match count {
        0..=0x1f_ffff => format!("{} KiB", count >> 10),
        0x20_0000..=0x3fff_ffff => format!("{} MiB", count >> 20),
        _ => format!("{} GiB", count >> 30),
    }
}

/// The totals.
pub(super) fn summary(totals: &Totals, printed: usize) -> String {
    let Totals { cpus, cpus_in_user_mode, .. } = totals;
    let rows = [
        ("entries filled", totals.fills),
        ("entries held now", totals.held as u64),
        ("invalidations", totals.invalidations),
        ("loads of a root", totals.root_loads),
        ("stores into page tables", totals.table_stores),
        ("frames with a new owner", totals.reused),
        ("old entries dropped in time", totals.dropped_in_time),
        ("accesses without a translation", totals.not_in_tables),
    ];
    let mut text = format!("{cpus} CPUs, {cpus_in_user_mode} of them in user mode\n");
    for (name, count) in rows {
        let _ = writeln!(text, "  {name:<32}{:>16}", grouped(count));
    }
    let _ = match totals.faults {
        0 => writeln!(text, "nothing was found"),
        faults => {
            writeln!(text, "{faults} distinct faults ({} reports), {printed} above", totals.reports)
        }
    };
    text
}
