//! Descriptions of machines, designs, workloads and recordings as JSON values.

use std::path::Path;

use serde_json::{Value, json};
use shootdown_designs::registry;
use shootdown_run::replay::Survey;

use super::SweepError;
use crate::machines::{self, Embedded};
use crate::recordings::{open, refused};
use crate::studies::experiments;

/// Returns the names of the machines that need no file.
#[must_use]
pub fn machine_names() -> Vec<&'static str> {
    Embedded::ALL.iter().map(|machine| machine.name).collect()
}

/// Returns a machine: its name, its description, its number of CPUs, and every number of its file
/// with its source.
///
/// # Errors
///
/// If there is no such machine, or its file cannot be used.
pub fn machine(name: &str) -> Result<Value, SweepError> {
    let machine = machines::find(name.as_ref())?;
    let numbers = machine.numbers().iter().map(|number| {
        json!({
            "name": format!("{}.{}", number.section, number.key),
            "value": number.value,
            "source": number.source,
            "calibrated_on": number.calibrated_on,
        })
    });
    Ok(json!({
        "name": machine.name,
        "about": machine.about,
        "cpus": machine.cpu_count(),
        "numbers": numbers.collect::<Vec<_>>(),
    }))
}

/// Returns the names of all designs.
#[must_use]
pub fn design_names() -> Vec<&'static str> {
    registry().iter().map(|design| design.name()).collect()
}

/// Returns the workloads of the studies, each with its machine, its metric and its designs.
#[must_use]
pub fn workloads() -> Vec<Value> {
    let workload = |experiment: &crate::studies::Experiment| {
        let designs = experiment.all_designs();
        json!({
            "workload": experiment.workload,
            "study": experiment.study.name(),
            "machine": experiment.machine.name,
            "metric": experiment.metric,
            "unit": experiment.unit,
            "better": experiment.better.name(),
            "published": experiment.published,
            "designs": designs.iter().map(|design| design.name()).collect::<Vec<_>>(),
        })
    };
    experiments().map(workload).collect()
}

/// Returns the header and the totals of a recording, and the counts of the recorded kernel.
///
/// # Errors
///
/// If the file is not a complete recording.
pub fn recording(path: &Path) -> Result<Value, SweepError> {
    let survey = Survey::of(open(path)?, |_| {}).map_err(|error| refused(path, error))?;
    let Survey { header, totals, kernel, .. } = &survey;
    Ok(json!({
        "header": header,
        "threads": survey.threads,
        "spaces": survey.spaces,
        "records": totals.records,
        "lost": totals.lost,
        "time_ns": totals.time_ns,
        "faults": kernel.faults,
        "calls": kernel.calls,
        "ipis_sent": kernel.interrupts_sent,
        "flushes_full": kernel.flushes_full,
        "flushes_ranged": kernel.flushes_ranged,
        "busy_ns": survey.busy_ns,
        "parallel_ns": survey.parallel_ns,
    }))
}
