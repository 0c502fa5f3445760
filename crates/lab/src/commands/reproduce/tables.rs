//! The tables of the results, which texts and pages share.

use crate::render::table::{Cell, Figure, Medium, Table, figure};
use crate::render::{significant, times, unit};
use crate::studies::{self, Measurement, Row, Scaling};

/// The counts of a design. Tables always have the first ten. They have each of the others if it
/// is not 0 under some design.
const COUNTS: [Figure<Measurement>; 15] = [
    figure("interrupts", "Interrupts", "sent", |it| Cell::Count(it.interrupts_sent)),
    figure("to lazy", "Interrupts", "to lazy", |it| Cell::Count(it.interrupts_to_lazy)),
    figure("to non-users", "Interrupts", "to non-users", |it| {
        Cell::Count(it.interrupts_to_non_users)
    }),
    figure("in vain", "Interrupts", "in vain", |it| Cell::Count(it.classes.interrupts_in_vain)),
    figure("of bound", "Interrupts", "of bound", |it| {
        Cell::Text(times(it.classes.ratio()).unwrap_or_default())
    }),
    figure("full flushes", "Flushes", "full", |it| Cell::Count(it.flushes_full)),
    figure("ranged", "Flushes", "ranged", |it| Cell::Count(it.flushes_ranged)),
    figure("violations", "", "violations", |it| Cell::Alarm(it.violations)),
    figure("hazards", "", "hazards", |it| Cell::Count(it.hazards)),
    figure("deferred tables", "", "deferred tables", |it| Cell::Count(it.deferred_tables_peak)),
    figure("broadcasts", "Broadcasts", "sent", |it| Cell::Count(it.broadcasts)),
    figure("broadcast wait", "Broadcasts", "wait", |it| Cell::Nanoseconds(it.broadcast_wait_ns)),
    figure("tags allocated", "Tags", "allocated", |it| Cell::Count(it.tags_allocated)),
    figure("late pages", "Memory", "late pages", |it| {
        Cell::Count(it.memory_costs.pages_reclaimable_max)
    }),
    figure("rollovers", "Tags", "rollovers", |it| Cell::Count(it.rollovers)),
];
const COUNTS_OF_ALL: usize = 10;

/// Returns the published figures, the predicted figures, and those of shootdown.
pub(crate) fn summary(rows: &[Row], medium: Medium) -> Table {
    let names = match medium {
        Medium::Text => &["study", "workload", "unit"][..],
        Medium::Page => &["workload"],
    };
    let figures = ["published", "predicted", "error", "shootdown", "violations"];
    let mut table = Table::default().left(names.iter().copied()).right(figures);
    for rows in rows.chunk_by(|one, other| one.experiment.study == other.experiment.study) {
        table.part(rows[0].experiment.study.name());
        for row in rows {
            let (experiment, before, after) = (&row.experiment, row.before(), row.after());
            let (workload, unit) = (experiment.workload, unit(experiment.unit));
            let name = match medium {
                Medium::Text => vec![experiment.study.name().into(), workload.into(), unit.into()],
                Medium::Page => vec![Cell::from(format!("{workload}, {unit}"))],
            };
            let mark = experiment.calibrated_on.map_or("", |_| "*");
            let change = |before, mark, after, gain| {
                format!("{}{mark} → {}", significant(before), with_gain(after, gain))
            };
            let nothing = || "-".to_owned();
            let published = experiment.published.map_or_else(nothing, |published| {
                change(published.before, "", published.after, row.published_gain())
            });
            let figures = [
                published,
                change(before.value, mark, after.value, Some(row.predicted_gain())),
                row.gain_error_percent().map_or_else(nothing, |error| format!("{error:+.1} %")),
                with_gain(row.shootdown().value, Some(row.shootdown_gain())),
            ];
            let figures = figures.map(Cell::from).into_iter();
            let figures = figures.chain([Cell::Alarm(row.violations())]);
            table.row(name.into_iter().chain(figures));
        }
    }
    table
}

fn with_gain(value: f64, gain: Option<f64>) -> String {
    let gain = times(gain).map(|times| format!(" ({times})"));
    significant(value) + &gain.unwrap_or_default()
}

/// Returns the figures of all predictions: published, frozen, and today's.
pub(super) fn predictions(predictions: &[studies::Prediction]) -> Table {
    let mut table = Table::default().left(["prediction", "figure"]).right([
        "published",
        "frozen",
        "error",
        "today",
        "error",
        "verdict",
        "violations",
    ]);
    for prediction in predictions {
        for figure in &prediction.figures {
            let value = |value| format!("{value:.1} {}", figure.unit);
            let error =
                |error: Option<f64>| error.map_or_else(String::new, |it| format!("{it:+.1}"));
            let expected = figure.error.map(|error| format!(" ± {error}")).unwrap_or_default();
            let figures = [
                prediction.name.clone(),
                figure.name.clone(),
                figure.published.map_or_else(|| "none yet".to_owned(), value),
                value(figure.frozen) + &expected,
                error(figure.frozen_error),
                value(figure.today),
                error(figure.today_error),
                studies::Figure::verdict(figure.published, figure.today).to_owned(),
            ];
            let violations = [Cell::Alarm(prediction.violations)];
            table.row(figures.map(Cell::from).into_iter().chain(violations));
        }
    }
    table
}

/// Returns the figures of an experiment with a line for each design.
pub(super) fn designs(row: &Row, medium: Medium) -> Table {
    let has_any = |count: &&Figure<Measurement>| {
        row.designs.iter().any(|simulated| !(count.cell)(&simulated.measurement).is_zero())
    };
    let (of_all, of_some) = COUNTS.split_at(COUNTS_OF_ALL);
    let counts: Vec<_> = of_all.iter().chain(of_some.iter().filter(has_any)).collect();
    let table = Table::default().left(["design"]).right([unit(row.experiment.unit)]);
    let mut table = counts.iter().fold(table, |table, count| table.figure(count, medium));
    for studies::Simulated { design, measurement } in &row.designs {
        let value = significant(measurement.value);
        let counts = counts.iter().map(|count| (count.cell)(measurement));
        table.row([design.name().into(), value.into()].into_iter().chain(counts));
    }
    table
}

/// Returns the rates with the main numbers of CPUs, with a line for each design.
pub(super) fn curves(scaling: &Scaling) -> Table {
    let sizes = scaling.main_sizes();
    let numbers = sizes.iter().map(|cpus| format!("{cpus} CPUs"));
    let table = Table::default().left(["design"]).right(numbers);
    let mut table = table.right(["of linear", "violations"]);
    for curve in &scaling.curves {
        let rate = |&cpus| curve.rate(cpus).map_or_else(String::new, significant).into();
        let linear = format!("{} %", significant(curve.linear_percent)).into();
        let rates = sizes.iter().map(rate);
        let name = [Cell::from(curve.design.name())];
        let end = [linear, Cell::Alarm(curve.violations)];
        table.row(name.into_iter().chain(rates).chain(end));
    }
    table
}
