//! The guest that both kernels boot: one program, and the rows that it prints.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::configuration::Configuration;
use super::kernel::Kernel;
use crate::command::{Command, Failure, unwritable};
use crate::port::bochs::Disc;
use crate::port::boot;
use crate::port::machine::Clock;
use crate::port::row::{Columns, Row};
use crate::port::watch::{self, End};

/// The source of the guest's program.
const SOURCE: &str = "ports/linux/guest/init.c";

/// What the program prints of each run.
pub(super) const COLUMNS: Columns = &["operations", "calls", "flushes", "instructions", "wrong"];

/// CPU time between two lines: the longest program, on 16 CPUs that wait for each other.
const CPU_MS_MAX: u64 = 600_000;

/// Boots of a kernel that [dies](dies_of_breakpoint) of its emulator.
const BOOTS_MAX: u32 = 3;

/// Without random numbers of the host and random addresses, two boots give the same rows. QEMU
/// stops with "Bad icount read" where the timer of its x2APIC is set.
const MACHINE: &str = "-machine q35,hpet=off -cpu max,-x2apic,-rdrand,-rdseed -m 768M \
                       -rtc base=2026-01-01,clock=vm -nographic -nodefaults -serial stdio \
                       -no-reboot";
/// The same on AArch64. This processor needs no workaround, and the one of the checks has all
/// features: ranges, marks of written pages.
const MACHINE_OF_ARM64: &str = "-machine virt,gic-version=3,dtb-randomness=off -m 768M \
                                -rtc base=2026-01-01,clock=vm -nographic -nodefaults \
                                -serial stdio -no-reboot";
const PROCESSOR_OF_ARM64: (&str, &str) = ("-cpu cortex-a72", "-cpu max,pauth-impdef=on");
/// KASAN keeps the state of each byte, and frees memory late.
const MEMORY_OF_DEBUG: &str = "-m 2560M";
const WORDS: &str = "quiet loglevel=5 panic=-1";
/// Bochs' clocks differ, and it simulates the speed of the serial port. Linux, stock as well, warns
/// of its processor's topology. With XSAVE, Linux 7.2 stops, stock as well: the sizes of that state
/// that its processor reports disagree.
const WORDS_ON_BOCHS: &str = "lpj=1000000 tsc=reliable no_timer_check loglevel=4 noxsave";

/// Compiles the guest's program, and makes the archive that a kernel unpacks.
pub(super) fn archive(kernel: &Kernel) -> Result<PathBuf, Failure> {
    let configuration = kernel.configuration;
    let folder = crate::output().join("ports/linux").join(configuration.arch());
    fs::create_dir_all(&folder).map_err(unwritable(&folder))?;
    let program = folder.join("init");
    let archive = folder.join(format!("{}.cpio", kernel.name));
    crate::setup::c_compiler()?;
    compile(&configuration.tool("gcc"), SOURCE, &program)?;
    let mut members = vec![Member::new("init", program)];
    if !configuration.is_arm64() {
        members.push(Member::new("test_vmalloc.ko", kernel.module.clone()));
    }
    pack(&archive, &members)?;
    Ok(archive)
}

/// Compiles a program that needs no library in the guest.
pub(super) fn compile(compiler: &str, source: &str, program: &Path) -> Result<(), Failure> {
    let command = Command::new(compiler).args("-O2 -Wall -Wextra -Werror -static -pthread -o");
    command.arg(program).arg(source).run()
}

/// A file of an archive.
#[derive(Clone, Debug)]
pub(super) struct Member {
    /// Its path in the guest, without the first slash.
    name: String,
    file: PathBuf,
}

impl Member {
    pub(super) fn new(name: impl Into<String>, file: PathBuf) -> Self {
        Self { name: name.into(), file }
    }

    /// Returns the libraries that a program of the host loads, where it expects them.
    pub(super) fn libraries_of(program: &Path) -> Result<Vec<Self>, Failure> {
        let printed = Command::new("ldd").arg(program).output()?;
        let paths = printed.split_whitespace().filter(|word| word.starts_with('/'));
        Ok(paths.map(|path| Self::new(&path[1..], PathBuf::from(path))).collect())
    }
}

/// Makes an archive that a kernel unpacks, with the folders that its members are in.
pub(super) fn pack(archive: &Path, members: &[Member]) -> Result<(), Failure> {
    const FOLDER: u32 = 0o040_755;
    const PROGRAM: u32 = 0o100_755;
    let above = |member: &'_ Member| -> Vec<String> {
        let parents = Path::new(&member.name).ancestors().skip(1);
        parents.map(|folder| folder.display().to_string()).collect()
    };
    let folders: BTreeSet<String> =
        members.iter().flat_map(above).filter(|name| !name.is_empty()).collect();
    let write = || -> io::Result<()> {
        let mut out = File::create(archive)?;
        let mut add = |name: &str, mode, bytes: &[u8]| -> io::Result<()> {
            let head = cpio::newc::Builder::new(name).mode(mode).nlink(1);
            let mut member = head.write(&mut out, bytes.len() as u32);
            member.write_all(bytes)?;
            member.finish().map(drop)
        };
        for folder in &folders {
            add(folder, FOLDER, &[])?;
        }
        for member in members {
            add(&member.name, PROGRAM, &fs::read(&member.file)?)?;
        }
        cpio::newc::trailer(&mut out).map(drop)
    };
    write().map_err(unwritable(archive))
}

/// A boot of a kernel.
#[derive(Clone, Debug)]
pub(super) struct Boot<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) archive: &'a Path,
    pub(super) cpus: u32,
    pub(super) clock: Clock,
    /// More words on the command line of the kernel.
    pub(super) words: &'a str,
    /// What the guest runs.
    pub(super) run: &'a str,
}

impl Kernel {
    /// Returns a boot with a number of CPUs and a clock.
    pub(super) fn boot<'a>(
        &'a self,
        archive: &'a Path,
        (cpus, clock): (u32, Clock),
        words: &'a str,
        run: &'a str,
    ) -> Boot<'a> {
        Boot { kernel: self, archive, cpus, clock, words, run }
    }
}

impl Boot<'_> {
    /// The program of QEMU.
    pub(super) fn emulator(&self) -> &'static str {
        if self.kernel.configuration.is_arm64() {
            "qemu-system-aarch64"
        } else {
            "qemu-system-x86_64"
        }
    }

    /// Adds the machine to a command that runs QEMU.
    pub(super) fn options(&self, command: Command) -> Command {
        let command = match (self.kernel.configuration, self.clock) {
            (Configuration::Debug, _) => command.args(MACHINE).args(MEMORY_OF_DEBUG),
            (Configuration::Arm64, Clock::Instructions) => {
                command.args(MACHINE_OF_ARM64).args(PROCESSOR_OF_ARM64.0)
            }
            (Configuration::Arm64 | Configuration::Arm64Faults, Clock::Host) => {
                command.args(MACHINE_OF_ARM64).args(PROCESSOR_OF_ARM64.1)
            }
            _ => command.args(MACHINE),
        };
        command
            .args(self.clock.accelerator())
            .arg("-smp")
            .arg(self.cpus.to_string())
            .arg("-kernel")
            .arg(&self.kernel.image)
            .arg("-initrd")
            .arg(self.archive)
            .arg("-append")
            .arg(self.words(""))
    }

    /// The kernel's command line. Of two equal words, the second counts.
    pub(super) fn words(&self, of_machine: &str) -> String {
        let always = self.kernel.configuration.words();
        let is_arm64 = self.kernel.configuration.is_arm64();
        let console = if is_arm64 { "ttyAMA0" } else { "ttyS0" };
        format!("console={console} {WORDS} {of_machine} {always} {} run={}", self.words, self.run)
    }

    /// Boots, and returns the rows that the guest prints, in their order, and all of its output.
    ///
    /// # Errors
    ///
    /// If the guest does not come to its end, or the kernel prints a warning.
    pub(super) fn rows(&self) -> Result<(Vec<Row>, String), Failure> {
        self.parsed(self.output()?)
    }

    /// Boots, and returns what the guest prints.
    ///
    /// # Errors
    ///
    /// As [`rows`](Self::rows).
    pub(super) fn output(&self) -> Result<String, Failure> {
        self.output_with(&[])
    }

    /// As [`output`](Self::output), with more options of the emulator.
    pub(super) fn output_with(&self, options: &[&str]) -> Result<String, Failure> {
        let command = || {
            let command = self.options(Command::new(self.emulator()));
            options.iter().fold(command, Command::arg)
        };
        let (output, end) = self.ran_as(command, CPU_MS_MAX)?;
        self.judged(output, end)
    }

    /// Boots, with more options of the emulator, and returns what the guest prints and how it ends.
    /// Between two lines, it may take `cpu_ms_max` of CPU time.
    pub(super) fn ran_with(
        &self,
        options: &str,
        cpu_ms_max: u64,
    ) -> Result<(String, End), Failure> {
        self.ran_as(|| self.options(Command::new(self.emulator())).args(options), cpu_ms_max)
    }

    fn ran_as(
        &self,
        command: impl Fn() -> Command,
        cpu_ms_max: u64,
    ) -> Result<(String, End), Failure> {
        for _ in 0..BOOTS_MAX {
            let (output, end) = watch::run(command(), cpu_ms_max)?;
            if !dies_of_breakpoint(&output) {
                return Ok((output, end));
            }
            eprintln!("{} meets a breakpoint that is gone: again", self.kernel.image.display());
        }
        let cause = format!("{BOOTS_MAX} boots meet a breakpoint that is gone");
        Err(Failure::new(cause, "boot it by hand"))
    }

    /// As [`rows`](Self::rows), on Bochs, whose processor has PCIDs.
    pub(super) fn rows_on_bochs(&self) -> Result<(Vec<Row>, String), Failure> {
        let words = self.words(WORDS_ON_BOCHS);
        let commands = format!("linux /kernel {words}\ninitrd /archive\nboot\n");
        let disc =
            Disc::new(&commands, &[(&self.kernel.image, "kernel"), (self.archive, "archive")])?;
        self.rows_by(disc.command(self.cpus))
    }

    /// As [`rows`](Self::rows), by a command that starts a machine with the kernel.
    pub(super) fn rows_by(&self, command: Command) -> Result<(Vec<Row>, String), Failure> {
        let (output, end) = watch::run(command, CPU_MS_MAX)?;
        self.parsed(self.judged(output, end)?)
    }

    pub(super) fn parsed(&self, output: String) -> Result<(Vec<Row>, String), Failure> {
        Ok((boot::parse(&output, self.kernel.variant, self.cpus, COLUMNS)?, output))
    }

    fn judged(&self, output: String, end: End) -> Result<String, Failure> {
        boot::judge(&self.kernel.image, self.run, &output, end)?;
        // On request, each CPU prints the functions that it is in.
        let is_asked = output.contains("sysrq: Show backtrace");
        let is_complaint = |line: &&str| is_complaint(line) && !(is_asked && is_trace(line));
        if let Some(line) = output.lines().find(is_complaint) {
            eprint!("{output}");
            let cause = format!("{} prints: {line}", self.kernel.image.display());
            return Err(Failure::new(cause, "read its output above"));
        }
        Ok(output)
    }
}

/// Returns `true` if the kernel dies while it boots, at a breakpoint that it has set and removed to
/// change its code. With a thread of the host for each CPU, QEMU 7.2 executes an old one now and
/// then, in stock as in ours (`tsc=reliable`: 2 of 180 boots).
fn dies_of_breakpoint(output: &str) -> bool {
    !output.contains("booted ") && output.contains("Oops: int3")
}

/// Returns the engine's counter with a name, which the guest prints at its end; 0 without one.
pub(super) fn count(output: &str, name: &str) -> u64 {
    let counts = output.lines().filter_map(|line| line.strip_prefix("count ")?.split_once(' '));
    let mut named = counts.filter(|(counted, _)| *counted == name);
    named.next().and_then(|(_, count)| count.trim().parse().ok()).unwrap_or(0)
}

fn is_trace(line: &str) -> bool {
    line.contains("Call Trace:")
}

pub(super) fn is_complaint(line: &str) -> bool {
    is_trace(line)
        || ["WARNING:", "BUG:", "rcu: INFO", "blocked for more"]
            .iter()
            .any(|sign| line.contains(sign))
}

#[cfg(test)]
mod tests {
    #[test]
    fn breakpoint_after_the_boot_is_the_kernels() {
        let dies = "Booting from ROM..\nOops: int3: 0000 [#1] SMP NOPTI\n";
        assert!(super::dies_of_breakpoint(dies));
        assert!(!super::dies_of_breakpoint(&format!("booted 4 CPUs\n{dies}")));
        assert!(!super::dies_of_breakpoint("Oops: general protection fault"));
    }
}
