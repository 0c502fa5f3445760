//! The commands and their options, and what is said to someone who gives none.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// What `shootdown` alone says.
pub(crate) const WELCOME: &str = "\
shootdown compares ways to keep TLBs coherent, on described machines, against published results.

  shootdown machines                         the machines that it knows
  shootdown machines skylake-laptop-kvm      every number of one, and where it is from
  shootdown machines my-server.toml          the same for a machine of your own
  shootdown reproduce                        published results, predicted, and this engine's
  shootdown reproduce --quick                the same in seconds, less exactly
  shootdown reproduce --report report.html   the same as a page with plots
  shootdown reproduce --format json          the same for a program

`shootdown help COMMAND` explains a command's options.
";

const EXAMPLES: &str = "\
Examples:
  shootdown machines
  shootdown machines xeon-2s
  shootdown reproduce --quick
  shootdown reproduce --only 000 --report report.html";

const MACHINES_EXAMPLES: &str = "\
Examples:
  shootdown machines
  shootdown machines power8-16s
  shootdown machines ./my-server.toml";

const REPRODUCE_EXAMPLES: &str = "\
Examples:
  shootdown reproduce
  shootdown reproduce --only 000 --seed 7
  shootdown reproduce --format json | jq '.rows[].predicted'
  shootdown reproduce --machine my-laptop.toml --report report.html

The same seed gives the same bytes.";

/// Compares ways to keep TLBs coherent, on described machines, against published results.
#[derive(Debug, Parser)]
#[command(name = "shootdown", version, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the machines, or show every number of one with its source
    #[command(after_help = MACHINES_EXAMPLES)]
    Machines {
        /// A machine's name, or a file that ends in .toml
        machine: Option<String>,
    },
    /// Compare published results with what the simulator predicts, and with this engine
    #[command(after_help = REPRODUCE_EXAMPLES)]
    Reproduce(Reproduce),
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Reproduce {
    /// Where the simulator's random numbers start
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// How to print the rows
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
    /// Only the experiments of this seed document, such as 000
    #[arg(long, value_name = "SEED")]
    pub(crate) only: Option<String>,
    /// Write a page with plots, which needs nothing else, to this file
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
    /// Run every experiment on this machine, by name or .toml file, instead of its own
    #[arg(long, value_name = "MACHINE")]
    pub(crate) machine: Option<String>,
    /// Simulate less: seconds instead of minutes, and less exact
    #[arg(long)]
    pub(crate) quick: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Tables for people
    Text,
    /// One object with all rows
    Json,
    /// One line for each row
    Csv,
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
        let examples = [WELCOME, EXAMPLES, MACHINES_EXAMPLES, REPRODUCE_EXAMPLES];
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
        assert!(count > 10, "{count}");
    }
}
