//! The command line: the commands, each with its options.

use clap::{Parser, Subcommand};

use crate::commands::{boot, check, import, machines, record, replay, report, reproduce};
use crate::error::Failure;
use crate::output::print;

/// The output of `shootdown` without a command.
const WELCOME: &str = "\
shootdown compares ways to keep TLBs coherent: on what real programs do, and against published
results, on described machines.

  shootdown record -- sort --parallel=2 words.txt        what a program does on this Linux, as root
  shootdown import trace.txt --pid 7 -o sort.shootdown   the same from what trace-cmd or perf says
  shootdown replay sort.shootdown                        what it costs by Linux, and by this engine
  shootdown report sort.shootdown                        the same as a page with plots

  shootdown check                                        the engine on a hostile machine, for 30 s
  shootdown check --design zoo                           bugs that other kernels had, and found here
  shootdown boot                                         the engine in a kernel, under QEMU

  shootdown machines                                     the machines that it knows
  shootdown machines my-server.toml                      every number of one, such as your own
  shootdown reproduce                                    published results, predicted, and ours
  shootdown reproduce --quick                            the same in seconds, less exactly

`shootdown help COMMAND` explains a command's options.
";

const EXAMPLES: &str = "\
Examples:
  shootdown record -- sort --parallel=2 words.txt
  shootdown replay sort.shootdown
  shootdown report sort.shootdown
  shootdown machines xeon-2s
  shootdown reproduce --only 000 --report report.html";

/// Compares ways to keep TLBs coherent: on what real programs do, and against published results
#[derive(Debug, Parser)]
#[command(name = "shootdown", version, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the machines, or show every number of one with its source
    #[command(after_help = machines::EXAMPLES)]
    Machines(machines::Machines),
    /// Record a real program that runs under this Linux
    #[command(after_help = record::EXAMPLES)]
    Record(record::Record),
    #[command(name = record::Helper::COMMAND, subcommand, hide = true)]
    RecordHelper(record::Helper),
    /// Make a recording of the text of trace-cmd, perf or the kernel
    #[command(after_help = import::EXAMPLES)]
    Import(import::Import),
    /// Replay a recording of a real program under several designs
    #[command(after_help = replay::EXAMPLES)]
    Replay(replay::Replay),
    /// Write a page with plots: recordings under several designs, published results, found bugs
    #[command(after_help = report::EXAMPLES)]
    Report(report::Report),
    /// Look for what is wrong with the engine, or with a bug of other kernels
    #[command(after_help = check::EXAMPLES)]
    Check(check::Check),
    /// Boot a kernel with the engine in it on an emulated machine
    #[command(after_help = boot::EXAMPLES)]
    Boot(boot::Boot),
    /// Compare published results with what the simulator predicts, and with this engine
    #[command(after_help = reproduce::EXAMPLES)]
    Reproduce(reproduce::Reproduce),
}

impl Cli {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        match &self.command {
            None => Ok(print(WELCOME)?),
            Some(Command::Machines(machines)) => machines.run(),
            Some(Command::Record(record)) => record.run(),
            Some(Command::RecordHelper(helper)) => {
                helper.run();
                Ok(())
            }
            Some(Command::Import(import)) => import.run(),
            Some(Command::Replay(replay)) => replay.run(),
            Some(Command::Report(report)) => report.run(),
            Some(Command::Check(check)) => check.run(),
            Some(Command::Boot(boot)) => boot.run(),
            Some(Command::Reproduce(reproduce)) => reproduce.run(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_example_is_a_command_that_parses() {
        let examples = [
            WELCOME,
            EXAMPLES,
            check::EXAMPLES,
            boot::EXAMPLES,
            machines::EXAMPLES,
            record::EXAMPLES,
            import::EXAMPLES,
            replay::EXAMPLES,
            report::EXAMPLES,
            reproduce::EXAMPLES,
        ];
        let lines = examples.iter().flat_map(|text| text.lines());
        let commands = lines.filter_map(|line| line.strip_prefix("  shootdown "));
        let mut count = 0;
        for command in commands {
            // What follows two spaces explains, and what follows a pipe is another command.
            let command = command.split("  ").next().unwrap_or_default();
            let command = command.split(" | ").next().unwrap_or_default();
            let words = std::iter::once("shootdown").chain(command.split_whitespace());
            assert!(Cli::try_parse_from(words).is_ok(), "{command}");
            count += 1;
        }
        assert!(count > 20, "{count}");
    }
}
