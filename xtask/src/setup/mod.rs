//! The requirements of the commands beyond a stable toolchain, installed where they are missing.

pub(crate) mod emulators;

use std::path::{Path, PathBuf};

use crate::command::{Command, Failure, cargo};

/// Targets without an operating system, for which libraries must compile.
pub(crate) const BARE_TARGETS: &[&str] =
    &["x86_64-unknown-none", "aarch64-unknown-none", "riscv64gc-unknown-none-elf"];

/// The version of cargo-mutants. Other versions generate other mutants.
const CARGO_MUTANTS: &str = "27.1.0";

/// The version of cargo-semver-checks, which must know the toolchain's format of documentation.
const CARGO_SEMVER_CHECKS: &str = "0.51.0";

/// Free space for a first build. A build of everything in three profiles takes 2.6 GiB, without
/// incremental state.
const FREE_MIB_MIN: u64 = 4 * 1024;

/// Checks the free disk space, and installs targets and components of the stable toolchain.
pub(crate) fn toolchain() -> Result<(), Failure> {
    check_disk_space()?;
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
        // Do not update an installed nightly just to add a component.
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

/// Checks the free disk space before the first build, because a compiler reports a full disk in a
/// hundred lines.
fn check_disk_space() -> Result<(), Failure> {
    let output = crate::output();
    if output.join("ci/shootdown").exists() {
        return Ok(());
    }
    let failed = |error: std::io::Error| {
        Failure::new(
            format!("{}: {error}", output.display()),
            "set CARGO_TARGET_DIR to a folder that you can write",
        )
    };
    std::fs::create_dir_all(&output).map_err(failed)?;
    // Without a POSIX `df`, leave it to the compiler to report a full disk.
    let df = Command::new("df").args("-Pk").arg(&output).output().unwrap_or_default();
    match free_mib(&df) {
        Some(free) if free < FREE_MIB_MIN => Err(Failure::new(
            format!(
                "{free} MiB are free in {}, and {FREE_MIB_MIN} MiB are needed",
                output.display()
            ),
            "free some disk space, or set CARGO_TARGET_DIR to another disk",
        )),
        _ => Ok(()),
    }
}

/// Parses the free space, in MiB, from the output of POSIX's `df -Pk` for one path.
fn free_mib(df: &str) -> Option<u64> {
    let kib: u64 = df.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()?;
    Some(kib / 1024)
}

/// Prints whether tests of recording run: they skip themselves where the kernel does not permit
/// tracing. This program does not mount tracefs, which is up to the owner of the machine.
pub(crate) fn report_recording_tests() {
    let has_tracefs = Path::new("/sys/kernel/tracing/instances").is_dir();
    match (is_root(), has_tracefs) {
        (true, true) => println!("recording is tested with this kernel"),
        (false, _) => println!("note: recording is not tested; try:   sudo cargo xtask test"),
        (true, false) => println!(
            "note: recording is not tested; try:   mount -t tracefs nodev /sys/kernel/tracing"
        ),
    }
}

/// Installs packages of Debian or Ubuntu unless a command succeeds.
fn need(command: &[&str], packages: &str) -> Result<(), Failure> {
    let runs = command[1..].iter().fold(Command::new(command[0]), Command::arg);
    if runs.output().is_ok() { Ok(()) } else { install_from_distribution(packages) }
}

/// Installs valgrind.
pub(crate) fn instruction_counter() -> Result<(), Failure> {
    need(&["valgrind", "--version"], "valgrind")
}

/// Installs a C compiler and the headers of the C library.
pub(crate) fn c_compiler() -> Result<(), Failure> {
    need(&["g++", "--version"], "g++ libc6-dev")
}

/// Installs a C compiler for RISC-V, which needs no C library, and the tools of its build.
pub(crate) fn c_compiler_for_riscv() -> Result<(), Failure> {
    need(&["make", "--version"], "make")?;
    need(&["pkg-config", "--version"], "pkgconf")?;
    need(&["riscv64-linux-gnu-gcc", "--version"], "gcc-riscv64-linux-gnu")
}

/// Installs a C compiler for AArch64, with the C library of programs.
pub(crate) fn c_compiler_for_arm() -> Result<(), Failure> {
    c_compiler()?;
    need(&["aarch64-linux-gnu-gcc", "--version"], "gcc-aarch64-linux-gnu libc6-dev-arm64-cross")
}

/// Installs Python with its environments. Returns the Python of the one in this folder, with the
/// packages that `pip install` is given.
pub(crate) fn python(environment: &Path, packages: &str) -> Result<PathBuf, Failure> {
    let imports = ["python3", "-c", "import venv, ensurepip"];
    need(&imports, "python3 python3-venv python3-pip")?;
    let python = environment.join("bin/python");
    if !python.exists() {
        Command::new("python3").args("-m venv").arg(environment).run()?;
    }
    Command::new(&python).args("-m pip install --quiet").args(packages).run()?;
    Ok(python)
}

/// Installs GNU parallel, which runs the shards of sweeps.
pub(crate) fn gnu_parallel() -> Result<(), Failure> {
    need(&["parallel", "--version"], "parallel")
}

/// Installs Chromium with the program that drives it.
pub(crate) fn browser() -> Result<(), Failure> {
    need(&["chromedriver", "--version"], "chromium chromium-driver")
}

/// Installs the programs of the corpus of guests that are small. The corpus leaves out the others
/// where they are missing.
pub(crate) fn guests() -> Result<(), Failure> {
    // With QEMU 7.2, 3 of some 20 guests of 16 CPUs ended in a panic of their kernel, whose cause
    // was not found. This installs a newer one.
    emulators::for_boots_on("x86_64")?;
    // Each alone: a package that is named again would be upgraded.
    for (program, package) in
        [("memcached", "memcached"), ("sqlite3", "sqlite3"), ("xz", "xz-utils")]
    {
        need(&[program, "--version"], package)?;
    }
    c_compiler()
}

/// Builds cargo-mutants unless it is there. Returns its path.
pub(crate) fn mutator() -> Result<PathBuf, Failure> {
    tool("cargo-mutants", CARGO_MUTANTS, "")
}

/// Builds cargo-semver-checks unless it is there. Returns its path.
pub(crate) fn semver_checker() -> Result<PathBuf, Failure> {
    // Without the feature that downloads baselines: ours are in the repository.
    tool("cargo-semver-checks", CARGO_SEMVER_CHECKS, "--no-default-features")
}

/// Builds a tool from the registry unless it is there. Returns its path.
fn tool(name: &str, version: &str, options: &str) -> Result<PathBuf, Failure> {
    let place = crate::output().join(format!("{name}-{version}"));
    let program = place.join("bin").join(name);
    if !program.exists() {
        println!("building {name} {version}, only once: some minutes");
        cargo(&format!("install --quiet --locked {options} --version {version} --root"))
            .arg(&place)
            .arg(name)
            .run()?;
    }
    Ok(program)
}

/// Installs packages of Debian or Ubuntu, as root or with a `sudo` that needs no password.
pub(crate) fn install_from_distribution(packages: &str) -> Result<(), Failure> {
    let by_hand = || {
        Failure::new(
            format!("not installed: {packages}"),
            format!("sudo apt-get install {packages}, or the equivalent on your system"),
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
    fn free_space_is_the_fourth_number() {
        let df = "Filesystem 1024-blocks Used Available Capacity Mounted on\n\
                  /dev/vda 263174212 29000000 66060288 31% /\n";
        assert_eq!(super::free_mib(df), Some(64_512));
        assert_eq!(super::free_mib("df: unknown option"), None);
    }
}
