//! The kernel in C that boots on RISC-V: an example to copy, and a test of the C interface on an
//! MMU.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::c::link_embedding;
use crate::command::{Command, Failure};
use crate::setup::{self, emulators};

/// That of gcc without options.
const TARGET: &str = "riscv64gc-unknown-none-elf";

/// The folder of the kernel's source.
const SOURCE: &str = "crates/capi/examples/kernel";

/// Maximum time of a boot, which takes some seconds on an idle host.
const LIMIT: Duration = Duration::from_secs(900);

/// Arguments of `make`, and the machine on which the kernel boots. CPUs are notified by interrupts,
/// or also by the firmware's remote fences; or there is no firmware, and user roots do not map the
/// kernel.
const VARIANTS: [(&str, &str); 4] = [
    ("", "virt"),
    ("FEATURES=panic-handler,processor,broadcast", "virt"),
    ("VARIANT=trampoline", "virt -bios none"),
    ("VARIANT=trampoline INTERRUPT=0x2f00000", "virt,aclint=on -bios none"),
];

/// Builds the library and the kernels, and boots each on four CPUs.
pub(super) fn check() -> Result<(), Failure> {
    setup::c_compiler_for_riscv()?;
    if !emulators::for_boots_on("riscv64")? {
        println!("skipped: the kernel in C, which boots on RISC-V");
        return Ok(());
    }
    for (arguments, machine) in VARIANTS {
        boot(&compile(arguments)?, machine)?;
    }
    let library = crate::output().join(TARGET).join("release/libshootdown_capi.a");
    link_embedding("riscv64-linux-gnu-gcc", &library)
}

/// Compiles the library and the kernel as the book says. Returns the kernel's path.
fn compile(arguments: &str) -> Result<PathBuf, Failure> {
    // The library is optimised: the kernel has stacks of 4 KiB.
    emulators::core_for(TARGET)?;
    let kernel = crate::output().join("c-kernel");
    let set = |name: &str, path: &Path| format!("{name}={}", path.display());
    Command::new("make")
        .args("--silent -C")
        .arg(SOURCE)
        .args(arguments)
        .arg(set("OUTPUT", &crate::output()))
        .arg(set("KERNEL", &kernel))
        .run()?;
    Ok(kernel)
}

/// Boots the kernel, which compares the numbers of stale reads by itself. Prints its lines.
fn boot(kernel: &Path, machine: &str) -> Result<(), Failure> {
    let captured = Command::new("qemu-system-riscv64")
        .args("-smp 4 -m 64M -accel tcg,thread=multi -display none -monitor none -serial stdio -M")
        .args(machine)
        .arg("-kernel")
        .arg(kernel)
        .captured_within(LIMIT)?;
    let lines: Vec<&str> =
        captured.output.lines().filter(|line| line.starts_with("C kernel")).collect();
    lines.iter().for_each(|line| println!("{machine}: {line}"));
    if captured.status.is_some_and(|status| status.success()) && lines.len() == 2 {
        return Ok(());
    }
    println!("{}", captured.output.lines().last().unwrap_or("the kernel printed nothing"));
    Err(Failure::new(
        "the kernel in C had stale reads with the engine, had none without it, or did not end",
        format!("read its lines above; its source is {SOURCE}"),
    ))
}
