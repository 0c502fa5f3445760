//! Bochs: an x86-64 that is not QEMU's, and keeps other things in its TLB.
//!
//! It takes no kernel, only discs: a BIOS starts GRUB, which loads the kernel and what that is to
//! do (multiboot2). That takes 2 to 15 s, by the number of CPUs, of which it has 14 at most: they
//! take turns on one thread of the host's. The same run is the same each time.

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
/// Debian's and Ubuntu's packages of both.
const PACKAGES: &str = "bochs bochs-term bochsbios vgabios grub-pc-bin grub-common xorriso mtools";

/// With which status a run ends that passed: to be told to shut down is a panic, here.
pub(crate) const PASSED_STATUS: i32 = 1;

/// What GRUB does.
const GRUB: &str = "multiboot2 /kernel\nmodule2 /load\nboot\n";

/// Starts it, with the console on what was standard output, and the screen, which would be there,
/// nowhere. As Debian builds it, it begins in a debugger, and ends when that has no more to read:
/// so also when it is interrupted.
const START: &str = "exec \"$0\" \"$@\" 3>&1 >/dev/null <<end\ncontinue\nend\n";

/// What never differs.
const OPTIONS: [&str; 9] = [
    // The only one that needs neither a window nor somebody who looks.
    "display_library: term",
    "memory: guest=1024, host=1024",
    "boot: cdrom",
    "sound: waveoutdrv=dummy, waveindrv=dummy, midioutdrv=dummy",
    "com1: enabled=1, mode=file, dev=/dev/fd/3",
    // It would ask what to do.
    "panic: action=fatal",
    "error: action=ignore",
    "info: action=ignore",
    "debug: action=ignore",
];

/// Whether it is there, and can do what is asked for.
pub(crate) fn is_ready(options: &Boot) -> Result<(), BootError> {
    let refused = [
        ("--arch", options.arch != Architecture::X86_64),
        ("--paths", options.paths),
        ("--counts", options.counts),
    ];
    if let Some((option, _)) = refused.iter().find(|(_, is_asked_for)| *is_asked_for) {
        return Err(BootError::NotOnBochs { option });
    }
    for program in [PROGRAM, DISC_MAKER] {
        let said = Command::new(program).arg("--help").output();
        said.map_err(|_| BootError::NoEmulator { program, package: PACKAGES })?;
    }
    Ok(())
}

/// What it boots from, in a file that has no name.
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
            let said = String::from_utf8_lossy(&made.stderr).trim_end().to_owned();
            let last = said.lines().last().unwrap_or("it fails").to_owned();
            return Err(BootError::Disc(io::Error::other(last)));
        }
        File::open(&disc).map(Self).map_err(BootError::Disc)
    }

    /// How the emulator is started. The model has PCIDs, INVPCID and an x2APIC.
    ///
    /// Time goes by instructions: 10 ns for one of each CPU. With fewer in a second, the kernel's
    /// measurement of the clock would take longer than an 8254 counts, and with more, the BIOS
    /// would take longer.
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
