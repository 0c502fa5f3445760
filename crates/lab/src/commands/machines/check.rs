//! `shootdown machines --check`: the loops that a machine file quotes, run on that machine.

use rayon::prelude::*;
use shootdown_run::host_loops::HostLoop;
use shootdown_sim::machine::{Machine, Number};

use crate::error::{FOUND, Failure, SimulationError, UserError, shown};
use crate::render::table::Table;

/// The largest difference between a loop in the simulator and on the real machine.
const TOLERANCE_PERCENT: f64 = 10.0;

/// A machine file quotes no loop, or one that is unknown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckError {
    #[error("the file of {} has no measured loops", shown(.0))]
    NoLoops(String),
    #[error("{}: there is no loop `{}`", shown(.machine), shown(.key))]
    UnknownLoop { machine: String, key: String },
    #[error("{differ} of {all} loops differ by over {TOLERANCE_PERCENT} % from the real machine")]
    Differs { differ: usize, all: usize },
}

impl UserError for CheckError {
    fn exit_status(&self) -> u8 {
        if matches!(self, Self::Differs { .. }) { FOUND } else { crate::error::BAD_INPUT }
    }

    fn remedy(&self) -> String {
        match self {
            Self::NoLoops(_) => {
                "add a section `[measured]`, as `shootdown calibrate` writes it".to_owned()
            }
            Self::UnknownLoop { .. } => {
                let keys = shootdown_run::host_loops::HOST_LOOPS.map(|it| it.key);
                format!("use {}", keys.join(", "))
            }
            Self::Differs { .. } => {
                "correct the numbers of the file, or fit them with `shootdown calibrate`".to_owned()
            }
        }
    }
}

/// A loop on a real machine and in the simulator.
#[derive(Clone, Debug)]
struct Compared {
    machine: String,
    about: &'static str,
    measured_ns: f64,
    simulated_ns: f64,
}

impl Compared {
    fn percent(&self) -> f64 {
        100.0 * (self.simulated_ns / self.measured_ns - 1.0)
    }
}

/// The loops of some machines, compared.
pub(crate) struct Check(Vec<Compared>);

impl Check {
    /// Runs the loops that the files of the machines quote.
    pub(crate) fn of(machines: &[Machine]) -> Result<Self, Failure> {
        let loops = machines.iter().flat_map(|it| it.measured.iter().map(move |loop_| (it, loop_)));
        let loops: Vec<_> = loops.collect();
        Ok(Self(loops.into_par_iter().map(compare).collect::<Result<_, Failure>>()?))
    }

    /// Returns a table for reading.
    pub(crate) fn text(&self) -> String {
        let mut table = Table::default().left(["machine", "loop"]);
        table = table.right(["measured", "simulated", "difference"]);
        for it in &self.0 {
            let cells = [it.measured_ns, it.simulated_ns].map(|ns| format!("{ns:.1} ns"));
            let [measured, simulated] = cells;
            let difference = format!("{:+.1} %", it.percent());
            table.row([it.machine.clone(), it.about.to_owned(), measured, simulated, difference]);
        }
        table.to_string()
    }

    /// Fails if a loop differs too much.
    pub(crate) fn verdict(&self) -> Result<(), CheckError> {
        match self.0.iter().filter(|it| it.percent().abs() > TOLERANCE_PERCENT).count() {
            0 => Ok(()),
            differ => Err(CheckError::Differs { differ, all: self.0.len() }),
        }
    }
}

/// Returns the loop that a number of the section `measured` belongs to.
pub(crate) fn loop_of(machine: &Machine, number: &Number) -> Result<&'static HostLoop, CheckError> {
    HostLoop::of(&number.key).ok_or_else(|| CheckError::UnknownLoop {
        machine: machine.name.clone(),
        key: number.key.clone(),
    })
}

fn compare((machine, number): (&Machine, &Number)) -> Result<Compared, Failure> {
    let host_loop = loop_of(machine, number)?;
    let simulated_ns = host_loop
        .time_ns(machine)
        .map_err(|error| SimulationError::new(host_loop.about, "linux-7.0", error))?;
    let (machine, about) = (machine.name.clone(), host_loop.about);
    Ok(Compared { machine, about, measured_ns: number.value, simulated_ns })
}
