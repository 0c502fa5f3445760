//! `shootdown run`: runs a workload that is written as text, on a grid of CPUs, designs and seeds.

mod page;
mod summary;
mod tables;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use shootdown_designs::Design;
use shootdown_run::text::{Grid, Row, TextError};
use shootdown_sim::machine::{Machine, MachineError};

use super::replay::designs;
use crate::error::{Failure, Violations, bad_input, shown, user_errors};
use crate::machines::{self, Embedded};
use crate::output::{Output, print};
use crate::progress;
use crate::render::{Format, Printed};
use crate::workloads::{self, Found};

pub(crate) const EXAMPLES: &str = include_str!("../../../help/run.txt").trim_ascii_end();

#[derive(Args, Clone, Debug)]
pub(crate) struct Run {
    /// A workload as text: a file, or the name of an example. Without FILE, lists the examples
    file: Option<OsString>,
    /// The machine: a name, or a file that ends in .toml
    #[arg(long, value_name = "MACHINE", default_value = Embedded::XEON_2S.name)]
    machine: OsString,
    /// The numbers of CPUs, separated by commas: the first of the machine, core by core, socket by
    /// socket. Without this option, all CPUs of the machine
    #[arg(long, value_name = "N,M", value_delimiter = ',')]
    cpus: Vec<usize>,
    /// The designs, separated by commas; an unknown name prints the list
    ///
    /// `shootdown` is the engine with the lab's memory manager, `shootdown-alone` the engine alone.
    #[arg(long, value_name = "A,B", value_delimiter = ',',
          default_values_t = [Design::LINUX_7_0, Design::SHOOTDOWN].map(|it| it.name().to_owned()))]
    designs: Vec<String>,
    /// A parameter of the workload, or a number of the machine as SECTION.KEY; can be given
    /// several times
    #[arg(long, value_name = "K=V")]
    set: Vec<String>,
    /// The number of seeds: each run is repeated with the seeds 1 to N. From seed 2 on, start times
    /// and costs jitter
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..=100_000))]
    seeds: u64,
    /// The format of the output
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Write a page with plots to this file
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
}

/// The rows of a grid.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Rows {
    rows: Vec<Row>,
}

impl Printed for Rows {
    fn text(&self) -> String {
        tables::text(&summary::summaries(&self.rows))
    }

    fn csv(&self) -> String {
        tables::csv(&self.rows)
    }
}

user_errors! {
    /// An option cannot be used.
    #[derive(Debug, thiserror::Error)]
    enum OptionError {
        #[error("--set {}: there is no `=`", shown(.0))]
        NoValue(_: String) =>
            bad_input("write KEY=VALUE, for example --set workers=4 or --set tlb.entries=64"),
        #[error("--set {}: {}", shown(.set), .error.cause)]
        Parameter { set: String, error: TextError } => bad_input(&error.remedy),
        #[error("--set {}: {cause}", shown(.set))]
        Number { set: String, cause: String, remedy: String } => bad_input(remedy),
        #[error("--cpus: {cause}")]
        Cpus { cause: String, remedy: String } => bad_input(remedy),
        /// The rows would be those of another design.
        #[error("--designs {design}: {machine} does not broadcast, and rows would be those of \
                 {equal}")]
        Design { design: Design, machine: String, equal: Design } => bad_input(format!(
            "use --designs {equal}, or a machine that broadcasts: --machine amd-invlpgb"
        )),
    }
}

impl Run {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let Some(file) = &self.file else { return Ok(print(&tables::list())?) };
        let found = workloads::find(file)?;
        // An embedded workload has no file that the page could replace.
        let inputs = std::slice::from_ref(&found.path);
        let page = self.report.as_ref().map(|path| Output::page(path, "--report", inputs));
        let page = page.transpose()?;
        let (found, machine) = self.set(found)?;
        let rows = self.rows(&found, &machine)?;
        if let Some(page) = &page {
            page.write(&page::page(&summary::summaries(&rows.rows), &found.text, &machine))?;
        }
        print(&rows.in_format(self.format))?;
        if let Some(page) = &page {
            eprintln!("\nreport: {}", shown(page.path()));
        }
        let ours = rows.rows.iter().filter(|row| row.design == Design::SHOOTDOWN.name());
        Ok(Violations::none_in(ours.map(|row| row.violations))?)
    }

    /// Returns the workload and the machine with the values that the user set.
    fn set(&self, mut found: Found) -> Result<(Found, Machine), Failure> {
        let mut machine = machines::find(&self.machine)?;
        for set in &self.set {
            let Some((key, value)) = set.split_once('=') else {
                return Err(OptionError::NoValue(set.clone()).into());
            };
            let (key, value) = (key.trim(), value.trim());
            if key.contains('.') {
                let error = |cause: String, remedy: String| OptionError::Number {
                    set: set.clone(),
                    cause,
                    remedy,
                };
                let number = value.parse().map_err(|_| {
                    error(format!("`{value}` is not a number"), "use a number".to_owned())
                })?;
                machine = machine.with_number(key, number).map_err(|it| {
                    let (cause, remedy) = parts(it);
                    error(cause, remedy)
                })?;
            } else {
                let error = |error| OptionError::Parameter { set: set.clone(), error };
                found.text.set(key, value).map_err(error)?;
            }
        }
        Ok((found, machine))
    }

    fn rows(&self, found: &Found, machine: &Machine) -> Result<Rows, Failure> {
        let cpus = if self.cpus.is_empty() { vec![machine.cpu_count()] } else { self.cpus.clone() };
        let (designs, seeds) = (designs(&self.designs)?, (1..=self.seeds).collect());
        for design in &designs {
            if let Some(equal) = design.equal_without_hardware(machine) {
                let (design, machine) = (*design, machine.name.clone());
                return Err(OptionError::Design { design, machine, equal }.into());
            }
        }
        let grid = Grid::new(found.text.clone(), machine, &cpus, designs, seeds);
        let grid = grid.map_err(|error| {
            let (cause, remedy) = parts(error);
            OptionError::Cpus { cause, remedy }
        })?;
        if let Some(cpus) = cpus.iter().find(|cpus| **cpus > machine.cpu_count()) {
            eprintln!(
                "note: {} has {} CPUs; a run on {cpus} adds sockets of the same kind",
                machine.name,
                machine.cpu_count()
            );
        }
        let bar =
            progress::bar(Some(grid.cells().count() as u64), "{pos} of {len} runs, {elapsed}");
        bar.enable_steady_tick(progress::PERIOD);
        let rows = grid.run(|| bar.inc(1));
        bar.finish_and_clear();
        Ok(Rows { rows: rows.map_err(|error| found.failed(error))? })
    }
}

/// Returns the cause and the remedy of an error of a machine.
fn parts(error: MachineError) -> (String, String) {
    match error {
        MachineError::Impossible { cause, remedy } => (cause, remedy),
        other => (other.to_string(), "correct the machine file".to_owned()),
    }
}
