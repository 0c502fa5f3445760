//! Ours as a guest of KVM, which flushes for virtual CPUs that it has preempted.
//!
//! QEMU interprets AMD's virtualization as well, so a distribution's kernel with KVM runs in an
//! emulated machine, and ours in a virtual one below it. That one has more CPUs than its host.

use std::fs;
use std::path::{Path, PathBuf};

use super::configuration::Configuration;
use super::guest::{self, Member};
use super::package::Packages;
use super::{has_emulator, kernel};
use crate::command::{Command, Failure, unwritable};
use crate::port::machine::Clock;
use crate::port::source::{Arch, Variant};

const HOST: &str = "-machine q35 -cpu max -accel tcg,thread=multi -smp 2 -m 2560M -nographic \
                    -nodefaults -serial stdio -no-reboot";
const HOST_WORDS: &str = "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off tsc=reliable";

const WORDS: &str = "mitigations=off";
/// The checks, on so many virtual CPUs that most of them are away.
const CHECKS: (u32, &str) = (8, "replace,100:protect,50:paging,10:filters,10:exit,10");
/// A CPU counts as away when it was away once, on so few that they run most of the time. Whether
/// KVM is asked makes no difference: QEMU empties its TLB whenever it enters a virtual machine.
const FAULT: (u32, &str) = (3, "away_remembered:replace,1000:protect,200");

/// CPUs that a boot must skip.
const SKIPPED_MIN: u64 = 100;

/// What QEMU loads in the machine that it virtualizes.
const FIRMWARE: [&str; 3] = [
    "/usr/share/seabios/bios-256k.bin",
    "/usr/share/qemu/linuxboot_dma.bin",
    "/usr/share/qemu/kvmvapic.bin",
];

/// Builds the kernel, and runs the checks in a guest of KVM: nothing is wrong, and CPUs that are
/// away were skipped. With a fault, much is wrong.
pub(super) fn check() -> Result<(), Failure> {
    has_emulator(Arch::X86_64)?;
    let kernel = kernel::build_with(Configuration::Kvm, Variant::Shootdown)?;
    let archive = guest::archive(&kernel)?;
    let (image, archive) = host(&kernel.image, &archive)?;
    let booted = |(cpus, run): (u32, _)| {
        let boot = kernel.boot(&archive, (cpus, Clock::Host), WORDS, run);
        let command = Command::new("qemu-system-x86_64").args(HOST);
        let command = command.arg("-kernel").arg(&image).arg("-initrd").arg(&archive);
        let words = format!("{HOST_WORDS} -- {cpus} {}", boot.words(""));
        let (rows, output) = boot.rows_by(command.arg("-append").arg(words))?;
        let skipped = guest::count(&output, "skipped_away");
        let wrong: u64 = rows.iter().map(|row| row.count("wrong")).sum();
        println!(
            "`{run}` on {cpus} virtual CPUs: {wrong} wrong, {} interrupts sent, {skipped} CPUs \
             skipped because they were away",
            guest::count(&output, "interrupts_sent"),
        );
        Ok::<_, Failure>((wrong, skipped))
    };
    let (wrong, skipped) = booted(CHECKS)?;
    if wrong > 0 || skipped < SKIPPED_MIN {
        let cause = format!("{wrong} are wrong, and {skipped} CPUs were skipped");
        return Err(Failure::new(cause, "find the cause"));
    }
    let (wrong, _) = booted(FAULT)?;
    if wrong == 0 {
        let cause = "nothing is wrong if a CPU that was away once counts as away";
        return Err(Failure::new(cause, "find out why ports/linux/guest does not detect it"));
    }
    Ok(())
}

/// Returns the kernel with KVM, and its archive, in which ours is a guest.
fn host(image: &Path, archive: &Path) -> Result<(PathBuf, PathBuf), Failure> {
    const UNPACK: &str = "dpkg-deb --fsys-tarfile \"$0\" | tar -x --wildcards --transform \
                          's,.*/,,' '*/vmlinuz-*' '*/kvm.ko.xz' '*/kvm-amd.ko.xz' \
                          '*/irqbypass.ko.xz' && mv vmlinuz-* vmlinuz";
    let folder = crate::output().join("ports/linux/kvm");
    fs::create_dir_all(&folder).map_err(unwritable(&folder))?;
    let package = Packages::read()?.hypervisor.fetch()?;
    Command::new("sh").arg("-c").arg(UNPACK).arg(package).within(&folder).run()?;
    let (init, packed) = (folder.join("init"), folder.join("host.cpio"));
    guest::compile("gcc", "ports/linux/guest/hypervisor.c", &init)?;
    let emulator = Command::new("sh").args("-c").arg("command -v qemu-system-x86_64").output()?;
    let emulator = emulator.trim();
    let mut members = vec![
        Member::new("init", init),
        Member::new("qemu", PathBuf::from(emulator)),
        Member::new("guest/kernel", image.to_owned()),
        Member::new("guest/archive", archive.to_owned()),
    ];
    members.extend(Member::libraries_of(Path::new(emulator))?);
    members.extend(["irqbypass", "kvm", "kvm-amd"].map(|name| {
        let name = format!("{name}.ko.xz");
        Member::new(format!("modules/{name}"), folder.join(name))
    }));
    members.extend(FIRMWARE.map(|name| {
        let (_, base) = name.rsplit_once('/').unwrap_or_default();
        Member::new(format!("firmware/{base}"), name.into())
    }));
    guest::pack(&packed, &members)?;
    Ok((folder.join("vmlinuz"), packed))
}
