//! Where a recording goes, and that nothing half-written ever has its name.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, fchown};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::error::shown;

/// What to do about a file of that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Existing {
    Keep,
    Replace,
}

/// A file that will be.
#[derive(Debug)]
pub(crate) struct Output {
    path: PathBuf,
    existing: Existing,
}

/// Why there is no such file.
#[derive(Debug)]
pub(crate) enum OutputError {
    /// It would replace a file.
    Exists { path: PathBuf },
    /// It would replace what it is made of.
    IsInput { path: PathBuf },
    /// It would replace something else than a file, such as a device.
    NoFile { path: PathBuf },
    /// It could not be written.
    Unwritable { path: PathBuf, error: io::Error },
}

impl Output {
    /// At `path`.
    ///
    /// # Errors
    ///
    /// If there is a file of that name that is to be kept, or no file, or no directory for it.
    pub(crate) fn new(path: &Path, existing: Existing) -> Result<Self, OutputError> {
        let output = Self { path: path.to_owned(), existing };
        let unwritable = |error| output.unwritable(error);
        if !fs::metadata(output.directory()).map_err(unwritable)?.is_dir() {
            return Err(unwritable(io::ErrorKind::NotADirectory.into()));
        }
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(output),
            Err(error) => Err(unwritable(error)),
            Ok(metadata) if metadata.is_dir() => {
                Err(unwritable(io::ErrorKind::IsADirectory.into()))
            }
            Ok(_) if existing == Existing::Keep => Err(OutputError::Exists { path: output.path }),
            // Root could have /dev/null replaced, or a link to a device. What is behind other
            // links stays, whatever it is.
            Ok(_) if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) => {
                Err(OutputError::NoFile { path: output.path })
            }
            Ok(_) => Ok(output),
        }
    }

    /// Refuses to replace the file that `input` is.
    ///
    /// # Errors
    ///
    /// If it is that file, by this name or another.
    pub(crate) fn spare(&self, input: &fs::Metadata) -> Result<(), OutputError> {
        let is_input = fs::metadata(&self.path)
            .is_ok_and(|output| (output.dev(), output.ino()) == (input.dev(), input.ino()));
        if is_input { Err(OutputError::IsInput { path: self.path.clone() }) } else { Ok(()) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn directory(&self) -> &Path {
        match self.path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        }
    }

    pub(crate) fn unwritable(&self, error: io::Error) -> OutputError {
        OutputError::Unwritable { path: self.path.clone(), error }
    }

    /// A file beside it, which is removed unless it is [`kept`](Output::keep).
    ///
    /// # Errors
    ///
    /// If none can be made there.
    pub(crate) fn create(&self) -> Result<NamedTempFile, OutputError> {
        NamedTempFile::new_in(self.directory()).map_err(|error| self.unwritable(error))
    }

    /// Gives `file` its name, and, under `sudo`, to the user who asked for it; and says how many
    /// bytes it has. A link of that name is replaced, not followed.
    ///
    /// # Errors
    ///
    /// If it can't be done, and then there is no such file.
    pub(crate) fn keep(&self, file: NamedTempFile) -> Result<u64, OutputError> {
        if let Some((user, group)) = invoker() {
            // A recording that is root's is better than none.
            let _ = fchown(file.as_file(), Some(user), Some(group));
        }
        let unwritable = |error| self.unwritable(error);
        // What was written may meet its error only here.
        file.as_file().sync_data().map_err(unwritable)?;
        let bytes = file.as_file().metadata().map_err(unwritable)?.len();
        let kept = match self.existing {
            Existing::Keep => file.persist_noclobber(&self.path),
            Existing::Replace => file.persist(&self.path),
        };
        match kept {
            Ok(_) => Ok(bytes),
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {
                Err(OutputError::Exists { path: self.path.clone() })
            }
            Err(error) => Err(unwritable(error.error)),
        }
    }
}

/// Whom `sudo` serves.
fn invoker() -> Option<(u32, u32)> {
    let number = |name| std::env::var(name).ok()?.parse().ok();
    Some((number("SUDO_UID")?, number("SUDO_GID")?))
}

impl OutputError {
    /// What happened, in one line.
    pub(crate) fn cause(&self) -> String {
        match self {
            Self::Exists { path } => format!("{} exists", shown(path)),
            Self::IsInput { path } => format!("{} is the input as well", shown(path)),
            Self::NoFile { path } => format!("{} exists, and is no file", shown(path)),
            Self::Unwritable { path, error } => format!("{}: {error}", shown(path)),
        }
    }

    /// What to do, in one line.
    pub(crate) fn remedy(&self) -> String {
        let remedy = match self {
            Self::Exists { .. } => "--output ANOTHER-FILE, or --force to replace it",
            Self::IsInput { .. } | Self::NoFile { .. } => "--output ANOTHER-FILE",
            Self::Unwritable { error, .. } => match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    "--output FILE in a place with more room"
                }
                _ => "another place, with --output FILE",
            },
        };
        remedy.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_link_is_replaced_and_what_it_points_at_stays() {
        let directory = tempfile::tempdir().expect("a directory");
        let (target, link) = (directory.path().join("target"), directory.path().join("link"));
        fs::write(&target, "precious").expect("a file");
        symlink(&target, &link).expect("a link");
        let kept = Output::new(&link, Existing::Keep);
        assert!(matches!(kept, Err(OutputError::Exists { .. })));
        let output = Output::new(&link, Existing::Replace).expect("an output");
        output.keep(output.create().expect("a file")).expect("kept");
        assert!(!fs::symlink_metadata(&link).expect("a file").is_symlink());
        assert_eq!(fs::read_to_string(&target).expect("text"), "precious");
    }

    #[test]
    fn what_is_no_file_is_not_replaced_by_force_either() {
        let directory = tempfile::tempdir().expect("a directory");
        let link = directory.path().join("link");
        symlink("/dev/null", &link).expect("a link");
        for path in [Path::new("/dev/null"), &link] {
            let output = Output::new(path, Existing::Replace);
            assert!(matches!(output, Err(OutputError::NoFile { .. })), "{path:?}");
        }
    }

    #[test]
    fn a_file_that_came_meanwhile_stays_and_nothing_else_does() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("x.shootdown");
        let output = Output::new(&path, Existing::Keep).expect("an output");
        let file = output.create().expect("a file");
        fs::write(&path, "theirs").expect("a file");
        assert!(matches!(output.keep(file), Err(OutputError::Exists { .. })));
        assert_eq!(fs::read_to_string(&path).expect("text"), "theirs");
        assert_eq!(fs::read_dir(directory.path()).expect("files").count(), 1);
    }

    #[test]
    fn an_input_is_known_by_whichever_name() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        fs::write(at("input"), "precious").expect("a file");
        symlink(at("input"), at("link")).expect("a link");
        fs::write(at("other"), "").expect("a file");
        let input = fs::metadata(at("input")).expect("a file");
        let spare =
            |name| Output::new(&at(name), Existing::Replace).expect("an output").spare(&input);
        for name in ["input", "./input", "link"] {
            assert!(matches!(spare(name), Err(OutputError::IsInput { .. })), "{name}");
        }
        assert!(spare("other").is_ok() && spare("new").is_ok());
    }
}
