//! Kernels and busybox from Debian's packages, fetched with apt and kept in a cache.
//!
//! apt runs with lists of its own, in a temporary directory: it changes nothing of the host's
//! packages, and needs no root. The mirror is the one that the host's apt uses.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use indicatif::ProgressBar;
use tempfile::{NamedTempFile, TempDir};

use super::children::output;
use super::error::GuestError;
use super::kernel::{Version, numbers};
use crate::commands::record::Signals;

/// The suites of Debian that have kernels: 6.1, 6.12 and later ones.
const SUITES: [&str; 3] = ["bookworm", "trixie", "trixie-backports"];
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The beginnings of the names of packages with a kernel image, the best first. Since Linux 7.0,
/// the package `linux-image-*` only depends on the image.
const IMAGES: [&str; 2] = ["linux-binary-", "linux-image-"];
/// The kernels for virtual machines, whose packages are the smallest.
const FLAVOUR: &str = "-cloud-amd64";
const UNSIGNED: &str = "-unsigned";
/// The numbers in 6.12.117+deb13-cloud-amd64 and 6.1.0-50-cloud-amd64; 6.12-cloud-amd64 has three.
const NUMBERS_MIN: usize = 5;

const APT: (&str, &str) = ("apt-get", "apt");

/// The packages of Debian, and the cache of the files that were needed.
#[derive(Debug)]
pub(super) struct Packages<'a> {
    signals: &'a mut Signals,
    progress: &'a ProgressBar,
    /// Directory of the cache.
    cache: PathBuf,
    /// The lists of apt, which exist after the first use.
    apt: Option<Apt>,
}

/// A private state of apt.
#[derive(Debug)]
struct Apt {
    directory: TempDir,
}

impl<'a> Packages<'a> {
    pub(super) fn new(signals: &'a mut Signals, progress: &'a ProgressBar) -> Self {
        Self { signals, progress, cache: cache(), apt: None }
    }

    /// Returns the newest image of a version: from the cache, or else from a package.
    ///
    /// # Errors
    ///
    /// If there is no package, or it cannot be fetched.
    pub(super) fn kernel(&mut self, version: &Version) -> Result<PathBuf, GuestError> {
        let cached = names(&self.cache).into_iter().filter(|name| {
            name.strip_prefix("vmlinuz-").is_some_and(|release| version.includes(release))
        });
        if let Some(name) = cached.max_by_key(|name| numbers(name)) {
            return Ok(self.cache.join(name));
        }
        let packages = IMAGES.map(|start| self.packages(start));
        let [binaries, images] = packages;
        let (binaries, images) = (binaries?, images?);
        let known: Vec<&str> = binaries.iter().chain(&images).map(String::as_str).collect();
        let Some(package) = newest(&known, version) else {
            let version = version.as_str().to_owned();
            return Err(GuestError::NoPackage { version, known: series(&known) });
        };
        self.progress.set_message(format!("fetching {package}"));
        let directory = self.unpacked(package)?;
        let (image, name) = image(directory.path()).ok_or_else(|| GuestError::Failed {
            program: "dpkg-deb",
            error: format!("{package} has no image"),
        })?;
        self.keep(&image, &name)
    }

    /// Returns the image of the port of Linux to the engine, which a tool of the repository puts
    /// into the cache.
    ///
    /// # Errors
    ///
    /// If it was not built.
    pub(super) fn port(&self) -> Result<PathBuf, GuestError> {
        let image = self.cache.join("vmlinuz-shootdown");
        if image.is_file() { Ok(image) } else { Err(GuestError::NoPort) }
    }

    /// Returns a static busybox: the host's, or one from the cache or a package.
    ///
    /// # Errors
    ///
    /// If the package cannot be fetched.
    pub(super) fn busybox(&mut self) -> Result<PathBuf, GuestError> {
        const NAME: &str = "busybox";
        const PACKAGE: &str = "busybox-static";
        let known = ["/usr/bin/busybox", "/bin/busybox"].map(PathBuf::from);
        let cached = self.cache.join(NAME);
        if let Some(found) = known.into_iter().chain([cached]).find(|path| is_static(path)) {
            return Ok(found);
        }
        self.progress.set_message(format!("fetching {PACKAGE}"));
        let directory = self.unpacked(PACKAGE)?;
        let places = ["usr/bin/busybox", "bin/busybox"].map(|place| directory.path().join(place));
        let found = places.into_iter().find(|path| is_static(path));
        let found = found.ok_or_else(|| GuestError::Failed {
            program: "dpkg-deb",
            error: format!("{PACKAGE} has no static program"),
        })?;
        self.keep(&found, NAME)
    }

    /// Moves a file to the cache under a name, whole or not at all.
    fn keep(&self, file: &Path, name: &str) -> Result<PathBuf, GuestError> {
        let path = self.cache.join(name);
        let keep = || {
            fs::create_dir_all(&self.cache)?;
            let copy = NamedTempFile::new_in(&self.cache)?;
            fs::copy(file, copy.path())?;
            copy.persist(&path)?;
            std::io::Result::Ok(())
        };
        keep().map_err(GuestError::Temporary)?;
        Ok(path)
    }

    /// Returns the names of the packages that begin with `start`.
    fn packages(&mut self, start: &str) -> Result<Vec<String>, GuestError> {
        let mut command = self.apt()?.command("apt-cache");
        command.args(["pkgnames", start]);
        let names = output(("apt-cache", APT.1), &mut command, self.signals)?;
        Ok(names.lines().map(str::to_owned).collect())
    }

    /// Fetches a package and unpacks it into a temporary directory.
    fn unpacked(&mut self, package: &str) -> Result<TempDir, GuestError> {
        let directory = tempfile::tempdir().map_err(GuestError::Temporary)?;
        let mut fetch = self.apt()?.command(APT.0);
        fetch.args(["download", package]).current_dir(directory.path());
        output(APT, &mut fetch, self.signals)?;
        for archive in names(directory.path()).iter().filter(|name| name.ends_with(".deb")) {
            let archive = directory.path().join(archive);
            let mut unpack = Command::new("dpkg-deb");
            unpack.arg("-x").arg(archive).arg(directory.path());
            output(("dpkg-deb", "dpkg"), &mut unpack, self.signals)?;
        }
        Ok(directory)
    }

    /// Returns apt with fresh lists of [`SUITES`].
    fn apt(&mut self) -> Result<&Apt, GuestError> {
        let apt = match self.apt.take() {
            Some(apt) => apt,
            None => {
                self.progress.set_message("reading the lists of packages");
                let mirror = mirror(self.signals)?;
                let apt = Apt::new(&mirror).map_err(GuestError::Temporary)?;
                let mut update = apt.command(APT.0);
                update.args(["update", "-o", "APT::Update::Error-Mode=any"]);
                output(APT, &mut update, self.signals)?;
                apt
            }
        };
        Ok(self.apt.insert(apt))
    }
}

/// Returns the image in an unpacked package, and its name in the cache. Since Linux 7.3, it lies
/// with the modules.
fn image(directory: &Path) -> Option<(PathBuf, String)> {
    let (boot, modules) = (directory.join("boot"), directory.join("usr/lib/modules"));
    let in_boot = names(&boot).into_iter().map(|name| (boot.join(&name), name));
    let with_modules = names(&modules)
        .into_iter()
        .map(|release| (modules.join(&release).join("vmlinuz"), format!("vmlinuz-{release}")));
    let mut images = in_boot.chain(with_modules);
    images.find(|(path, name)| name.starts_with("vmlinuz-") && path.is_file())
}

impl Apt {
    fn new(mirror: &str) -> std::io::Result<Self> {
        let directory = tempfile::tempdir()?;
        for part in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(directory.path().join(part))?;
        }
        let mut sources = fs::File::create(directory.path().join("sources.list"))?;
        let signed_by = if Path::new(KEYRING).exists() {
            format!("[signed-by={KEYRING}] ")
        } else {
            String::new()
        };
        for suite in SUITES {
            writeln!(sources, "deb {signed_by}{mirror} {suite} main")?;
        }
        Ok(Self { directory })
    }

    /// Returns a program of apt that uses only this state.
    fn command(&self, program: &str) -> Command {
        let at = |name: &str| self.directory.path().join(name).display().to_string();
        let mut command = Command::new(program);
        command.env("LC_ALL", "C").arg("-q");
        for (option, value) in [
            ("Dir::Etc::sourcelist", at("sources.list")),
            ("Dir::Etc::sourceparts", "-".to_owned()),
            ("Dir::State::lists", at("lists")),
            ("Dir::Cache", at("cache")),
            ("APT::Architecture", "amd64".to_owned()),
            ("APT::Sandbox::User", "root".to_owned()),
            ("Acquire::Languages", "none".to_owned()),
            // Lists for graphical shops.
            ("Acquire::IndexTargets::deb::DEP-11::DefaultEnabled", "false".to_owned()),
        ] {
            command.arg("-o").arg(format!("{option}={value}"));
        }
        command
    }
}

/// Returns the address of the mirror of Debian that the host's apt uses.
fn mirror(signals: &mut Signals) -> Result<String, GuestError> {
    let mut command = Command::new(APT.0);
    command.args(["indextargets", "--format", "$(REPO_URI)"]);
    let addresses = output(APT, &mut command, signals)?;
    let is_debian = |address: &&str| address.trim_end_matches('/').ends_with("/debian");
    addresses.lines().find(is_debian).map(str::to_owned).ok_or(GuestError::NoMirror)
}

/// Returns the release in the name of a package with an image.
fn release(package: &str) -> Option<&str> {
    let release = IMAGES.iter().find_map(|start| package.strip_prefix(start))?;
    let release = release.strip_suffix(UNSIGNED).unwrap_or(release);
    let is_release =
        release.ends_with(FLAVOUR) && release.starts_with(|c: char| c.is_ascii_digit());
    // A name without the number of the update is of a package that only depends on others.
    (is_release && numbers(release).len() >= NUMBERS_MIN).then_some(release)
}

/// Returns the package with the newest image of a version.
fn newest<'p>(packages: &[&'p str], version: &Version) -> Option<&'p str> {
    let images = packages.iter().copied().filter_map(|package| Some((release(package)?, package)));
    let of_version = images.filter(|(release, _)| version.includes(release));
    // Of the same release: first the package that is only the image, then the unsigned one, which
    // is in the archive before the signed one.
    of_version
        .max_by_key(|(release, package)| {
            (numbers(release), package.starts_with(IMAGES[0]), package.ends_with(UNSIGNED))
        })
        .map(|(_, package)| package)
}

/// Returns the versions, without the number of the update, of which there are packages.
fn series(packages: &[&str]) -> Vec<String> {
    let mut series: Vec<_> = packages
        .iter()
        .filter_map(|package| Some(numbers(release(package)?)[..2].to_vec()))
        .collect();
    series.sort_unstable();
    series.dedup();
    series.iter().map(|it| format!("{}.{}", it[0], it[1])).collect()
}

/// Returns `true` if a file is a program without an interpreter for shared libraries.
fn is_static(path: &Path) -> bool {
    // The name of the interpreter is near the beginning of the file.
    const HEAD: usize = 4096;
    let Ok(bytes) = fs::read(path) else { return false };
    let head = &bytes[..bytes.len().min(HEAD)];
    bytes.starts_with(b"\x7fELF") && !head.windows(7).any(|window| window == b"ld-linu")
}

/// Returns the directory of the cache.
fn cache() -> PathBuf {
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    let of_user = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    of_user.unwrap_or_else(std::env::temp_dir).join("shootdown")
}

/// Returns the names in a directory, or nothing.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKAGES: [&str; 11] = [
        "linux-image-6.12.107+deb13-cloud-amd64-unsigned",
        "linux-image-6.12.117+deb13-cloud-amd64",
        "linux-image-6.12.117+deb13-cloud-amd64-unsigned",
        "linux-image-6.12.117+deb13-amd64",
        "linux-image-6.12.117+deb13-cloud-amd64-dbg",
        "linux-image-cloud-amd64",
        "linux-image-7.0.13+deb13-cloud-amd64",
        "linux-binary-7.0.13+deb13-cloud-amd64",
        "linux-binary-7.0.9+deb13-cloud-amd64",
        "linux-image-6.1.0-50-cloud-amd64",
        "linux-image-6.12-cloud-amd64",
    ];

    #[test]
    fn newest_image_of_version_is_chosen() {
        let newest = |text| newest(&PACKAGES, &Version::parse(text).expect("a version"));
        assert_eq!(newest("6.12"), Some(PACKAGES[2]));
        assert_eq!(newest("6.12.107"), Some(PACKAGES[0]));
        assert_eq!(newest("7.0"), Some(PACKAGES[7]));
        assert_eq!(newest("6.1"), Some(PACKAGES[9]));
        assert_eq!(newest("5.10"), None);
        assert_eq!(series(&PACKAGES), ["6.1", "6.12", "7.0"]);
    }

    #[test]
    fn image_lies_in_boot_or_with_modules() {
        const OTHERS: [&str; 2] = ["boot/config-7.0", "usr/lib/modules/7.0/modules.dep"];
        for place in ["boot/vmlinuz-7.0", "usr/lib/modules/7.0/vmlinuz"] {
            let directory = tempfile::tempdir().expect("a directory");
            for file in OTHERS.into_iter().chain([place]) {
                assert_eq!(image(directory.path()), None, "{file}");
                let path = directory.path().join(file);
                fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
                fs::write(path, "").expect("a file");
            }
            let found = (directory.path().join(place), "vmlinuz-7.0".to_owned());
            assert_eq!(image(directory.path()), Some(found));
        }
    }

    #[test]
    fn dynamic_program_is_not_static() {
        assert!(!is_static(Path::new("/proc/self/exe")) && !is_static(Path::new("/no/such")));
    }
}
