//! Bochs: an emulator of x86-64 whose TLB keeps other entries than QEMU's.
//!
//! Bochs boots from discs: its BIOS starts GRUB, which loads the kernel and the load (multiboot2).
//! A boot takes 2 to 15 s, depending on the number of CPUs. Bochs has at most 14 CPUs, which take
//! turns on one thread of the host. Repeated runs are identical.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::Command;

use super::emulator::Architecture;
use super::error::BootError;
use super::load::{Load, path_of};
use super::options::Boot;

const PROGRAM: &str = "bochs";
const DISC_MAKER: &str = "grub-mkrescue";
/// The packages of both programs in Debian and Ubuntu.
const PACKAGES: &str = "bochs bochs-term bochsbios vgabios grub-pc-bin grub-common xorriso mtools";

/// The exit status of Bochs if the kernel passed. Bochs treats the shutdown request as a panic.
pub(crate) const PASSED_STATUS: i32 = 1;

/// The commands of GRUB.
const GRUB: &str = "multiboot2 /kernel\nmodule2 /load\nboot\n";

/// The shell script that starts Bochs with the console on standard output, and discards the screen,
/// which Bochs would print there. Debian's Bochs starts in its debugger, and ends when the
/// debugger's input ends, also after an interrupt.
const START: &str = "exec \"$0\" \"$@\" 3>&1 >/dev/null <<end\ncontinue\nend\n";

/// The constant options of Bochs.
const OPTIONS: [&str; 9] = [
    // The only display library that needs neither a window nor a user.
    "display_library: term",
    "memory: guest=1024, host=1024",
    "boot: cdrom",
    "sound: waveoutdrv=dummy, waveindrv=dummy, midioutdrv=dummy",
    "com1: enabled=1, mode=file, dev=/dev/fd/3",
    // Otherwise, Bochs would ask the user.
    "panic: action=fatal",
    "error: action=ignore",
    "info: action=ignore",
    "debug: action=ignore",
];

/// Checks that Bochs is installed and supports the options.
pub(crate) fn check(options: &Boot) -> Result<(), BootError> {
    let refused = [("--arch", options.arch != Architecture::X86_64), ("--counts", options.counts)];
    if let Some((option, _)) = refused.iter().find(|(_, is_used)| *is_used) {
        return Err(BootError::NotOnBochs { option });
    }
    for program in [PROGRAM, DISC_MAKER] {
        let help = Command::new(program).arg("--help").output();
        help.map_err(|_| BootError::NoEmulator { program, package: PACKAGES })?;
    }
    Ok(())
}

/// The boot disc, in a file without a name.
#[derive(Debug)]
pub(crate) struct Disc(File);

impl Disc {
    pub(crate) fn new(kernel: &Path, load: &Load) -> Result<Self, BootError> {
        let directory = tempfile::tempdir().map_err(BootError::Start)?;
        let (files, disc) = (directory.path().join("files"), directory.path().join("disc"));
        lay_out(&files, kernel, load).map_err(BootError::Disc)?;
        let made = Command::new(DISC_MAKER).arg("-o").arg(&disc).arg(&files).output();
        let made = made.map_err(BootError::Disc)?;
        if !made.status.success() {
            let errors = String::from_utf8_lossy(&made.stderr).trim_end().to_owned();
            let last = errors.lines().last().unwrap_or("unknown error").to_owned();
            return Err(BootError::Disc(io::Error::other(last)));
        }
        File::open(&disc).map(Self).map_err(BootError::Disc)
    }

    /// Returns the command that starts the emulator. The CPU model has PCIDs, INVPCID and an
    /// x2APIC.
    ///
    /// Time is counted in instructions: 10 ns for one instruction on each CPU. With a lower rate,
    /// the kernel's measurement of the clock would exceed the range of an 8254 timer. With a higher
    /// rate, the BIOS would take longer.
    pub(crate) fn command(&self, cpus: u32) -> Command {
        let mut command = Command::new("sh");
        command
            .env("TERM", "dumb")
            .args(["-c", START, PROGRAM, "-q", "-f", "/dev/null", "-log", "/dev/null"])
            .args(OPTIONS)
            .arg(format!("ata0-master: type=cdrom, path={}, status=inserted", path_of(&self.0)))
            .arg(format!(
                "cpu: model=corei7_skylake_x, count={cpus}, ips=100000000, reset_on_triple_fault=0"
            ));
        command
    }
}

fn lay_out(files: &Path, kernel: &Path, load: &Load) -> io::Result<()> {
    fs::create_dir_all(files.join("boot/grub"))?;
    fs::write(files.join("boot/grub/grub.cfg"), GRUB)?;
    fs::copy(load.path(), files.join("load"))?;
    fs::copy(kernel, files.join("kernel")).map(drop)
}
