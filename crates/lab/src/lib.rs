//! The `shootdown` command: records programs, replays them under several designs of TLB coherence,
//! reproduces published measurements in the simulator, and checks the engine.
//!
//! [`main`] is the command, and [`command`] its definition. [`sweep`] is the part of it that other
//! programs call: the Python package runs cells of sweeps with it.

mod cli;
mod commands;
mod converted;
mod error;
mod machines;
mod output;
mod progress;
mod recordings;
mod render;
mod selection;
pub mod sweep;
mod studies;
mod workloads;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::error::ContextKind;
use clap::{CommandFactory as _, Parser as _};

use cli::Cli;
use error::{BAD_INPUT, CANNOT_RUN, Failure};

/// Runs the command with the arguments of this process, and returns its exit status.
#[must_use]
pub fn main() -> ExitCode {
    let status = match Cli::try_parse() {
        Ok(cli) => cli.run().unwrap_or_else(|failure| report(&failure)),
        // Help and the version are requested output. Any other result is a usage error.
        Err(mut error) => match (print(&mut error), error.use_stderr()) {
            (_, true) if is_record() => commands::record::FAILED,
            (_, true) => BAD_INPUT,
            (Err(error), false) if error.kind() != io::ErrorKind::BrokenPipe => CANNOT_RUN,
            _ => 0,
        },
    };
    ExitCode::from(status)
}

/// The definition of the command line, from which completions and man pages are made.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Prints help, the version, or a usage error.
fn print(error: &mut clap::Error) -> io::Result<()> {
    if is_record() {
        // The tip would be to run a program that is named like a misspelt option.
        error.remove(ContextKind::Suggested);
    }
    error.print()
}

/// Prints an error and returns its exit status.
fn report(failure: &Failure) -> u8 {
    let status = failure.0.help().status;
    if status != 0 {
        // If standard error is closed, the exit status still reports the failure.
        let _ = writeln!(io::stderr(), "{failure}");
    }
    status
}

/// Returns `true` if the command line begins with `shootdown record`.
fn is_record() -> bool {
    std::env::args_os().nth(1).is_some_and(|command| command == "record")
}
