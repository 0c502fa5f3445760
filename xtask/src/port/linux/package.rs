//! Packages of the distribution, which the user's cache keeps.

use std::path::PathBuf;

use serde::Deserialize;

use super::kernel::{FOLDER, cache};
use crate::command::{Command, Failure, read_tracked};
use crate::port::source::verify;

/// The packages of the port: `port.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Packages {
    /// The source that the port edits.
    pub(super) source: Package,
    /// The distribution's configurations of the same source.
    pub(super) configurations: Package,
}

/// A package of the distribution, by its name, version and SHA-256.
#[derive(Debug, Deserialize, Hash)]
#[serde(deny_unknown_fields)]
pub(super) struct Package {
    package: String,
    version: String,
    checksum: String,
}

impl Packages {
    pub(super) fn read() -> Result<Self, Failure> {
        let name = format!("{FOLDER}/port.toml");
        toml::from_str(&read_tracked(&name)?).map_err(|error| {
            Failure::new(format!("port.toml: {}", error.message()), format!("git checkout {name}"))
        })
    }
}

impl Package {
    /// Downloads the package with apt, or takes it from the cache.
    pub(super) fn fetch(&self) -> Result<PathBuf, Failure> {
        let Self { package, version, checksum } = self;
        let cached = || {
            let is_it = |path: &PathBuf| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                name.starts_with(&format!("{package}_{version}_"))
            };
            let entries = std::fs::read_dir(cache()).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).find(is_it)
        };
        if cached().is_none() {
            eprintln!("downloading {package} {version}");
            let wanted = format!("{package}={version}");
            Command::new("apt-get")
                .args("download")
                .arg(wanted)
                .within(&cache())
                .output_or_show()?;
        }
        let archive = cached().ok_or_else(|| {
            Failure::new(format!("apt-get leaves no {package} {version}"), "apt-get update")
        })?;
        verify(&archive, checksum)?;
        Ok(archive)
    }
}
