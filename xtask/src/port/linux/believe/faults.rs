//! Rules that the port leaves out, one at a time, and what finds each.

use std::fs;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::command::{Failure, unwritable};
use crate::port::bochs;
use crate::port::linux::arm64::SHORT_ASIDS;
use crate::port::linux::configuration::Configuration;
use crate::port::linux::guest;
use crate::port::linux::kernel::{self, Kernel};
use crate::port::linux::{CHECKS_ON_BOCHS, ISOLATED, isolated, sanitized};
use crate::port::machine::Clock;
use crate::port::row::Row;
use crate::port::source::Variant;
use crate::port::watch::End;

/// A file in `/sys/kernel/debug/shootdown`, what finds the fault, and the guest's programs.
#[derive(Debug, Deserialize)]
struct Fault(String, By, String);

/// `faults.toml` describes the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum By {
    Guest,
    Stall,
    Isolated,
    Debug,
    Sanitizer,
    Bochs,
}

/// The contents of `faults.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Faults {
    x86: Vec<Fault>,
    arm64: Vec<Fault>,
    /// Faults that may stay undetected.
    missed: Vec<String>,
}

static FAULTS: LazyLock<Faults> =
    LazyLock::new(|| toml::from_str(include_str!("faults.toml")).expect("a test reads the file"));

/// The programs of all faults, which must find nothing without one.
const INTACT: &str = "replace,100:protect,50:purge,50:paging,50:compact,50:exit,100:exec,30:\
                      filters,50:ldt,100:storm,20";

const SANITIZED_ON_ARM64: &str = "purge,50:purge-moving,20:tables-idle,20:exit,10:exec,20:mmap,20:\
                                  replace,30:reclaim,1:compact,3:crowd,5";
const INTACT_ON_ARM64: &str = "replace,100:protect,50:purge-moving,100:paging,50:compact,50:\
                               exit,100:exec,30:crowd,20:storm,20";

const WORDS: &str = "mitigations=off oops=panic";
/// A CPU that waits for ever is reported after 25 s, and ends the boot.
const WORDS_OF_STALL: &str = "mitigations=off oops=panic softlockup_panic=1 watchdog_thresh=15 \
     rcupdate.rcu_cpu_stall_timeout=25 sysctl.kernel.panic_on_rcu_stall=1";

const CPU_MS_MAX: u64 = 120_000;
const CPUS: u32 = 4;

pub(super) fn run(linux: Configuration) -> Result<(), Failure> {
    let intact = [(WORDS_OF_STALL, INTACT), (isolated::WORDS, "filters,50")];
    let has_debug = linux != Configuration::Newest;
    let faults = FAULTS.x86.iter().filter(|fault| has_debug || fault.1 != By::Debug);
    find_each(linux.with_faults(), &intact, faults)
}

/// The same on AArch64, with ASIDs that run out, and with the sanitizer.
pub(super) fn run_on_arm64() -> Result<(), Failure> {
    let words = format!("{WORDS_OF_STALL} {SHORT_ASIDS}");
    let kernel = kernel::build_with(Configuration::Arm64Faults, Variant::Shootdown)?;
    let (archive, run) = (guest::archive(&kernel)?, SANITIZED_ON_ARM64);
    let boot = kernel.boot(&archive, (CPUS, Clock::Host), &words, run);
    if let Some(found) = sanitized::first_fault(&boot)? {
        return Err(Failure::new(format!("without a fault: {found}"), "find the cause"));
    }
    println!("without a fault, the sanitizer finds nothing: `{run}`");
    let intact = [(WORDS_OF_STALL, INTACT_ON_ARM64), (&*words, INTACT_ON_ARM64)];
    find_each(Configuration::Arm64Faults, &intact, FAULTS.arm64.iter())
}

fn find_each<'f>(
    configuration: Configuration,
    intact: &[(&str, &str)],
    faults: impl Iterator<Item = &'f Fault>,
) -> Result<(), Failure> {
    sanitized::build()?;
    let kernel = kernel::build_with(configuration, Variant::Shootdown)?;
    for (words, run) in intact {
        if let Some(found) = booted(&kernel, words, "none", run)? {
            return Err(Failure::new(format!("without a fault: {found}"), "find the cause"));
        }
        println!("without a fault, nothing is found: `{run}`");
    }
    println!("\n| rule left out | looked for by | found |\n|---|---|---|");
    let mut unexpected = Vec::new();
    for fault in faults {
        let found = fault.find(&kernel)?;
        let text = found.as_deref().unwrap_or("nothing");
        println!("| `{}` | {} | {text} |", fault.0, fault.looked_for_by());
        if found.is_none() && !FAULTS.missed.contains(&fault.0) {
            unexpected.push(fault.0.as_str());
        }
    }
    println!();
    if unexpected.is_empty() {
        return Ok(());
    }
    let cause = format!("not as expected: {}", unexpected.join(", "));
    Err(Failure::new(cause, "read the logs in target/ports/linux"))
}

impl Fault {
    fn looked_for_by(&self) -> String {
        let Self(_, by, run) = self;
        match by {
            By::Guest | By::Stall => format!("`{run}`"),
            By::Isolated => format!("`{run}`, a CPU isolated"),
            By::Debug => format!("lockdep, KASAN: `{run}`"),
            By::Sanitizer => format!("sanitizer: `{run}`"),
            By::Bochs => format!("Bochs, PCIDs, PTI: `{CHECKS_ON_BOCHS}`"),
        }
    }

    /// Boots with the fault. Returns what was found first.
    fn find(&self, kernel: &Kernel) -> Result<Option<String>, Failure> {
        let Self(fault, by, run) = self;
        match by {
            By::Guest => booted(kernel, WORDS, fault, run),
            By::Stall => booted(kernel, WORDS_OF_STALL, fault, run),
            By::Isolated => booted(kernel, isolated::WORDS, fault, run),
            By::Debug => {
                let kernel = kernel::build_with(Configuration::Debug, Variant::Shootdown)?;
                booted(&kernel, WORDS, fault, run)
            }
            By::Sanitizer => {
                let (archive, run) = (guest::archive(kernel)?, format!("{fault}:{run}"));
                let machine = (CPUS, Clock::Host);
                let boot = kernel.boot(&archive, machine, sanitized::WORDS, &run);
                sanitized::first_fault(&boot)
            }
            By::Bochs => on_bochs(kernel, fault),
        }
    }
}

/// Boots with a fault, unless it is `none`. Returns what was found first.
fn booted(kernel: &Kernel, words: &str, fault: &str, run: &str) -> Result<Option<String>, Failure> {
    let archive = guest::archive(kernel)?;
    let run = if fault == "none" { run.to_owned() } else { format!("{fault}:{run}") };
    let boot = kernel.boot(&archive, (CPUS, Clock::Host), words, &run);
    let (output, end) = boot.ran_with("", CPU_MS_MAX)?;
    let log = archive.with_file_name(format!("{fault}.log"));
    fs::write(&log, &output).map_err(unwritable(&log))?;
    if !output.contains("booted ") {
        return Err(Failure::new(format!("{fault}: the kernel does not boot"), "read its log"));
    }
    let hangs =
        (!matches!(end, End::Done)).then(|| "the guest does not come to its end".to_owned());
    Ok(found_in(&output).or(hangs))
}

/// The first complaint of the kernel, or the first program that finds something wrong.
fn found_in(output: &str) -> Option<String> {
    let complaint = output.lines().find_map(|line| {
        let at = ["Kernel panic", "BUG: ", "WARNING: ", "Oops", "rcu: INFO"]
            .iter()
            .find_map(|sign| line.find(sign))?;
        Some(line[at..].trim_end().to_owned())
    });
    let wrong = output.lines().find_map(|line| {
        let row = Row::of_boot(line, Variant::Shootdown, CPUS, guest::COLUMNS)?;
        let wrong = row.count("wrong");
        (wrong > 0).then(|| format!("`{}`: {wrong} wrong", row.scenario))
    });
    wrong.or(complaint)
}

fn on_bochs(kernel: &Kernel, fault: &str) -> Result<Option<String>, Failure> {
    if let Err(failure) = bochs::install() {
        println!("skipped with PCIDs: {}", failure.cause());
        return Ok(None);
    }
    let archive = guest::archive(kernel)?;
    let run = format!("{fault}:{CHECKS_ON_BOCHS}");
    let boot = kernel.boot(&archive, (2, Clock::Instructions), ISOLATED, &run);
    Ok(found_in(&boot.rows_on_bochs()?.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_comes_before_complaints() {
        let output = "[ 1.0] WARNING: CPU: 1 PID: 7 at x\r\nrow replace 9 1 2 3 0\r\n";
        assert_eq!(found_in(output).as_deref(), Some("WARNING: CPU: 1 PID: 7 at x"));
        let output = format!("{output}row protect 9 1 2 3 17\r\n");
        assert_eq!(found_in(&output).as_deref(), Some("`protect`: 17 wrong"));
        assert_eq!(found_in("booted 4 CPUs\r\nrow replace 9 1 2 3 0\r\nend\r\n"), None);
    }

    #[test]
    fn each_fault_is_a_switch_of_the_port() {
        let header = crate::command::read_tracked("ports/linux/shootdown/shootdown_port.h");
        let header = header.expect("a file of the port");
        let is_known = |fault: &Fault| {
            fault.0 == "flush_here_only" || header.contains(&format!("F({})", fault.0))
        };
        assert!(FAULTS.arm64.iter().all(is_known));
        let (faults, _) = header.split_once("Mechanisms").expect("what is no fault");
        // Others need AArch64, or a guest of KVM.
        let is_elsewhere =
            |line: &str| ["on AArch64", "under KVM"].iter().any(|it| line.contains(it));
        let is_ours = |line: &&str| line.contains("\tF(") && !is_elsewhere(line);
        let switches = faults.lines().filter(is_ours).count();
        let declared = |fault: &&Fault| header.contains(&format!("F({})", fault.0));
        assert_eq!(FAULTS.x86.iter().filter(declared).count(), switches);
        assert_eq!(FAULTS.x86.len(), switches + 2);
    }
}
