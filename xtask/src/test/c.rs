//! Static libraries in programs of the host: the C interface, in a program with threads, and the
//! test of an adapter.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::command::{Captured, Command, Failure, cargo};
use crate::{capi_object, setup};

/// The features of the library in the tests.
const FEATURES: &str = "panic-handler,away,broadcast,trace";

/// Maximum time of the program, which takes about a second.
const LIMIT: Duration = Duration::from_secs(60);

/// Builds the library as a kernel does, and runs the programs: threads with both methods of
/// notification, and with two defects, which they must detect; and calls that break a contract, in
/// builds with and without assertions.
pub(super) fn check() -> Result<(), Failure> {
    let Some(target) = target() else {
        println!("skipped: no bare target for {}", std::env::consts::ARCH);
        return Ok(());
    };
    setup::c_compiler()?;
    check_header_in_cpp()?;
    capi_object::check()?;
    let library = build_library(target, "ci", FEATURES)?;
    check_hostile_calls(&build_library(target, "release", FEATURES)?, "release")?;
    check_hostile_calls(&library, "ci")?;
    let program = compile("crates/capi/tests/threads.c", &library, "capi-threads")?;
    for mode in ["", "broadcast"] {
        let correct = run(&program, mode)?;
        print!("C, threads {mode}: {}", correct.output);
        if !correct.status.is_some_and(|status| status.success()) {
            return Err(Failure::new(
                "the program in C used stale translations, or did not end",
                "read its line above; its source is crates/capi/tests/threads.c",
            ));
        }
    }
    for mode in ["silent", "forgetful"] {
        let wrong = run(&program, mode)?;
        print!("C, threads {mode}: {}", wrong.output);
        if wrong.status.and_then(|status| status.code()) != Some(1) {
            return Err(Failure::new(
                format!("the program in C does not detect the defect of its mode `{mode}`"),
                "read its line above; its source is crates/capi/tests/threads.c",
            ));
        }
    }
    check_hook(target)
}

pub(crate) fn build_library(
    target: &str,
    profile: &str,
    features: &str,
) -> Result<PathBuf, Failure> {
    cargo("rustc --quiet -p shootdown-capi --crate-type staticlib")
        .args("--features")
        .args(features)
        .arg("--profile")
        .arg(profile)
        .arg("--target")
        .arg(target)
        .run()?;
    Ok(crate::output().join(target).join(profile).join("libshootdown_capi.a"))
}

/// Compiles the header as C++, with calls of a kernel.
fn check_header_in_cpp() -> Result<(), Failure> {
    Command::new("g++")
        .args("-std=c++17 -Wall -Wextra -Werror -pedantic -fsyntax-only -I crates/capi/include")
        .arg("crates/capi/tests/kernel.cpp")
        .run()
}

/// Runs calls that break a contract. The library must report each that it can know to be wrong.
fn check_hostile_calls(library: &Path, profile: &str) -> Result<(), Failure> {
    let program = compile("crates/capi/tests/hostile.c", library, "capi-hostile")?;
    let ended = run(&program, "")?;
    print!("C, hostile calls, {profile}: {}", ended.output);
    if ended.status.is_some_and(|status| status.success()) {
        return Ok(());
    }
    Err(Failure::new(
        "a call that breaks a contract of the C interface did not end as expected",
        "read its line above; its source is crates/capi/tests/hostile.c",
    ))
}

/// Runs the test of the adapter for `page_table_multiarch`, which calls its hook only on a target
/// without an operating system.
fn check_hook(target: &str) -> Result<(), Failure> {
    const FOLDER: &str = "crates/adapters/page_table_multiarch/examples";
    // The test's page tables are those of x86-64.
    if !target.starts_with("x86_64") {
        println!("skipped: the hook of page_table_multiarch");
        return Ok(());
    }
    cargo("rustc --quiet -p shootdown-page-table-multiarch --example hook --profile ci --target")
        .arg(target)
        .run()?;
    let library = crate::output().join(target).join("ci/examples/libhook.a");
    let program = compile(&format!("{FOLDER}/hook.c"), &library, "hook")?;
    Command::new(program).run()
}

/// Returns the target without an operating system whose code this host executes.
pub(crate) fn target() -> Option<&'static str> {
    let arch = std::env::consts::ARCH;
    setup::BARE_TARGETS.iter().find(|target| target.split('-').next() == Some(arch)).copied()
}

/// Compiles a program in C, and links it with a library. Returns its path.
fn compile(source: &str, library: &Path, name: &str) -> Result<PathBuf, Failure> {
    compile_with("", source, library, name)
}

/// As [`compile`], with options.
pub(crate) fn compile_with(
    options: &str,
    source: &str,
    library: &Path,
    name: &str,
) -> Result<PathBuf, Failure> {
    let program = crate::output().join(name);
    // The library is made for fixed addresses, as kernels are.
    Command::new("gcc")
        .args("-std=c11 -Wall -Wextra -Werror -O1 -no-pie -pthread -I crates/capi/include")
        .args(options)
        .arg(source)
        .arg(library)
        .arg("-o")
        .arg(&program)
        .run()?;
    Ok(program)
}

fn run(program: &PathBuf, mode: &str) -> Result<Captured, Failure> {
    Command::new(program).args(mode).captured_within(LIMIT)
}
