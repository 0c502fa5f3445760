//! The `shootdown` command: what published changes to TLB shootdowns did, what the simulator says
//! that they do, what this engine would do on the same machine, and whether it is right.

mod cli;
mod commands;
mod error;
mod machines;
mod output;
mod render;
mod studies;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser as _;

use cli::{Cli, Command};
use commands::{boot, check, import, record, replay, report, reproduce};
use error::Failure;

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Err(failure) if !failure.is_broken_pipe() => {
            // If not even this can be said, the exit code still says it.
            let _ = writeln!(io::stderr(), "{failure}");
            ExitCode::from(failure.exit_status())
        }
        _ => ExitCode::SUCCESS,
    }
}

fn run(cli: Cli) -> Result<(), Failure> {
    match cli.command {
        None => print(cli::WELCOME),
        Some(Command::Machines { machine: None }) => print(&machines::list()),
        Some(Command::Machines { machine: Some(wanted) }) => {
            print(&machines::details(&machines::find(&wanted)?))
        }
        Some(Command::Record(options)) => {
            let recorded = record::record(&options).map_err(Failure::Record)?;
            // Standard output is the recorded program's.
            let _ = write!(io::stderr(), "{recorded}");
            Ok(())
        }
        Some(Command::RecordHelper(helper)) => {
            helper.run();
            Ok(())
        }
        Some(Command::Import(options)) => {
            print(&import::import(&options).map_err(Failure::Import)?.to_string())
        }
        Some(Command::Replay(options)) => replay::replay(&options),
        Some(Command::Report(options)) => report::report(&options),
        Some(Command::Check(options)) => check::check(&options),
        Some(Command::Boot(options)) => boot::boot(&options),
        Some(Command::Reproduce(options)) => reproduce::reproduce(&options),
    }
}

/// To standard output, where a reader that has seen enough is no panic.
fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::Output)
}
