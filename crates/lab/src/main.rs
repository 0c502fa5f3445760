//! The `shootdown` command: what published changes to TLB shootdowns did, what the simulator says
//! that they do, what this engine would do on the same machine, and whether it is right.

mod cli;
mod commands;
mod error;
mod machines;
mod output;
mod progress;
mod recordings;
mod render;
mod studies;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser as _;

use cli::Cli;

fn main() -> ExitCode {
    match Cli::parse().run() {
        Err(failure) if !failure.is_broken_pipe() => {
            // Without standard error, the exit status still reports the failure.
            let _ = writeln!(io::stderr(), "{failure}");
            ExitCode::from(failure.exit_status())
        }
        _ => ExitCode::SUCCESS,
    }
}
