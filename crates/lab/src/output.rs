//! Standard output, and files that never have their name while they are incomplete.

use std::fs::{self, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::error::{UserError, shown};

/// Writes to standard output; a reader that closes it does not cause a panic.
pub(crate) fn print(text: &str) -> Result<(), StdoutError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(StdoutError)
}

/// Standard output could not be written to.
#[derive(Debug, thiserror::Error)]
#[error("standard output: {0}")]
pub(crate) struct StdoutError(io::Error);

impl UserError for StdoutError {
    fn remedy(&self) -> String {
        "another place for the output".to_owned()
    }

    fn is_broken_pipe(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

/// What to do about a file of that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Existing {
    Keep,
    Replace,
}

/// A file that will be written.
#[derive(Debug)]
pub(crate) struct Output {
    path: PathBuf,
    existing: Existing,
    /// The option that asks for it.
    option: &'static str,
}

/// The file was not written.
#[derive(Debug, thiserror::Error)]
#[error("{}{reason}", shown(.path))]
pub(crate) struct OutputError {
    path: PathBuf,
    option: &'static str,
    pub(crate) reason: Reason,
}

/// Why a file was not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Reason {
    /// It would replace a file.
    #[error(" exists")]
    Exists,
    /// It would replace a file that it is made of.
    #[error(" is the input as well")]
    IsInput,
    /// It would replace something else than a file, such as a device.
    #[error(" exists, and is no file")]
    NoFile,
    #[error(": {0}")]
    Unwritable(io::Error),
}

impl Output {
    /// An output at `path`, which the option `--output` gives.
    ///
    /// # Errors
    ///
    /// If there is a file of that name that is to be kept, or no file, or no directory for it.
    pub(crate) fn new(path: &Path, existing: Existing) -> Result<Self, OutputError> {
        Self::of_option(path, existing, "--output")
    }

    /// A page or a drawing at `path`, which `option` gives, and which replaces an older one.
    ///
    /// It can be written: that is known before time is spent on its contents.
    ///
    /// # Errors
    ///
    /// As [`Output::new`], and if it would replace one of `inputs`.
    pub(crate) fn page(
        path: &Path,
        option: &'static str,
        inputs: &[PathBuf],
    ) -> Result<Self, OutputError> {
        let output = Self::of_option(path, Existing::Replace, option)?;
        // An input that cannot be read is reported when it is read.
        for input in inputs.iter().filter_map(|input| fs::metadata(input).ok()) {
            output.spare(&input)?;
        }
        output.create()?;
        Ok(output)
    }

    fn of_option(
        path: &Path,
        existing: Existing,
        option: &'static str,
    ) -> Result<Self, OutputError> {
        let output = Self { path: path.to_owned(), existing, option };
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
            Ok(_) if existing == Existing::Keep => Err(output.error(Reason::Exists)),
            // Root could replace /dev/null, or a link to a device. The target of any other link
            // stays.
            Ok(_) if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) => {
                Err(output.error(Reason::NoFile))
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
        if is_input { Err(self.error(Reason::IsInput)) } else { Ok(()) }
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

    fn error(&self, reason: Reason) -> OutputError {
        OutputError { path: self.path.clone(), option: self.option, reason }
    }

    pub(crate) fn unwritable(&self, error: io::Error) -> OutputError {
        self.error(Reason::Unwritable(error))
    }

    /// Creates a file beside it, for its owner alone, which is removed unless it is
    /// [`kept`](Output::keep).
    ///
    /// # Errors
    ///
    /// If no file can be created there.
    pub(crate) fn create(&self) -> Result<NamedTempFile, OutputError> {
        NamedTempFile::new_in(self.directory()).map_err(|error| self.unwritable(error))
    }

    /// Writes the whole file, which others may read.
    ///
    /// # Errors
    ///
    /// If that fails, and then there is no such file.
    pub(crate) fn write(&self, text: &str) -> Result<(), OutputError> {
        let mut file = tempfile::Builder::new()
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(self.directory())
            .map_err(|error| self.unwritable(error))?;
        file.write_all(text.as_bytes()).map_err(|error| self.unwritable(error))?;
        self.keep(file).map(drop)
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
                Err(self.error(Reason::Exists))
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

impl UserError for OutputError {
    fn remedy(&self) -> String {
        if self.option != "--output" {
            return format!("another path for {}", self.option);
        }
        let remedy = match &self.reason {
            Reason::Exists => "--output ANOTHER-FILE, or --force to replace it",
            Reason::IsInput | Reason::NoFile => "--output ANOTHER-FILE",
            Reason::Unwritable(error) => match error.kind() {
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
    fn a_reader_that_left_is_no_failure() {
        assert!(StdoutError(io::ErrorKind::BrokenPipe.into()).is_broken_pipe());
        assert!(!StdoutError(io::ErrorKind::StorageFull.into()).is_broken_pipe());
    }

    #[test]
    fn a_page_does_not_replace_its_input_by_any_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let (input, link) = (folder.path().join("a.shootdown"), folder.path().join("link"));
        fs::write(&input, "a recording").expect("a file");
        fs::hard_link(&input, &link).expect("a link");
        for path in [&input, &link] {
            let error = Output::page(path, "--output", std::slice::from_ref(&input)).unwrap_err();
            assert!(error.to_string().ends_with("is the input as well"), "{error}");
        }
        assert!(Output::page(&folder.path().join("b.html"), "--output", &[input]).is_ok());
    }

    #[test]
    fn a_page_is_whole_or_not_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("report.html");
        let page = Output::page(&path, "--output", &[]).expect("a folder that can be written to");
        assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 0);
        fs::write(&path, "an older page").expect("a file");
        page.write("a page").expect("a page in place of the older");
        assert_eq!(fs::read_to_string(&path).expect("the page"), "a page");
        assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 1);
        for bad in [&folder.path().join("no").join("report.html"), folder.path()] {
            assert!(Output::page(bad, "--output", &[]).is_err());
        }
    }

    #[test]
    fn a_link_is_replaced_and_what_it_points_at_stays() {
        let directory = tempfile::tempdir().expect("a directory");
        let (target, link) = (directory.path().join("target"), directory.path().join("link"));
        fs::write(&target, "precious").expect("a file");
        symlink(&target, &link).expect("a link");
        let kept = Output::new(&link, Existing::Keep);
        assert!(matches!(kept, Err(OutputError { reason: Reason::Exists, .. })));
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
            assert!(matches!(output, Err(OutputError { reason: Reason::NoFile, .. })), "{path:?}");
        }
    }

    #[test]
    fn a_file_that_came_meanwhile_stays_and_nothing_else_does() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("x.shootdown");
        let output = Output::new(&path, Existing::Keep).expect("an output");
        let file = output.create().expect("a file");
        fs::write(&path, "theirs").expect("a file");
        assert!(matches!(output.keep(file), Err(OutputError { reason: Reason::Exists, .. })));
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
            assert!(
                matches!(spare(name), Err(OutputError { reason: Reason::IsInput, .. })),
                "{name}"
            );
        }
        assert!(spare("other").is_ok() && spare("new").is_ok());
    }
}
