//! Packages of the distribution, which the user's cache keeps.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde::Deserialize;

use super::kernel::{FOLDER, cache};
use crate::command::{Command, Failure, read_tracked, unwritable};
use crate::port::source::verify;

/// The packages of the port: `port.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Packages {
    /// The sources that the port edits, by Linux's version.
    source: BTreeMap<String, Package>,
    /// The distribution's configurations of the first of them.
    pub(super) configurations: Package,
    /// Its kernel for virtual machines, with the modules of KVM.
    pub(super) hypervisor: Package,
}

/// A package of the distribution, by its name, version and SHA-256.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Package {
    package: String,
    version: String,
    checksum: String,
    /// The distribution's suite that has it, if apt is not configured with one.
    suite: Option<String>,
}

impl Packages {
    pub(super) fn read() -> Result<Self, Failure> {
        let name = format!("{FOLDER}/port.toml");
        toml::from_str(&read_tracked(&name)?).map_err(|error| {
            Failure::new(format!("port.toml: {}", error.message()), format!("git checkout {name}"))
        })
    }

    /// Returns the source of a version of Linux.
    pub(super) fn source(&self, version: &str) -> Result<&Package, Failure> {
        self.source.get(version).ok_or_else(|| {
            let name = format!("{FOLDER}/port.toml");
            Failure::new(format!("{name} has no source \"{version}\""), format!("add it to {name}"))
        })
    }
}

impl Package {
    /// What the contents of a package depend on.
    pub(super) fn key(&self) -> (&str, &str, &str) {
        (&self.package, &self.version, &self.checksum)
    }

    /// Downloads the package with apt, or takes it from the cache.
    pub(super) fn fetch(&self) -> Result<PathBuf, Failure> {
        let Self { package, version, checksum, suite } = self;
        let cached = || {
            let is_it = |path: &PathBuf| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                name.starts_with(&format!("{package}_{version}_"))
            };
            let entries = fs::read_dir(cache()).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).find(is_it)
        };
        if cached().is_none() {
            eprintln!("downloading {package} {version}");
            let options = match suite {
                Some(suite) => self.private_options(suite)?,
                None => String::new(),
            };
            Command::new("apt-get")
                .args(&options)
                .args("download")
                .arg(format!("{package}={version}"))
                .within(&cache())
                .output_or_show()?;
        }
        let archive = cached().ok_or_else(|| {
            Failure::new(format!("apt-get leaves no {package} {version}"), "apt-get update")
        })?;
        verify(&archive, checksum)?;
        Ok(archive)
    }

    /// Gives apt a state of its own, with a suite of the distribution from where the host's suites
    /// are. Returns the options for it.
    ///
    /// # Errors
    ///
    /// If the suite does not have this version.
    fn private_options(&self, suite: &str) -> Result<String, Failure> {
        const SITES: &str = "indextargets --format $(REPO_URI)";
        const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
        let sites = Command::new("apt-get").args(SITES).arg("Created-By: Packages");
        let sites = sites.arg("Label: Debian").output()?;
        let site = sites.lines().next().ok_or_else(|| {
            Failure::missing("apt has no list of the distribution's packages", "apt-get update")
        })?;
        let state = cache().join("apt");
        for folder in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(state.join(folder)).map_err(unwritable(&state))?;
        }
        let source = format!("deb [signed-by={KEYS}] {site} {suite} main\n");
        fs::write(state.join("sources.list"), source).map_err(unwritable(&state))?;
        let state = state.display();
        let options = format!(
            "-q -o Dir::Etc::SourceList={state}/sources.list -o Dir::Etc::SourceParts=/dev/null \
             -o Dir::State::Lists={state}/lists -o Dir::Cache={state}/cache"
        );
        Command::new("apt-get").args(&options).args("update").output_or_show()?;
        let Self { package, version, .. } = self;
        let found = Command::new("apt-cache").args(&options).args("madison").arg(package);
        match version_of(&found.output()?, version) {
            Ok(()) => Ok(options),
            Err(others) => Err(Failure::new(
                format!("{suite} has {package} {others}, and not {version}"),
                format!("write the new version and its SHA-256 in {FOLDER}/port.toml"),
            )),
        }
    }
}

/// Searches a version among those that apt lists, and otherwise returns them.
fn version_of(madison: &str, version: &str) -> Result<(), String> {
    let versions: Vec<_> = madison.lines().filter_map(|line| line.split('|').nth(1)).collect();
    match versions.iter().any(|found| found.trim() == version) {
        true => Ok(()),
        false if versions.is_empty() => Err("in no version".to_owned()),
        false => Err(versions.iter().map(|found| found.trim()).collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_that_is_gone_names_others() {
        let listed = " linux | 7.2.9-1 | site suite\n linux | 7.2.10-1 | site suite\n";
        assert_eq!(version_of(listed, "7.2.9-1"), Ok(()));
        assert_eq!(version_of(listed, "7.2.1-1"), Err("7.2.9-1, 7.2.10-1".to_owned()));
        assert_eq!(version_of("", "7.2.1-1"), Err("in no version".to_owned()));
    }
}
