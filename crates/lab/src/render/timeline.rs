//! Counts over time, as columns of stacked parts.

use std::fmt::Write as _;

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::page::escaped;
use super::plot::{Area, DrawError, GAP, INK, Width, drawn, room, write};
use super::{duration, grouped};

/// Number of columns.
pub(crate) const COLUMNS: usize = 120;
/// The largest number of parts, which is that of distinct colours.
pub(crate) const PARTS_MAX: usize = COLOURS.len();

const COLOURS: [RGBColor; 5] = [
    RGBColor(59, 125, 179),
    RGBColor(208, 128, 50),
    RGBColor(47, 155, 98),
    RGBColor(150, 90, 170),
    RGBColor(138, 143, 152),
];
const HEIGHT: i32 = 220;
const ABOVE: i32 = 14;
const BELOW: i32 = 34;

/// A part of every column.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) label: String,
    /// The count of each column.
    pub(crate) counts: [u64; COLUMNS],
}

/// Returns a figure of at most [`PARTS_MAX`] parts, whose columns together last `time_ns`, with a
/// legend. Screen readers read `name`.
pub(crate) fn timeline(name: &str, time_ns: u64, parts: &[Part]) -> String {
    let mut figure = "<figure class=\"timeline\">\n<figcaption>".to_owned();
    for (part, RGBColor(red, green, blue)) in parts.iter().zip(COLOURS) {
        let label = escaped(&part.label);
        let _ = write!(
            figure,
            "<span><i style=\"color:rgb({red},{green},{blue})\"></i> {label}</span> "
        );
    }
    figure += "</figcaption>\n";
    figure += &drawn(name, Width::Full, |svg| {
        let size = (Width::Full.pixels(), HEIGHT.unsigned_abs());
        let area = SVGBackend::with_string(svg, size).into_drawing_area();
        draw(&area, time_ns, parts)?;
        area.present()?;
        Ok(())
    });
    figure + "\n</figure>\n"
}

fn draw(area: &Area<'_>, time_ns: u64, parts: &[Part]) -> Result<(), DrawError> {
    let total = |column: usize| parts.iter().map(|part| part.counts[column]).sum::<u64>();
    let highest = (0..COLUMNS).map(total).max().unwrap_or_default().max(1);
    let left = room([grouped(highest)].iter(), 3);
    let (right, bottom) = (i32::try_from(Width::Full.pixels())? - GAP, HEIGHT - BELOW);
    let across = |column: usize| {
        left + (f64::from(right - left) * column as f64 / COLUMNS as f64).round() as i32
    };
    let up = |count: u64| {
        bottom - (f64::from(bottom - ABOVE) * count as f64 / highest as f64).round() as i32
    };
    for column in 0..COLUMNS {
        let mut below = 0;
        for (part, colour) in parts.iter().zip(COLOURS) {
            let count = part.counts[column];
            if count > 0 {
                let (low, high) = (up(below), up(below + count).min(up(below) - 1));
                let corners = [(across(column), high), (across(column + 1), low)];
                area.draw(&Rectangle::new(corners, colour.filled()))?;
            }
            below += count;
        }
    }
    area.draw(&PathElement::new([(left, bottom), (right, bottom)], INK))?;
    write(area, &grouped(highest), (left - GAP, up(highest)), HPos::Right)?;
    write(area, "0", (left - GAP, bottom), HPos::Right)?;
    let below = bottom + BELOW / 2;
    write(area, "0 s", (left, below), HPos::Left)?;
    write(area, &duration(time_ns / 2), (left.midpoint(right), below), HPos::Center)?;
    write(area, &duration(time_ns), (right, below), HPos::Right)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(label: &str, counts: &[u64]) -> Part {
        let mut part = Part { label: label.to_owned(), counts: [0; COLUMNS] };
        part.counts[..counts.len()].copy_from_slice(counts);
        part
    }

    #[test]
    fn each_positive_count_is_a_rectangle() {
        let figure = timeline("n", 1_000_000, &[part("<a>", &[1, 0, 1000]), part("b", &[0, 2])]);
        assert_eq!(figure.matches("<rect ").count(), 3, "{figure}");
        assert!(figure.contains("&lt;a&gt;") && figure.contains("500 µs"), "{figure}");
        assert!(figure.contains(&grouped(1000)), "the highest column");
    }

    #[test]
    fn nothing_is_drawn_without_counts() {
        assert_eq!(timeline("n", 0, &[part("a", &[])]).matches("<rect ").count(), 0);
    }
}
