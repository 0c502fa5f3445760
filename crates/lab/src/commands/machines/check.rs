//! `shootdown machines --check`: the loops that a machine file quotes, run on that machine.

use rayon::prelude::*;
use shootdown_run::host_loops::{HostLoop, host_loops};
use shootdown_sim::machine::{Machine, Number};

use crate::error::{CannotRun, Failure, bad_input, found, shown, user_errors};
use crate::render::table::Table;

/// The largest difference between a loop in the simulator and on the real machine, if the file
/// states no error.
const TOLERANCE_PERCENT: f64 = 10.0;

user_errors! {
    /// A machine file quotes no loop, or one that is unknown.
    #[derive(Debug, thiserror::Error)]
    pub(crate) enum CheckError {
        #[error("the file of {} has no measured loops", shown(.0))]
        NoLoops(_: String) =>
            bad_input("add a section `[measured]`, as `shootdown calibrate` writes it"),
        #[error("{}: there is no loop `{}`", shown(.machine), shown(.key))]
        UnknownLoop { machine: String, key: String } => {
            let keys: Vec<_> = host_loops().iter().map(|it| it.key.as_str()).collect();
            bad_input(format!("use {}", keys.join(", ")))
        },
        #[error("{differ} of {all} loops differ from the real machine by more than the stated \
                 error")]
        Differs { differ: usize, all: usize } =>
            found("correct the numbers of the file, or fit them with `shootdown calibrate`"),
    }
}

/// A loop on a real machine and in the simulator.
#[derive(Clone, Debug)]
struct Compared {
    machine: String,
    about: &'static str,
    use_of: Use,
    measured_ns: f64,
    simulated_ns: f64,
    tolerance_percent: f64,
}

/// The use of a loop's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// A number of the file was fitted to it.
    Fitted,
    /// Nothing was fitted to it.
    Test,
}

impl Compared {
    fn percent(&self) -> f64 {
        100.0 * (self.simulated_ns / self.measured_ns - 1.0)
    }

    fn differs(&self) -> bool {
        self.percent().abs() > self.tolerance_percent
    }
}

/// The source of a number that [`Machine::with_number`] has set.
pub(crate) const SET: &str = "set for this run";

/// The loops of some machines, compared.
pub(crate) struct Check {
    loops: Vec<Compared>,
    /// The error that each file states, with its source.
    errors: Vec<String>,
}

impl Check {
    /// Runs the loops that the files of the machines quote.
    pub(crate) fn of(machines: &[Machine]) -> Result<Self, Failure> {
        let loops = machines.iter().flat_map(|it| it.measured.iter().map(move |loop_| (it, loop_)));
        let loops: Vec<_> = loops.collect();
        let loops = loops.into_par_iter().map(compare).collect::<Result<_, Failure>>()?;
        Ok(Self { loops, errors: machines.iter().filter_map(error_of).collect() })
    }

    /// Returns a table for reading.
    pub(crate) fn text(&self) -> String {
        let mut table = Table::default().left(["machine", "loop", "use"]);
        table = table.right(["measured", "simulated", "difference"]);
        for it in &self.loops {
            let cells = [it.measured_ns, it.simulated_ns].map(|ns| format!("{ns:.1} ns"));
            let [measured, simulated] = cells;
            let difference = format!("{:+.1} %", it.percent());
            let use_of = if it.use_of == Use::Test { "test" } else { "fitted" };
            let names = [it.machine.clone(), it.about.to_owned(), use_of.to_owned()];
            table.row(names.into_iter().chain([measured, simulated, difference]));
        }
        let errors = self.errors.concat();
        format!(
            "{table}{}{errors}",
            if errors.is_empty() { "" } else { "\nStated errors of times:\n" }
        )
    }

    /// Returns the largest difference of a loop that nothing was fitted to, rounded up, in percent.
    pub(crate) fn error_percent(&self) -> Option<u64> {
        let tests = self.loops.iter().filter(|it| it.use_of == Use::Test);
        tests.map(|it| it.percent().abs().ceil() as u64).max()
    }

    /// Fails if a loop differs too much.
    pub(crate) fn verdict(&self) -> Result<(), CheckError> {
        match self.loops.iter().filter(|it| it.differs()).count() {
            0 => Ok(()),
            differ => Err(CheckError::Differs { differ, all: self.loops.len() }),
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

/// Returns a line with the error that the file of a machine states.
fn error_of(machine: &Machine) -> Option<String> {
    let stated = machine.numbers().iter().find(|it| it.section == "error")?;
    Some(format!("  {}: ±{} %, {}\n", machine.name, stated.value, stated.source))
}

fn compare((machine, number): (&Machine, &Number)) -> Result<Compared, Failure> {
    let host_loop = loop_of(machine, number)?;
    let simulated_ns = host_loop
        .time_ns(machine)
        .map_err(|error| CannotRun::simulation(&host_loop.about, "linux-7.0", error))?;
    let fitted = host_loop.fitted_number(machine);
    let is_later = |it: &HostLoop| {
        machine.measured.iter().any(|number| number.key == it.key)
            && it.fitted_number(machine) == fitted
    };
    let after = host_loops().iter().skip_while(|it| it.key != host_loop.key).skip(1);
    let is_last = !after.into_iter().any(is_later);
    let is_fitted = |it: &&Number| {
        fitted.as_ref() == Some(&format!("{}.{}", it.section, it.key))
            && (it.source.contains("fitted") || it.source == SET)
    };
    Ok(Compared {
        machine: machine.name.clone(),
        about: &host_loop.about,
        use_of: if is_last && machine.numbers().iter().any(|it| is_fitted(&it)) {
            Use::Fitted
        } else {
            Use::Test
        },
        measured_ns: number.value,
        simulated_ns,
        tolerance_percent: machine.time_error_percent.map_or(TOLERANCE_PERCENT, |it| it as f64),
    })
}
