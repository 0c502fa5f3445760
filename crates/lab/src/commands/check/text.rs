//! Verdicts as text for reading.

use std::fmt::Write as _;

use shootdown_check::engine::SPACES_MAX;
use shootdown_check::zoo::{Bug, Variant};
use shootdown_check::{Campaign, Design, PAGES, Profile, SLOTS, Search, Verdict};

use super::zoo::Row;
use crate::render::grouped;
use crate::render::table::Table;

/// Returns the verdict of a campaign: the searched programs, the coverage and the result.
pub(super) fn verdict(design: Design, campaign: &Campaign, verdict: &Verdict) -> String {
    let names: Vec<_> = campaign.profiles.iter().map(|profile| profile.name).collect();
    let mut text = format!("{design} on hostile {}\n\n", names.join(", "));
    let mut table = Table::default().left(["programs"]).right(["searched", "schedules"]);
    table.row([
        "two CPUs with one operation each".to_owned(),
        format!("{} of {}", grouped(verdict.short as u64), grouped(verdict.short_total as u64)),
        format!("all, in {} states", grouped(verdict.states)),
    ]);
    table.row([
        format!("{} CPUs with a dozen random operations each", campaign.cpus),
        String::new(),
        grouped(verdict.runs),
    ]);
    let _ = writeln!(text, "{table}\nsituations that occurred:");
    for situation in campaign.expected() {
        let mark = if verdict.reached.contains(&situation) { "yes" } else { "NO " };
        let _ = writeln!(text, "  {mark}  {situation}");
    }
    let steps = grouped(verdict.steps);
    let _ = match &verdict.counter_example {
        None => writeln!(text, "\nno violation in {steps} steps"),
        Some(bad) => writeln!(
            text,
            "\nviolation on {}, found within {steps} steps, in this program: {}",
            bad.profile.name, bad.programs
        ),
    };
    text
}

/// Returns the result of one program.
pub(super) fn program(profile: Profile, search: &Search) -> String {
    let (states, runs) = (grouped(search.states as u64), grouped(search.runs));
    let verdict = match (&search.found, search.is_complete) {
        (Some(_), _) => "violation",
        (None, true) => "no violation in any schedule",
        (None, false) => "no violation so far, but not all schedules were searched",
    };
    format!("{}: {verdict} ({states} states, {runs} runs)\n", profile.name)
}

/// Returns the name, the source and the story of a bug.
pub(super) fn bug(bug: &Bug) -> String {
    format!("{}: {}\n{}\n", bug.name, bug.source, bug.story)
}

/// Returns the table of all known bugs.
pub(super) fn zoo(rows: &[Row]) -> String {
    let mut table =
        Table::default().left(["bug", "on", "found"]).right(["states of fixed variant"]);
    for row in rows {
        let found = row
            .found
            .as_ref()
            .map_or_else(|| "NOT FOUND".to_owned(), |found| found.violation.to_string());
        let fixed = row.fixed_result();
        table.row([row.bug.name.to_owned(), row.bug.profile.name.to_owned(), found, fixed]);
    }
    let count = rows.iter().filter(|row| row.is_as_expected()).count();
    format!(
        "{table}\n{count} of {} bugs found, and no violation in their fixed variants\n",
        rows.len()
    )
}

/// Returns the names of designs and the operations of programs.
pub(super) fn list() -> String {
    let mut text = "\
shootdown      the engine
without-RULE   the engine without one of its rules (the absence of a rule that only orders loads is
               not detected here, because loads never execute early; loom detects it)
zoo            all known bugs
BUG            one of these bugs; BUG-fixed is its fixed variant

Rules:
"
    .to_owned();
    let mut bugs = String::from("\nBugs:\n");
    for design in Design::every() {
        let _ = match design {
            Design::Engine(Some(_)) => writeln!(text, "  {design}"),
            Design::Bug(bug, Variant::Faulty) => writeln!(bugs, "  {:45} {}", bug.name, bug.source),
            _ => Ok(()),
        };
    }
    bugs += "\nArchitectures for --arch, and processors that break the guarantees of theirs:\n";
    for Profile { name, about, .. } in Profile::every() {
        let _ = writeln!(bugs, "  {name:16} {about}");
    }
    let _ = write!(
        bugs,
        include_str!("../../../help/operations.txt"),
        SPACES_MAX - 1,
        SLOTS * PAGES - 1,
        SLOTS - 1
    );
    text + &bugs
}
