//! The build of the kernel from the source in the repository.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::emulator::Architecture;
use super::error::BootError;

/// Builds the kernel if it is not up to date, and returns its path.
///
/// The kernel has all assertions. With `for_counts`, it is built as for release, because its
/// instructions are counted.
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
        // If cargo runs this command, the environment has flags for the host.
        .env_remove("RUSTFLAGS");
    if !arch.has_prebuilt_core(target) {
        // The stable compiler accepts this option only in bootstrap mode.
        cargo.args(["-Zbuild-std=core,alloc", "-Zbuild-std-features=compiler-builtins-mem"]);
        cargo.env("RUSTC_BOOTSTRAP", "1");
    }
    let built = cargo.output().map_err(BootError::Start)?;
    if !built.status.success() {
        let output = String::from_utf8_lossy(&built.stderr);
        let error = output.lines().find(|line| line.starts_with("error"));
        let error = error.or(output.lines().last()).unwrap_or("cargo failed").to_owned();
        return Err(BootError::Build { target, error });
    }
    // The directory of the profile `bench` is `release`.
    let directory = if for_counts { "release" } else { "debug" };
    Ok(output.join(target).join(directory).join("shootdown-kernel"))
}
