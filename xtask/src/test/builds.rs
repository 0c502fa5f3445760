//! The steps that compile, and how what they compile is shared.

use std::path::PathBuf;

use crate::command::{Command, Failure, cargo};
use crate::setup::{self, emulators};

/// The profile of the tests, and of the `shootdown` command that they and the boots run.
const PROFILE: &str = "ci";

/// The packages, features and profile of the tests. Others would be another build.
pub(super) const SELECTION: &str =
    "--workspace --exclude book --features shootdown/soft --profile ci";

/// The lints, as strict as the house wants them.
pub(super) fn clippy() -> Result<(), Failure> {
    cargo("clippy --quiet --all-targets").args(SELECTION).args("-- -D warnings").run()
}

/// Compiles all tests.
pub(super) fn tests() -> Result<(), Failure> {
    super::binaries::build().map(|binaries| println!("{} test binaries", binaries.len()))
}

/// Compiles the `shootdown` command, unless the tests have. Returns its path.
pub(crate) fn lab() -> Result<PathBuf, Failure> {
    cargo("build --quiet --bin shootdown").args(SELECTION).run()?;
    Ok(crate::output().join(PROFILE).join("shootdown"))
}

/// Compiles an example, unless the tests have. Returns a command that runs it.
pub(crate) fn example(name: &str) -> Result<Command, Failure> {
    cargo("build --quiet").args(SELECTION).arg("--example").arg(name).run()?;
    Ok(Command::new(crate::output().join(PROFILE).join("examples").join(name)))
}

/// The examples in the documentation.
pub(super) fn doc_tests() -> Result<(), Failure> {
    cargo("test --quiet --doc").args(SELECTION).run()
}

/// The documentation has no broken link.
pub(super) fn documentation() -> Result<(), Failure> {
    cargo("doc --quiet --no-deps").args(SELECTION).env("RUSTDOCFLAGS", "-D warnings").run()
}

/// The engine, the memory manager and the language of workloads compile where there is no operating
/// system; and so does the kernel, without a warning.
pub(super) fn bare_targets() -> Result<(), Failure> {
    for target in setup::BARE_TARGETS {
        cargo("check --quiet -p shootdown -p shootdown-vm -p shootdown-program --target")
            .arg(target)
            .run()?;
        println!("shootdown, shootdown-vm and shootdown-program: {target}");
    }
    for (arch, target, ..) in emulators::ARCHITECTURES {
        emulators::cargo_for_kernel("clippy --quiet --package smallest-embedding", target)?
            .args("-- -D warnings")
            .run()?;
        println!("kernel and smallest embedding: no warnings on {arch}");
    }
    Ok(())
}
