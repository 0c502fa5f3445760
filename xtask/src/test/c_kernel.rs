//! The kernel in C that boots on RISC-V: an example to copy, and a test of the C interface on an
//! MMU.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::command::{Command, Failure};
use crate::setup::{self, emulators};

/// That of gcc without options.
const TARGET: &str = "riscv64gc-unknown-none-elf";

/// The folder of the kernel's source.
const SOURCE: &str = "crates/capi/examples/kernel";

/// Maximum time of a boot, which takes some seconds on an idle host.
const LIMIT: Duration = Duration::from_secs(900);

/// A kernel, and the machine on which it boots.
struct Variant {
    features: &'static str,
    /// Arguments of the compiler.
    options: &'static str,
    files: &'static [&'static str],
    machine: &'static str,
}

/// Where the kernel is loaded without firmware, and the flags of the processor.
macro_rules! without_firmware {
    ($interrupt:literal) => {
        concat!(
            "-Wl,--defsym=LOAD_ADDRESS=0x80000000 -DINTERRUPT=",
            $interrupt,
            " -DPROCESSOR=SHOOTDOWN_RISCV64_NO_FIRMWARE|SHOOTDOWN_RISCV64_KERNEL_LOADS",
            "|SHOOTDOWN_RISCV64_SATP_ENDS_WALKS",
        )
    };
}

const TRAMPOLINE: &[&str] = &["machine.S", "trampoline.S", "trampoline.c"];

/// CPUs are notified by interrupts, or also by the firmware's remote fences; or there is no
/// firmware, and user roots do not map the kernel.
const VARIANTS: [Variant; 4] = [
    Variant {
        features: "panic-handler,processor",
        options: "",
        files: &["firmware.c"],
        machine: "virt",
    },
    Variant {
        features: "panic-handler,processor,broadcast",
        options: "",
        files: &["firmware.c"],
        machine: "virt",
    },
    Variant {
        features: "panic-handler,processor",
        options: without_firmware!("0x2000000"),
        files: TRAMPOLINE,
        machine: "virt -bios none",
    },
    Variant {
        features: "panic-handler,processor",
        options: without_firmware!("0x2f00000"),
        files: TRAMPOLINE,
        machine: "virt,aclint=on -bios none",
    },
];

/// Builds the library and the kernels, and boots each on four CPUs.
pub(super) fn check() -> Result<(), Failure> {
    setup::c_compiler_for_riscv()?;
    if !emulators::for_boots_on("riscv64")? {
        println!("skipped: the kernel in C, which boots on RISC-V");
        return Ok(());
    }
    for variant in &VARIANTS {
        boot(&compile(&library(variant.features)?, variant)?, variant.machine)?;
    }
    Ok(())
}

/// Builds the static library, optimised: the kernel has stacks of 4 KiB. Returns its path.
fn library(features: &str) -> Result<PathBuf, Failure> {
    emulators::cargo_for_target("rustc --quiet --package shootdown-capi --release", TARGET)?
        .args("--crate-type staticlib --features")
        .arg(features)
        .run()?;
    Ok(crate::output().join(TARGET).join("release/libshootdown_capi.a"))
}

/// Compiles the kernel, and links it with the library. Returns its path.
fn compile(library: &Path, variant: &Variant) -> Result<PathBuf, Failure> {
    let kernel = crate::output().join("c-kernel");
    let mut gcc = Command::new("riscv64-linux-gnu-gcc")
        .args("-std=c11 -Wall -Wextra -Werror -O2 -ffreestanding -nostdlib -static -fno-pic")
        .args("-mcmodel=medany -Wl,--build-id=none -Wl,--gc-sections -I crates/capi/include")
        .args(variant.options)
        .arg("-T")
        .arg(format!("{SOURCE}/kernel.ld"));
    for file in variant.files.iter().chain(&["boot.S", "main.c", "memory.c", "glue.c"]) {
        gcc = gcc.arg(format!("{SOURCE}/{file}"));
    }
    gcc.arg(library).arg("-o").arg(&kernel).run()?;
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
