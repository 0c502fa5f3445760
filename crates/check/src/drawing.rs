//! A counter-example as a drawing: one column for each CPU, with time downwards. Bands beside a
//! column show when its CPU is in user mode, and when it may hold stale entries.

use std::fmt::Write;

use crate::explore::Found;
use crate::history::{Line, LineKind};
use crate::timeline::{Detail, wrapped};

/// In pixels: the width of a column, its gutter for the bands, the height of a line, and the space
/// above the first line.
const COLUMN: usize = 330;
const GUTTER: usize = 26;
const LINE: usize = 17;
const HEAD: usize = 40;
/// Characters in a column.
const WIDTH: usize = 44;

/// A line of the history and its position.
struct Placed<'l> {
    line: &'l Line,
    parts: Vec<String>,
    top: usize,
}

impl Placed<'_> {
    const fn bottom(&self) -> usize {
        self.top + self.parts.len() * LINE
    }

    const fn middle(&self) -> usize {
        self.top + LINE / 2 + 1
    }
}

impl Found {
    /// Returns the time line as an SVG. It needs no other file or style, so a page can contain it.
    pub fn drawing(&self, detail: Detail) -> String {
        let lines = place(self.shown(detail));
        let cpus = lines.iter().map(|placed| placed.line.cpu + 1).max().unwrap_or(1);
        let bottom = lines.last().map_or(HEAD, Placed::bottom);
        let (width, height) = (cpus * COLUMN, bottom + 4 * LINE);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"system-ui, sans-serif\" \
             font-size=\"12\" fill=\"currentColor\" role=\"img\">\n<title>{}</title>\n",
            escaped(&self.violation.to_string())
        );
        for cpu in 0..cpus {
            let x = cpu * COLUMN;
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"22\" font-weight=\"bold\">CPU {cpu}</text>\n\
                 <line x1=\"{1}\" y1=\"30\" x2=\"{1}\" y2=\"{bottom}\" stroke=\"currentColor\" \
                 stroke-opacity=\"0.3\"/>",
                x + GUTTER,
                x + GUTTER / 2
            );
        }
        bands(&mut svg, &lines, bottom);
        arrows(&mut svg, &lines);
        for placed in &lines {
            text(&mut svg, placed);
        }
        let _ = writeln!(
            svg,
            "<text x=\"{GUTTER}\" y=\"{}\" font-weight=\"bold\" fill=\"{RED}\">{}.</text>\n\
             <text x=\"{GUTTER}\" y=\"{}\" fill-opacity=\"0.7\">\
             <tspan fill=\"{BLUE}\">▮</tspan> in user mode  \
             <tspan fill=\"{RED}\">▮</tspan> may hold stale entries</text>\n</svg>",
            bottom + 2 * LINE,
            escaped(&self.violation.to_string()),
            bottom + 3 * LINE + 4,
        );
        svg
    }
}

const RED: &str = "#d03030";
const BLUE: &str = "#3070d0";
fn place<'l>(lines: Vec<&'l Line>) -> Vec<Placed<'l>> {
    let mut top = HEAD;
    let place = |line: &'l Line| {
        let Line { text, kind, .. } = line;
        // Leave room above a new operation.
        top += if *kind == LineKind::Operation { LINE / 2 } else { 0 };
        let placed = Placed { line, parts: wrapped(text, WIDTH), top };
        top = placed.bottom();
        placed
    };
    lines.into_iter().map(place).collect()
}

/// Draws the times in user mode, and those in which a CPU may hold stale entries.
fn bands(svg: &mut String, lines: &[Placed<'_>], bottom: usize) {
    for (index, begin) in lines.iter().enumerate() {
        let (color, x, what): (_, _, fn(&Line) -> bool) = match begin.line.kind {
            LineKind::EntersUserMode => (BLUE, 4, |line| line.kind == LineKind::LeavesUserMode),
            LineKind::StaleEntries if is_stale(begin.line) => {
                (RED, 15, |line| line.kind == LineKind::StaleEntries)
            }
            _ => continue,
        };
        let cpu = begin.line.cpu;
        let mut later = lines[index + 1..].iter();
        let end = later.find(|end| end.line.cpu == cpu && what(end.line));
        let end = end.map_or(bottom, |end| end.top);
        let (x, y) = (cpu * COLUMN + x, begin.top);
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"7\" height=\"{}\" fill=\"{color}\" \
             fill-opacity=\"0.55\"/>",
            end.saturating_sub(y).max(LINE)
        );
    }
}

fn is_stale(line: &Line) -> bool {
    line.kind == LineKind::StaleEntries && !line.text.ends_with("no stale entry")
}

/// Draws an arrow from each sender of an interrupt to its target.
fn arrows(svg: &mut String, lines: &[Placed<'_>]) {
    for (index, begin) in lines.iter().enumerate() {
        let LineKind::SendsInterrupt(target) = begin.line.kind else { continue };
        let takes = |line: &Line| line.cpu == target && line.kind == LineKind::TakesInterrupt;
        let Some(end) = lines[index + 1..].iter().find(|end| takes(end.line)) else { continue };
        // The arrow ends at the text, on the near side.
        let (from, to) = (begin.line.cpu * COLUMN + GUTTER - 2, target * COLUMN + GUTTER - 2);
        let (y, end) = (begin.middle(), end.middle());
        let back = if from < to { to - 7 } else { to + 7 };
        let _ = writeln!(
            svg,
            "<path d=\"M{from} {y}L{back} {end}\" stroke=\"{BLUE}\"/>\
             <path d=\"M{to} {end}L{back} {}v8z\" fill=\"{BLUE}\"/>",
            end - 4
        );
    }
}

fn text(svg: &mut String, placed: &Placed<'_>) {
    let (indent, style) = match placed.line.kind {
        LineKind::Operation => (0, " font-weight=\"bold\"".to_owned()),
        LineKind::StaleEntries if is_stale(placed.line) => (12, format!(" fill=\"{RED}\"")),
        LineKind::StaleEntries => (12, " fill-opacity=\"0.6\"".to_owned()),
        LineKind::SendsInterrupt(_) | LineKind::TakesInterrupt => (12, format!(" fill=\"{BLUE}\"")),
        _ => (12, String::new()),
    };
    for (index, part) in placed.parts.iter().enumerate() {
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\"{style}>{}</text>",
            placed.line.cpu * COLUMN + GUTTER + indent,
            placed.top + index * LINE + 13,
            escaped(part)
        );
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::Violation;

    #[test]
    fn bands_end_and_arrows_reach_their_targets() {
        let line = |cpu, kind, text: &str| Line { cpu, text: text.to_owned(), kind };
        let found = Found {
            violation: Violation::UsesFlushed { cpu: 1, page: 3 },
            choices: Vec::new(),
            lines: vec![
                line(1, LineKind::EntersUserMode, "enters user mode"),
                line(0, LineKind::Operation, "unmaps page 3 of space 0"),
                line(1, LineKind::StaleEntries, "may hold page 3 → 3"),
                line(0, LineKind::SendsInterrupt(1), "interrupts CPU 1"),
                line(1, LineKind::TakesInterrupt, "takes the interrupt"),
                line(1, LineKind::StaleEntries, "may hold no stale entry"),
                line(0, LineKind::Event, "a < b & c"),
            ],
        };
        let svg = found.drawing(Detail::Events);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        // One band that ends, and one that does not; one arrow, from CPU 0 to CPU 1.
        assert_eq!(svg.matches("<rect ").count(), 2, "{svg}");
        assert_eq!(svg.matches("<path d=\"M24 ").count(), 1, "{svg}");
        assert_eq!(svg.matches("<path d=\"M354 ").count(), 1, "{svg}");
        assert!(svg.contains("a &lt; b &amp; c"));
        let red = svg.lines().find(|line| line.contains("<rect") && line.contains(RED));
        assert!(red.is_some_and(|line| line.contains("height=\"51\"")), "{red:?}");
    }
}
