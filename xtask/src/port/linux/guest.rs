//! The guest that both kernels boot: one program, and the rows that it prints.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::kernel::Kernel;
use crate::command::{Command, Failure, unwritable};
use crate::port::boot;
use crate::port::machine::Clock;
use crate::port::row::{Columns, Row};
use crate::port::watch;

/// The source of the guest's program.
const SOURCE: &str = "ports/linux/guest/init.c";

/// What the program prints of each run.
pub(super) const COLUMNS: Columns = &["operations", "calls", "flushes", "instructions", "wrong"];

/// CPU time between two lines: the longest program, on 16 CPUs that wait for each other.
const CPU_MS_MAX: u64 = 600_000;

/// Without random numbers of the host and random addresses, two boots give the same rows. QEMU
/// stops with "Bad icount read" where the timer of its x2APIC is set.
const MACHINE: &str = "-machine q35,hpet=off -cpu max,-x2apic,-rdrand,-rdseed -m 768M \
                       -rtc base=2026-01-01,clock=vm -nographic -nodefaults -serial stdio \
                       -no-reboot";
const WORDS: &str = "console=ttyS0 quiet loglevel=4 panic=-1 nokaslr norandmaps";

/// Compiles the guest's program, and makes the archive that the kernel unpacks.
pub(super) fn archive() -> Result<PathBuf, Failure> {
    let folder = crate::output().join("ports/linux");
    fs::create_dir_all(&folder).map_err(unwritable(&folder))?;
    let (program, archive) = (folder.join("init"), folder.join("guest.cpio"));
    crate::setup::c_compiler()?;
    Command::new("gcc")
        .args("-O2 -Wall -Wextra -Werror -static -pthread -o")
        .arg(&program)
        .arg(SOURCE)
        .run()?;
    let pack = || -> io::Result<()> {
        let (bytes, mut out) = (fs::read(&program)?, File::create(&archive)?);
        let head = cpio::newc::Builder::new("init").mode(0o100_755).nlink(1);
        let mut member = head.write(&mut out, bytes.len() as u32);
        member.write_all(&bytes)?;
        member.finish()?;
        cpio::newc::trailer(&mut out).map(drop)
    };
    pack().map_err(unwritable(&archive))?;
    Ok(archive)
}

/// A boot of a kernel.
#[derive(Clone, Debug)]
pub(super) struct Boot<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) archive: &'a Path,
    pub(super) cpus: u32,
    pub(super) clock: Clock,
    /// What the guest runs.
    pub(super) run: &'a str,
}

impl Boot<'_> {
    /// Returns the command.
    pub(super) fn command(&self) -> Command {
        Command::new("qemu-system-x86_64")
            .args(MACHINE)
            .args(self.clock.accelerator())
            .arg("-smp")
            .arg(self.cpus.to_string())
            .arg("-kernel")
            .arg(&self.kernel.image)
            .arg("-initrd")
            .arg(self.archive)
            .arg("-append")
            .arg(format!("{WORDS} run={}", self.run))
    }

    /// Boots, and returns the rows that the guest prints, in their order, and all of its output.
    ///
    /// # Errors
    ///
    /// If the guest does not come to its end, or the kernel prints a warning.
    pub(super) fn rows(&self) -> Result<(Vec<Row>, String), Failure> {
        let (output, end) = watch::run(self.command(), CPU_MS_MAX)?;
        boot::judge(&self.kernel.image, self.run, &output, end)?;
        if let Some(line) = output.lines().find(|line| is_complaint(line)) {
            eprint!("{output}");
            let cause = format!("{} prints: {line}", self.kernel.image.display());
            return Err(Failure::new(cause, "read its output above"));
        }
        let rows = boot::parse(&output, self.kernel.variant, self.cpus, COLUMNS)?;
        Ok((rows, output))
    }
}

fn is_complaint(line: &str) -> bool {
    ["WARNING:", "BUG:", "Call Trace:", "rcu: INFO", "blocked for more"]
        .iter()
        .any(|sign| line.contains(sign))
}
