//! A counter-example for people: a column for each CPU, a line for each thing that happened, and at
//! the end what must not be.

use std::fmt::Write;

use crate::explore::Found;
use crate::history::{Line, LineKind};

/// How wide a column is.
const COLUMN: usize = 42;

/// What is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// What kernels and hardware do: operations, page tables, TLBs, interrupts.
    Events,
    /// Every access to shared memory, too.
    Accesses,
}

impl Found {
    /// The time line, as text.
    #[must_use]
    pub fn timeline(&self, detail: Detail) -> String {
        let lines = self.shown(detail);
        let cpus = lines.iter().map(|line| line.cpu + 1).max().unwrap_or(0);
        let mut text = String::new();
        let heads: Vec<_> = (0..cpus).map(|cpu| format!("CPU {cpu}")).collect();
        row(&mut text, &heads);
        row(&mut text, &vec!["─".repeat(COLUMN - 2); cpus]);
        for line in lines {
            let (indent, mark) = match line.kind {
                LineKind::Operation => ("", "— "),
                LineKind::Holds => ("  ", "▒ "),
                _ => ("  ", ""),
            };
            let mut cells = vec![String::new(); cpus];
            for part in wrapped(&format!("{mark}{}", line.text), COLUMN - 4) {
                cells[line.cpu] = format!("{indent}{part}");
                row(&mut text, &cells);
            }
        }
        let _ = writeln!(text, "\n{}.", self.wrong);
        text
    }

    /// What is shown of it.
    #[must_use]
    pub fn shown(&self, detail: Detail) -> Vec<&Line> {
        let is_shown = |line: &&Line| detail == Detail::Accesses || line.kind != LineKind::Access;
        self.lines.iter().filter(is_shown).collect()
    }
}

fn row(text: &mut String, cells: &[String]) {
    let mut line = String::new();
    for cell in cells {
        let width = cell.chars().count();
        line.push_str(cell);
        line.push_str(&" ".repeat(COLUMN.saturating_sub(width)));
    }
    let _ = writeln!(text, "{}", line.trim_end());
}

/// A text in lines of so many characters at most, if its words allow.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::Wrong;

    #[test]
    fn each_cpu_has_a_column_and_accesses_are_shown_if_asked_for() {
        let line = |cpu, text: &str, kind| Line { cpu, text: text.to_owned(), kind };
        let found = Found {
            wrong: Wrong::UsesFlushed { cpu: 1, page: 3 },
            choices: Vec::new(),
            lines: vec![
                line(0, "unmaps page 3 of space 0", LineKind::Operation),
                line(0, "reads presence of CPU 1: 0x7", LineKind::Access),
                line(1, "goes to user mode", LineKind::EntersUserMode),
                line(1, "may hold page 3 → 3", LineKind::Holds),
                line(
                    0,
                    "says a thing that is longer than a column is wide, word by word",
                    LineKind::Event,
                ),
            ],
        };
        let expected = [
            "CPU 0                                     CPU 1",
            "────────────────────────────────────────  ────────────────────────────────────────",
            "— unmaps page 3 of space 0",
            "                                            goes to user mode",
            "                                            ▒ may hold page 3 → 3",
            "  says a thing that is longer than a",
            "  column is wide, word by word",
            "",
            "CPU 1 can use page 3 as it was before a flush that is said to be done.",
            "",
        ];
        assert_eq!(found.timeline(Detail::Events), expected.join("\n"));
        assert!(found.timeline(Detail::Accesses).contains("presence of CPU 1: 0x7"));
    }
}
