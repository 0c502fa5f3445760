//! The tables of the results, which texts and pages share.

use crate::render::page::escaped;
use crate::render::table::{Cell, Figure, Medium, Table, figure};
use crate::render::{significant, times, unit};
use crate::studies::{self, Measurement, Row, Scaling};

/// The counts of a design. Tables have the first eight always, the others if any design has any.
const COUNTS: [Figure<Measurement>; 12] = [
    figure("interrupts", "Interrupts", "sent", |it| Cell::Count(it.interrupts_sent)),
    figure("to lazy", "Interrupts", "to lazy", |it| Cell::Count(it.interrupts_to_lazy)),
    figure("to absent", "Interrupts", "to absent", |it| Cell::Count(it.interrupts_to_absent)),
    figure("full flushes", "Flushes", "full", |it| Cell::Count(it.flushes_full)),
    figure("ranged", "Flushes", "ranged", |it| Cell::Count(it.flushes_ranged)),
    figure("violations", "", "Violations", |it| Cell::Alarm(it.violations)),
    figure("hazards", "", "Hazards", |it| Cell::Count(it.hazards)),
    figure("held", "", "Held", |it| Cell::Count(it.held_tables_peak)),
    figure("broadcasts", "Broadcasts", "sent", |it| Cell::Count(it.broadcasts)),
    figure("waited for them", "Broadcasts", "waited", |it| Cell::Nanoseconds(it.broadcast_wait_ns)),
    figure("tags taken", "Tags", "taken", |it| Cell::Count(it.tags_taken)),
    figure("rollovers", "Tags", "rollovers", |it| Cell::Count(it.rollovers)),
];
const COUNTS_OF_ALL: usize = 8;

/// The published and the predicted figures, and those of this engine.
pub(crate) fn summary(rows: &[Row], medium: Medium) -> Table {
    let mut table = match medium {
        Medium::Text => Table::default().left(["seed", "workload", "unit"]).right([
            "published",
            "predicted",
            "error",
            "shootdown",
            "violations",
        ]),
        Medium::Page => Table::default().left(["Workload"]).right([
            "Published",
            "Predicted",
            "Error",
            "Shootdown",
            "Violations",
        ]),
    };
    for row in rows {
        let (experiment, before, after) = (&row.experiment, row.before(), row.after());
        let (number, workload) = (experiment.study.number(), experiment.workload);
        let unit = unit(experiment.unit);
        let (name, mark, nothing) = match medium {
            Medium::Text => {
                let mark = experiment.calibrated_on.map_or("", |_| "*");
                (vec![number.into(), workload.into(), unit.into()], mark, "-")
            }
            Medium::Page => {
                let name = format!("{number} {} <small>{unit}</small>", escaped(workload));
                (vec![Cell::Markup(name)], "", "–")
            }
        };
        let change = |before, mark, after, gain| {
            format!("{}{mark} → {}", significant(before), with_gain(after, gain, medium))
        };
        let nothing = || nothing.to_owned();
        let published = experiment.published.map_or_else(nothing, |published| {
            change(published.before, "", published.after, row.published_gain())
        });
        let figures = [
            published,
            change(before.value, mark, after.value, Some(row.predicted_gain())),
            row.gain_error_percent().map_or_else(nothing, |error| format!("{error:+.1} %")),
            with_gain(row.shootdown().value, Some(row.shootdown_gain()), medium),
        ];
        let figures = figures.map(Cell::Markup);
        table.row(name.into_iter().chain(figures).chain([Cell::Alarm(row.violations())]));
    }
    table
}

fn with_gain(value: f64, gain: Option<f64>, medium: Medium) -> String {
    let gain = times(gain).map(|times| match medium {
        Medium::Text => format!(" ({times})"),
        Medium::Page => format!(" <small>{times}</small>"),
    });
    significant(value) + &gain.unwrap_or_default()
}

/// The designs side by side.
pub(super) fn designs(row: &Row, medium: Medium) -> Table {
    let name = match medium {
        Medium::Text => "design",
        Medium::Page => "Design",
    };
    let has_any = |count: &&Figure<Measurement>| {
        row.designs.iter().any(|simulated| !(count.cell)(&simulated.measurement).is_zero())
    };
    let (of_all, of_some) = COUNTS.split_at(COUNTS_OF_ALL);
    let counts: Vec<_> = of_all.iter().chain(of_some.iter().filter(has_any)).collect();
    let table = Table::default().left([name]).right([unit(row.experiment.unit)]);
    let mut table = counts.iter().fold(table, |table, count| table.figure(count, medium));
    for studies::Simulated { design, measurement } in &row.designs {
        let value = significant(measurement.value);
        let counts = counts.iter().map(|count| (count.cell)(measurement));
        table.row([design.name().into(), value.into()].into_iter().chain(counts));
    }
    table
}

/// The rates by the number of CPUs.
pub(super) fn curves(scaling: &Scaling, medium: Medium) -> Table {
    let sizes = scaling.main_sizes();
    let numbers = sizes.iter().map(|cpus| format!("{cpus} CPUs"));
    let mut table = match medium {
        Medium::Text => Table::default().left(["design"]).right(numbers).right(["of linear"]),
        Medium::Page => {
            Table::default().left(["Design"]).right(numbers).right(["Of linear", "Violations"])
        }
    };
    for curve in &scaling.curves {
        let rate = |&cpus| curve.rate(cpus).map_or_else(String::new, significant).into();
        let linear = format!("{} %", significant(curve.linear_percent)).into();
        let violations = (medium == Medium::Page).then_some(Cell::Alarm(curve.violations));
        let rates = sizes.iter().map(rate);
        let name = [Cell::from(curve.design.name())];
        table.row(name.into_iter().chain(rates).chain([linear]).chain(violations));
    }
    table
}

/// Interrupt or broadcast, on one machine.
pub(super) fn choice(cells: &[studies::Cell], medium: Medium) -> Table {
    let peers = cells.iter().take(1).flat_map(studies::Cell::peers);
    let peers = peers.map(|cost| cost.design.name());
    let mut table = match medium {
        Medium::Text => Table::default()
            .left(["workload"])
            .right(["interrupts", "broadcasts", "chosen", "worse by"])
            .right(["interrupts sent", "broadcasts sent"])
            .right(peers),
        Medium::Page => Table::default()
            .left(["Workload"])
            .group("One way", ["interrupts", "broadcasts"])
            .group("Choosing", ["time", "worse by", "interrupts", "broadcasts"])
            .group("Kernels", peers)
            .right(["Violations"]),
    };
    for cell in cells {
        let time = |cost: &studies::Cost| Cell::from(significant(cost.time_us));
        let worse = format!("{:+.1} %", cell.percent_worse);
        let worse = match (medium, cell.is_bad()) {
            (Medium::Page, true) => format!("<b class=\"bad\">{worse}</b>"),
            _ => worse,
        };
        let chosen = cell.chosen();
        let sent = [chosen.interrupts_sent, chosen.broadcasts].map(Cell::Count);
        let violations = (medium == Medium::Page).then(|| Cell::Alarm(cell.violations()));
        let ours =
            [Cell::from(cell.workload.as_str())].into_iter().chain(cell.ours().iter().map(time));
        let ours = ours.chain([Cell::Markup(worse)]).chain(sent);
        table.row(ours.chain(cell.peers().iter().map(time)).chain(violations));
    }
    table
}
