//! The kernel in C that boots on RISC-V: an example to copy, and a test of the C interface on an
//! MMU.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::command::{Command, Failure};
use crate::setup::{self, emulators};

const TARGET: &str = "riscv64imac-unknown-none-elf";

/// The folder of the kernel's source.
const SOURCE: &str = "crates/capi/examples/kernel";

/// Maximum time of a boot, which takes some seconds on an idle host.
const LIMIT: Duration = Duration::from_secs(900);

/// Features of the library. CPUs are notified by interrupts, or also by the firmware's remote
/// fences.
const FEATURES: [&str; 2] = ["panic-handler,processor", "panic-handler,processor,broadcast"];

/// Builds the library and the kernel, and boots the kernel on four CPUs.
pub(super) fn check() -> Result<(), Failure> {
    setup::c_compiler_for_riscv()?;
    if !emulators::for_boots_on("riscv64")? {
        println!("skipped: the kernel in C, which boots on RISC-V");
        return Ok(());
    }
    for features in FEATURES {
        boot(&compile(&library(features)?)?)?;
    }
    Ok(())
}

/// Builds the static library. Returns its path.
fn library(features: &str) -> Result<PathBuf, Failure> {
    emulators::cargo_for_target("rustc --quiet --package shootdown-capi --profile ci", TARGET)?
        .args("--crate-type staticlib --features")
        .arg(features)
        .run()?;
    Ok(crate::output().join(TARGET).join("ci/libshootdown_capi.a"))
}

/// Compiles the kernel, and links it with the library. Returns its path.
fn compile(library: &Path) -> Result<PathBuf, Failure> {
    let kernel = crate::output().join("c-kernel");
    let mut gcc = Command::new("riscv64-linux-gnu-gcc")
        .args("-std=c11 -Wall -Wextra -Werror -O2 -ffreestanding -nostdlib -static -fno-pic")
        .args("-march=rv64imac_zicsr_zifencei -mabi=lp64 -mcmodel=medany -Wl,--build-id=none")
        .args("-I crates/capi/include -T")
        .arg(format!("{SOURCE}/kernel.ld"));
    for file in ["boot.S", "main.c", "memory.c", "glue.c"] {
        gcc = gcc.arg(format!("{SOURCE}/{file}"));
    }
    gcc.arg(library).arg("-o").arg(&kernel).run()?;
    Ok(kernel)
}

/// Boots the kernel, which compares the numbers of stale reads by itself. Prints its lines.
fn boot(kernel: &Path) -> Result<(), Failure> {
    let captured = Command::new("qemu-system-riscv64")
        .args("-M virt -smp 4 -m 64M -accel tcg,thread=multi -display none -monitor none")
        .args("-serial stdio -kernel")
        .arg(kernel)
        .captured_within(LIMIT)?;
    let lines: Vec<&str> =
        captured.output.lines().filter(|line| line.starts_with("C kernel")).collect();
    lines.iter().for_each(|line| println!("{line}"));
    if captured.status.is_some_and(|status| status.success()) && lines.len() == 2 {
        return Ok(());
    }
    println!("{}", captured.output.lines().last().unwrap_or("the kernel printed nothing"));
    Err(Failure::new(
        "the kernel in C had stale reads with the engine, had none without it, or did not end",
        format!("read its lines above; its source is {SOURCE}"),
    ))
}
