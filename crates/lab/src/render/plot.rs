//! A row as bars: published, predicted, and this engine.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{significant, unit};
use crate::experiment::Row;

const WIDTH: u32 = 720;
const BAR_HEIGHT: i32 = 24;
const LINE_HEIGHT: i32 = 32;
const LABELS_WIDTH: i32 = 230;
const VALUES_WIDTH: i32 = 90;

/// Stands for the page's own text colour, so that dark pages have light text.
const INK: RGBColor = RGBColor(1, 2, 3);
const INK_IN_SVG: &str = "#010203";

const PUBLISHED: RGBColor = RGBColor(138, 143, 152);
const PREDICTED: RGBColor = RGBColor(59, 125, 179);
const OURS: RGBColor = RGBColor(47, 155, 98);

/// The plot as an SVG element.
pub(crate) fn bars(row: &Row) -> String {
    let mut svg = String::new();
    // Drawing into a string does not fail; if it did, the page would say so instead of a plot.
    let drawn = draw(row, &mut svg).map_err(|error| error.to_string());
    match drawn {
        Ok(()) => for_page(&svg, row),
        Err(error) => format!("<p>not drawn: {error}</p>"),
    }
}

fn draw(row: &Row, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let bars = lines(row);
    let height = LINE_HEIGHT * i32::try_from(bars.len())?;
    let area = SVGBackend::with_string(svg, (WIDTH, height.unsigned_abs())).into_drawing_area();
    let longest = bars.iter().map(|(_, value, _)| *value).fold(f64::MIN_POSITIVE, f64::max);
    let room = f64::from(WIDTH as i32 - LABELS_WIDTH - VALUES_WIDTH);
    for (top, (label, value, colour)) in (0..).step_by(LINE_HEIGHT as usize).zip(&bars) {
        let length = if value.is_finite() { (room * value / longest).max(1.0) as i32 } else { 1 };
        let middle = top + LINE_HEIGHT / 2;
        let (left, right) = (LABELS_WIDTH, LABELS_WIDTH + length);
        let corners = [(left, middle - BAR_HEIGHT / 2), (right, middle + BAR_HEIGHT / 2)];
        area.draw(&Rectangle::new(corners, colour.filled()))?;
        write(&area, label, (left - 10, middle), HPos::Right)?;
        let value = format!("{} {}", significant(*value), unit(row.experiment.unit));
        write(&area, &value, (right + 8, middle), HPos::Left)?;
    }
    area.present()?;
    Ok(())
}

fn lines(row: &Row) -> [(String, f64, RGBColor); 5] {
    let (published, predicted) = (row.experiment.published, &row.predicted);
    let designs = row.experiment.designs;
    [
        (format!("published, {}", designs.before), published.before, PUBLISHED),
        (format!("predicted, {}", designs.before), predicted.before.value, PREDICTED),
        (format!("published, {}", designs.after), published.after, PUBLISHED),
        (format!("predicted, {}", designs.after), predicted.after.value, PREDICTED),
        ("predicted, shootdown".to_owned(), row.shootdown.value, OURS),
    ]
}

fn write(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    text: &str,
    at: (i32, i32),
    align: HPos,
) -> Result<(), Box<dyn std::error::Error>> {
    let style = TextStyle::from(("sans-serif", 15).into_font())
        .color(&INK)
        .pos(Pos::new(align, VPos::Center));
    area.draw(&Text::new(text.to_owned(), at, style))?;
    Ok(())
}

/// As wide as the page, in its colours, and named for those who do not see it.
fn for_page(svg: &str, row: &Row) -> String {
    let size = svg.find("<svg ").and_then(|start| Some((start, svg[start..].find("viewBox")?)));
    let Some((start, length)) = size else { return svg.to_owned() };
    let rest = &svg[start + length..];
    let name = super::html::escaped(row.experiment.workload);
    format!("<svg role=\"img\" aria-label=\"{name}\" {}", rest.replace(INK_IN_SVG, "currentColor"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::example;

    #[test]
    fn a_plot_has_five_bars_as_long_as_their_values_and_takes_the_page_s_colours() {
        let svg = bars(&example::rows()[0]);
        let widths: Vec<f64> = svg
            .split("<rect ")
            .skip(1)
            .map(|bar| bar.split("width=\"").nth(1).unwrap().split('"').next().unwrap())
            .map(|width| width.parse().unwrap())
            .collect();
        assert_eq!(widths.len(), 5);
        assert!((widths[2] / widths[0] - 13.4 / 21.6).abs() < 0.01, "{widths:?}");
        assert!(svg.contains("currentColor") && !svg.contains(INK_IN_SVG));
    }
}
