//! stress-ng's memory class, and what it has for maps, processes and switches.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::thread;

use super::suite::{self, Machine};
use crate::command::{Command, Failure};
use crate::port::linux::configuration::Configuration;
use crate::port::linux::guest::Member;
use crate::port::linux::kernel::{self, Kernel};
use crate::setup;

/// The stressors, by their names. `stressors.toml` has the numbers of operations.
static STRESSORS: LazyLock<BTreeMap<String, u32>> = LazyLock::new(|| {
    toml::from_str(include_str!("stressors.toml")).expect("a test reads the file")
});

/// For each stressor. stress-ng stops by itself before.
const SECONDS: u32 = 40;

const PROGRAM: &str = "usr/bin/stress-ng";

/// The machines that run the memory class for an hour, of the host's clock.
const MACHINES: [Machine; 2] = [machine_of_an_hour(4), machine_of_an_hour(16)];
const HOUR_SECONDS: u32 = 3600;

/// On a host with fewer CPUs, one of the guest's may be away for seconds.
const fn machine_of_an_hour(cpus: u32) -> Machine {
    let words = "mitigations=off tsc=reliable watchdog_thresh=60 \
                 rcupdate.rcu_cpu_stall_timeout=300 sysctl.kernel.hung_task_timeout_secs=1200";
    Machine { cpus, options: "-m 2G", words }
}

/// stress-ng stops by itself, but takes its time if many instances share a CPU.
const SECONDS_MORE: u32 = 60;
const SECONDS_MORE_OF_AN_HOUR: u32 = 600;

pub(super) fn run(linux: Configuration) -> Result<(), Failure> {
    let (program, kernels) = ready(linux)?;
    let members = members(program)?;
    suite::run("stress", &kernels, STRESSORS.len(), list, &members)
}

/// Runs the memory class on all machines at the same time.
pub(super) fn hour(linux: Configuration) -> Result<(), Failure> {
    let (program, kernels) = ready(linux)?;
    let class = class(&program)?;
    let members = members(program)?;
    let archive = |machine: Machine, name: &str, names: &[&str]| {
        let list = list_of_class(&class, machine, names);
        suite::archive(&format!("{name}-{}", machine.cpus), &list, &members)
    };
    let archives = [archive(MACHINES[0], "hour", &[])?, archive(MACHINES[1], "hour", &[])?];
    let found = thread::scope(|scope| {
        let boots = MACHINES.iter().zip(&archives).map(|(machine, archive)| {
            let kernels = &kernels;
            scope.spawn(move || suite::boot_both(kernels, archive, *machine))
        });
        let boots: Vec<_> = boots.collect();
        let joined = boots.into_iter().map(|it| it.join().unwrap_or_else(|it| resume_unwind(it)));
        joined.collect::<Vec<_>>()
    });
    let mut result = Ok(());
    for (machine, found) in MACHINES.into_iter().zip(found) {
        println!("{} CPUs:\n", machine.cpus);
        let again = |names: &[&str]| {
            suite::boot_both(&kernels, &archive(machine, "hour-again", names)?, machine)
        };
        let names = [kernels[0].name, kernels[1].name];
        let outcome = found.and_then(|it| suite::compare(names, class.len(), &it, again));
        result = result.and(outcome);
    }
    result
}

/// Installs the program, and builds both kernels.
pub(in crate::port::linux) fn ready(
    linux: Configuration,
) -> Result<(PathBuf, [Kernel; 2]), Failure> {
    let program = PathBuf::from("/").join(PROGRAM);
    if !program.exists() {
        setup::install_from_distribution("stress-ng")?;
    }
    Ok((program, kernel::build_both(linux)?))
}

/// What the small configuration has no system call for (`process_vm_readv`).
const LEFT_OUT: &str = "vm-rw";

/// The stressors of the memory class: `class 'memory' stressors: atomic bad-altstack`.
fn class(program: &Path) -> Result<Vec<String>, Failure> {
    let text = Command::new(program).args("--class memory?").output()?;
    let (_, names) = text.split_once("stressors: ").unwrap_or_default();
    let names = names.split_whitespace().filter(|name| *name != LEFT_OUT);
    Ok(names.map(str::to_owned).collect())
}

/// The list of these runs of the class, or of all.
fn list_of_class(class: &[String], machine: Machine, names: &[&str]) -> String {
    let seconds = HOUR_SECONDS / class.len().max(1) as u32;
    let words = format!("{} --timeout {seconds}", machine.cpus);
    let lines = class.iter().map(|name| line(name, &words, seconds + SECONDS_MORE_OF_AN_HOUR));
    chosen(lines, names)
}

/// The list of these runs, or of all.
fn list(names: &[&str]) -> String {
    let lines = STRESSORS.iter().map(|(name, operations)| {
        let words = format!("4 --{name}-ops {operations} --timeout {SECONDS}");
        line(name, &words, SECONDS + SECONDS_MORE)
    });
    chosen(lines, names)
}

/// The run of a stressor. Its first word is the time for which the guest waits.
pub(in crate::port::linux) fn line(name: &str, words: &str, seconds: u32) -> String {
    format!(
        "{seconds} /{PROGRAM} --{name} {words} --verify --temp-path /tmp --no-rand-seed \
         --vm-bytes 64m --mmap-bytes 16m"
    )
}

fn chosen(lines: impl Iterator<Item = String>, names: &[&str]) -> String {
    lines
        .filter(|line| names.is_empty() || names.contains(&line.as_str()))
        .map(|line| line + "\n")
        .collect()
}

/// The program and the libraries that it loads, where it expects them.
pub(in crate::port::linux) fn members(program: PathBuf) -> Result<Vec<Member>, Failure> {
    let mut members = Member::libraries_of(&program)?;
    members.push(Member::new(PROGRAM, program));
    Ok(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stressor_has_operations() {
        assert_eq!(STRESSORS.len(), 37);
        let brk = "100 /usr/bin/stress-ng --brk 4 --brk-ops 4000 --timeout 40 --verify ";
        assert_eq!(list(&[]).lines().filter(|line| line.starts_with(brk)).count(), 1);
    }

    #[test]
    fn stressors_of_the_class_share_an_hour() {
        let class = ["malloc", "stack", "vm"].map(str::to_owned);
        let list = list_of_class(&class, MACHINES[1], &[]);
        assert_eq!(list.matches(" 16 --timeout 1200 ").count(), 3);
        let last = list.lines().last().expect("three lines");
        assert_eq!(list_of_class(&class, MACHINES[1], &[last]), format!("{last}\n"));
    }
}
