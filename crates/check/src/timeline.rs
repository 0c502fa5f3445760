//! A counter-example as text: one column for each CPU, one line for each event, and the violation
//! at the end.

use std::fmt::Write;

use crate::explore::Found;
use crate::history::{Line, LineKind};

/// Width of a column, in characters.
const COLUMN: usize = 42;

/// The events that a time line shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Events of kernels and hardware: operations, page tables, TLBs and interrupts.
    Events,
    /// Every access to shared memory as well.
    Accesses,
}

impl Found {
    /// Returns the time line as text.
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
                LineKind::StaleEntries => ("  ", "▒ "),
                _ => ("  ", ""),
            };
            let mut cells = vec![String::new(); cpus];
            for part in wrapped(&format!("{mark}{}", line.text), COLUMN - 4) {
                cells[line.cpu] = format!("{indent}{part}");
                row(&mut text, &cells);
            }
        }
        let _ = writeln!(text, "\n{}.", self.violation);
        text
    }

    /// Returns the lines that a time line shows.
    pub(crate) fn shown(&self, detail: Detail) -> Vec<&Line> {
        let is_shown = |line: &&Line| match line.kind {
            LineKind::Rule => false,
            LineKind::Access => detail == Detail::Accesses,
            _ => true,
        };
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

/// Splits a text into lines of at most `width` characters. A longer word gets a line of its own.
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
    use crate::hardware::Violation;

    #[test]
    fn timeline_has_a_column_per_cpu() {
        let line = |cpu, text: &str, kind| Line { cpu, text: text.to_owned(), kind };
        let found = Found {
            violation: Violation::UsesFlushed { cpu: 1, page: 3 },
            choices: Vec::new(),
            lines: vec![
                line(0, "unmaps page 3 of space 0", LineKind::Operation),
                line(0, "reads presence of CPU 1: 0x7", LineKind::Access),
                line(1, "enters user mode", LineKind::EntersUserMode),
                line(1, "may hold page 3 → 3", LineKind::StaleEntries),
                line(
                    0,
                    "has a text that is longer than a column is wide, word by word",
                    LineKind::Event,
                ),
            ],
        };
        let expected = [
            "CPU 0                                     CPU 1",
            "────────────────────────────────────────  ────────────────────────────────────────",
            "— unmaps page 3 of space 0",
            "                                            enters user mode",
            "                                            ▒ may hold page 3 → 3",
            "  has a text that is longer than a",
            "  column is wide, word by word",
            "",
            "CPU 1 can use page 3 after a flush of it was complete.",
            "",
        ];
        assert_eq!(found.timeline(Detail::Events), expected.join("\n"));
        assert!(found.timeline(Detail::Accesses).contains("presence of CPU 1: 0x7"));
    }
}
