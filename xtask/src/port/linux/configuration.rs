//! The configurations that the port is built with.

use std::fs;
use std::path::{Path, PathBuf};

use super::kernel::FOLDER;
use super::package::Packages;
use crate::capi_object::{self, Branches};
use crate::command::{Command, Failure, read_tracked, unwritable};
use crate::port::source::Variant;

/// A configuration of Linux, and the engine's object that fits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Configuration {
    /// What the programs of the comparison need, on top of `allnoconfig`.
    Small,
    /// The same, of the newest Linux.
    Newest,
    /// As `Small`, if the port can leave out each of its rules, by switches in debugfs.
    Faults,
    /// As `Newest`, with the same switches.
    FaultsOfNewest,
    /// As `Faults`, where KVM flushes for virtual CPUs that are away.
    Kvm,
    /// The same, with the kernel's own checks beside it.
    Debug,
    /// The distribution's for virtual machines, with modules off and our changes.
    Cloud,
    /// The small one on AArch64.
    Arm64,
    /// As `Faults`, on AArch64.
    Arm64Faults,
}

/// The engine's features: its own processor, Linux's variables of a CPU, and counters.
const FEATURES: &str = "panic-handler,kpti,percpu-gs,statistics,isolation";

/// The same on AArch64, where the kernel has the variables of a CPU.
const FEATURES_ON_ARM64: &str = "panic-handler,processor,statistics";

/// The first part of the names of the compiler's programs for AArch64.
const CROSS: &str = "aarch64-linux-gnu-";

/// The distribution's configuration in its package.
const DISTRIBUTED: &str = "config.amd64_none_cloud-amd64.xz";

impl Configuration {
    /// Returns the version of Linux.
    pub(super) const fn linux(self) -> &'static str {
        match self {
            Self::Newest | Self::FaultsOfNewest => "7.2",
            _ => "6.12",
        }
    }

    /// Returns the small configuration of a version of Linux.
    pub(super) fn of_linux(version: &str) -> Result<Self, Failure> {
        let known = [Self::Small, Self::Newest].into_iter().find(|it| it.linux() == version);
        known.ok_or_else(|| {
            let cause = format!("the port has no Linux {version}");
            Failure::usage(cause, "--linux 6.12, or --linux 7.2")
        })
    }

    /// Returns the same version of Linux, with a switch for each rule of the port.
    pub(super) const fn with_faults(self) -> Self {
        if matches!(self, Self::Newest) { Self::FaultsOfNewest } else { Self::Faults }
    }

    /// Returns our part of the configuration.
    pub(super) fn ours(self) -> Result<String, Failure> {
        let names: &[&str] = match self {
            Self::Small | Self::Newest | Self::Faults | Self::FaultsOfNewest => &["small.config"],
            Self::Kvm => &["small.config", "kvm.config"],
            Self::Debug => &["small.config", "debug.config"],
            Self::Cloud => &["cloud.config"],
            Self::Arm64 | Self::Arm64Faults => &["small.config", "arm64.config"],
        };
        names.iter().map(|name| read_tracked(&format!("{FOLDER}/{name}"))).collect()
    }

    /// Returns the name of a kernel's files.
    pub(super) const fn name(self, variant: Variant) -> &'static str {
        match self {
            Self::Small | Self::Newest | Self::Cloud | Self::Arm64 => variant.name(),
            Self::Faults | Self::FaultsOfNewest | Self::Arm64Faults => "faults",
            Self::Kvm => "kvm",
            Self::Debug => "debug",
        }
    }

    /// Returns what `make` compiles the port with.
    pub(super) const fn flags(self) -> &'static str {
        match self {
            Self::Small | Self::Newest | Self::Cloud | Self::Arm64 => "SHOOTDOWN_FAULTS=",
            _ => "SHOOTDOWN_FAULTS=-DSHOOTDOWN_FAULTS",
        }
    }

    /// Returns the features of the engine's object.
    pub(super) fn features(self) -> String {
        match self {
            Self::Kvm => format!("{FEATURES},away"),
            Self::Cloud => format!("{FEATURES},cpus-4096"),
            Self::Arm64 | Self::Arm64Faults => FEATURES_ON_ARM64.to_owned(),
            _ => FEATURES.to_owned(),
        }
    }

    /// Builds the engine's object.
    pub(super) fn object(self) -> Result<PathBuf, Failure> {
        let branches = match self {
            Self::Arm64 | Self::Arm64Faults => {
                return capi_object::build_for_aarch64(&self.features());
            }
            Self::Cloud => Branches::Thunks,
            _ => Branches::Plain,
        };
        capi_object::build(&self.features(), branches)
    }

    /// Returns `true` on AArch64.
    pub(super) const fn is_arm64(self) -> bool {
        matches!(self, Self::Arm64 | Self::Arm64Faults)
    }

    /// Returns the folder of the architecture below `arch`.
    pub(super) const fn arch(self) -> &'static str {
        if self.is_arm64() { "arm64" } else { "x86" }
    }

    /// Returns the name of a program of the compiler for the kernel and its guest.
    pub(super) fn tool(self, name: &str) -> String {
        if self.is_arm64() { format!("{CROSS}{name}") } else { name.to_owned() }
    }

    /// Starts a command of `make` in a tree.
    pub(super) fn make(self, words: &str) -> Command {
        let command = Command::new("nice").args("make").args(words);
        if self.is_arm64() {
            command.args("ARCH=arm64").arg(format!("CROSS_COMPILE={CROSS}"))
        } else {
            command
        }
    }

    /// Returns the number of compiled files, about.
    pub(super) const fn files(self) -> usize {
        match self {
            Self::Newest | Self::FaultsOfNewest => 1200,
            Self::Cloud => 2500,
            _ => 1150,
        }
    }

    /// Returns words of the command line: two boots of the small configuration give the same rows.
    pub(super) const fn words(self) -> &'static str {
        if matches!(self, Self::Cloud) { "" } else { "nokaslr norandmaps" }
    }

    /// Configures the source in a folder.
    ///
    /// # Errors
    ///
    /// If a line of ours has no effect.
    pub(super) fn write(self, tree: &Path) -> Result<(), Failure> {
        let ours = self.ours()?;
        let make = |words: &str| self.make(words).args("-s").within(tree);
        match self {
            Self::Cloud => {
                const UNPACK: &str = "dpkg-deb --fsys-tarfile \"$0\" | \
                                      tar -xO --wildcards \"*/$1\" | xz -d > .config";
                let archive = Packages::read()?.configurations.fetch()?;
                let unpack = Command::new("sh").arg("-c").arg(UNPACK).arg(archive);
                unpack.arg(DISTRIBUTED).within(tree).run()?;
                make("mod2noconfig").output_or_show()?;
                let file = tree.join(".config");
                let config = || fs::read_to_string(&file).map_err(unwritable(&file));
                fs::write(&file, config()? + &ours).map_err(unwritable(&file))?;
                make("olddefconfig").output_or_show()?;
                has_effect(&ours, &config()?)
            }
            _ => {
                let chosen = tree.join("chosen.config");
                fs::write(&chosen, ours).map_err(unwritable(&chosen))?;
                make("allnoconfig")
                    .arg(format!("KCONFIG_ALLCONFIG={}", chosen.display()))
                    .output_or_show()
            }
        }
    }
}

/// Returns a failure unless a configuration has each line of ours.
fn has_effect(ours: &str, found: &str) -> Result<(), Failure> {
    let has = |line: &str| match line.strip_suffix("=n") {
        Some(option) => !found.lines().any(|line| line.starts_with(&format!("{option}="))),
        None => found.lines().any(|other| other == line),
    };
    let lost = ours.lines().filter(|line| line.starts_with("CONFIG_")).find(|line| !has(line));
    lost.map_or(Ok(()), |line| {
        let cause = format!("`{line}` has no effect: another option selects or forbids it");
        Err(Failure::new(cause, "change our part of the configuration"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_version_of_linux_is_usage() {
        let of = |version| Configuration::of_linux(version).map(Configuration::linux);
        assert_eq!((of("6.12").unwrap(), of("7.2").unwrap()), ("6.12", "7.2"));
        assert_eq!(of("7.3").unwrap_err().status(), 2);
    }

    #[test]
    fn option_without_effect_is_found() {
        let ours = "# Why.\nCONFIG_A=n\nCONFIG_B=y\n";
        assert!(has_effect(ours, "# CONFIG_A is not set\nCONFIG_B=y\nCONFIG_AB=y\n").is_ok());
        for wrong in ["CONFIG_A=y\nCONFIG_B=y\n", "CONFIG_B=m\n", ""] {
            assert_eq!(has_effect(ours, wrong).unwrap_err().status(), 1, "{wrong}");
        }
    }
}
