//! The C interface as a static library, in programs of the host with threads.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::command::{Captured, Command, Failure, cargo};
use crate::{capi_object, setup};

/// The features of the library in the tests.
const FEATURES: &str = "panic-handler,away,broadcast,devices,isolation,reuse,trace";

/// Maximum time of the program, which takes about a second.
const LIMIT: Duration = Duration::from_secs(60);

/// Builds the library as a kernel does, and runs the programs: threads with both methods of
/// notification, and with four defects, which they must detect; and calls that break a contract, in
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
    check_cmake(target)?;
    check_hostile_calls(&library, "ci")?;
    let program = compile("crates/capi/tests/threads.c", &library, "capi-threads")?;
    for mode in ["", "broadcast", "assigned"] {
        let correct = run(&program, mode)?;
        print!("C, threads {mode}: {}", correct.output);
        if !correct.status.is_some_and(|status| status.success()) {
            return Err(Failure::new(
                "the program in C used stale translations, or did not end",
                "read its line above; its source is crates/capi/tests/threads.c",
            ));
        }
    }
    for mode in ["silent", "forgetful", "unrequested", "unmarked"] {
        let wrong = run(&program, mode)?;
        print!("C, threads {mode}: {}", wrong.output);
        if wrong.status.and_then(|status| status.code()) != Some(1) {
            return Err(Failure::new(
                format!("the program in C does not detect the defect of its mode `{mode}`"),
                "read its line above; its source is crates/capi/tests/threads.c",
            ));
        }
    }
    // This replaces the library.
    link_embedding("gcc", &build_library(target, "ci", "panic-handler,processor")?)
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

/// Links the smallest embedding, with functions of the kernel that are not called.
pub(super) fn link_embedding(compiler: &str, library: &Path) -> Result<(), Failure> {
    const KERNEL: &str = "cpu_number controller_number kernel_root put_on_dead_list stop entry_of \
                          free_frame";
    let mut command = Command::new(compiler)
        .args("-std=c11 -Wall -Wextra -Werror -O2 -ffreestanding -nostdlib -static -no-pie")
        .args("-I crates/capi/include crates/capi/examples/embed.c -Wl,-e,start_cpu");
    for name in KERNEL.split_whitespace() {
        command = command.arg(format!("-Wl,--defsym={name}=0"));
    }
    command.arg(library).arg("-o").arg(crate::output().join("capi-embedding")).run()
}

/// Builds the program with threads by CMake, with the library of the release profile, and runs it.
fn check_cmake(target: &str) -> Result<(), Failure> {
    let build = crate::output().join("capi-cmake");
    if Command::new("cmake").args("--version").output().is_err() {
        println!("skipped: CMake, which is not installed");
        return Ok(());
    }
    let set = |name: &str, value: &Path| format!("-D{name}={}", value.display());
    Command::new("cmake")
        .args("--log-level=ERROR -S crates/capi/tests/cmake -B")
        .arg(&build)
        .arg(set("SHOOTDOWN_TARGET", Path::new(target)))
        .arg(set("SHOOTDOWN_OUTPUT", &crate::output()))
        .run()?;
    Command::new("cmake").args("--build").arg(&build).args("-- --silent").run()?;
    Command::new(build.join("threads")).run()
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
