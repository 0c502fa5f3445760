//! The framework's source: fetched by cargo, verified, unpacked and edited.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::edits::Edits;
use crate::command::{Command, Failure, cargo, read_tracked, unwritable};

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
    targets: Targets,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Targets {
    x86_64: String,
    riscv64: String,
}

/// An architecture on which the frameworks are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arch {
    X86_64,
    Riscv64,
}

impl Arch {
    pub(super) const ALL: [Self; 2] = [Self::X86_64, Self::Riscv64];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Riscv64 => "riscv64",
        }
    }
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

impl Port {
    /// Returns the compiler's target.
    pub(super) fn target(&self, arch: Arch) -> &str {
        match arch {
            Arch::X86_64 => &self.targets.x86_64,
            Arch::Riscv64 => &self.targets.riscv64,
        }
    }

    pub(super) fn read() -> Result<Self, Failure> {
        toml::from_str(&read_tracked(&format!("{FOLDER}/port.toml"))?).map_err(|error| {
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
        verify(&place, &self.checksum)?;
        Ok(place)
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
        fs::create_dir_all(&fresh).map_err(unwritable(&fresh))?;
        Command::new("tar")
            .args("--extract --gzip --file")
            .arg(archive)
            .arg("--directory")
            .arg(&fresh)
            .run()?;
        let framework = fresh.join("ostd");
        let unpacked = fresh.join(format!("{}-{}", self.package, self.version));
        fs::rename(&unpacked, &framework).map_err(unwritable(&unpacked))?;
        let ours = file(variant.name());
        copy_changed(&ours.join("src"), &framework.join("src"))?;
        let name = format!("{FOLDER}/{}/edits.toml", variant.name());
        let repository = crate::root().display().to_string();
        let read = |file: &str| fs::read_to_string(framework.join(file));
        let edits = Edits::parse(&name, &read_tracked(&name)?)?;
        for (file, text) in edits.applied(read, &repository)? {
            fs::write(framework.join(file), text).map_err(unwritable(file))?;
        }
        copy_changed(&framework, &folder.join("ostd"))?;
        delete_others(&framework, &folder.join("ostd"))?;
        for kernel in ["kernel", "tests"] {
            copy_changed(&file(kernel), &folder.join(kernel))?;
            delete_others(&file(kernel), &folder.join(kernel))?;
            patch_manifest(&folder.join(kernel).join("Cargo.toml"))?;
        }
        fs::remove_dir_all(&fresh).map_err(unwritable(&fresh))
    }
}

/// Compares the SHA-256 of a downloaded file.
pub(super) fn verify(archive: &Path, checksum: &str) -> Result<(), Failure> {
    let printed = Command::new("sha256sum").arg(archive).output()?;
    let found = printed.split_whitespace().next().unwrap_or_default();
    if found == checksum {
        return Ok(());
    }
    Err(Failure::new(
        format!("{} has the checksum {found}, not {checksum}", archive.display()),
        "delete the file; it is then downloaded again",
    ))
}

/// Makes the kernel use the framework beside it.
fn patch_manifest(manifest: &Path) -> Result<(), Failure> {
    const PATCH: &str = "\n[patch.crates-io]\nostd = { path = \"../ostd\" }\n";
    let text = fs::read_to_string(manifest).map_err(unwritable(manifest))?;
    write_changed(manifest, (text + PATCH).as_bytes())
}

/// Copies the files of a folder, except those that have the same contents already.
fn copy_changed(from: &Path, to: &Path) -> Result<(), Failure> {
    fs::create_dir_all(to).map_err(unwritable(to))?;
    for path in entries(from)? {
        let Some(name) = path.file_name() else { continue };
        if path.is_dir() {
            if name != "target" {
                copy_changed(&path, &to.join(name))?;
            }
        } else {
            let contents = fs::read(&path).map_err(unwritable(&path))?;
            write_changed(&to.join(name), &contents)?;
        }
    }
    Ok(())
}

/// Deletes the files below `to` that `from` does not have, of an earlier run.
fn delete_others(from: &Path, to: &Path) -> Result<(), Failure> {
    for path in entries(to)? {
        let Some(name) = path.file_name() else { continue };
        let original = from.join(name);
        if path.is_dir() && original.is_dir() {
            delete_others(&original, &path)?;
        } else if path.is_dir() {
            fs::remove_dir_all(&path).map_err(unwritable(&path))?;
        } else if !original.is_file() {
            fs::remove_file(&path).map_err(unwritable(&path))?;
        }
    }
    Ok(())
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = fs::read_dir(folder).map_err(unwritable(folder))?;
    entries.map(|entry| entry.map(|entry| entry.path()).map_err(unwritable(folder))).collect()
}

pub(super) fn write_changed(to: &Path, contents: &[u8]) -> Result<(), Failure> {
    if fs::read(to).is_ok_and(|old| old == contents) {
        return Ok(());
    }
    fs::write(to, contents).map_err(unwritable(to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_an_earlier_run_are_deleted() {
        let folder = std::env::temp_dir().join(format!("shootdown-source-{}", std::process::id()));
        let (from, to) = (folder.join("from"), folder.join("to"));
        for place in [from.join("a"), to.join("a"), to.join("b")] {
            fs::create_dir_all(&place).expect("a folder for the test");
            fs::write(place.join("file.rs"), "").expect("a file for the test");
        }
        fs::write(to.join("a/old.rs"), "").expect("a file for the test");
        delete_others(&from, &to).expect("the files can be deleted");
        let left =
            [to.join("a/file.rs"), to.join("a/old.rs"), to.join("b")].map(|path| path.exists());
        fs::remove_dir_all(&folder).expect("the folder can be removed");
        assert_eq!(left, [true, false, false]);
    }
}
