//! Verdicts for people.

use std::fmt::Write as _;

use shootdown_check::engine::SPACES_MAX;
use shootdown_check::zoo::{Bug, Variant};
use shootdown_check::{Campaign, Design, PAGES, Profile, SLOTS, Search, Verdict};

use super::zoo::Row;
use crate::render::grouped;
use crate::render::table::Table;

/// What was looked at, and what was seen.
pub(super) fn verdict(design: Design, campaign: &Campaign, verdict: &Verdict) -> String {
    let names: Vec<_> = campaign.profiles.iter().map(|profile| profile.name).collect();
    let mut text = format!("{design} on hostile {}\n\n", names.join(", "));
    let mut table = Table::default().left(["programs"]).right(["looked at", "schedules"]);
    table.row([
        "of two CPUs with an operation each".to_owned(),
        format!("{} of {}", grouped(verdict.short as u64), grouped(verdict.short_total as u64)),
        format!("all, in {} states", grouped(verdict.states)),
    ]);
    table.row([
        format!("of {} CPUs with a dozen each, by chance", campaign.cpus),
        String::new(),
        grouped(verdict.runs),
    ]);
    let _ = writeln!(text, "{table}\nhappened now and then:");
    for what in campaign.expected() {
        let mark = if verdict.reached.contains(&what) { "yes" } else { "NO " };
        let _ = writeln!(text, "  {mark}  {what}");
    }
    let steps = grouped(verdict.steps);
    let _ = match &verdict.counter_example {
        None => writeln!(text, "\nnothing wrong in {steps} steps"),
        Some(bad) => writeln!(
            text,
            "\nwrong on {}, found within {steps} steps, and made small: {}",
            bad.profile.name, bad.programs
        ),
    };
    text
}

/// What came of one program.
pub(super) fn program(profile: Profile, search: &Search) -> String {
    let (states, runs) = (grouped(search.states as u64), grouped(search.runs));
    let verdict = match (&search.found, search.is_complete) {
        (Some(_), _) => "wrong",
        (None, true) => "right in every schedule",
        (None, false) => "nothing wrong so far; a longer --budget sees more",
    };
    format!("{}: {verdict} ({states} states, {runs} runs)\n", profile.name)
}

/// The story of a bug.
pub(super) fn bug(bug: &Bug) -> String {
    format!("{}: {}\n{}\n", bug.name, bug.source, bug.story)
}

/// All bugs.
pub(super) fn zoo(rows: &[Row]) -> String {
    let mut table = Table::default().left(["bug", "on", "found"]).right(["states of its twin"]);
    for row in rows {
        let found = row
            .found
            .as_ref()
            .map_or_else(|| "NOT FOUND".to_owned(), |found| found.violation.to_string());
        let twin = match (&row.twin.found, row.twin.is_complete) {
            (Some(_), _) => "WRONG".to_owned(),
            (None, false) => "too many".to_owned(),
            (None, true) => grouped(row.twin.states as u64),
        };
        table.row([row.bug.name.to_owned(), row.bug.profile.name.to_owned(), found, twin]);
    }
    let right = rows.iter().filter(|row| row.is_right()).count();
    format!("{table}\n{right} of {} found, and right when mended\n", rows.len())
}

/// What can be checked, and what programs are made of.
pub(super) fn list() -> String {
    let mut text = "\
shootdown      the engine
without-RULE   the engine without one of its rules (a missing rule that only keeps loads from being
               early is not detected here, where loads are not early; loom detects it)
zoo            all bugs of other kernels
BUG            one of them, and BUG-fixed its fixed variant, which is right

Rules:
"
    .to_owned();
    let mut bugs = String::from("\nBugs:\n");
    for design in Design::every() {
        let _ = match design {
            Design::Engine(Some(_)) => writeln!(text, "  {design}"),
            Design::Bug(bug, Variant::Faulty) => writeln!(bugs, "  {design:44}{}", bug.source),
            _ => Ok(()),
        };
    }
    let _ = write!(
        bugs,
        "
Programs are operations behind commas, and CPUs behind bars: 'run 0, idle, run 0 | unmap 0.1'.
  run S, idle, leave, offline-online      threads of space S, and none
  map S.P, unmap S.P, unmap-masked S.P    a page; the last with interrupts masked
  protect S.P, reclaim S.P, migrate S.P   the same
  unmap-table S.T, unmap-kernel T         a page table with its pages; a page of the kernel
  free-table S.T, flush-walkers S                 a page table that waits for lazy CPUs; none waits any more
  unmap-large S.T                         a large page in the place of a table
  unmap-joined S.P, reclaim-both S.P      the page in S and in its neighbour: 0 and 1, 2 and 3, ...
  trim-cpumask S, pin S                    who may use a space; a device that does
  retire S, reap                          the end of a space, the last but reap that a CPU does
Spaces are 0 to {}, pages 0 to {}, tables 0 to {}.
",
        SPACES_MAX - 1,
        SLOTS * PAGES - 1,
        SLOTS - 1
    );
    text + &bugs
}
