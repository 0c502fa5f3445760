//! Bar plots: labelled bars, one below the other.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::page::escaped;

/// A bar with a label to its left and its value, in words, to its right.
#[derive(Clone, Debug)]
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) of: Of,
    /// The ends of the parts of the bar, in ascending order. Each part is paler than the one
    /// before.
    pub(crate) ends: Vec<f64>,
    pub(crate) value: String,
}

/// The source of a bar's value, which selects the colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    /// A published or recorded value.
    Reality,
    /// A simulated value of another design.
    Design,
    /// A simulated value of shootdown.
    Ours,
}

/// The width of a plot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    /// The width of the page.
    Full,
    /// Half of the width of the page.
    Half,
}

impl Of {
    pub(super) const fn colour(self) -> RGBColor {
        match self {
            Self::Reality => RGBColor(138, 143, 152),
            Self::Design => RGBColor(59, 125, 179),
            Self::Ours => RGBColor(47, 155, 98),
        }
    }
}

impl Width {
    pub(super) const fn pixels(self) -> u32 {
        match self {
            Self::Full => 600,
            Self::Half => 430,
        }
    }
}

const BAR_HEIGHT: i32 = 20;
const LINE_HEIGHT: i32 = 27;
/// Assumed width of a letter at [`FONT_SIZE`], a little more than the mean.
const LETTER_WIDTH: f64 = 7.3;
pub(super) const FONT_SIZE: i32 = 17;
/// Number of letters that labels get at least, so that the bars of neighbouring plots are aligned.
const LABEL_LETTERS: usize = 15;
/// Distance between a bar and its texts.
pub(super) const GAP: i32 = 8;
/// Opacities of the first, the second and the third part of a bar.
pub(crate) const OPACITIES: [f64; 3] = [1.0, 0.55, 0.25];

/// A placeholder for the text colour of the page, so that dark pages have light text.
pub(super) const INK: RGBColor = RGBColor(1, 2, 3);
const INK_IN_SVG: &str = "#010203";

/// Returns the plot as an SVG element. Screen readers read `name`.
pub(crate) fn bars(name: &str, width: Width, bars: &[Bar]) -> String {
    drawn(name, width, |svg| draw(bars, width, svg))
}

/// Returns the drawing that `draw` makes as a part of a page.
pub(super) fn drawn(
    name: &str,
    width: Width,
    draw: impl FnOnce(&mut String) -> Result<(), DrawError>,
) -> String {
    let mut svg = String::new();
    // Drawing into a string does not fail. If it did, the page would show the error.
    match draw(&mut svg).map_err(|error| error.to_string()) {
        Ok(()) => for_page(&svg, name, width),
        Err(error) => format!("<p>not drawn: {}</p>\n", escaped(&error)),
    }
}

pub(super) type DrawError = Box<dyn std::error::Error>;
pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn draw(bars: &[Bar], width: Width, svg: &mut String) -> Result<(), DrawError> {
    let size = (width.pixels(), (LINE_HEIGHT * i32::try_from(bars.len())?).unsigned_abs());
    let area = SVGBackend::with_string(svg, size).into_drawing_area();
    let longest =
        bars.iter().filter_map(|bar| bar.ends.last()).copied().filter(|end| end.is_finite());
    let longest = longest.fold(f64::MIN_POSITIVE, f64::max);
    let start = room(bars.iter().map(|bar| &bar.label), LABEL_LETTERS);
    let end = i32::try_from(width.pixels())? - room(bars.iter().map(|bar| &bar.value), 0);
    let space = f64::from((end - start).max(1));
    let at = |value: f64| {
        if value.is_finite() { start + (space * value / longest) as i32 } else { start }
    };
    for (top, bar) in (0..).step_by(LINE_HEIGHT as usize).zip(bars) {
        let middle = top + LINE_HEIGHT / 2;
        let (above, below) = (middle - BAR_HEIGHT / 2, middle + BAR_HEIGHT / 2);
        // Even a bar of length 0 is drawn one pixel wide.
        let mut left = start + 1;
        area.draw(&Rectangle::new([(start, above), (left, below)], bar.of.colour().filled()))?;
        for (&end, opacity) in bar.ends.iter().zip(OPACITIES) {
            let right = at(end).max(left);
            if right > left {
                let colour = bar.of.colour().mix(opacity).filled();
                area.draw(&Rectangle::new([(left, above), (right, below)], colour))?;
            }
            left = right;
        }
        write(&area, &bar.label, (start - GAP, middle), HPos::Right)?;
        write(&area, &bar.value, (left + GAP, middle), HPos::Left)?;
    }
    area.present()?;
    Ok(())
}

/// Returns the width of the widest of these texts, of at least `least` letters, and of its gaps, in
/// pixels.
pub(super) fn room<T: AsRef<str>>(texts: impl Iterator<Item = T>, least: usize) -> i32 {
    let longest = texts.map(|text| text.as_ref().chars().count()).max().unwrap_or(0).max(least);
    (longest as f64 * LETTER_WIDTH) as i32 + 2 * GAP
}

/// Writes text whose left end, right end or middle is at `at`, as `align` selects.
pub(super) fn write(
    area: &Area<'_>,
    text: &str,
    at: (i32, i32),
    align: HPos,
) -> Result<(), DrawError> {
    let style = TextStyle::from(("system-ui, sans-serif", FONT_SIZE).into_font())
        .color(&INK)
        .pos(Pos::new(align, VPos::Center));
    area.draw(&Text::new(text.to_owned(), at, style))?;
    Ok(())
}

/// Returns the SVG with a name, the text colour of the page, and at most the width of the page.
fn for_page(svg: &str, name: &str, width: Width) -> String {
    let size = svg.find("<svg ").and_then(|start| Some((start, svg[start..].find("viewBox")?)));
    let Some((start, length)) = size else { return svg.to_owned() };
    let rest = svg[start + length..].replace(INK_IN_SVG, "currentColor");
    let (name, width) = (escaped(name), width.pixels());
    format!("<svg role=\"img\" aria-label=\"{name}\" width=\"{width}\" {rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(ends: &[f64]) -> Bar {
        let (label, value) = ("linux-7.0".to_owned(), "some".to_owned());
        Bar { label, of: Of::Design, ends: ends.to_vec(), value }
    }

    /// Returns the widths of the rectangles, except for those that mark the start of a bar.
    fn widths(svg: &str) -> Vec<f64> {
        svg.split("<rect ")
            .skip(1)
            .map(|bar| bar.split("width=\"").nth(1).unwrap().split('"').next().unwrap())
            .map(|width| width.parse().unwrap())
            .filter(|&width| width > 1.0)
            .collect()
    }

    #[test]
    fn bar_lengths_are_proportional_to_values() {
        let widths = widths(&bars("", Width::Full, &[bar(&[21.6]), bar(&[13.4])]));
        assert_eq!(widths.len(), 2);
        assert!((widths[1] / widths[0] - 13.4 / 21.6).abs() < 0.01, "{widths:?}");
    }

    #[test]
    fn part_begins_at_end_of_previous_part() {
        let widths = widths(&bars("", Width::Half, &[bar(&[25.0, 100.0]), bar(&[100.0])]));
        assert_eq!(widths.len(), 3);
        assert!((widths[0] + widths[1] - widths[2]).abs() < 1.0, "{widths:?}");
        assert!((widths[0] / widths[2] - 0.25).abs() < 0.01, "{widths:?}");
    }

    #[test]
    fn zero_and_non_finite_values_have_no_bar() {
        for ends in [&[0.0][..], &[0.0, 0.0], &[f64::NAN], &[f64::INFINITY], &[]] {
            let svg = bars("", Width::Half, &[bar(ends)]);
            assert!(widths(&svg).is_empty(), "{ends:?}: {svg}");
            assert_eq!(svg.matches("<text ").count(), 2, "{ends:?}: {svg}");
        }
    }

    #[test]
    fn plot_has_name_and_text_colour() {
        let svg = bars("<interrupts>", Width::Half, &[bar(&[1.0])]);
        assert!(svg.contains("currentColor") && !svg.contains(INK_IN_SVG));
        assert!(
            svg.starts_with("<svg role=\"img\" aria-label=\"&lt;interrupts&gt;\" width=\"430\"")
        );
    }
}
