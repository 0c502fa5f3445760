//! The kernel, built from the repository's source.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::emulator::Architecture;
use super::error::BootError;

/// Builds the kernel, unless it is built. Returns where it is.
///
/// With every assertion, or as it would be shipped, where its instructions are counted.
pub(crate) fn build(arch: Architecture, for_counts: bool) -> Result<PathBuf, BootError> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if !root.join("kernel/Cargo.toml").is_file() {
        return Err(BootError::NoSource(root));
    }
    let target = arch.target();
    let output = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || root.join("target"),
        |directory| std::env::current_dir().unwrap_or_default().join(directory),
    );
    let profile = if for_counts { "bench" } else { "dev" };
    let mut cargo = Command::new("cargo");
    cargo
        .current_dir(&root)
        .args(["build", "--quiet", "--package", "shootdown-kernel", "--profile", profile])
        .args(["--target", target, "--target-dir"])
        .arg(&output)
        // This command may itself be run by cargo, with flags for the host.
        .env_remove("RUSTFLAGS");
    if !arch.has_prebuilt_core(target) {
        // The compiler is stable, but for this option.
        cargo.args(["-Zbuild-std=core,alloc", "-Zbuild-std-features=compiler-builtins-mem"]);
        cargo.env("RUSTC_BOOTSTRAP", "1");
    }
    let built = cargo.output().map_err(BootError::Start)?;
    if !built.status.success() {
        let said = String::from_utf8_lossy(&built.stderr);
        let error = said.lines().find(|line| line.starts_with("error"));
        let said = error.or(said.lines().last()).unwrap_or("cargo fails").to_owned();
        return Err(BootError::Build { target, said });
    }
    // Where cargo puts what it builds for benchmarks.
    let directory = if for_counts { "release" } else { "debug" };
    Ok(output.join(target).join(directory).join("shootdown-kernel"))
}
