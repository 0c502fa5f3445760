//! The commands and their options, and what is said to someone who gives none.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::commands::boot::Boot;
use crate::commands::check::Check;
use crate::commands::import::Import;
use crate::commands::record::{Helper, Record};
use crate::commands::replay::Replay;
use crate::commands::report::Report;

/// What `shootdown` alone says.
pub(crate) const WELCOME: &str = "\
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

const CHECK_EXAMPLES: &str = "\
Examples:
  shootdown check
  shootdown check --arch arm64 --cpus 64 --budget 10m --seed 7
  shootdown check --design zoo
  shootdown check --design barrier-skipped-as-the-bit-was-set --svg bug.svg
  shootdown check --design without-ring-present
  shootdown check --list

The machine does whatever the architecture allows: TLBs that never forget and fill themselves at any
moment, stores that are late, interrupts that are later. Whatever goes wrong ends with status 1, the
shortest way to it, and the command that shows it again.";

const BOOT_EXAMPLES: &str = "\
Examples:
  shootdown boot
  shootdown boot --arch loongarch64 --cpus 2
  shootdown boot --arch aarch64 --counts

Builds the kernel of this repository, starts it under QEMU, whose MMU is not ours, and shows what it
says. It ends by itself, with status 1 if anything is wrong.";

const MACHINES_EXAMPLES: &str = "\
Examples:
  shootdown machines
  shootdown machines power8-16s
  shootdown machines ./my-server.toml";

const RECORD_EXAMPLES: &str = "\
Examples:
  shootdown record -- sort --parallel=2 words.txt
  shootdown record --output gc.shootdown -- node allocate.js
  shootdown record --buffer-kib 65536 -- ./loop-that-unmaps

Needs root and tracefs. The program runs as it would, its threads and children are recorded with it,
and tracing is left as it was found.";

const IMPORT_EXAMPLES: &str = "\
Examples:
  shootdown import trace.txt --command sort --output sort.shootdown
  shootdown import perf.txt --source perf --pid 4711 --output node.shootdown

For where `shootdown record` cannot run. To be traced, on all CPUs and with the clock `mono`:
sched_switch, sched_waking, sched_process_exec, sched_process_exit, task_newtask, tlb_flush,
page_fault_user, page_fault_kernel, csd_queue_cpu, ipi_send_cpu, ipi_send_cpumask, and sys_enter_*
and sys_exit_* of mmap, munmap, mprotect, madvise, mremap, brk. What is missing is not replayed.";

const REPLAY_EXAMPLES: &str = "\
Examples:
  shootdown replay traces/sort.shootdown
  shootdown replay sort.shootdown --designs linux-7.0,shootdown --format json
  shootdown replay sort.shootdown --schedule simulated --machine xeon-2s

By the recorded schedule, every step is on its recorded CPU and in its recorded order; linux-7.0 can
then be held against what the recorded kernel really did. By a simulated one, the machine decides.";

const REPORT_EXAMPLES: &str = "\
Examples:
  shootdown report traces/sort.shootdown traces/node.shootdown
  shootdown report mine.shootdown --output mine.html --machine xeon-2s --quick
  shootdown report

The page needs nothing else, neither files nor network. Without a recording, it has the published
results, and the bugs of other kernels that the checker finds.";

const REPRODUCE_EXAMPLES: &str = "\
Examples:
  shootdown reproduce
  shootdown reproduce --only 000 --seed 7
  shootdown reproduce --format json | jq '.rows[].predicted'
  shootdown reproduce --machine my-laptop.toml --report report.html

The same seed gives the same bytes.";

/// Compares ways to keep TLBs coherent: on what real programs do, and against published results
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
    /// Record a real program that runs under this Linux
    #[command(after_help = RECORD_EXAMPLES)]
    Record(Record),
    #[command(name = Helper::COMMAND, subcommand, hide = true)]
    RecordHelper(Helper),
    /// Make a recording of the text of trace-cmd, perf or the kernel
    #[command(after_help = IMPORT_EXAMPLES)]
    Import(Import),
    /// Replay a recording of a real program under several designs
    #[command(after_help = REPLAY_EXAMPLES)]
    Replay(Replay),
    /// Write a page with plots: recordings under several designs, published results, found bugs
    #[command(after_help = REPORT_EXAMPLES)]
    Report(Report),
    /// Look for what is wrong with the engine, or with a bug of other kernels
    #[command(after_help = CHECK_EXAMPLES)]
    Check(Check),
    /// Boot a kernel with the engine in it on an emulated machine
    #[command(after_help = BOOT_EXAMPLES)]
    Boot(Boot),
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
        let examples = [
            WELCOME,
            EXAMPLES,
            CHECK_EXAMPLES,
            BOOT_EXAMPLES,
            MACHINES_EXAMPLES,
            RECORD_EXAMPLES,
            IMPORT_EXAMPLES,
            REPLAY_EXAMPLES,
            REPORT_EXAMPLES,
            REPRODUCE_EXAMPLES,
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
