//! The loops of `shootdown calibrate`, as workloads: a machine file that quotes what they take on
//! the real machine can be checked against itself.

use std::sync::LazyLock;

use serde::Deserialize;
use shootdown_designs::Design;
use shootdown_sim::Machine;
use shootdown_sim::machine::Idle;

use crate::text::{Cell, CellError, Text};

/// A loop that runs on the host and in the simulator. `host_loops.toml` describes the fields.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostLoop {
    /// The key in the section `measured` of a machine file.
    pub key: String,
    /// The name of the loop, for people.
    pub about: String,
    text: String,
    fitted: Option<String>,
    #[serde(default = "one")]
    times: f64,
    #[serde(default = "one")]
    share: f64,
}

const fn one() -> f64 {
    1.0
}

static HOST_LOOPS: LazyLock<Vec<HostLoop>> = LazyLock::new(|| {
    let file: File =
        toml::from_str(include_str!("../host_loops.toml")).expect("a test reads the file");
    file.loops
});

/// The contents of `host_loops.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(rename = "loop")]
    loops: Vec<HostLoop>,
}

/// All loops, in an order in which each can be fitted after those before it.
#[must_use]
pub fn host_loops() -> &'static [HostLoop] {
    &HOST_LOOPS
}

/// Number of times that all numbers are fitted, one after the other. A number changes the loops
/// after its own, and a little those before.
const ROUNDS: u32 = 6;

impl HostLoop {
    /// Returns the loop of a key.
    #[must_use]
    pub fn of(key: &str) -> Option<&'static Self> {
        HOST_LOOPS.iter().find(|it| it.key == key)
    }

    /// Returns the number of a machine that is fitted to the loop, as `SECTION.KEY`.
    #[must_use]
    pub fn fitted_number(&self, machine: &Machine) -> Option<String> {
        match (self.fitted.as_deref()?, &machine.idle) {
            ("idle", Idle::States(states)) => {
                Some(format!("idle.{}.exit_us", states.first()?.name))
            }
            ("idle", Idle::Poll) => None,
            (key, _) => Some(key.to_owned()),
        }
    }

    /// Returns the time of a turn on a machine, under the model of the kernel on which the loops
    /// were measured.
    ///
    /// # Errors
    ///
    /// If the loop cannot run, for example because the machine has one CPU.
    ///
    /// # Panics
    ///
    /// Never: the texts are valid.
    pub fn time_ns(&self, machine: &Machine) -> Result<f64, CellError> {
        let text = Text::parse(&self.key, &self.text).expect("a test parses each loop");
        let cell = Cell { workload: &text, machine, design: Design::LINUX_7_0, seed: 1 };
        let rows = cell.run()?;
        let [first, last] = [&rows[0], &rows[rows.len() - 1]].map(|it| (it.time_ns, it.operations));
        // Of two intervals, the second has more of the operation: what it takes more counts.
        let (time_ns, operations) = if rows.len() == 1 {
            first
        } else {
            (last.0.saturating_sub(first.0), last.1 - first.1)
        };
        Ok(time_ns as f64 / operations.max(1) as f64)
    }
}

/// Fits numbers of a machine to times of loops on a real machine, each number to one loop. A number
/// that would be negative becomes 0.
///
/// # Errors
///
/// If a loop cannot run on the machine.
pub fn fit(machine: &Machine, measured: &[(&HostLoop, f64)]) -> Result<Machine, CellError> {
    let mut machine = machine.clone();
    for _ in 0..ROUNDS {
        for (host_loop, wanted_ns) in measured {
            let Some(key) = host_loop.fitted_number(&machine) else { continue };
            let wanted_ns = wanted_ns * host_loop.share;
            let missing_ns = (wanted_ns - host_loop.time_ns(&machine)?) / host_loop.times;
            let is_us = key.ends_with("_us");
            let value = value_of(&machine, &key) + missing_ns / if is_us { 1e3 } else { 1.0 };
            // The digits that a file has.
            let value = (value.max(0.0) * 1e3).round() / 1e3;
            if let Ok(fitted) = machine.with_number(&key, value) {
                machine = fitted;
            }
        }
    }
    Ok(machine)
}

/// Returns the value of a machine's number, which is named as `SECTION.KEY`.
#[must_use]
pub fn value_of(machine: &Machine, key: &str) -> f64 {
    let numbers = machine.numbers().iter();
    let mut named = numbers.filter(|it| key == format!("{}.{}", it.section, it.key));
    named.next().map_or(0.0, |number| number.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_loop_parses() {
        assert_eq!(host_loops().len(), 16);
        for HostLoop { key, text, .. } in host_loops() {
            assert!(Text::parse(key, text).is_ok(), "{key}");
        }
    }

    #[test]
    fn loops_take_as_long_as_on_their_host() {
        let file = include_str!("../../../machines/emerald-rapids-kvm.toml");
        let machine = Machine::from_toml(file).expect("a valid file");
        assert_eq!(machine.measured.len(), 9);
        for measured in &machine.measured {
            let time_ns = HostLoop::of(&measured.key).expect("a loop").time_ns(&machine).unwrap();
            let percent = 100.0 * (time_ns / measured.value - 1.0);
            println!("{}: {percent:+.1} %", measured.key);
            assert!(percent.abs() <= 10.0, "{}: {percent:+.1} %", measured.key);
        }
    }
}
