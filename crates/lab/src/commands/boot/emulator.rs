//! The machines that QEMU emulates: its programs, their arguments and their exit statuses. For the
//! other emulator, see `bochs`.

use std::path::Path;
use std::process::Command;

use clap::ValueEnum;

use super::error::BootError;
use super::options::Boot;

/// The emulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Emulator {
    /// QEMU, for all architectures
    Qemu,
    /// Bochs, for x86-64 with PCIDs and global pages; it boots from a disc, which takes 10 s
    Bochs,
}

/// An architecture that the kernel boots on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Architecture {
    /// PVH and LAPICs; QEMU has no PCIDs
    #[value(name = "x86_64", alias = "x86-64")]
    X86_64,
    /// Machine `virt`: GICv3, 16-bit ASIDs, broadcast invalidation
    Aarch64,
    /// Machine `virt`: OpenSBI, Sv48
    Riscv64,
    /// Machine `virt`: TLBs with ASIDs that software refills
    Loongarch64,
}

/// The addresses at which the kernel expects the load on machines without an initrd.
const AARCH64_LOAD: u64 = 0x4400_0000;
const RISCV64_LOAD: u64 = 0x8400_0000;
const LOONGARCH64_LOAD: u64 = 0x800_0000;

/// The machine that enters the kernel at EL1, and at EL2.
const AARCH64: &str = "virt,gic-version=3";
const AARCH64_GUESTS: &str = "virt,gic-version=3,virtualization=on";
/// The processor, and with H.
const RISCV64: &str = "rv64,svade=off,svadu=on";
const RISCV64_GUESTS: &str = "rv64,svade=off,svadu=on,h=true";

impl Architecture {
    /// Returns `true` if the kernel has guests on it.
    pub(crate) const fn has_guests(self) -> bool {
        matches!(self, Self::Aarch64 | Self::Riscv64)
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
            Self::Riscv64 => "riscv64",
            Self::Loongarch64 => "loongarch64",
        }
    }

    /// Returns the compiler's target triple.
    pub(crate) const fn target(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-unknown-none",
            Self::Aarch64 => "aarch64-unknown-none-softfloat",
            Self::Riscv64 => "riscv64imac-unknown-none-elf",
            Self::Loongarch64 => "loongarch64-unknown-none-softfloat",
        }
    }

    /// Returns the program of QEMU, and its package in Debian and Ubuntu.
    const fn program_and_package(self) -> (&'static str, &'static str) {
        match self {
            Self::X86_64 => ("qemu-system-x86_64", "qemu-system-x86"),
            Self::Aarch64 => ("qemu-system-aarch64", "qemu-system-arm"),
            Self::Riscv64 => ("qemu-system-riscv64", "qemu-system-riscv"),
            Self::Loongarch64 => ("qemu-system-loongarch64", "qemu-system-misc"),
        }
    }

    /// Returns the oldest sufficient version, and the reason why older versions fail.
    const fn needed(self) -> Option<(u32, &'static str)> {
        match self {
            Self::X86_64 | Self::Aarch64 => None,
            Self::Riscv64 => Some((9, "older ones were not tried")),
            Self::Loongarch64 => {
                Some((9, "older ones start no second CPU, or mistranslate pages of 4 KiB"))
            }
        }
    }

    /// Returns `true` if the compiler's `core` library for the target is installed.
    pub(crate) fn has_prebuilt_core(self, target: &str) -> bool {
        let installed =
            Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output();
        installed.is_ok_and(|it| Path::new(String::from_utf8_lossy(&it.stdout).trim()).is_dir())
    }

    /// Returns the exit status of the emulator if the kernel passed.
    pub(crate) const fn passed_status(self) -> i32 {
        match self {
            Self::X86_64 => 33,
            Self::Aarch64 | Self::Riscv64 => 42,
            // The machine can only power off, so the last line alone reports the result.
            Self::Loongarch64 => 0,
        }
    }

    /// Returns the time of an instruction where instructions are counted, as a power of two in
    /// nanoseconds.
    ///
    /// On RISC-V, no hint lets another CPU run: a CPU that spins keeps its turn, which is a tenth
    /// of a second of this time. With 1 ns, fault injection would take three times as long.
    const fn instruction_shift(self) -> u32 {
        match self {
            Self::X86_64 | Self::Aarch64 | Self::Loongarch64 => 0,
            Self::Riscv64 => 6,
        }
    }

    /// Checks that the emulator is installed in a sufficient version.
    pub(crate) fn check_emulator(self) -> Result<(), BootError> {
        let (program, package) = self.program_and_package();
        let version = Command::new(program).arg("--version").output();
        let version = version.map_err(|_| BootError::NoEmulator { program, package })?;
        let Some((needed, why)) = self.needed() else { return Ok(()) };
        let version = String::from_utf8_lossy(&version.stdout);
        let found = version.split_whitespace().nth(3).unwrap_or("unknown").to_owned();
        let major = found.split('.').next().and_then(|major| major.parse::<u32>().ok());
        if major.is_some_and(|major| major >= needed) {
            return Ok(());
        }
        Err(BootError::OldEmulator { program, found, needed, why })
    }

    /// Returns the command that starts the emulator. Every CPU has its own thread on the host. With
    /// `counts`, all CPUs share one thread, and time is their number of instructions. With
    /// `guests`, the machine can run a hypervisor.
    pub(crate) fn command(self, kernel: &Path, load: &str, options: &Boot) -> Command {
        let Boot { cpus, counts, guests, .. } = *options;
        let mut command = Command::new(self.program_and_package().0);
        match self {
            Self::X86_64 => command
                .args(["-M", "q35", "-cpu", "max", "-initrd", load])
                .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4"]),
            Self::Aarch64 => command
                .args(["-M", if guests { AARCH64_GUESTS } else { AARCH64 }, "-cpu", "max"])
                .args(["-semihosting-config", "enable=on,target=native"])
                .args(["-device", &loaded(load, AARCH64_LOAD)]),
            Self::Riscv64 => command
                .args(["-M", "virt", "-cpu", if guests { RISCV64_GUESTS } else { RISCV64 }])
                .args(["-device", &loaded(load, RISCV64_LOAD)]),
            Self::Loongarch64 => command
                .args(["-M", "virt", "-cpu", "la464"])
                .args(["-device", &loaded(load, LOONGARCH64_LOAD)]),
        };
        if counts {
            let icount = format!("shift={},sleep=off", self.instruction_shift());
            // The seed is for TLBs with random replacement.
            command.args(["-accel", "tcg", "-icount", &icount, "-seed", "1"]);
        } else {
            command.args(["-accel", "tcg,thread=multi"]);
        }
        command
            .args(["-smp", &cpus.to_string(), "-m", "1G", "-no-reboot"])
            .args(["-display", "none", "-monitor", "none", "-serial", "stdio", "-kernel"])
            .arg(kernel);
        command
    }
}

/// Returns QEMU's device argument for a file that is loaded at an address.
fn loaded(file: &str, address: u64) -> String {
    format!("loader,file={file},addr={address:#x},force-raw=on")
}
