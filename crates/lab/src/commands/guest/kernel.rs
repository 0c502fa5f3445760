//! The kernel of the guest: an image of the user, or one from Debian's packages.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use super::archive::file_error;
use super::error::GuestError;
use super::packages::Packages;

/// The name of Linux on the engine, if no file has it.
const PORT: &str = "shootdown";

/// A kernel image for x86-64.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kernel {
    pub(super) image: PathBuf,
    /// The release, as `uname -r` prints it.
    pub(super) release: String,
}

impl Kernel {
    /// Finds a kernel by its version or the path of its image, or the [port](PORT).
    ///
    /// # Errors
    ///
    /// If there is no such kernel.
    pub(super) fn find(kernel: &OsStr, packages: &mut Packages<'_>) -> Result<Self, GuestError> {
        let path = Path::new(kernel);
        let image = match kernel.to_str().and_then(Version::parse) {
            Some(version) if !path.exists() => packages.kernel(&version)?,
            _ if path.is_file() => path.to_owned(),
            _ if kernel == PORT => packages.port()?,
            _ => return Err(GuestError::NoKernel(kernel.to_owned())),
        };
        let release = release(&image)?;
        Ok(Self { image, release })
    }
}

/// A version, such as 6.12 or 6.12.117.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version(String);

impl Version {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let is_number = |part: &str| part.parse::<u32>().is_ok();
        let parts: Vec<_> = text.split('.').collect();
        let is_version = (2..=4).contains(&parts.len()) && parts.iter().all(|part| is_number(part));
        is_version.then(|| Self(text.to_owned()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns `true` if `release` is of this version: 6.12.117+deb13-cloud-amd64 is 6.12, and not
    /// 6.1.
    pub(super) fn includes(&self, release: &str) -> bool {
        let rest = release.strip_prefix(&self.0);
        rest.is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_digit()))
    }
}

/// Returns the numbers in a release, by which releases are ordered.
pub(super) fn numbers(release: &str) -> Vec<u32> {
    let parts = release.split(|c: char| !c.is_ascii_digit()).filter(|part| !part.is_empty());
    parts.map(|part| part.parse().unwrap_or(u32::MAX)).collect()
}

/// Reads the release in the header of an image (Linux's `Documentation/arch/x86/boot.rst`).
fn release(image: &Path) -> Result<String, GuestError> {
    const MAGIC: (u64, &[u8]) = (0x202, b"HdrS");
    const VERSION_OFFSET: u64 = 0x20e;
    /// The offset in the header counts from the end of the boot sector.
    const SECTOR: u64 = 0x200;
    let mut file = File::open(image).map_err(file_error(image))?;
    let mut at = |offset: u64, bytes: &mut [u8]| {
        file.seek(SeekFrom::Start(offset)).and_then(|_| file.read(bytes)).unwrap_or_default()
    };
    let (mut magic, mut offset, mut text) = ([0; 4], [0; 2], [0; 128]);
    at(MAGIC.0, &mut magic);
    at(VERSION_OFFSET, &mut offset);
    let read = at(SECTOR + u64::from(u16::from_le_bytes(offset)), &mut text);
    // The text is the release, and then the machine that built it.
    let release = text[..read].split(|byte| [0, b' '].contains(byte)).next().unwrap_or_default();
    match std::str::from_utf8(release) {
        Ok(release) if magic == *MAGIC.1 && !release.is_empty() => Ok(release.to_owned()),
        _ => Err(GuestError::NotAnImage(image.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_includes_its_releases_only() {
        let version = |text| Version::parse(text).expect("a version");
        let release = "6.12.117+deb13-cloud-amd64";
        assert!(version("6.12").includes(release) && version("6.12.117").includes(release));
        assert!(!version("6.1").includes(release) && !version("6.12.11").includes(release));
        assert!(
            ["6", "", "6.x", "vmlinuz", "6.12-rc1"].iter().all(|it| Version::parse(it).is_none())
        );
        assert!(numbers("6.12.117+deb13") > numbers("6.12.95+deb13"));
    }

    #[test]
    fn release_is_read_from_image() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("vmlinuz");
        let mut image = vec![0; 0x400];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x20e..0x210].copy_from_slice(&[0x10, 0x01]);
        image[0x310..0x326].copy_from_slice(b"6.12.1-cloud (builder)");
        std::fs::write(&path, &image).expect("a file");
        assert_eq!(release(&path).expect("a release"), "6.12.1-cloud");
        std::fs::write(&path, "an empty file").expect("a file");
        assert!(matches!(release(&path), Err(GuestError::NotAnImage(_))));
    }
}
