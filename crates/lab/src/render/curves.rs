//! Curves over two logarithmic axes, on which proportional growth is a straight line.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::plot::{Area, DrawError, FONT_SIZE, GAP, INK, Of, Width, drawn, room, write};

/// A curve with its name at its right end.
#[derive(Clone, Debug)]
pub(crate) struct Curve {
    pub(crate) label: String,
    pub(crate) of: Of,
    /// The points from left to right. A height of 0 is drawn on a line of its own, below the
    /// logarithmic axis. Other points without a logarithm are not drawn.
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
/// Height of the line of zeros below the logarithmic axis.
const ZERO_HEIGHT: i32 = 24;
/// Smallest distance between numbers on the horizontal axis.
const TICK_GAP: i32 = 12;
/// Width of the line from the end of a curve to its name.
const LEADER: i32 = 18;
/// Width of the band of proportional growth, which is visible behind a curve.
const BAND_WIDTH: u32 = 9;

/// Returns the plot as an SVG element. Screen readers read `name`.
pub(crate) fn curves(name: &str, axes: Axes<'_>, curves: &[Curve]) -> String {
    drawn(name, Width::Full, |svg| {
        let size = (Width::Full.pixels(), HEIGHT.unsigned_abs());
        let area = SVGBackend::with_string(svg, size).into_drawing_area();
        if let Some(plane) = Plane::around(curves) {
            plane.draw_axes(&area, axes, curves)?;
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
    /// The pixel of 0, if 0 has a place.
    zero: Option<i32>,
}

impl Axis {
    fn at(&self, value: f64) -> i32 {
        if let Some(zero) = self.zero.filter(|_| value == 0.0) {
            return zero;
        }
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

/// The points of a curve that are drawn.
fn visible(curve: &Curve) -> impl Iterator<Item = (f64, f64)> + Clone {
    let is_on_axis = |&(x, y): &(f64, f64)| x.is_finite() && x > 0.0 && y.is_finite() && y >= 0.0;
    curve.points.iter().copied().filter(is_on_axis)
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
        let heights = || points().map(|(_, y)| y).filter(|&y| y > 0.0);
        let (low, high) = if heights().next().is_some() { range(&mut heights()) } else { (1., 1.) };
        let (low, high) = (low.log10().floor(), high.log10().ceil());
        let values = (10f64.powf(low), 10f64.powf(high.max(low + 1.0)));
        let zero = points().any(|(_, y)| y == 0.0).then_some(HEIGHT - BELOW);
        let bottom = HEIGHT - BELOW - if zero.is_some() { ZERO_HEIGHT } else { 0 };
        let up = Axis { values, pixels: (bottom, ABOVE), zero };
        let left = room(up.ticks(10.0).map(number), 0);
        let right = LEADER + room(curves.iter().map(|curve| &curve.label), 0);
        let pixels = (left, Width::Full.pixels() as i32 - right - GAP);
        let across = Axis { values: range(&mut points().map(|(x, _)| x)), pixels, zero: None };
        Some(Self { across, up })
    }

    fn at(&self, (x, y): (f64, f64)) -> (i32, i32) {
        (self.across.at(x), self.up.at(y))
    }

    fn draw_axes(
        &self,
        area: &Area<'_>,
        axes: Axes<'_>,
        curves: &[Curve],
    ) -> Result<(), DrawError> {
        let (left, right) = self.across.pixels;
        let (bottom, top) = self.up.pixels;
        let faint = INK.mix(0.15).stroke_width(1);
        let zero = self.up.zero.map(|_| 0.0);
        for value in self.up.ticks(10.0).chain(zero) {
            let y = self.up.at(value);
            area.draw(&PathElement::new([(left, y), (right, y)], faint))?;
            write(area, &number(value), (left - GAP, y), HPos::Right)?;
        }
        let bottom = self.up.zero.unwrap_or(bottom);
        for x in self.across_ticks(curves) {
            let (at, text) = (self.across.at(x), number(x));
            area.draw(&PathElement::new([(at, bottom), (at, top)], faint))?;
            write(area, &text, (at, bottom + FONT_SIZE), HPos::Center)?;
        }
        let below = bottom + 2 * FONT_SIZE + GAP / 2;
        write(area, axes.across, (i32::midpoint(left, right), below), HPos::Center)?;
        write(area, axes.up, (left, ABOVE / 2 - GAP / 2), HPos::Left)
    }

    /// Returns the values of the points, without those whose numbers would touch the number of a
    /// value further right. The first one is always among them.
    fn across_ticks(&self, curves: &[Curve]) -> Vec<f64> {
        let mut values: Vec<f64> = curves.iter().flat_map(visible).map(|(x, _)| x).collect();
        values.sort_by(|one, other| other.total_cmp(one));
        values.dedup();
        let first = values.pop();
        let half = |value: f64| (room(std::iter::once(number(value)), 0) - 2 * GAP) / 2;
        let is_apart = |left: f64, right: f64| {
            let gap = self.across.at(right) - half(right) - self.across.at(left) - half(left);
            gap >= TICK_GAP
        };
        let mut ticks: Vec<f64> = Vec::new();
        for value in values {
            let fits = ticks.last().is_none_or(|&right| is_apart(value, right));
            if fits && first.is_none_or(|first| is_apart(first, value)) {
                ticks.push(value);
            }
        }
        ticks.extend(first);
        ticks
    }

    fn draw_proportion(&self, area: &Area<'_>, curves: &[Curve]) -> Result<(), DrawError> {
        let first = |curve| visible(curve).find(|&(_, y)| y > 0.0);
        let Some((x, y)) = curves.last().and_then(first) else {
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

    /// Writes the names, each with a line from the end of its curve.
    fn write_labels(&self, area: &Area<'_>, curves: &[Curve]) -> Result<(), DrawError> {
        let right = self.across.pixels.1;
        for (end, y, curve) in labels(curves, &self.up) {
            let leader = [(right + GAP / 2, end), (right + LEADER, y)];
            area.draw(&PathElement::new(leader, curve.of.colour().mix(0.5).stroke_width(1)))?;
            write(area, &curve.label, (right + LEADER + GAP / 2, y), HPos::Left)?;
        }
        Ok(())
    }
}

/// Returns the curves that have points, each with the height of its right end and of its name, in
/// pixels. Names keep a distance from each other.
fn labels<'c>(curves: &'c [Curve], up: &Axis) -> Vec<(i32, i32, &'c Curve)> {
    let end = |curve: &'c Curve| Some((up.at(visible(curve).last()?.1), curve));
    let mut ends: Vec<_> = curves.iter().filter_map(end).collect();
    ends.sort_by_key(|&(y, _)| y);
    let bottom = up.zero.unwrap_or(up.pixels.0);
    let distance = LABEL_HEIGHT.min((bottom - ABOVE) / (ends.len() as i32 - 1).max(1));
    let mut labels: Vec<(i32, i32, &Curve)> = Vec::new();
    for (end, curve) in ends {
        let above = labels.last().map_or(i32::MIN, |&(_, y, _)| y + distance);
        labels.push((end, end.max(above), curve));
    }
    // Those that are below the plot now push the others up again.
    let mut limit = bottom;
    for (_, y, _) in labels.iter_mut().rev() {
        *y = (*y).min(limit);
        limit = *y - distance;
    }
    labels
}

/// Returns a number as it is printed at an axis, with few digits.
fn number(value: f64) -> String {
    match value {
        1e9.. => format!("{} G", value / 1e9),
        1e6.. => format!("{} M", value / 1e6),
        1.0.. | 0.0 => format!("{value:.0}"),
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
        let axis = Axis { values: (1.0, 1000.0), pixels: (0, 300), zero: None };
        assert_eq!([1.0, 10.0, 100.0, 1000.0].map(|value| axis.at(value)), [0, 100, 200, 300]);
        assert_eq!(axis.ticks(10.0).collect::<Vec<_>>(), [1.0, 10.0, 100.0, 1000.0]);
    }

    #[test]
    fn names_of_curves_with_same_end_are_apart() {
        let (low, high) = ([(2.0, 1.0), (4096.0, 1.0)], [(2.0, 1.0), (4096.0, 2000.0)]);
        let all = ["a", "b", "c"].map(|name| curve(name, &high));
        let all = [&[curve("counted", &low)], &all[..]].concat();
        let plane = Plane::around(&all).unwrap();
        let heights: Vec<_> = labels(&all, &plane.up).iter().map(|&(_, y, _)| y).collect();
        assert!(heights.windows(2).all(|pair| pair[1] - pair[0] >= LABEL_HEIGHT), "{heights:?}");
        assert!(heights.iter().all(|y| (ABOVE..=HEIGHT - BELOW).contains(y)), "{heights:?}");
        let many: Vec<_> = (0..40).map(|_| curve("many", &low)).collect();
        assert!(labels(&many, &plane.up).iter().all(|&(_, y, _)| y >= ABOVE));
    }

    #[test]
    fn ticks_are_the_values_that_were_run() {
        let points = [2.0, 8.0, 16.0, 95.0, 96.0].map(|cpus| (cpus, 1e5));
        let svg = curves("", AXES, &[curve("a", &points)]);
        let texts = texts(&svg);
        assert_eq!([1e5, 1e6, 1e10, 0.01].map(number), ["100000", "1 M", "10 G", "0.01"]);
        for tick in ["2", "8", "16", "96", "100000", "1 M", "CPUs", "M/s"] {
            assert!(texts.contains(&tick), "{tick}: {texts:?}");
        }
        assert!(!texts.contains(&"95"), "it would touch 96: {texts:?}");
    }

    #[test]
    fn zeros_have_a_line_below_the_axis() {
        let both = [curve("some", &[(2.0, 10.0), (4.0, 0.0)]), curve("none", &[(2.0, 0.0)])];
        let plane = Plane::around(&both).unwrap();
        assert_eq!(plane.up.at(0.0), plane.up.at(10.0) + ZERO_HEIGHT);
        let svg = curves("", AXES, &both);
        assert_eq!((svg.matches("<circle ").count(), texts(&svg).contains(&"0")), (3, true));
        assert!(!texts(&curves("", AXES, &[curve("a", &[(2.0, 1.0)])])).contains(&"0"));
    }

    #[test]
    fn points_without_logarithm_are_not_drawn() {
        let bad = [(0.0, 1.0), (2.0, f64::NAN), (4.0, -1.0), (8.0, f64::INFINITY)];
        let svg = curves("", AXES, &[curve("a", &[]), curve("b", &bad), curve("c", &[(2.0, 3.0)])]);
        assert_eq!(svg.matches("<circle ").count(), 1, "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(curves("", AXES, &[]).starts_with("<svg "));
    }
}
