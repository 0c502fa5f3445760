//! A counter-example as a drawing: a column for each CPU, time downwards, and beside what each does
//! whether it is in user mode, and whether it may hold what is old.

use std::fmt::Write;

use crate::explore::Found;
use crate::history::{Line, LineKind};
use crate::timeline::{Detail, wrapped};

/// In pixels: a column, its gutter for the bands, a line of text, and what is above the first.
const COLUMN: usize = 330;
const GUTTER: usize = 26;
const LINE: usize = 17;
const HEAD: usize = 40;
/// Characters in a column.
const WIDTH: usize = 44;

/// A line, and where it is.
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
    /// The time line as an SVG, which needs nothing else: text without markup of its own, so that
    /// it can stand in a page.
    #[must_use]
    pub fn drawing(&self, detail: Detail) -> String {
        let lines = place(self.shown(detail));
        let cpus = lines.iter().map(|placed| placed.line.cpu + 1).max().unwrap_or(1);
        let bottom = lines.last().map_or(HEAD, Placed::bottom);
        let (width, height) = (cpus * COLUMN, bottom + 4 * LINE);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"system-ui, sans-serif\" \
             font-size=\"12\" fill=\"currentColor\" role=\"img\">\n<title>{}</title>\n",
            escaped(&self.wrong.to_string())
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
             <tspan fill=\"{RED}\">▮</tspan> may hold what is old</text>\n</svg>",
            bottom + 2 * LINE,
            escaped(&self.wrong.to_string()),
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
        // Room above what begins anew.
        top += if *kind == LineKind::Operation { LINE / 2 } else { 0 };
        let placed = Placed { line, parts: wrapped(text, WIDTH), top };
        top = placed.bottom();
        placed
    };
    lines.into_iter().map(place).collect()
}

/// Where a CPU is in user mode, and where it may hold what is old.
fn bands(svg: &mut String, lines: &[Placed<'_>], bottom: usize) {
    for (index, begin) in lines.iter().enumerate() {
        let (color, x, what): (_, _, fn(&Line) -> bool) = match begin.line.kind {
            LineKind::EntersUserMode => (BLUE, 4, |line| line.kind == LineKind::LeavesUserMode),
            LineKind::Holds if holds_old(begin.line) => {
                (RED, 15, |line| line.kind == LineKind::Holds)
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

fn holds_old(line: &Line) -> bool {
    line.kind == LineKind::Holds && !line.text.ends_with("nothing old")
}

/// From who interrupts to who is interrupted.
fn arrows(svg: &mut String, lines: &[Placed<'_>]) {
    for (index, begin) in lines.iter().enumerate() {
        let LineKind::Rings(target) = begin.line.kind else { continue };
        let takes = |line: &Line| line.cpu == target && line.kind == LineKind::TakesInterrupt;
        let Some(end) = lines[index + 1..].iter().find(|end| takes(end.line)) else { continue };
        // To its text, from whichever side.
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
        LineKind::Holds if holds_old(placed.line) => (12, format!(" fill=\"{RED}\"")),
        LineKind::Holds => (12, " fill-opacity=\"0.6\"".to_owned()),
        LineKind::Rings(_) | LineKind::TakesInterrupt => (12, format!(" fill=\"{BLUE}\"")),
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
    use crate::hardware::Wrong;

    #[test]
    fn bands_end_where_they_should_and_arrows_reach_whom_they_are_for() {
        let line = |cpu, kind, text: &str| Line { cpu, text: text.to_owned(), kind };
        let found = Found {
            wrong: Wrong::UsesFlushed { cpu: 1, page: 3 },
            choices: Vec::new(),
            lines: vec![
                line(1, LineKind::EntersUserMode, "goes to user mode"),
                line(0, LineKind::Operation, "unmaps page 3 of space 0"),
                line(1, LineKind::Holds, "may hold page 3 → 3"),
                line(0, LineKind::Rings(1), "interrupts CPU 1"),
                line(1, LineKind::TakesInterrupt, "takes the interrupt"),
                line(1, LineKind::Holds, "may hold nothing old"),
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
