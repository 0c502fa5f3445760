//! What the kernel needs to boot: QEMU for each architecture, Bochs, and the compiler's `core`.

use std::fs;

use super::{install_from_distribution, is_root};
use crate::command::{Command, Failure, cargo};

/// Where it boots: `shootdown boot --arch`, the compiler's target, the emulator, its package.
pub(crate) const ARCHITECTURES: [(&str, &str, &str, &str); 3] = [
    ("x86_64", "x86_64-unknown-none", "qemu-system-x86_64", "qemu-system-x86"),
    ("aarch64", "aarch64-unknown-none-softfloat", "qemu-system-aarch64", "qemu-system-arm"),
    (
        "loongarch64",
        "loongarch64-unknown-none-softfloat",
        "qemu-system-loongarch64",
        "qemu-system-misc",
    ),
];

/// Older ones mistranslate pages of 4 KiB on LoongArch, or start no second CPU there.
const QEMU_MIN: u32 = 9;

/// Installs what is missing for these. Returns what can boot: in CI all or nothing, and elsewhere
/// what can be had, with a reason for the rest.
pub(crate) fn for_boots() -> Result<Vec<&'static str>, Failure> {
    // All packages at once, for they must be of one release: of the distribution's, and where that
    // is too old, of its backports.
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

/// Bochs, and what makes a disc that it boots from. Installed where it is missing.
pub(crate) fn bochs() -> Result<(), Failure> {
    const PACKAGES: &str =
        "bochs bochs-term bochsbios vgabios grub-pc-bin grub-common xorriso mtools";
    let has = |program, option| Command::new(program).args(option).output().is_ok();
    let makes_discs = ["grub-mkrescue", "xorriso", "mtools"];
    if has("bochs", "--help") && makes_discs.iter().all(|program| has(program, "--version")) {
        return Ok(());
    }
    install_from_distribution(PACKAGES)
}

/// `cargo` with these words for the kernel on a target, with a prebuilt `core` or one to be built.
pub(crate) fn cargo_for_kernel(words: &str, target: &str) -> Result<Command, Failure> {
    core_for(target)?;
    let command = cargo(words).args("--package shootdown-kernel --target").arg(target);
    if has_core(target)? {
        return Ok(command);
    }
    // The compiler is stable, but for this option.
    Ok(command
        .args("-Zbuild-std=core,alloc -Zbuild-std-features=compiler-builtins-mem")
        .env("RUSTC_BOOTSTRAP", "1"))
}

fn has_core(target: &str) -> Result<bool, Failure> {
    let installed = Command::new("rustup").args("target list --installed").output()?;
    Ok(installed.lines().any(|line| line == target))
}

/// The major version of an emulator; `None` if it is not installed.
fn version(emulator: &str) -> Option<u32> {
    let said = Command::new(emulator).args("--version").output().ok()?;
    said.split_whitespace().nth(3)?.split('.').next()?.parse().ok()
}

/// The compiler's `core`, ready-made or to be made of its source: not every mirror has all targets.
fn core_for(target: &str) -> Result<(), Failure> {
    if has_core(target)? || Command::new("rustup").args("target add").arg(target).output().is_ok() {
        return Ok(());
    }
    println!("there is no ready-made `core` for {target}: it is built");
    Command::new("rustup").args("component add rust-src").output().map(drop)
}

/// From the backports of the distribution that apt already knows.
fn install_newer(packages: &str) -> Result<(), Failure> {
    let by_hand = |why: &str| {
        Failure::new(
            format!("the distribution's {packages} will not do, and no newer can be had: {why}"),
            format!("QEMU {QEMU_MIN} or newer, from wherever you have it"),
        )
    };
    if !is_root() {
        return Err(by_hand("this is not root"));
    }
    let known = "indextargets --format $(SITE)@$(RELEASE) Created-By:@Packages";
    let known: Vec<_> = known.split(' ').map(|word| word.replace('@', " ")).collect();
    let known = known.iter().fold(Command::new("apt-get"), |command, word| command.arg(word));
    let known = known.output().map_err(|_| by_hand("there is no apt"))?;
    let Some((site, release)) = known.lines().find_map(|line| {
        let (site, release) = line.split_once(' ')?;
        (!release.contains('-')).then_some((site, release))
    }) else {
        return Err(by_hand("apt knows no release"));
    };
    let suite = format!("{release}-backports");
    if !known.lines().any(|line| line.ends_with(&suite)) {
        let list = format!("deb {site} {suite} main\n");
        fs::write("/etc/apt/sources.list.d/shootdown-backports.list", list)
            .map_err(|error| by_hand(&error.to_string()))?;
        println!("apt may take packages from {suite} from now on, if told to");
    }
    let apt = |words: &str| {
        Command::new("apt-get").args(words).env("DEBIAN_FRONTEND", "noninteractive").run()
    };
    apt("update -qq").map_err(|_| by_hand("apt-get update fails"))?;
    apt(&format!("install -y -qq --no-install-recommends -t {suite} {packages}"))
        .map_err(|_| by_hand("the backports have none"))
}
