//! Reasons to believe the port, beyond its own checks: Linux's selftests and stress-ng
//! on both kernels, the checks that Linux can be compiled with, and rules left out.

mod debug;
mod faults;
mod selftests;
pub(super) mod stress;
pub(super) mod suite;

use super::configuration::Configuration;
use super::has_emulator;
use crate::command::Failure;
use crate::port::source::Arch;

type Part = (&'static str, fn(Configuration) -> Result<(), Failure>);

/// The parts, in the order in which all of them run. The last one is for the long-term version.
const PARTS: [Part; 5] = [
    ("faults", faults::run),
    ("stress", stress::run),
    ("selftests", selftests::run),
    ("hour", stress::hour),
    ("debug", |_| debug::run()),
];

/// Leaves out each rule that the port has on AArch64.
pub(super) fn command_on_arm64() -> Result<(), Failure> {
    faults::run_on_arm64()
}

/// Runs the parts that are named, or all. A part that fails does not stop the next ones.
///
/// # Errors
///
/// The first failure of a part, or if there is no such part.
pub(super) fn command(linux: Configuration, names: &[&str]) -> Result<(), Failure> {
    let parts = if linux == Configuration::Newest { &PARTS[..PARTS.len() - 1] } else { &PARTS[..] };
    let chosen: Vec<_> =
        parts.iter().filter(|(name, _)| names.is_empty() || names.contains(name)).collect();
    if chosen.len() < names.len() {
        let known: Vec<_> = parts.iter().map(|(name, _)| *name).collect();
        let remedy = format!("cargo xtask port linux --believe [{}]", known.join("] ["));
        return Err(Failure::usage("there is no such part", remedy));
    }
    has_emulator(Arch::X86_64)?;
    let mut result = Ok(());
    for (name, part) in chosen {
        println!("{name}:\n");
        let outcome = part(linux);
        if let Err(failure) = &outcome {
            println!("{name} fails: {}\n", failure.cause());
        }
        result = result.and(outcome);
    }
    result
}
