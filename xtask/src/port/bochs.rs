//! Boots the framework with the engine on Bochs, whose processor has PCIDs; QEMU's interpreter has
//! none.
//!
//! Bochs boots from a disc: its BIOS starts GRUB, which loads the kernel (multiboot2). All CPUs
//! take turns on one thread of the host, and two boots give the same rows.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::boot;
use super::row::Row;
use super::source::Variant;
use super::watch;
use crate::command::{Command, Failure, unwritable};
use crate::setup::emulators;

/// Starts Bochs with its console on standard output, and discards the screen, which Bochs would
/// print there. Debian's Bochs starts in its debugger, and ends when the debugger's input ends.
const START: &str = "exec \"$0\" \"$@\" 3>&1 >/dev/null <<end\ncontinue\nend\n";

/// Answers to all of Bochs' questions.
const OPTIONS: [&str; 9] = [
    "display_library: term",
    "memory: guest=1024, host=1024",
    "boot: cdrom",
    "sound: waveoutdrv=dummy, waveindrv=dummy, midioutdrv=dummy",
    "com1: enabled=1, mode=file, dev=/dev/fd/3",
    "panic: action=fatal",
    "error: action=ignore",
    "info: action=ignore",
    "debug: action=ignore",
];

/// A processor with PCIDs and `INVPCID`. 100 million instructions of it take a second.
const CPU: &str = "model=corei7_skylake_x, ips=100000000, reset_on_triple_fault=0";

/// Installs Bochs and the tools that make a disc.
pub(super) fn install() -> Result<(), Failure> {
    emulators::bochs().map_err(|_| {
        Failure::missing(
            "Bochs, or a tool that makes its boot disc, is not installed",
            format!("install {}", emulators::BOCHS_PACKAGES),
        )
    })
}

/// A disc that boots a kernel. Its file is deleted with it.
struct Disc(PathBuf);

impl Disc {
    /// Makes a disc for a kernel with these words on its command line.
    fn new(kernel: &Path, words: &str) -> Result<Self, Failure> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let place = format!("shootdown-port-{}-{number}", std::process::id());
        let place = std::env::temp_dir().join(place);
        let (files, disc) = (place.with_extension("files"), place.with_extension("iso"));
        let lay_out = || {
            fs::create_dir_all(files.join("boot/grub"))?;
            let grub = format!("multiboot2 /kernel {words}\nboot\n");
            fs::write(files.join("boot/grub/grub.cfg"), grub)?;
            fs::copy(kernel, files.join("kernel"))
        };
        let laid_out = lay_out().map_err(unwritable(&files));
        let make = || Command::new("grub-mkrescue").arg("-o").arg(&disc).arg(&files);
        let made = laid_out.and_then(|_| make().output_or_show());
        let _ = fs::remove_dir_all(&files);
        made.map(|()| Self(disc))
    }
}

impl Drop for Disc {
    fn drop(&mut self) {
        // If it is gone already, nothing is left to do.
        let _ = fs::remove_file(&self.0);
    }
}

/// Boots a kernel, and returns the rows that it prints.
pub(super) fn rows(kernel: &Path, cpus: u32, words: &str) -> Result<Vec<Row>, Failure> {
    let disc = Disc::new(kernel, words)?;
    let command = Command::new("sh").env("TERM", "dumb").arg("-c").arg(START).arg("bochs");
    let command = command.args("-q -f /dev/null -log /dev/null");
    let command = OPTIONS.iter().fold(command, |command, option| command.arg(option));
    let command = command
        .arg(format!("ata0-master: type=cdrom, path={}, status=inserted", disc.0.display()))
        .arg(format!("cpu: count={cpus}, {CPU}"));
    let (output, end) = watch::run(command, watch::CPU_MS_MAX)?;
    boot::judge(kernel, words, &output, end)?;
    boot::parse(&output, Variant::Shootdown, cpus, super::COLUMNS)
}
