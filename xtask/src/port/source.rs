//! The framework's source: fetched by cargo, verified, unpacked and edited.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::edits::Edits;
use crate::command::{Command, Failure, cargo};

/// The files of the port.
pub(super) const FOLDER: &str = "ports/ostd";

/// The framework that the port is for: `port.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Port {
    package: String,
    version: String,
    checksum: String,
    pub(super) toolchain: String,
    pub(super) target: String,
}

/// One of the frameworks that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Variant {
    /// The framework's own TLB shootdown, with counters.
    Stock,
    /// The engine instead.
    Shootdown,
}

impl Variant {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Stock => "stock",
            Self::Shootdown => "shootdown",
        }
    }

    pub(super) const fn description(self) -> &'static str {
        match self {
            Self::Stock => "the framework as published",
            Self::Shootdown => "the framework with the engine",
        }
    }
}

/// Returns a file of the port.
pub(super) fn file(name: &str) -> PathBuf {
    crate::root().join(FOLDER).join(name)
}

fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| {
        Failure::new(format!("{}: {error}", path.display()), format!("git checkout {FOLDER}"))
    })
}

impl Port {
    pub(super) fn read() -> Result<Self, Failure> {
        toml::from_str(&read(&file("port.toml"))?).map_err(|error| {
            Failure::new(format!("port.toml: {}", error.message()), "git checkout ports/ostd")
        })
    }

    /// Returns the package's file, which cargo has downloaded, or downloads now.
    ///
    /// # Errors
    ///
    /// If its version or its SHA-256 is not that of `port.toml`.
    pub(super) fn fetch(&self) -> Result<PathBuf, Failure> {
        let metadata = cargo("metadata --locked --format-version 1 --manifest-path")
            .arg(file("kernel/Cargo.toml"))
            .output()?;
        let metadata: Value = serde_json::from_str(&metadata).unwrap_or_default();
        let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
        let package = packages.iter().find(|package| package["name"] == self.package.as_str());
        let unknown = || Failure::new(format!("cargo has no {}", self.package), "cargo update");
        let package = package.ok_or_else(unknown)?;
        let found = package["version"].as_str().unwrap_or_default();
        if found != self.version {
            return Err(Failure::new(
                format!("{} is {found}, and the port is for {}", self.package, self.version),
                format!("name {} in {FOLDER}/kernel/Cargo.toml", self.version),
            ));
        }
        // The registry's folder of unpacked sources is beside that of packages. The package is
        // taken, because the unpacked files may have been changed.
        let manifest = Path::new(package["manifest_path"].as_str().unwrap_or_default());
        let archive = format!("{}-{}.crate", self.package, self.version);
        let place = manifest.ancestors().nth(4).zip(manifest.ancestors().nth(2)).and_then(
            |(registry, index)| {
                Some(registry.join("cache").join(index.file_name()?).join(&archive))
            },
        );
        let place = place.filter(|place| place.exists()).ok_or_else(|| {
            Failure::new(format!("{archive} is not in cargo's cache"), "cargo fetch, in the kernel")
        })?;
        self.verify(&place)?;
        Ok(place)
    }

    fn verify(&self, archive: &Path) -> Result<(), Failure> {
        let printed = Command::new("sha256sum").arg(archive).output()?;
        let found = printed.split_whitespace().next().unwrap_or_default();
        if found == self.checksum {
            return Ok(());
        }
        Err(Failure::new(
            format!("{} has the checksum {found}, not {}", archive.display(), self.checksum),
            "delete the file; cargo then downloads it again",
        ))
    }

    /// Makes the source of a variant below `folder`: the framework in `ostd`, and the kernels
    /// beside it. A file whose contents stay the same keeps its time, so that cargo does not
    /// compile it.
    pub(super) fn prepare(
        &self,
        archive: &Path,
        variant: Variant,
        folder: &Path,
    ) -> Result<(), Failure> {
        let fresh = folder.join("fresh");
        let _ = fs::remove_dir_all(&fresh);
        fs::create_dir_all(&fresh).map_err(|error| failed(&fresh, &error))?;
        Command::new("tar")
            .args("--extract --gzip --file")
            .arg(archive)
            .arg("--directory")
            .arg(&fresh)
            .run()?;
        let framework = fresh.join("ostd");
        let unpacked = fresh.join(format!("{}-{}", self.package, self.version));
        fs::rename(&unpacked, &framework).map_err(|error| failed(&unpacked, &error))?;
        let ours = file(variant.name());
        copy_changed(&ours.join("src"), &framework.join("src"))?;
        let edits = ours.join("edits.toml");
        let name = format!("{FOLDER}/{}/edits.toml", variant.name());
        let repository = crate::root().display().to_string();
        Edits::parse(&name, &read(&edits)?)?.apply(&framework, &repository)?;
        copy_changed(&framework, &folder.join("ostd"))?;
        for kernel in ["kernel", "tests"] {
            copy_changed(&file(kernel), &folder.join(kernel))?;
            patch_manifest(&folder.join(kernel).join("Cargo.toml"))?;
        }
        fs::remove_dir_all(&fresh).map_err(|error| failed(&fresh, &error))
    }
}

/// Makes the kernel use the framework beside it.
fn patch_manifest(manifest: &Path) -> Result<(), Failure> {
    const PATCH: &str = "\n[patch.crates-io]\nostd = { path = \"../ostd\" }\n";
    write_changed(manifest, (read(manifest)? + PATCH).as_bytes())
}

/// Copies the files of a folder, except those that have the same contents already.
fn copy_changed(from: &Path, to: &Path) -> Result<(), Failure> {
    fs::create_dir_all(to).map_err(|error| failed(to, &error))?;
    for entry in fs::read_dir(from).map_err(|error| failed(from, &error))? {
        let path = entry.map_err(|error| failed(from, &error))?.path();
        let Some(name) = path.file_name() else { continue };
        if path.is_dir() {
            if name != "target" {
                copy_changed(&path, &to.join(name))?;
            }
        } else {
            let contents = fs::read(&path).map_err(|error| failed(&path, &error))?;
            write_changed(&to.join(name), &contents)?;
        }
    }
    Ok(())
}

fn write_changed(to: &Path, contents: &[u8]) -> Result<(), Failure> {
    if fs::read(to).is_ok_and(|old| old == contents) {
        return Ok(());
    }
    fs::write(to, contents).map_err(|error| failed(to, &error))
}

fn failed(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(
        format!("{}: {error}", path.display()),
        "free some disk space, or set CARGO_TARGET_DIR",
    )
}
