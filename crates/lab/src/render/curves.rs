//! Curves over two logarithmic axes, on which proportional growth is a straight line.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::plot::{Area, DrawError, FONT_SIZE, GAP, INK, Of, Width, drawn, room, write};

/// A curve with its name at its right end.
#[derive(Clone, Debug)]
pub(crate) struct Curve {
    pub(crate) label: String,
    pub(crate) of: Of,
    /// The points from left to right. Points with a coordinate that is not positive are not drawn,
    /// because they have no place on a logarithmic axis.
    pub(crate) points: Vec<(f64, f64)>,
}

/// The names of the axes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axes<'a> {
    /// The name of the horizontal axis, printed below its numbers.
    pub(crate) across: &'a str,
    /// The name of the vertical axis, printed above it.
    pub(crate) up: &'a str,
    pub(crate) band: Band,
}

/// A grey band behind the curves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Band {
    None,
    /// Proportional growth from the first point of the last curve.
    Proportion,
}

const HEIGHT: i32 = 340;
/// Space above the plot for the name of the vertical axis, and below it for the horizontal axis.
const ABOVE: i32 = 30;
const BELOW: i32 = 52;
/// Smallest distance between the names of two curves. Closer names would cover each other.
const LABEL_HEIGHT: i32 = FONT_SIZE + 2;
/// Width of the band of proportional growth, which is visible behind a curve.
const BAND_WIDTH: u32 = 9;

/// Returns the plot as an SVG element. Screen readers read `name`.
pub(crate) fn curves(name: &str, axes: Axes<'_>, curves: &[Curve]) -> String {
    drawn(name, Width::Full, |svg| {
        let size = (Width::Full.pixels(), HEIGHT.unsigned_abs());
        let area = SVGBackend::with_string(svg, size).into_drawing_area();
        if let Some(plane) = Plane::around(curves) {
            plane.draw_axes(&area, axes)?;
            if axes.band == Band::Proportion {
                plane.draw_proportion(&area, curves)?;
            }
            for curve in curves {
                plane.draw_curve(&area, curve)?;
            }
            plane.write_labels(&area, curves)?;
        }
        area.present()?;
        Ok(())
    })
}

/// The mapping of values to pixels.
#[derive(Debug)]
struct Plane {
    across: Axis,
    up: Axis,
}

/// An axis from the first value at the first pixel to the last value at the last pixel.
#[derive(Debug)]
struct Axis {
    values: (f64, f64),
    pixels: (i32, i32),
}

impl Axis {
    fn at(&self, value: f64) -> i32 {
        let (low, high) = (self.values.0.ln(), self.values.1.ln());
        let part = if high > low { (value.ln() - low) / (high - low) } else { 0.0 };
        let (first, last) = self.pixels;
        first + (part * f64::from(last - first)).round() as i32
    }

    /// Returns the values from the first on, each `factor` times the one before.
    fn ticks(&self, factor: f64) -> impl Iterator<Item = f64> {
        let (first, last) = self.values;
        core::iter::successors(Some(first), move |value| Some(value * factor))
            .take_while(move |value| *value <= last * 1.001)
    }
}

fn visible(curve: &Curve) -> impl Iterator<Item = (f64, f64)> + Clone {
    let is_on_axis = |value: f64| value.is_finite() && value > 0.0;
    curve.points.iter().copied().filter(move |&(x, y)| is_on_axis(x) && is_on_axis(y))
}

impl Plane {
    /// Returns axes for all curves, with the next powers of ten as the ends of the vertical axis;
    /// `None` if there is no point.
    fn around(curves: &[Curve]) -> Option<Self> {
        let points = || curves.iter().flat_map(visible);
        points().next()?;
        let range = |values: &mut dyn Iterator<Item = f64>| {
            values.fold((f64::MAX, f64::MIN_POSITIVE), |(low, high), value| {
                (low.min(value), high.max(value))
            })
        };
        let (low, high) = range(&mut points().map(|(_, y)| y));
        let (low, high) = (low.log10().floor(), high.log10().ceil());
        let values = (10f64.powf(low), 10f64.powf(high.max(low + 1.0)));
        let up = Axis { values, pixels: (HEIGHT - BELOW, ABOVE) };
        let left = room(up.ticks(10.0).map(number), 0);
        let right = room(labels(curves, &up).into_iter().map(|(_, label)| label), 0);
        let pixels = (left, Width::Full.pixels() as i32 - right - GAP);
        let across = Axis { values: range(&mut points().map(|(x, _)| x)), pixels };
        Some(Self { across, up })
    }

    fn at(&self, (x, y): (f64, f64)) -> (i32, i32) {
        (self.across.at(x), self.up.at(y))
    }

    fn draw_axes(&self, area: &Area<'_>, axes: Axes<'_>) -> Result<(), DrawError> {
        let (left, right) = self.across.pixels;
        let (bottom, top) = self.up.pixels;
        let faint = INK.mix(0.15).stroke_width(1);
        for value in self.up.ticks(10.0) {
            let y = self.up.at(value);
            area.draw(&PathElement::new([(left, y), (right, y)], faint))?;
            write(area, &number(value), (left - GAP, y), HPos::Right)?;
        }
        for value in self.across.ticks(4.0) {
            let x = self.across.at(value);
            area.draw(&PathElement::new([(x, bottom), (x, top)], faint))?;
            write(area, &number(value), (x, bottom + FONT_SIZE), HPos::Center)?;
        }
        let below = bottom + 2 * FONT_SIZE + GAP / 2;
        write(area, axes.across, (i32::midpoint(left, right), below), HPos::Center)?;
        write(area, axes.up, (left, ABOVE / 2 - GAP / 2), HPos::Left)
    }

    fn draw_proportion(&self, area: &Area<'_>, curves: &[Curve]) -> Result<(), DrawError> {
        let Some((x, y)) = curves.last().and_then(|curve| visible(curve).next()) else {
            return Ok(());
        };
        let times = (self.across.values.1 / x).min(self.up.values.1 / y);
        let ends = [(x, y), (x * times, y * times)].map(|end| self.at(end));
        let style = Of::Reality.colour().mix(0.35).stroke_width(BAND_WIDTH);
        area.draw(&PathElement::new(ends, style))?;
        Ok(())
    }

    fn draw_curve(&self, area: &Area<'_>, curve: &Curve) -> Result<(), DrawError> {
        let points: Vec<_> = visible(curve).map(|point| self.at(point)).collect();
        for &point in &points {
            area.draw(&Circle::new(point, 3, curve.of.colour().filled()))?;
        }
        area.draw(&PathElement::new(points, curve.of.colour().stroke_width(2)))?;
        Ok(())
    }

    fn write_labels(&self, area: &Area<'_>, curves: &[Curve]) -> Result<(), DrawError> {
        for (y, label) in labels(curves, &self.up) {
            write(area, &label, (self.across.pixels.1 + GAP, y), HPos::Left)?;
        }
        Ok(())
    }
}

/// Returns the names at the right ends of the curves, each with its vertical position in pixels.
/// Curves that end at the same place share a name.
fn labels(curves: &[Curve], up: &Axis) -> Vec<(i32, String)> {
    let end = |curve| Some((up.at(visible(curve).last()?.1), curve.label.as_str()));
    let mut ends: Vec<_> = curves.iter().rev().filter_map(end).collect();
    ends.sort_by_key(|&(y, _)| y);
    let share = |one: &(i32, &str), other: &(i32, &str)| other.0 - one.0 < LABEL_HEIGHT;
    let label = |group: &[(i32, &str)]| match group {
        [(y, name)] => (*y, (*name).to_owned()),
        [(y, name), (_, other)] => (*y, format!("{name}, {other}")),
        // The last curve is the most important one. It is the first of those at the same height.
        [(y, name), others @ ..] => (*y, format!("{name} and {} more", others.len())),
        [] => (0, String::new()),
    };
    ends.chunk_by(share).map(label).collect()
}

/// Returns a number as it is printed at an axis, with few digits.
fn number(value: f64) -> String {
    match value {
        1e9.. => format!("{} G", value / 1e9),
        1e6.. => format!("{} M", value / 1e6),
        1.0.. => format!("{value:.0}"),
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AXES: Axes<'_> = Axes { across: "CPUs", up: "M/s", band: Band::Proportion };

    fn curve(label: &str, points: &[(f64, f64)]) -> Curve {
        Curve { label: label.to_owned(), of: Of::Design, points: points.to_vec() }
    }

    fn texts(svg: &str) -> Vec<&str> {
        let lines: Vec<_> = svg.lines().collect();
        let is_text = |pair: &&[&str]| pair[0].starts_with("<text ");
        lines.windows(2).filter(is_text).map(|pair| pair[1].trim()).collect()
    }

    #[test]
    fn equal_factors_have_equal_distances() {
        let axis = Axis { values: (1.0, 1000.0), pixels: (0, 300) };
        assert_eq!([1.0, 10.0, 100.0, 1000.0].map(|value| axis.at(value)), [0, 100, 200, 300]);
        assert_eq!(axis.ticks(10.0).collect::<Vec<_>>(), [1.0, 10.0, 100.0, 1000.0]);
    }

    #[test]
    fn curves_with_same_end_share_name() {
        let (low, high) = ([(2.0, 1.0), (4096.0, 1.0)], [(2.0, 1.0), (4096.0, 2000.0)]);
        let all = [curve("counted", &low), curve("a", &high), curve("b", &high), curve("c", &high)];
        let svg = curves("", AXES, &all);
        let texts = texts(&svg);
        assert_eq!([1e5, 1e6, 1e10, 0.01].map(number), ["100000", "1 M", "10 G", "0.01"]);
        assert!(texts.contains(&"counted") && texts.contains(&"c and 2 more"), "{texts:?}");
        for tick in ["2", "2048", "1", "10000", "CPUs", "M/s"] {
            assert!(texts.contains(&tick), "{tick}: {texts:?}");
        }
    }

    #[test]
    fn points_without_logarithm_are_not_drawn() {
        let bad = [(0.0, 1.0), (2.0, f64::NAN), (4.0, 0.0), (8.0, f64::INFINITY)];
        let svg = curves("", AXES, &[curve("a", &[]), curve("b", &bad), curve("c", &[(2.0, 3.0)])]);
        assert_eq!(svg.matches("<circle ").count(), 1, "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(curves("", AXES, &[]).starts_with("<svg "));
    }
}
