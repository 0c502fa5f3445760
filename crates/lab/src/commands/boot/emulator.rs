//! The machines that QEMU emulates: which program, with which arguments, and how it ends. For the
//! other emulator, see `bochs`.

use std::path::Path;
use std::process::Command;

use clap::ValueEnum;

use super::error::BootError;

/// Who emulates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Emulator {
    /// All architectures
    Qemu,
    /// x86-64 alone, with PCIDs and global pages: it boots from a disc, which takes ten seconds
    Bochs,
}

/// An architecture that the kernel boots on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Architecture {
    /// PVH, LAPICs, no PCIDs: QEMU has none
    #[value(name = "x86_64", alias = "x86-64")]
    X86_64,
    /// `virt`: GICv3, 16-bit ASIDs, broadcasts
    Aarch64,
    /// `virt`: software refill, TLBs tagged exactly
    Loongarch64,
}

/// Where the load is put, where there is no initrd: as the kernel expects it.
const AARCH64_LOAD: u64 = 0x4400_0000;
const LOONGARCH64_LOAD: u64 = 0x800_0000;

impl Architecture {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
            Self::Loongarch64 => "loongarch64",
        }
    }

    /// The compiler's name of it.
    pub(crate) const fn target(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-unknown-none",
            Self::Aarch64 => "aarch64-unknown-none-softfloat",
            Self::Loongarch64 => "loongarch64-unknown-none-softfloat",
        }
    }

    const fn program(self) -> &'static str {
        match self {
            Self::X86_64 => "qemu-system-x86_64",
            Self::Aarch64 => "qemu-system-aarch64",
            Self::Loongarch64 => "qemu-system-loongarch64",
        }
    }

    /// Debian's and Ubuntu's package of the program.
    const fn package(self) -> &'static str {
        match self {
            Self::X86_64 => "qemu-system-x86",
            Self::Aarch64 => "qemu-system-arm",
            Self::Loongarch64 => "qemu-system-misc",
        }
    }

    /// The oldest version that will do, and why.
    const fn needed(self) -> Option<(u32, &'static str)> {
        match self {
            Self::X86_64 | Self::Aarch64 => None,
            Self::Loongarch64 => {
                Some((9, "older ones start no second CPU, or mistranslate pages of 4 KiB"))
            }
        }
    }

    /// Whether the compiler's `core` for the target is installed.
    pub(crate) fn has_prebuilt_core(self, target: &str) -> bool {
        let installed =
            Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output();
        installed.is_ok_and(|said| Path::new(String::from_utf8_lossy(&said.stdout).trim()).is_dir())
    }

    /// With which status a run ends that passed.
    pub(crate) const fn passed_status(self) -> i32 {
        match self {
            Self::X86_64 => 33,
            Self::Aarch64 => 42,
            // To power off is all that it can do: its last line must do.
            Self::Loongarch64 => 0,
        }
    }

    pub(crate) fn emulator_is_there(self) -> Result<(), BootError> {
        let (program, package) = (self.program(), self.package());
        let said = Command::new(program).arg("--version").output();
        let said = said.map_err(|_| BootError::NoEmulator { program, package })?;
        let Some((needed, why)) = self.needed() else { return Ok(()) };
        let said = String::from_utf8_lossy(&said.stdout);
        let found = said.split_whitespace().nth(3).unwrap_or("unknown").to_owned();
        let major = found.split('.').next().and_then(|major| major.parse::<u32>().ok());
        if major.is_some_and(|major| major >= needed) {
            return Ok(());
        }
        Err(BootError::OldEmulator { program, found, needed, why })
    }

    /// How the emulator is started. Every CPU has a thread of the host's; or all take turns, and
    /// time is the number of their instructions.
    pub(crate) fn command(self, kernel: &Path, load: &str, cpus: u32, counts: bool) -> Command {
        let mut command = Command::new(self.program());
        match self {
            Self::X86_64 => command
                .args(["-M", "q35", "-cpu", "max", "-initrd", load])
                .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4"]),
            Self::Aarch64 => command
                .args(["-M", "virt,gic-version=3", "-cpu", "max"])
                .args(["-semihosting-config", "enable=on,target=native"])
                .args(["-device", &loaded(load, AARCH64_LOAD)]),
            Self::Loongarch64 => command
                .args(["-M", "virt", "-cpu", "la464"])
                .args(["-device", &loaded(load, LOONGARCH64_LOAD)]),
        };
        if counts {
            // The seed is for TLBs in which an entry is replaced by chance.
            command.args(["-accel", "tcg", "-icount", "shift=0,sleep=off", "-seed", "1"]);
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

/// The emulator's word for a file that is in memory at an address.
fn loaded(file: &str, address: u64) -> String {
    format!("loader,file={file},addr={address:#x},force-raw=on")
}
