//! What the commands need beyond a stable toolchain, installed where it is missing.

pub(crate) mod emulators;

use std::path::{Path, PathBuf};

use crate::command::{Command, Failure, cargo};

/// Where kernels run.
pub(crate) const BARE_TARGETS: &[&str] =
    &["x86_64-unknown-none", "aarch64-unknown-none", "riscv64gc-unknown-none-elf"];

/// Others generate other mutants.
const CARGO_MUTANTS: &str = "27.1.0";

/// What a first build of everything takes, in three profiles, is 2.6 GiB where nothing is kept for
/// the next.
const ROOM_MIB: u64 = 4 * 1024;

/// Checks the room on the disk, and installs targets and components of the stable toolchain.
pub(crate) fn toolchain() -> Result<(), Failure> {
    room()?;
    let installed = Command::new("rustup").args("target list --installed").output()?;
    for target in BARE_TARGETS {
        if !installed.lines().any(|line| line == *target) {
            Command::new("rustup").args("target add").arg(target).run()?;
        }
    }
    let installed = Command::new("rustup").args("component list --installed").output()?;
    for component in ["rustfmt", "clippy"] {
        if !installed.lines().any(|line| line.starts_with(component)) {
            Command::new("rustup").args("component add").arg(component).run()?;
        }
    }
    println!("targets and components are installed");
    Ok(())
}

/// Installs miri, the emulators and valgrind.
pub(crate) fn packages() -> Result<(), Failure> {
    let nightly = Command::new("rustup")
        .args("component list --installed --toolchain nightly")
        .output()
        .unwrap_or_default();
    let has = |component| nightly.lines().any(|line| line.starts_with(component));
    if !has("miri") || !has("rust-src") {
        let install = "toolchain install nightly --profile minimal -c miri -c rust-src";
        // An installed nightly is not updated for the sake of a component.
        let add = "component add miri rust-src --toolchain nightly";
        Command::new("rustup").args(if nightly.is_empty() { install } else { add }).run()?;
    }
    println!("miri is installed");
    let ready = emulators::for_boots()?;
    println!("emulators are installed for {}", ready.join(", "));
    if let Err(failure) = instruction_counter() {
        // The step that counts reports that it is skipped.
        println!("note: {}", failure.cause());
    }
    Ok(())
}

/// Before the lab is first built: a compiler that finds the disk full says so in a hundred lines.
fn room() -> Result<(), Failure> {
    let output = crate::output();
    if output.join("ci/shootdown").exists() {
        return Ok(());
    }
    let failed = |error: std::io::Error| {
        Failure::new(format!("{}: {error}", output.display()), "set CARGO_TARGET_DIR elsewhere")
    };
    std::fs::create_dir_all(&output).map_err(failed)?;
    // Where there is no such `df`, nobody knows better than the compiler.
    let df = Command::new("df").args("-Pk").arg(&output).output().unwrap_or_default();
    match free_mib(&df) {
        Some(free) if free < ROOM_MIB => Err(Failure::new(
            format!("{free} MiB are free in {}, and {ROOM_MIB} are needed", output.display()),
            "make room, or set CARGO_TARGET_DIR to where there is some",
        )),
        _ => Ok(()),
    }
}

/// Of what POSIX's `df -Pk` says of one place.
fn free_mib(df: &str) -> Option<u64> {
    let kib: u64 = df.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()?;
    Some(kib / 1024)
}

/// Tests of recording skip themselves where the kernel does not let them trace. Nothing is mounted
/// for them: that is for whoever's machine it is.
pub(crate) fn say_whether_recording_is_tested() {
    let has_tracefs = Path::new("/sys/kernel/tracing/instances").is_dir();
    match (is_root(), has_tracefs) {
        (true, true) => println!("recording is tested with this kernel"),
        (false, _) => println!("note: recording is not tested; try:   sudo cargo xtask test"),
        (true, false) => println!(
            "note: recording is not tested; try:   mount -t tracefs nodev /sys/kernel/tracing"
        ),
    }
}

/// Valgrind.
pub(crate) fn instruction_counter() -> Result<(), Failure> {
    if Command::new("valgrind").args("--version").output().is_err() {
        install_from_distribution("valgrind")?;
    }
    Ok(())
}

/// cargo-mutants. Returns its path.
pub(crate) fn mutator() -> Result<PathBuf, Failure> {
    install("cargo-mutants", CARGO_MUTANTS)
}

/// Builds a program of a crate of the same name, unless it is there. Returns its path.
fn install(name: &str, version: &str) -> Result<PathBuf, Failure> {
    let place = crate::output().join(format!("{name}-{version}"));
    let program = place.join("bin").join(name);
    if !program.exists() {
        println!("building {name} {version}, once: two minutes");
        cargo("install --quiet --locked --version")
            .arg(version)
            .arg("--root")
            .arg(&place)
            .arg(name)
            .run()?;
    }
    Ok(program)
}

/// Installs packages of Debian's or Ubuntu's, as root or with a `sudo` that does not ask.
fn install_from_distribution(packages: &str) -> Result<(), Failure> {
    let by_hand = || {
        Failure::new(
            format!("not installed: {packages}"),
            format!("sudo apt-get install {packages}, or your system's way to install it"),
        )
    };
    let apt = |words: &str| {
        let apt = if is_root() {
            Command::new("apt-get")
        } else {
            Command::new("sudo").args("-n apt-get")
        };
        apt.args(words).env("DEBIAN_FRONTEND", "noninteractive").run()
    };
    apt("update -qq").map_err(|_| by_hand())?;
    apt(&format!("install -y -qq --no-install-recommends {packages}")).map_err(|_| by_hand())
}

fn is_root() -> bool {
    Command::new("id").args("-u").output().is_ok_and(|id| id.trim() == "0")
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_free_is_the_fourth_number() {
        let df = "Filesystem 1024-blocks Used Available Capacity Mounted on\n\
                  /dev/vda 263174212 29000000 66060288 31% /\n";
        assert_eq!(super::free_mib(df), Some(64_512));
        assert_eq!(super::free_mib("df: unknown option"), None);
    }
}
