//! The emulated machines of the comparison.

use std::path::Path;

use super::source::Arch;
use crate::command::Command;

/// The clock of a boot.
#[derive(Clone, Copy, Debug)]
pub(super) enum Clock {
    /// Counts the instructions of all CPUs, which take turns on one thread of the host. Two boots
    /// give the same rows.
    Instructions,
    /// The host's, with a thread of the host for each CPU.
    Host,
}

impl Clock {
    /// Returns QEMU's options.
    pub(super) const fn accelerator(self) -> &'static str {
        match self {
            Self::Instructions => "-accel tcg,thread=single -icount shift=0,sleep=off",
            Self::Host => "-accel tcg,thread=multi",
        }
    }
}

/// A machine that boots a kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    pub(super) arch: Arch,
    pub(super) cpus: u32,
    pub(super) clock: Clock,
}

/// Options for every machine.
const COMMON: &str = "-m 512M -no-reboot -display none -monitor none -serial stdio";

/// Half of the memory is above 4 GiB: the framework maps memory up to the last usable byte, and
/// reads the tables of ACPI, which must be below it.
const X86_64: &str = "-machine q35,max-ram-below-4g=256M \
                      -device isa-debug-exit,iobase=0xf4,iosize=0x04";

/// The framework needs page attributes (Svpbmt) for memory of devices, and a source of random
/// numbers (Zkr).
const RISCV64: &str = "-machine virt -cpu rv64,svpbmt=true,zkr=true";

impl Machine {
    /// Returns the emulator of an architecture.
    pub(super) const fn emulator(arch: Arch) -> &'static str {
        match arch {
            Arch::X86_64 => "qemu-system-x86_64",
            Arch::Riscv64 => "qemu-system-riscv64",
        }
    }

    /// Returns the command that boots a kernel with these words on its command line.
    pub(super) fn command(self, kernel: &Path, words: &str) -> Command {
        let command = Command::new(Self::emulator(self.arch)).args(COMMON);
        let command = match self.arch {
            Arch::X86_64 => command.args(X86_64),
            Arch::Riscv64 => command.args(RISCV64),
        };
        let command = command.arg("-smp").arg(self.cpus.to_string()).arg("-kernel").arg(kernel);
        let (options, words) = match (self.arch, self.clock) {
            // QEMU stops with "Bad icount read" where the timer of its x2APIC is set.
            (Arch::X86_64, Clock::Instructions) => ("-cpu max,-x2apic", format!("counted {words}")),
            (Arch::X86_64, Clock::Host) => ("-cpu max", words.to_owned()),
            (Arch::Riscv64, Clock::Instructions) => (SHORT_TURNS, format!("counted {words}")),
            (Arch::Riscv64, Clock::Host) => ("", words.to_owned()),
        };
        command.args(options).args(self.clock.accelerator()).arg("-append").arg(words)
    }
}

/// Ends the turn of each CPU after at most 1 µs, which is 1000 instructions.
///
/// QEMU's RISC-V has no instruction that ends a turn, as `pause` does on x86-64. A CPU that waits
/// for another would run until the next event of a timer, for up to a million instructions. This
/// filter's timer, of a network that nothing uses, is such an event.
const SHORT_TURNS: &str = "-netdev hubport,id=none,hubid=0 \
                           -object filter-buffer,id=turns,netdev=none,interval=1";
