//! The steps that compile, and the build that they share.

use std::path::PathBuf;

use crate::command::{Command, Failure, cargo};
use crate::setup::{self, emulators};

/// The profile of the tests, and of the `shootdown` command that the tests and the boots run.
const PROFILE: &str = "ci";

/// The packages, features and profile of the tests. Another selection would be another build.
pub(crate) const SELECTION: &str =
    "--workspace --exclude book --exclude shootdown-python --features shootdown/soft --profile ci";

/// Runs clippy, and treats warnings as errors.
pub(super) fn clippy() -> Result<(), Failure> {
    cargo("clippy --quiet --all-targets").args(SELECTION).args("-- -D warnings").run()
}

/// Compiles all tests.
pub(super) fn tests() -> Result<(), Failure> {
    super::binaries::build().map(|binaries| println!("{} test binaries", binaries.len()))
}

/// Compiles the `shootdown` command where necessary. Returns its path.
pub(crate) fn lab() -> Result<PathBuf, Failure> {
    Ok(outputs()?.join("shootdown"))
}

/// Compiles an example where necessary. Returns a command that runs it.
pub(crate) fn example(name: &str) -> Result<Command, Failure> {
    Ok(Command::new(outputs()?.join("examples").join(name)))
}

/// Compiles the command and all examples where necessary. Returns their folder.
///
/// A build without any example lacks features that tests need of dependencies, and would compile
/// the lab once more.
fn outputs() -> Result<PathBuf, Failure> {
    cargo("build --quiet --bin shootdown --examples").args(SELECTION).run()?;
    Ok(crate::output().join(PROFILE))
}

/// Runs the examples in the documentation.
pub(super) fn doc_tests() -> Result<(), Failure> {
    cargo("test --quiet --doc").args(SELECTION).run()
}

/// Builds the documentation. A broken link is an error.
pub(super) fn documentation() -> Result<(), Failure> {
    cargo("doc --quiet --no-deps").args(SELECTION).env("RUSTDOCFLAGS", "-D warnings").run()
}

/// The architectures on which the kernel has the feature `kpti`.
const KPTI: [&str; 2] = ["x86_64", "aarch64"];

/// Checks that the engine, the processors, the memory manager and the language of workloads compile
/// without an operating system, and that the kernel compiles without a warning.
pub(super) fn bare_targets() -> Result<(), Failure> {
    for target in setup::BARE_TARGETS {
        cargo("check --quiet --target")
            .arg(target)
            .args("-p shootdown -p shootdown-hw -p shootdown-vm -p shootdown-program")
            .args("-p shootdown-capi --features shootdown-capi/kpti")
            .run()?;
        println!("engine, processors, memory manager, workloads and C interface: {target}");
    }
    for (arch, target, ..) in emulators::ARCHITECTURES {
        emulators::cargo_for_kernel("clippy --quiet --package smallest-embedding", target)?
            .args("-- -D warnings")
            .run()?;
        if KPTI.contains(&arch) {
            emulators::cargo_for_kernel("clippy --quiet --features shootdown-kernel/kpti", target)?
                .args("-- -D warnings")
                .run()?;
        }
        println!("kernel and smallest embedding: no warnings on {arch}");
    }
    Ok(())
}
