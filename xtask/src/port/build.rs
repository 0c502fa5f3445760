//! Builds the kernels of the comparison.

use std::fs;
use std::path::{Path, PathBuf};

use super::source::{Arch, Port, Variant};
use crate::command::{Command, Failure, unwritable};

/// Returns the folder of everything that is built.
fn folder() -> Result<PathBuf, Failure> {
    let folder = crate::output().join("ports/ostd");
    // The builds run in other folders, for which a relative path would be another one.
    std::path::absolute(&folder).map_err(|error| {
        Failure::new(format!("{}: {error}", folder.display()), "set CARGO_TARGET_DIR")
    })
}

/// Installs the compiler that the framework asks for.
fn toolchain(port: &Port, arch: Arch) -> Result<(), Failure> {
    let installed = Command::new("rustup").args("toolchain list").output()?;
    if !installed.lines().any(|line| line.starts_with(&port.toolchain)) {
        Command::new("rustup")
            .args("toolchain install --profile minimal")
            .arg(&port.toolchain)
            .run()?;
    }
    let installed = Command::new("rustup")
        .args("target list --installed --toolchain")
        .arg(&port.toolchain)
        .output()?;
    if installed.lines().any(|line| line == port.target(arch)) {
        return Ok(());
    }
    Command::new("rustup")
        .args("target add --toolchain")
        .arg(&port.toolchain)
        .arg(port.target(arch))
        .run()
}

/// Installs the source of the standard library, which the tests build with unwind tables.
fn standard_library(port: &Port) -> Result<(), Failure> {
    Command::new("rustup")
        .args("component add rust-src --toolchain")
        .arg(&port.toolchain)
        .output_or_show()
}

/// A kernel of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kernel {
    /// The kernel of the comparison.
    Comparison,
    /// The framework's unit tests.
    Tests,
}

impl Kernel {
    /// The folder, the name of the program, the options of the build, and the profile.
    const fn build(self) -> (&'static str, &'static str, &'static str, &'static str) {
        match self {
            Self::Comparison => ("kernel", "ostd-comparison", "--release", "release"),
            Self::Tests => ("tests", "ostd-tests", "", "debug"),
        }
    }
}

/// Builds a kernel with each variant of the framework. Returns the programs.
pub(super) fn kernels(
    kernel: Kernel,
    arch: Arch,
    variants: &[Variant],
) -> Result<Vec<PathBuf>, Failure> {
    let port = Port::read()?;
    toolchain(&port, arch)?;
    if kernel == Kernel::Tests {
        standard_library(&port)?;
    }
    let archive = port.fetch()?;
    variants.iter().map(|&variant| build(&port, &archive, kernel, arch, variant)).collect()
}

fn build(
    port: &Port,
    archive: &Path,
    kernel: Kernel,
    arch: Arch,
    variant: Variant,
) -> Result<PathBuf, Failure> {
    let (source, name, options, profile) = kernel.build();
    let (folder, all) = (folder()?.join(variant.name()), folder()?);
    port.prepare(archive, variant, &folder)?;
    eprintln!("building {name} for {} on {}", arch.name(), variant.description());
    // The framework's dependencies are the same for all variants, and are built once.
    let target = all.join("build");
    Command::new("cargo")
        .arg(format!("+{}", port.toolchain))
        .args("build --quiet")
        .args(options)
        .arg("--target")
        .arg(port.target(arch))
        .env("CARGO_TARGET_DIR", &target)
        .within(&folder.join(source))
        // The framework warns of functions that one architecture does not use.
        .output_or_show()?;
    let program = folder.join(format!("{name}-{}", arch.name()));
    let built = target.join(port.target(arch)).join(profile).join(name);
    fs::copy(&built, &program).map_err(unwritable(&built))?;
    Ok(program)
}
