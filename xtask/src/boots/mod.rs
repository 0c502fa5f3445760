//! Boots the kernel on every architecture, where it runs its own tests, and compares their results
//! with golden files.

mod counts;
pub(crate) mod golden;
mod variants;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::command::{Command, Failure};
use crate::parallel;
use crate::setup::emulators::{self, ARCHITECTURES};
use crate::test::builds;

/// Time for boots with four CPUs on each architecture. `cargo xtask soak` takes longer.
const SOAK_IN_TEST: Duration = Duration::from_secs(4);

/// The results of fault injection, alone and beside the sanitizer.
const FAULTS: &str = "kernel/trials.md";

/// The architectures on which the kernel can be a hypervisor.
const WITH_GUESTS: [&str; 2] = ["aarch64", "riscv64"];

/// The architectures that the sanitizer knows.
const SANITIZABLE: [&str; 3] = ["x86_64", "aarch64", "riscv64"];

/// The workloads of the golden file: all that `shootdown boot --workload` accepts by name, except
/// those of [`IN_OWN_TABLES`].
const WORKLOADS: [&str; 9] =
    ["migrate", "mprotect", "heap", "crowd", "threads", "pairs", "beside", "exits", "sort"];

/// The workloads with tables of their own: memory is short in one, pages move in the next, and are
/// discarded in place in the last.
const IN_OWN_TABLES: [&str; 3] = ["reclaim", "moves", "arena"];

/// The workloads whose discards notify other CPUs, unless they are in place: these are booted with
/// discards in the call.
const DISCARDING: [&str; 3] = ["migrate", "crowd", "beside"];

/// The architectures whose fault injection CI counts twice. It takes 18 s of CPU on RISC-V and 68 s
/// on LoongArch64, so only `cargo xtask soak` counts these twice.
const COUNTED_TWICE_IN_TEST: [&str; 2] = ["x86_64", "aarch64"];

/// The part of the counted runs of workloads that are compared with the golden file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    /// The part that CI counts.
    Sample,
    /// Everything, which also updates the file.
    All,
}

/// Boots with one CPU; with four CPUs on as many host threads; and with instruction counting, where
/// two runs must give the same bytes.
pub(crate) fn run(part: Part) -> Result<(), Failure> {
    type Run = fn(&Built, &str) -> Result<String, Failure>;
    let inject_faults = |arch: &&str| -> Run {
        if COUNTED_TWICE_IN_TEST.contains(arch) {
            Built::inject_faults_twice
        } else {
            Built::inject_faults
        }
    };
    let ready = emulators::for_boots()?;
    let built = Built::new(&ready)?;
    // Each run takes one core. The slowest start first.
    let slowest_first = ready.iter().rev();
    let runs: Vec<(&str, Run)> = slowest_first
        .flat_map(|arch| [(*arch, inject_faults(arch)), (*arch, Built::alone as Run)])
        .collect();
    let outputs = parallel::map(&runs, |(arch, run)| run(&built, arch));
    let outputs: Vec<String> = outputs.into_iter().collect::<Result<_, _>>()?;
    let mut found = Vec::new();
    for (arch, outputs) in ready.iter().zip(outputs.chunks_exact(2).rev()) {
        println!("{arch}: boots with one CPU, and with instruction counting");
        found.extend(outputs[0].lines().skip(1).map(str::to_owned));
    }
    let with_guests =
        WITH_GUESTS.into_iter().filter(|arch| ready.contains(arch)).collect::<Vec<_>>();
    let guests = parallel::map(&with_guests, |arch| built.inject_faults_beside_guests(arch));
    let guests = guests.into_iter().collect::<Result<Vec<String>, _>>()?;
    for arch in &ready {
        built.soak(Machine::Qemu(arch), SOAK_IN_TEST, 1)?;
    }
    let sanitized = built.sanitize(&ready)?;
    if ready.len() < ARCHITECTURES.len() {
        return Ok(());
    }
    let names = ARCHITECTURES.map(|(arch, ..)| arch);
    golden::check_part(FAULTS, "trials", &table(&joined(&found, &sanitized), &names))?;
    let guests: Vec<&str> = guests.iter().flat_map(|found| found.lines().skip(1)).collect();
    golden::check_part(FAULTS, "guests", &table(&guests, &WITH_GUESTS))?;
    if !counts::are_for_this_host()? {
        return Ok(());
    }
    counts::compare(&built, part)?;
    variants::compare(&built, part)
}

/// Boots on all machines, or on the one with this name: counts the fault injection of each
/// architecture twice, then boots with four CPUs for a time on each machine. The machines are QEMU
/// for each architecture and, if it can be installed, Bochs.
pub(crate) fn soak(each: Duration, seed: u64, only: Option<&str>) -> Result<(), Failure> {
    let is_wanted = |name: &str| only.is_none_or(|only| only == name);
    if let Some(name) = only
        && !machines().any(|machine| machine == name)
    {
        let names = Vec::from_iter(machines()).join(", ");
        return Err(Failure::usage(
            format!("`{}` is not a machine that boots", name.escape_debug()),
            format!("one of: {names}"),
        ));
    }
    let ready = emulators::for_boots()?;
    let built = Built::new(&ready)?;
    let wanted: Vec<&str> = ready.iter().copied().filter(|arch| is_wanted(arch)).collect();
    for counted in parallel::map(&wanted, |arch| built.inject_faults_twice(arch)) {
        counted?;
    }
    if wanted.contains(&"riscv64") {
        built.count("riscv64").args("--notify broadcasts").output_or_show()?;
        println!("riscv64: fault injection with remote fences");
    }
    for arch in wanted {
        built.soak(Machine::Qemu(arch), each, seed)?;
    }
    if !is_wanted(Machine::Bochs.name()) {
        return Ok(());
    }
    if let Err(failure) = emulators::bochs() {
        println!("skipped on Bochs: {}", failure.cause());
        return Ok(());
    }
    built.soak(Machine::Bochs, each, seed)
}

/// Returns the names of the machines that [`soak`] boots.
fn machines() -> impl Iterator<Item = &'static str> {
    ARCHITECTURES.iter().map(|(arch, ..)| *arch).chain([Machine::Bochs.name()])
}

#[derive(Clone, Copy)]
enum Machine<'a> {
    /// QEMU for this architecture.
    Qemu(&'a str),
    /// Bochs, which is an x86-64 machine.
    Bochs,
}

impl Machine<'_> {
    const fn name(&self) -> &str {
        match self {
            Self::Qemu(arch) => arch,
            Self::Bochs => "bochs",
        }
    }
}

/// The lab's command and the kernels that it boots. Without them, each boot would start cargo to
/// build its kernel.
#[derive(Debug)]
struct Built {
    lab: PathBuf,
    /// For each architecture, the kernel with assertions and the kernel as it would ship.
    kernels: BTreeMap<String, [PathBuf; 2]>,
}

impl Built {
    fn new(ready: &[&str]) -> Result<Self, Failure> {
        let targets = |is_wanted: fn(&str) -> bool| -> Vec<&'static str> {
            let wanted = ARCHITECTURES.iter().filter(|(arch, ..)| ready.contains(arch));
            wanted.filter(|(arch, ..)| is_wanted(arch)).map(|(_, target, ..)| *target).collect()
        };
        emulators::build_kernels("dev", &targets(|_| true))?;
        emulators::build_kernels("bench", &targets(counts::is_golden))?;
        let mut kernels = BTreeMap::new();
        for (arch, target, ..) in ARCHITECTURES.iter().filter(|(arch, ..)| ready.contains(arch)) {
            let kernel =
                |folder: &str| crate::output().join(target).join(folder).join("shootdown-kernel");
            // Where no golden file has counts, the kernel with assertions is counted as well.
            let counted = if counts::is_golden(arch) { "release" } else { "debug" };
            kernels.insert((*arch).to_owned(), [kernel("debug"), kernel(counted)]);
        }
        Ok(Self { lab: builds::lab()?, kernels })
    }

    /// Returns `shootdown boot` of the kernel with all assertions.
    fn boot(&self, machine: Machine<'_>) -> Command {
        let (option, name, arch) = match machine {
            Machine::Qemu(arch) => ("--arch", arch, arch),
            Machine::Bochs => ("--emulator", "bochs", "x86_64"),
        };
        let command = Command::new(&self.lab).args("boot").arg(option).arg(name);
        command.arg("--kernel").arg(&self.kernels[arch][0])
    }

    /// Returns `shootdown boot` with instruction counting of the kernel as it would ship.
    fn count(&self, arch: &str) -> Command {
        let command = Command::new(&self.lab).args("boot --counts --format csv --arch").arg(arch);
        // A counted recording prints nothing before its end, which takes minutes on a busy host.
        command.args("--patience 600").arg("--kernel").arg(&self.kernels[arch][1])
    }

    /// Boots a workload with instruction counting and these options on x86-64, and returns what the
    /// kernel prints.
    fn console(&self, workload: &str, options: &str) -> Result<String, Failure> {
        /// A hundred times what the longest takes on an idle host.
        const LIMIT: Duration = Duration::from_secs(1800);
        let command = with_workload(self.count("x86_64"), workload);
        Ok(command.args("--console").args(options).captured_within(LIMIT)?.output)
    }

    fn alone(&self, arch: &str) -> Result<String, Failure> {
        self.boot(Machine::Qemu(arch)).args("--cpus 1").output()
    }

    fn inject_faults(&self, arch: &str) -> Result<String, Failure> {
        self.count(arch).output()
    }

    /// Runs the fault injection of a hypervisor: with one host thread for each CPU, then with
    /// instruction counting, whose results it returns.
    fn inject_faults_beside_guests(&self, arch: &str) -> Result<String, Failure> {
        let boot = || self.boot(Machine::Qemu(arch)).args("--guests --format csv");
        let (threads, counted) = (boot().output()?, boot().args("--counts").output()?);
        if threads == counted {
            println!("{arch}: guests show each injected fault, and nothing else");
            return Ok(counted);
        }
        Err(Failure::new(
            format!("the faults that guests show on {arch} depend on instruction counting"),
            format!("compare `shootdown boot --guests --arch {arch}` with and without --counts"),
        ))
    }

    /// Runs fault injection beside the sanitizer, which must find each fault and nothing else.
    /// Returns lines for [`table`], whose verdicts are QEMU's and the sanitizer's.
    fn sanitize(&self, ready: &[&str]) -> Result<Vec<String>, Failure> {
        let mut found = Vec::new();
        for arch in SANITIZABLE.into_iter().filter(|arch| ready.contains(arch)) {
            let boot = self.boot(Machine::Qemu(arch)).args("--sanitize --format csv --rounds 10");
            let output = boot.output()?;
            let trials = output.lines().skip(1).filter_map(|line| line.rsplit_once(','));
            found.extend(trials.map(|(trial, modes)| match modes {
                "absent" | "nothing" => trial.to_owned(),
                _ => format!("{trial}; found"),
            }));
            println!("{arch}: the sanitizer finds each injected fault, and nothing else");
        }
        Ok(found)
    }

    /// Runs fault injection twice. Both runs must print the same bytes.
    fn inject_faults_twice(&self, arch: &str) -> Result<String, Failure> {
        let (first, second) = (self.inject_faults(arch)?, self.inject_faults(arch)?);
        if first == second {
            println!("{arch}: gives the same bytes twice with instruction counting");
            return Ok(first);
        }
        Err(Failure::new(
            format!("two runs on {arch} with instruction counting differ"),
            format!("compare two of `shootdown boot --arch {arch} --counts --console`"),
        ))
    }

    /// Runs all fault injections, storms and workloads repeatedly, each time with another seed, and
    /// each workload by turns with and without replicas.
    ///
    /// A violation fails the boot, and so does a kernel that prints nothing for ten minutes, which
    /// is long enough for a host that is busy with something else.
    fn soak(&self, machine: Machine<'_>, time: Duration, seed: u64) -> Result<(), Failure> {
        /// A round or storm takes about 50 ms with four CPUs that spin on two host cores.
        const ROUNDS: u64 = 100;
        const REPLICAS: [&str; 3] = ["if-worth", "always", "never"];
        let start = Instant::now();
        let mut boots = 0;
        let mut is_time_up = || {
            boots += 1;
            start.elapsed() >= time
        };
        let mut seed = seed;
        loop {
            let boot = || self.boot(machine).args("--cpus 4 --patience 600");
            boot().arg("--rounds").arg(ROUNDS.to_string()).output_or_show()?;
            for (index, workload) in (0..).zip(WORKLOADS.into_iter().chain(IN_OWN_TABLES)) {
                if is_time_up() {
                    let name = machine.name();
                    println!("{name}: {boots} boots with 4 CPUs, the last with seed {seed}");
                    return Ok(());
                }
                // AArch64 has none, and refuses them.
                let replicas = match machine.name() {
                    "aarch64" => "never",
                    _ => REPLICAS[(seed.wrapping_add(index) % 3) as usize],
                };
                with_workload(boot(), workload)
                    .args("--replicas")
                    .arg(replicas)
                    .arg("--seed")
                    .arg(seed.to_string())
                    .output_or_show()?;
            }
            seed = seed.wrapping_add(1);
        }
    }
}

/// Adds the options of a workload to a command that boots.
fn with_workload(command: Command, workload: &str) -> Command {
    let command = command.arg("--workload").arg(workload);
    if DISCARDING.contains(&workload) { command.args("--discards immediate") } else { command }
}

/// Returns the number with a name in lines of JSON.
fn number(output: &str, name: &str) -> Option<u64> {
    let (_, rest) = output.split_once(&format!("\"{name}\":"))?;
    let end = rest.find(|character: char| !character.is_ascii_digit())?;
    rest[..end].parse().ok()
}

/// Replaces each result by that of the same trial beside the sanitizer, which begins with the same
/// verdict.
fn joined<'a>(found: &'a [String], sanitized: &'a [String]) -> Vec<&'a str> {
    let beside = |line: &&str| sanitized.iter().map(String::as_str).find(|it| it.starts_with(line));
    found.iter().map(|line| beside(&&**line).unwrap_or(line)).collect()
}

/// Returns a table with one row for each scenario and fault, and one column for each of `names`.
/// Without a fault there is no row: the new page is observed, or the run has failed.
///
/// `found` has lines of `shootdown boot --format csv`: machine, scenario, fault, verdict.
fn table(found: &[&str], names: &[&str]) -> String {
    let cells: Vec<[&str; 4]> = found
        .iter()
        .filter_map(|line| line.split(',').collect::<Vec<_>>().try_into().ok())
        .collect();
    let mut rows: Vec<(&str, &str)> = Vec::new();
    for [_, scenario, fault, _] in &cells {
        if *fault != "none" && !rows.contains(&(scenario, fault)) {
            rows.push((scenario, fault));
        }
    }
    let mut text = format!("| a CPU that | fault | {} |\n|---|---|", names.join(" | "));
    text += &"---|".repeat(names.len());
    text.push('\n');
    for (scenario, fault) in rows {
        let _ = write!(text, "| {} | {fault} |", scenario.replace('-', " "));
        for arch in names {
            let is_it = |cell: &&[&str; 4]| cell[..3] == [*arch, scenario, fault];
            let verdict = cells.iter().find(is_it).map_or("", |[.., verdict]| verdict);
            let _ = write!(text, " {verdict} |");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_a_column_per_machine() {
        let found = [
            "x86_64,reads-all,none,fresh",
            "x86_64,reads-all,keep,stale",
            "aarch64,reads-all,keep,masked",
        ];
        let sanitized = ["x86_64,reads-all,keep,stale; found", "aarch64,reads-all,keep,stale"];
        let (found, sanitized) = (found.map(str::to_owned), sanitized.map(str::to_owned));
        let table = table(&joined(&found, &sanitized), &["x86_64", "aarch64", "riscv64"]);
        let rows: Vec<_> = table.lines().collect();
        assert_eq!(rows[0], "| a CPU that | fault | x86_64 | aarch64 | riscv64 |");
        assert_eq!(rows[2], "| reads all | keep | stale; found | masked |  |");
        assert_eq!(rows.len(), 3);
    }
}
