//! The command line: the commands, each with its options.

use clap::{Parser, Subcommand};

use crate::commands::{
    boot, calibrate, check, explain, export, guest, import, machines, record, replay, report,
    reproduce, run, sanitize, sweep, top,
};
use crate::error::Failure;
use crate::output::print;

/// The output of `shootdown` without a command.
const WELCOME: &str = include_str!("../help/welcome.txt");

const AFTER_HELP: &str = include_str!("../help/shootdown.txt").trim_ascii_end();

/// Explains the TLB shootdowns of programs, finds those that a kernel forgets, and compares designs
#[derive(Debug, Parser)]
#[command(name = "shootdown", version, after_help = AFTER_HELP)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the machine models, or show every number of one with its source
    #[command(after_help = machines::EXAMPLES)]
    Machines(machines::Machines),
    /// Measure this host, and write a machine file
    #[command(after_help = calibrate::EXAMPLES)]
    Calibrate(calibrate::Calibrate),
    /// Record a program that runs under this Linux
    #[command(after_help = record::EXAMPLES)]
    Record(record::Record),
    #[command(name = record::Helper::COMMAND, subcommand, hide = true)]
    RecordHelper(record::Helper),
    /// Name the call sites of TLB shootdowns, what they cost, and what would remove them
    #[command(after_help = explain::EXAMPLES)]
    Explain(explain::Explain),
    /// Watch the processes and call sites that cause TLB shootdowns, live
    #[command(after_help = top::EXAMPLES)]
    Top(top::Top),
    /// Serve the TLB shootdowns of all programs as metrics, for Prometheus
    #[command(after_help = export::EXAMPLES)]
    Export(export::Export),
    /// Run or record a program on a real Linux of 1 to 255 CPUs, emulated by QEMU
    #[command(after_help = guest::EXAMPLES)]
    Guest(guest::Guest),
    /// Make a recording from the text output of trace-cmd, perf or the kernel
    #[command(after_help = import::EXAMPLES)]
    Import(import::Import),
    /// Replay a recording under several designs
    #[command(after_help = replay::EXAMPLES)]
    Replay(replay::Replay),
    /// Write a page with plots of recordings, published measurements and known bugs
    #[command(after_help = report::EXAMPLES)]
    Report(report::Report),
    /// Run a workload that is written as text, on any machine and design
    #[command(after_help = run::EXAMPLES)]
    Run(run::Run),
    /// Search the engine for bugs, or find a known bug of another kernel
    #[command(after_help = check::EXAMPLES)]
    Check(check::Check),
    /// Boot a kernel that contains the engine on an emulated machine
    #[command(after_help = boot::EXAMPLES)]
    Boot(boot::Boot),
    /// Find missing TLB flushes of any kernel, under QEMU with a TLB that never forgets
    #[command(after_help = sanitize::EXAMPLES)]
    Sanitize(sanitize::Sanitize),
    /// Compare published measurements with the simulator's predictions and with shootdown
    #[command(after_help = reproduce::EXAMPLES)]
    Reproduce(reproduce::Reproduce),
    /// Run a grid of simulations or checks on all cores, resumable, with one digest
    #[command(after_help = sweep::EXAMPLES)]
    Sweep(sweep::SweepArgs),
}

impl Cli {
    /// Runs the command and returns the exit status.
    pub(crate) fn run(&self) -> Result<u8, Failure> {
        match &self.command {
            None => print(WELCOME)?,
            Some(Command::Machines(machines)) => machines.run()?,
            Some(Command::Calibrate(calibrate)) => calibrate.run()?,
            Some(Command::Record(record)) => return record.run(),
            Some(Command::RecordHelper(helper)) => helper.run(),
            Some(Command::Explain(explain)) => explain.run()?,
            Some(Command::Top(top)) => top.run()?,
            Some(Command::Export(export)) => export.run()?,
            Some(Command::Guest(guest)) => return guest.run(),
            Some(Command::Import(import)) => import.run()?,
            Some(Command::Replay(replay)) => replay.run()?,
            Some(Command::Report(report)) => report.run()?,
            Some(Command::Run(run)) => run.run()?,
            Some(Command::Check(check)) => check.run()?,
            Some(Command::Boot(boot)) => boot.run()?,
            Some(Command::Sanitize(sanitize)) => return sanitize.run(),
            Some(Command::Reproduce(reproduce)) => reproduce.run()?,
            Some(Command::Sweep(sweep)) => return sweep.run(),
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn command_line_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_example_in_help_parses() {
        let examples = [
            WELCOME,
            AFTER_HELP,
            check::EXAMPLES,
            boot::EXAMPLES,
            sanitize::EXAMPLES,
            machines::EXAMPLES,
            calibrate::EXAMPLES,
            record::EXAMPLES,
            explain::EXAMPLES,
            export::EXAMPLES,
            guest::EXAMPLES,
            import::EXAMPLES,
            replay::EXAMPLES,
            report::EXAMPLES,
            run::EXAMPLES,
            reproduce::EXAMPLES,
            sweep::EXAMPLES,
            top::EXAMPLES,
        ];
        let lines = examples.iter().flat_map(|text| text.lines());
        let commands = lines.clone().filter_map(|line| line.strip_prefix("  shootdown "));
        assert!(lines.clone().all(|line| line.chars().count() <= 100), "clap would wrap it");
        let mut count = 0;
        for command in commands {
            // An explanation follows two spaces, and another command follows a pipe.
            let command = command.split("  ").next().unwrap_or_default();
            let command = command.split(" > ").next().unwrap_or_default();
            let command = command.split(" | ").next().unwrap_or_default();
            let unquoted = command.replace('\'', "");
            let words = std::iter::once("shootdown").chain(unquoted.split_whitespace());
            assert!(Cli::try_parse_from(words).is_ok(), "{command}");
            count += 1;
        }
        assert!(count > 20, "{count}");
    }
}
