//! Builds the kernels of the comparison.

use std::fs;
use std::path::{Path, PathBuf};

use super::source::{Port, Variant};
use crate::command::{Command, Failure};

/// Returns the folder of everything that is built.
fn folder() -> Result<PathBuf, Failure> {
    let folder = crate::output().join("ports/ostd");
    // The builds run in other folders, for which a relative path would be another one.
    std::path::absolute(&folder).map_err(|error| {
        Failure::new(format!("{}: {error}", folder.display()), "set CARGO_TARGET_DIR")
    })
}

/// Installs the compiler that the framework asks for.
fn toolchain(port: &Port) -> Result<(), Failure> {
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
    if installed.lines().any(|line| line == port.target) {
        return Ok(());
    }
    Command::new("rustup")
        .args("target add --toolchain")
        .arg(&port.toolchain)
        .arg(&port.target)
        .run()
}

/// Builds the kernel with each variant of the framework. Returns the kernels.
pub(super) fn kernels(variants: &[Variant]) -> Result<Vec<PathBuf>, Failure> {
    let port = Port::read()?;
    toolchain(&port)?;
    let archive = port.fetch()?;
    variants.iter().map(|&variant| kernel(&port, &archive, variant)).collect()
}

fn kernel(port: &Port, archive: &Path, variant: Variant) -> Result<PathBuf, Failure> {
    const NAME: &str = "ostd-comparison";
    let (folder, all) = (folder()?.join(variant.name()), folder()?);
    port.prepare(archive, variant, &folder)?;
    eprintln!("building the kernel on {}", variant.description());
    // The framework's dependencies are the same for all variants, and are built once.
    let build = all.join("build");
    Command::new("cargo")
        .arg(format!("+{}", port.toolchain))
        .args("build --quiet --release --features measure")
        .env("CARGO_TARGET_DIR", &build)
        .within(&folder.join("kernel"))
        .run()?;
    let kernel = folder.join(NAME);
    let built = build.join(&port.target).join("release").join(NAME);
    fs::copy(&built, &kernel).map_err(|error| {
        Failure::new(format!("{}: {error}", built.display()), "free some disk space")
    })?;
    Ok(kernel)
}
