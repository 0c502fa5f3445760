//! Rules that the port leaves out, one at a time, and what finds each.

use std::fs;

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

/// A file in `/sys/kernel/debug/shootdown`, and what finds the fault.
struct Fault(&'static str, By);

#[derive(Clone, Copy, Debug)]
enum By {
    /// The guest runs these programs.
    Guest(&'static str),
    /// The same, until a CPU has waited too long.
    Stall(&'static str),
    /// The same, with CPU 3 isolated.
    Isolated(&'static str),
    /// The same, on a kernel with lockdep, KASAN and `DEBUG_VM`.
    Debug(&'static str),
    /// The sanitizer observes them.
    Sanitizer(&'static str),
    /// The checks on Bochs, with PCIDs and page-table isolation.
    Bochs,
}

const FAULTS: [Fault; 17] = [
    Fault("flush_here_only", By::Guest("replace,100:protect,50")),
    Fault("flush_unanswered", By::Stall("purge,50")),
    Fault("others_unnotified", By::Stall("purge,50")),
    Fault("range_ends_early", By::Guest("replace,100:protect,50")),
    Fault("gather_unflushed", By::Guest("replace,100")),
    Fault("tables_freed_at_once", By::Sanitizer("purge,2:tables-idle,50:exit,10")),
    Fault("batch_lacks_pages", By::Guest("paging,50")),
    Fault("batch_lacks_spaces", By::Guest("compact,50")),
    Fault("batch_unsent", By::Guest("paging,50")),
    Fault("batch_holds_no_space", By::Debug("compact,100")),
    Fault("space_not_retired", By::Stall("exit,100:exec,30")),
    Fault("space_freed_under_lock", By::Debug("exec,5:exit,5")),
    Fault("users_uncalled", By::Guest("ldt,100")),
    Fault("unplugged_stays_online", By::Stall("storm,20")),
    Fault("kernel_unflushed", By::Guest("filters,50")),
    Fault("forget_on_entry", By::Isolated("filters,50")),
    Fault("user_half_unmarked", By::Bochs),
];

/// The same on AArch64. There, a CPU that idles, runs a kernel thread or is unplugged has the empty
/// table loaded, so nothing is left to find of spaces that it keeps.
const FAULTS_ON_ARM64: [Fault; 8] = [
    Fault("flush_here_only", By::Guest("replace,100:protect,50")),
    Fault("flush_here_only", By::Sanitizer("purge,20:exec,5:replace,50")),
    Fault("range_ends_early", By::Guest("replace,100:protect,50")),
    Fault("gather_unflushed", By::Sanitizer("mmap,50:replace,50")),
    Fault("batch_lacks_pages", By::Guest("paging,50")),
    Fault("batch_unsent", By::Guest("paging,50")),
    Fault("asids_overlap", By::Sanitizer("crowd,20")),
    Fault("flush_unanswered", By::Stall("purge,400:purge-moving,400")),
];

/// Faults that may stay undetected. A process has to end between two steps of one batch; and a TLB
/// has to keep entries under a PCID that is not loaded, which neither emulator does.
const MISSED: [&str; 2] = ["batch_holds_no_space", "user_half_unmarked"];

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
    let faults = FAULTS.iter().filter(|fault| has_debug || !matches!(fault.1, By::Debug(_)));
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
    find_each(Configuration::Arm64Faults, &intact, FAULTS_ON_ARM64.iter())
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
    for Fault(name, by) in faults {
        let found = by.find(&kernel, name)?;
        let text = found.as_deref().unwrap_or("nothing");
        println!("| `{name}` | {} | {text} |", by.name());
        if found.is_none() && !MISSED.contains(name) {
            unexpected.push(*name);
        }
    }
    println!();
    if unexpected.is_empty() {
        return Ok(());
    }
    let cause = format!("not as expected: {}", unexpected.join(", "));
    Err(Failure::new(cause, "read the logs in target/ports/linux"))
}

impl By {
    fn name(self) -> String {
        match self {
            Self::Guest(run) | Self::Stall(run) => format!("`{run}`"),
            Self::Isolated(run) => format!("`{run}`, a CPU isolated"),
            Self::Debug(run) => format!("lockdep, KASAN: `{run}`"),
            Self::Sanitizer(run) => format!("sanitizer: `{run}`"),
            Self::Bochs => format!("Bochs, PCIDs, PTI: `{CHECKS_ON_BOCHS}`"),
        }
    }

    /// Boots with a fault. Returns what was found first.
    fn find(self, kernel: &Kernel, fault: &str) -> Result<Option<String>, Failure> {
        match self {
            Self::Guest(run) => booted(kernel, WORDS, fault, run),
            Self::Stall(run) => booted(kernel, WORDS_OF_STALL, fault, run),
            Self::Isolated(run) => booted(kernel, isolated::WORDS, fault, run),
            Self::Debug(run) => {
                let kernel = kernel::build_with(Configuration::Debug, Variant::Shootdown)?;
                booted(&kernel, WORDS, fault, run)
            }
            Self::Sanitizer(run) => {
                let (archive, run) = (guest::archive(kernel)?, format!("{fault}:{run}"));
                let machine = (CPUS, Clock::Host);
                let boot = kernel.boot(&archive, machine, sanitized::WORDS, &run);
                sanitized::first_fault(&boot)
            }
            Self::Bochs => on_bochs(kernel, fault),
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
        assert!(FAULTS_ON_ARM64.iter().all(is_known));
        let (faults, _) = header.split_once("Mechanisms").expect("what is no fault");
        // Others need AArch64, or a guest of KVM.
        let is_elsewhere =
            |line: &str| ["on AArch64", "under KVM"].iter().any(|it| line.contains(it));
        let is_ours = |line: &&str| line.contains("\tF(") && !is_elsewhere(line);
        let switches = faults.lines().filter(is_ours).count();
        let declared = |fault: &&Fault| header.contains(&format!("F({})", fault.0));
        assert_eq!(FAULTS.iter().filter(declared).count(), switches);
        assert_eq!(FAULTS.len(), switches + 2);
    }
}
