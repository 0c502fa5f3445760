//! The requirements of a boot: QEMU for each architecture, Bochs, and the compiler's `core`.

use std::fs;

use super::{install_from_distribution, is_root};
use crate::command::{Command, Failure, cargo};

/// For each architecture: the name for `shootdown boot --arch`, the compiler's target, the
/// emulator, and its package.
pub(crate) const ARCHITECTURES: [(&str, &str, &str, &str); 4] = [
    ("x86_64", "x86_64-unknown-none", "qemu-system-x86_64", "qemu-system-x86"),
    ("aarch64", "aarch64-unknown-none-softfloat", "qemu-system-aarch64", "qemu-system-arm"),
    ("riscv64", "riscv64imac-unknown-none-elf", "qemu-system-riscv64", "qemu-system-riscv"),
    (
        "loongarch64",
        "loongarch64-unknown-none-softfloat",
        "qemu-system-loongarch64",
        "qemu-system-misc",
    ),
];

/// Older versions mistranslate pages of 4 KiB on LoongArch, or cannot start a second CPU there.
const QEMU_MIN: u32 = 9;

/// Installs missing emulators. Returns the architectures that can boot. In CI, a missing one is a
/// failure; elsewhere, a line gives the reason.
pub(crate) fn for_boots() -> Result<Vec<&'static str>, Failure> {
    // All packages must come from one release: the distribution's, or its backports if that is too
    // old. They are therefore installed together.
    let packages = |is_wanted: fn(Option<u32>) -> bool| {
        let wanted =
            ARCHITECTURES.iter().filter(|(_, _, emulator, _)| is_wanted(version(emulator)));
        wanted.map(|(.., package)| *package).collect::<Vec<_>>().join(" ")
    };
    let missing = packages(|version| version.is_none());
    let installed = if missing.is_empty() { Ok(()) } else { install_from_distribution(&missing) };
    let old = packages(|version| version.is_none_or(|version| version < QEMU_MIN));
    let installed = if old.is_empty() { installed } else { install_newer(&old) };
    let mut ready = Vec::new();
    for (arch, target, emulator, _) in ARCHITECTURES {
        match is_ready(emulator).and_then(|()| core_for(target)) {
            Ok(()) => ready.push(arch),
            Err(failure) if std::env::var_os("CI").is_some() => {
                return installed.and(Err(failure));
            }
            Err(failure) => println!("skipped on {arch}: {}", failure.cause()),
        }
    }
    Ok(ready)
}

/// Installs the emulator of one architecture, if it is missing. Returns `true` if it can boot.
pub(crate) fn for_boots_on(wanted: &str) -> Result<bool, Failure> {
    let mut wanted_one = ARCHITECTURES.iter().filter(|(arch, ..)| *arch == wanted);
    let is_here = wanted_one.any(|(_, _, emulator, _)| is_ready(emulator).is_ok());
    Ok(is_here || for_boots()?.contains(&wanted))
}

fn is_ready(emulator: &str) -> Result<(), Failure> {
    let what_is = match version(emulator) {
        Some(QEMU_MIN..) => return Ok(()),
        Some(found) => format!("version {found}"),
        None => "not installed".to_owned(),
    };
    Err(Failure::new(
        format!("{emulator} is {what_is}, and version {QEMU_MIN} is needed"),
        "install a newer QEMU",
    ))
}

/// Debian's and Ubuntu's packages of Bochs and of the tools that make a bootable disc for it.
pub(crate) const BOCHS_PACKAGES: &str =
    "bochs bochs-term bochsbios vgabios grub-pc-bin grub-common xorriso mtools";

/// Installs Bochs and the tools that make a bootable disc for it, where they are missing.
pub(crate) fn bochs() -> Result<(), Failure> {
    let has = |program, option| Command::new(program).args(option).output().is_ok();
    let makes_discs = ["grub-mkrescue", "xorriso", "mtools"];
    if has("bochs", "--help") && makes_discs.iter().all(|program| has(program, "--version")) {
        return Ok(());
    }
    install_from_distribution(BOCHS_PACKAGES)
}

/// Returns a `cargo` command for the kernel on a target, with a prebuilt `core` or one that it
/// builds.
pub(crate) fn cargo_for_kernel(words: &str, target: &str) -> Result<Command, Failure> {
    Ok(cargo_for_target(words, target)?.args("--package shootdown-kernel"))
}

/// Builds the kernel with a profile for each of these targets.
///
/// The last crate of a kernel takes most of the time and one core, so the targets that have a
/// prebuilt `core` are built at the same time.
pub(crate) fn build_kernels(profile: &str, targets: &[&str]) -> Result<(), Failure> {
    let words = format!("build --quiet --profile {profile}");
    let mut together = cargo(&words).args("--package shootdown-kernel");
    let mut is_empty = true;
    for target in targets {
        core_for(target)?;
        if has_core(target)? {
            together = together.arg("--target").arg(target);
            is_empty = false;
        } else {
            cargo_for_kernel(&words, target)?.run()?;
        }
    }
    if is_empty { Ok(()) } else { together.run() }
}

/// Returns a `cargo` command for a target, with a prebuilt `core` or one that it builds.
pub(crate) fn cargo_for_target(words: &str, target: &str) -> Result<Command, Failure> {
    core_for(target)?;
    let command = cargo(words).args("--target").arg(target);
    if has_core(target)? {
        return Ok(command);
    }
    // The stable compiler accepts this option only with `RUSTC_BOOTSTRAP`.
    Ok(command
        .args("-Zbuild-std=core,alloc -Zbuild-std-features=compiler-builtins-mem")
        .env("RUSTC_BOOTSTRAP", "1"))
}

fn has_core(target: &str) -> Result<bool, Failure> {
    let installed = Command::new("rustup").args("target list --installed").output()?;
    Ok(installed.lines().any(|line| line == target))
}

/// Returns the major version of an emulator, or `None` if it is not installed.
fn version(emulator: &str) -> Option<u32> {
    let printed = Command::new(emulator).args("--version").output().ok()?;
    printed.split_whitespace().nth(3)?.split('.').next()?.parse().ok()
}

/// Installs a prebuilt `core`, or the source to build it from: not every mirror has all targets.
pub(crate) fn core_for(target: &str) -> Result<(), Failure> {
    if has_core(target)? || Command::new("rustup").args("target add").arg(target).output().is_ok() {
        return Ok(());
    }
    println!("there is no prebuilt `core` for {target}: building it");
    Command::new("rustup").args("component add rust-src").output().map(drop)
}

/// Installs packages from the backports of the distribution that apt is set up for.
fn install_newer(packages: &str) -> Result<(), Failure> {
    let unavailable = |why: &str| {
        Failure::new(
            format!(
                "the distribution's {packages} are too old, and newer ones are not available: {why}"
            ),
            format!("install QEMU {QEMU_MIN} or newer"),
        )
    };
    if !is_root() {
        return Err(unavailable("this user is not root"));
    }
    let known = "indextargets --format $(SITE)@$(RELEASE) Created-By:@Packages";
    let known: Vec<_> = known.split(' ').map(|word| word.replace('@', " ")).collect();
    let known = known.iter().fold(Command::new("apt-get"), |command, word| command.arg(word));
    let known = known.output().map_err(|_| unavailable("there is no apt"))?;
    let Some((site, release)) = known.lines().find_map(|line| {
        let (site, release) = line.split_once(' ')?;
        (!release.contains('-')).then_some((site, release))
    }) else {
        return Err(unavailable("apt knows no release"));
    };
    let suite = format!("{release}-backports");
    if !known.lines().any(|line| line.ends_with(&suite)) {
        let list = format!("deb {site} {suite} main\n");
        fs::write("/etc/apt/sources.list.d/shootdown-backports.list", list)
            .map_err(|error| unavailable(&error.to_string()))?;
        println!("apt can install packages from {suite} from now on, with -t {suite}");
    }
    let apt = |words: &str| {
        Command::new("apt-get").args(words).env("DEBIAN_FRONTEND", "noninteractive").run()
    };
    apt("update -qq").map_err(|_| unavailable("apt-get update fails"))?;
    apt(&format!("install -y -qq --no-install-recommends -t {suite} {packages}"))
        .map_err(|_| unavailable("the backports do not have them"))
}
