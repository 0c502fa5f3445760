//! `shootdown reproduce`: runs the experiments under their designs and prints what became of them.

pub(crate) mod csv;
pub(crate) mod html;
mod json;
pub(crate) mod text;

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rayon::prelude::*;
use shootdown_sim::machine::Machine;

use crate::cli::{Format, Reproduce};
use crate::commands::report;
use crate::error::{Failure, shown};
use crate::studies::measure::Runs;
use crate::studies::{
    Choice, Conditions, Curve, EXPERIMENTS, Experiment, Outcome, Pair, Results, Row, SCALED,
    SHOOTDOWN, Scale, Scaling, run,
};
use crate::{machines, print};

/// Runs the command.
pub(crate) fn reproduce(options: &Reproduce) -> Result<(), Failure> {
    let page = options.report.as_ref().map(|path| report::output(path, &[])).transpose()?;
    let results = results(options)?;
    if let Some(page) = &page {
        report::write(page, &[], &results, &[])?;
    }
    print(&match options.format {
        Format::Text => text::results(&results),
        Format::Json => json::results(&results),
        Format::Csv => csv::rows(&results.rows),
    })?;
    if let Some(page) = &page {
        eprintln!("\nreport: {}", shown(page.path()));
    }
    violated(&results)
}

/// Runs the experiments that were asked for, and shows progress meanwhile.
pub(crate) fn results(options: &Reproduce) -> Result<Results, Failure> {
    let chosen = chosen(options)?;
    let progress = progress(&chosen, options);
    let all = || {
        let rows = rows(&chosen, &progress)?;
        Ok((rows, scaling(&chosen, &progress)?, choice(options, &progress)?))
    };
    let found = all();
    progress.finish_and_clear();
    let (rows, scaling, choice) = found?;
    Ok(Results {
        rows,
        scaling,
        choice,
        seed: options.seed,
        scale: scale(options),
        machines: machines_of(&chosen),
    })
}

/// The engine must not let a dead translation be used, whatever else.
pub(crate) fn violated(results: &Results) -> Result<(), Failure> {
    let ours = |curve: &&Curve| curve.design == SHOOTDOWN;
    let curves = results.scaling.iter().flat_map(|scaling| &scaling.curves).filter(ours);
    let rows = results.rows.iter().map(|row| row.shootdown.violations);
    let choice = results.choice.iter().map(Choice::violations);
    match rows.chain(curves.map(|curve| curve.violations)).chain(choice).sum() {
        0 => Ok(()),
        violations => Err(Failure::Violated { violations }),
    }
}

/// The experiments that were asked for, each with what it runs on.
fn chosen(options: &Reproduce) -> Result<Vec<(Experiment, Conditions)>, Failure> {
    let wanted = |experiment: &&Experiment| {
        options.only.as_deref().is_none_or(|seed| seed == experiment.seed)
    };
    let (mut chosen, runs) = (Vec::new(), Runs::default());
    for experiment in EXPERIMENTS.iter().filter(wanted) {
        let machine = machines::find(options.machine.as_deref().unwrap_or(experiment.machine))?;
        let (seed, scale, runs) = (options.seed, scale(options), runs.clone());
        let conditions = Conditions { machine, seed, scale, runs };
        // What was fitted was fitted on the experiment's own machine.
        let fitted = experiment.calibrated_on.filter(|_| options.machine.is_none());
        chosen.push((Experiment { calibrated_on: fitted, ..*experiment }, conditions));
    }
    if let (true, Some(seed)) = (chosen.is_empty(), &options.only) {
        let mut known: Vec<_> = EXPERIMENTS.iter().map(|experiment| experiment.seed).collect();
        known.dedup();
        return Err(Failure::UnknownSeed { seed: seed.clone(), known });
    }
    Ok(chosen)
}

const fn scale(options: &Reproduce) -> Scale {
    if options.quick { Scale::Quick } else { Scale::Full }
}

/// Each machine once.
fn machines_of(chosen: &[(Experiment, Conditions)]) -> Vec<Machine> {
    let mut machines: Vec<Machine> = Vec::new();
    for (_, Conditions { machine, .. }) in chosen {
        if machines.iter().all(|known| known.name != machine.name) {
            machines.push(machine.clone());
        }
    }
    machines
}

/// On standard error, and only if someone can see it there.
fn progress(chosen: &[(Experiment, Conditions)], options: &Reproduce) -> ProgressBar {
    let designs = chosen.iter().map(|(experiment, _)| experiment.all_designs().len());
    let sizes = scaled(chosen).map(|(_, conditions)| Scaling::runs(conditions));
    let choices = if chooses(options) { Choice::runs(scale(options)) } else { 0 };
    let runs = designs.chain(sizes).chain([choices]).sum::<usize>() as u64;
    let bar = ProgressBar::with_draw_target(Some(runs), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{pos} of {len} runs, {elapsed}: {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}

fn rows(chosen: &[(Experiment, Conditions)], progress: &ProgressBar) -> Result<Vec<Row>, Failure> {
    chosen.iter().map(|(experiment, conditions)| row(experiment, conditions, progress)).collect()
}

fn row(
    experiment: &Experiment,
    conditions: &Conditions,
    progress: &ProgressBar,
) -> Result<Row, Failure> {
    progress.set_message(experiment.workload);
    let simulate = |design: &str| -> Result<Outcome, Failure> {
        let outcome = run(experiment, design, conditions)?;
        progress.inc(1);
        Ok(outcome)
    };
    let peers = || -> Result<Vec<_>, Failure> {
        experiment.peers.par_iter().map(|design| simulate(design)).collect()
    };
    let Pair { before, after } = experiment.designs;
    let ((before, after), (peers, shootdown)) = rayon::join(
        || rayon::join(|| simulate(before), || simulate(after)),
        || rayon::join(peers, || simulate(SHOOTDOWN)),
    );
    Ok(Row {
        experiment: *experiment,
        machine: conditions.machine.name.clone(),
        predicted: Pair { before: before?, after: after? },
        peers: peers?,
        shootdown: shootdown?,
    })
}

/// The experiment that is simulated with more and fewer CPUs, if it was asked for.
fn scaled(chosen: &[(Experiment, Conditions)]) -> impl Iterator<Item = &(Experiment, Conditions)> {
    chosen.iter().filter(|(experiment, _)| experiment.workload == SCALED)
}

fn scaling(
    chosen: &[(Experiment, Conditions)],
    progress: &ProgressBar,
) -> Result<Option<Scaling>, Failure> {
    progress.set_message("more and fewer CPUs");
    let of = |(experiment, conditions): &(Experiment, Conditions)| {
        Scaling::of(experiment, conditions, || progress.inc(1))
    };
    scaled(chosen).next().map(of).transpose()
}

/// Whether the choice between the ways to tell other CPUs was asked for: it is about what seed 003
/// is about, has machines of its own, and takes as long as everything else together.
fn chooses(options: &Reproduce) -> bool {
    options.only.as_deref() == Some("003") && options.machine.is_none()
}

fn choice(options: &Reproduce, progress: &ProgressBar) -> Result<Option<Choice>, Failure> {
    if !chooses(options) {
        return Ok(None);
    }
    progress.set_message("interrupt or broadcast");
    Choice::of(options.seed, scale(options), || progress.inc(1)).map(Some)
}
