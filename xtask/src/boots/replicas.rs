//! Workloads with upper page tables for each CPU, under instruction counting, and the fault that
//! flushes leave those of other CPUs out, which must show as wrong words.

use std::fmt::Write as _;

use super::{BOOK, Built, Part, golden, number};
use crate::command::Failure;
use crate::parallel;

/// The values of `--replicas`.
const OPTIONS: [&str; 4] = ["never", "if-worth", "always", "unflushed"];

/// A line of the book's table: a workload or recording, and its number of CPUs.
#[derive(Clone, Copy, Debug)]
struct Line {
    workload: &'static str,
    cpus: u32,
    fault: Fault,
}

/// The effect of the fault `unflushed` on a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// CPUs use memory that another CPU frees: they must read wrong words.
    Shows,
    /// No CPU uses memory that another CPU frees, so nothing can be wrong.
    Hidden,
}

const LINES: [Line; 7] = [
    Line { workload: "threads", cpus: 4, fault: Fault::Hidden },
    Line { workload: "crowd", cpus: 4, fault: Fault::Hidden },
    Line { workload: "beside", cpus: 4, fault: Fault::Hidden },
    Line { workload: "arena", cpus: 4, fault: Fault::Shows },
    Line { workload: "reclaim", cpus: 4, fault: Fault::Shows },
    IN_TEST,
    Line { workload: "traces/go.shootdown", cpus: 2, fault: Fault::Shows },
];

/// The line that CI counts. Each line takes some 6 s of CPU.
const IN_TEST: Line = Line { workload: "moves", cpus: 4, fault: Fault::Shows };

/// Counts the interrupts of workloads with and without replicas, and compares them with the book.
pub(super) fn compare(built: &Built, part: Part) -> Result<(), Failure> {
    match part {
        Part::Sample => golden::has_lines(BOOK, &rows(built, &[IN_TEST])?),
        Part::All => {
            let head = "| workload | CPUs | never | if worth | always | links | wrong words |\n\
                        |---|---|---|---|---|---|---|\n";
            golden::check_part(BOOK, "replicas", &format!("{head}{}", rows(built, &LINES)?))
        }
    }
}

/// Returns the rows of these lines.
fn rows(built: &Built, lines: &[Line]) -> Result<String, Failure> {
    let runs: Vec<(Line, &str)> =
        lines.iter().flat_map(|line| OPTIONS.map(|option| (*line, option))).collect();
    let counted = parallel::map(&runs, |&(line, option)| Counted::run(built, line, option));
    let counted: Vec<Counted> = counted.into_iter().collect::<Result<_, _>>()?;
    let mut text = String::new();
    for (line, counted) in lines.iter().zip(counted.chunks_exact(OPTIONS.len())) {
        check_frames(*line, counted)?;
        text += &row(*line, counted);
    }
    Ok(text)
}

/// Checks that a run ends with as many frames in use with replicas as without: all tables of the
/// replicas are freed. In a workload that is short of memory, that depends on the pages of its
/// file.
fn check_frames(Line { workload, cpus, .. }: Line, counted: &[Counted]) -> Result<(), Failure> {
    let [working @ .., _] = counted else { return Ok(()) };
    let frames: Vec<u64> = working.iter().map(|counted| counted.frames).collect();
    if workload == "reclaim" || frames.iter().all(|&count| count == frames[0]) {
        return Ok(());
    }
    Err(Failure::new(
        format!("`{workload}` ends with {frames:?} frames in use, by the options of --replicas"),
        format!("shootdown boot --workload {workload} --cpus {cpus} --replicas always --counts"),
    ))
}

/// Returns the row of a line, of whose options `counted` has the counts.
fn row(Line { workload, cpus, .. }: Line, counted: &[Counted]) -> String {
    let mut text = format!("| `{workload}` | {cpus} |");
    let [working @ .., unflushed] = counted else { return text };
    for counted in working {
        let _ = write!(text, " {} |", counted.interrupts);
    }
    let links = working.last().map_or(0, |always| always.links);
    let _ = writeln!(text, " {links} | {} |", unflushed.wrong);
    text
}

/// Counts of one run.
#[derive(Clone, Copy, Debug)]
struct Counted {
    interrupts: u64,
    /// Links from replicas to page tables.
    links: u64,
    /// Wrong words.
    wrong: u64,
    /// Frames in use at the end.
    frames: u64,
}

impl Counted {
    fn run(built: &Built, line: Line, option: &str) -> Result<Self, Failure> {
        let Line { workload, cpus, fault } = line;
        let output = built.console(workload, &format!("--replicas {option} --cpus {cpus}"))?;
        let failure = |cause: String| {
            Failure::new(
                format!("`{workload}` with --replicas {option} {cause}"),
                format!(
                    "shootdown boot --workload {workload} --cpus {cpus} --replicas {option} \
                     --counts --console"
                ),
            )
        };
        let counts = ["ipis_sent", "replica_links", "violations", "frames_in_use"];
        let [Some(interrupts), Some(links), Some(wrong), Some(frames)] =
            counts.map(|name| number(&output, name))
        else {
            return Err(failure("has no report".to_owned()));
        };
        let is_faulty = option == "unflushed" && fault == Fault::Shows;
        if is_faulty != (wrong != 0) {
            return Err(failure(format!("reads {wrong} wrong words")));
        }
        if (option == "never") != (links == 0) && option != "if-worth" {
            return Err(failure(format!("makes {links} links")));
        }
        Ok(Self { interrupts, links, wrong, frames })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_has_interrupts_of_working_options() {
        let counted = |interrupts, links, wrong| Counted { interrupts, links, wrong, frames: 4 };
        let counted = [counted(9, 0, 0), counted(8, 1, 0), counted(7, 2, 0), counted(6, 3, 5)];
        assert_eq!(row(IN_TEST, &counted), "| `moves` | 4 | 9 | 8 | 7 | 2 | 5 |\n");
    }

    #[test]
    fn frames_that_stay_are_detected() {
        let counted = |frames| Counted { interrupts: 0, links: 1, wrong: 0, frames };
        assert!(check_frames(IN_TEST, &[4, 4, 4, 9].map(counted)).is_ok());
        assert!(check_frames(IN_TEST, &[4, 4, 5, 4].map(counted)).is_err());
        let reclaim = Line { workload: "reclaim", ..IN_TEST };
        assert!(check_frames(reclaim, &[4, 4, 5, 4].map(counted)).is_ok());
    }
}
