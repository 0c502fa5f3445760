//! The rate by the number of CPUs, as a part of a page.

use crate::render::curves::{Axes, Curve as Line, curves};
use crate::render::page::{Table, alarming, escaped};
use crate::render::plot::Of;
use crate::render::{UNCOUNTED, significant, unit};
use crate::studies::{Curve, Scaling};

/// A plot of all designs, and a table of some of its points.
pub(super) fn part(scaling: &Scaling) -> String {
    let unit = unit(scaling.unit);
    let line = |curve: &Curve| Line {
        label: curve.design.to_owned(),
        of: Of::design(curve.design),
        points: curve.points.iter().map(|point| (point.cpus as f64, point.rate)).collect(),
    };
    let lines: Vec<_> = scaling.curves.iter().map(line).collect();
    format!(
        "<h3 id=\"scaling\">{} with more and fewer CPUs</h3>\n<p>On {}, resized. Both axes are \
         logarithmic; the grey band is growth in proportion. “Of linear” is the \
         rate per CPU where it is least, in percent of that with the fewest CPUs. {}</p>\n{}{}",
        escaped(scaling.workload),
        escaped(&scaling.machine),
        UNCOUNTED,
        curves("rate by CPUs", Axes { across: "CPUs", up: unit }, &lines),
        table(scaling)
    )
}

fn table(scaling: &Scaling) -> String {
    let sizes = scaling.main_sizes();
    let numbers: Vec<_> = sizes.iter().map(|cpus| format!("{cpus} CPUs")).collect();
    let numbers = numbers.iter().map(String::as_str);
    let names: Vec<_> =
        ["Design"].into_iter().chain(numbers).chain(["Of linear", "Violations"]).collect();
    let mut table = Table::new(&names);
    for curve in &scaling.curves {
        let rates =
            sizes.iter().map(|&cpus| curve.rate(cpus).map_or_else(String::new, significant));
        let linear = format!("{} %", significant(curve.linear_percent()));
        let others = [linear, alarming(curve.violations)];
        table.row([escaped(curve.design)].into_iter().chain(rates).chain(others));
    }
    table.html()
}
