//! Standard output, and output files that get their name only when they are complete.

use std::fs::{self, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::error::{CANNOT_RUN, Help, UserError, bad_input, cannot_run, shown};

/// Writes to standard output. If the reader has closed it, the result is an error, not a panic.
pub(crate) fn print(text: &str) -> Result<(), StdoutError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(StdoutError)
}

/// Standard output could not be written to.
#[derive(Debug, thiserror::Error)]
#[error("standard output: {0}")]
pub(crate) struct StdoutError(io::Error);

impl UserError for StdoutError {
    fn help(&self) -> Help {
        // A reader that closed standard output, as `| head` does, is not an error.
        let status = if self.0.kind() == io::ErrorKind::BrokenPipe { 0 } else { CANNOT_RUN };
        Help::new(status, "redirect the output to a file on a disk with free space")
    }
}

/// The treatment of an existing file of the output's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Existing {
    Keep,
    Replace,
}

/// A file that will be written.
#[derive(Debug)]
pub(crate) struct Output {
    /// The path that the user gave.
    path: PathBuf,
    /// The path of the file: `path`, or the file that `path` is a symbolic link to.
    target: PathBuf,
    existing: Existing,
    /// The option that gave the path.
    option: &'static str,
}

/// An output file was not written.
#[derive(Debug, thiserror::Error)]
#[error("{}{reason}", shown(.path))]
pub(crate) struct OutputError {
    path: PathBuf,
    option: &'static str,
    pub(crate) reason: Reason,
}

/// The reason why a file was not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Reason {
    /// A file of that name exists, and the user did not allow its replacement.
    #[error(" exists")]
    Exists,
    /// A recorder was killed while it wrote this file, or it still runs.
    #[error(".part exists: another recorder writes it, or was killed")]
    PartExists,
    /// The output would replace the file that it is made of.
    #[error(" is also the input")]
    IsInput,
    /// The path is `-`, which names standard output in many commands.
    #[error(": this would be a file of this name, and not standard output")]
    Dash,
    /// The path exists and is not a regular file, for example a device or a dangling link.
    #[error(" exists, and is not a regular file")]
    NotAFile,
    /// No file can be created in the directory of the output.
    #[error(": the directory {} cannot be written to: {}", shown(.directory), .kind)]
    Directory { directory: PathBuf, kind: io::ErrorKind },
    #[error(": {0}")]
    Unwritable(io::Error),
}

impl Output {
    /// Returns an output at `path`, which the option `--output` gave.
    ///
    /// If `path` is a symbolic link to a file, the output is that file.
    ///
    /// # Errors
    ///
    /// If `existing` is [`Existing::Keep`] and the path exists; if the path exists and is not a
    /// regular file; or if its directory does not exist.
    pub(crate) fn new(path: &Path, existing: Existing) -> Result<Self, OutputError> {
        Self::of_option(path, existing, "--output")
    }

    /// Returns an output for a page or a drawing at `path`, which `option` gave. The output
    /// replaces an existing file.
    ///
    /// The call also checks that a file can be created, so that this error is reported before the
    /// contents are computed.
    ///
    /// # Errors
    ///
    /// Those of [`Output::new`], or if the output would replace one of `inputs`.
    pub(crate) fn page(
        path: &Path,
        option: &'static str,
        inputs: &[PathBuf],
    ) -> Result<Self, OutputError> {
        let output = Self::of_option(path, Existing::Replace, option)?;
        // An input that cannot be read is reported when it is read.
        for input in inputs.iter().filter_map(|input| fs::metadata(input).ok()) {
            output.refuse_input(&input)?;
        }
        output.create()?;
        Ok(output)
    }

    fn of_option(
        path: &Path,
        existing: Existing,
        option: &'static str,
    ) -> Result<Self, OutputError> {
        let mut output = Self { path: path.to_owned(), target: path.to_owned(), existing, option };
        if path == Path::new("-") {
            return Err(output.error(Reason::Dash));
        }
        let unwritable = |error| output.unwritable(error);
        if !fs::metadata(output.directory()).map_err(unwritable)?.is_dir() {
            return Err(unwritable(io::ErrorKind::NotADirectory.into()));
        }
        match fs::symlink_metadata(&output.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(output),
            Err(error) => Err(unwritable(error)),
            Ok(metadata) if metadata.is_dir() => {
                Err(unwritable(io::ErrorKind::IsADirectory.into()))
            }
            Ok(_) if existing == Existing::Keep => Err(output.error(Reason::Exists)),
            // Root could replace /dev/null, or a link to a device.
            Ok(_) if !fs::metadata(&output.path).is_ok_and(|target| target.is_file()) => {
                Err(output.error(Reason::NotAFile))
            }
            Ok(_) => {
                output.target = fs::canonicalize(&output.path).map_err(unwritable)?;
                Ok(output)
            }
        }
    }

    /// Refuses to replace the file that `input` describes.
    ///
    /// # Errors
    ///
    /// If the output is that file, under this name or another.
    pub(crate) fn refuse_input(&self, input: &fs::Metadata) -> Result<(), OutputError> {
        let is_input = fs::metadata(&self.target)
            .is_ok_and(|output| (output.dev(), output.ino()) == (input.dev(), input.ino()));
        if is_input { Err(self.error(Reason::IsInput)) } else { Ok(()) }
    }

    /// Returns the path that the user gave.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the directory of the file. Temporary files must be in it, because a file cannot be
    /// renamed to another file system.
    pub(crate) fn directory(&self) -> &Path {
        match self.target.parent() {
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

    /// Returns the error of a temporary file that could not be created. The text of `error` would
    /// name the temporary file, so only its kind is used.
    pub(crate) fn not_created(&self, error: io::Error) -> OutputError {
        self.error(Reason::Directory { directory: self.directory().to_owned(), kind: error.kind() })
    }

    /// Creates a temporary file in the output's directory, with permissions for its owner only. It
    /// is removed when it is dropped, unless it is [`kept`](Output::keep).
    ///
    /// # Errors
    ///
    /// If no file can be created in the directory.
    pub(crate) fn create(&self) -> Result<NamedTempFile, OutputError> {
        NamedTempFile::new_in(self.directory()).map_err(|error| self.not_created(error))
    }

    /// Creates the file of the output's name with `.part` after it, as [`create`](Self::create)
    /// does. It remains if the process is killed.
    ///
    /// # Errors
    ///
    /// If no file can be created in the directory, or if the file exists, unless the output
    /// replaces existing files.
    pub(crate) fn create_part(&self) -> Result<NamedTempFile, OutputError> {
        let mut name = self.target.file_name().unwrap_or_default().to_owned();
        name.push(".part");
        if self.existing == Existing::Replace {
            // If this fails, so does the creation.
            let _ = fs::remove_file(self.directory().join(&name));
        }
        let mut builder = tempfile::Builder::new();
        let file = builder.prefix(&name).rand_bytes(0).tempfile_in(self.directory());
        file.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => self.error(Reason::PartExists),
            _ => self.not_created(error),
        })
    }

    /// Writes the whole file, readable by other users as the umask allows.
    ///
    /// # Errors
    ///
    /// If the file cannot be written. An existing file is then unchanged.
    pub(crate) fn write(&self, text: &str) -> Result<(), OutputError> {
        let mut file = tempfile::Builder::new()
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(self.directory())
            .map_err(|error| self.not_created(error))?;
        file.write_all(text.as_bytes()).map_err(|error| self.unwritable(error))?;
        self.keep(file).map(drop)
    }

    /// Renames `file` to the output's path and returns its size in bytes. Under `sudo`, the file
    /// then belongs to the user that called `sudo`.
    ///
    /// # Errors
    ///
    /// If the file cannot be written or renamed. An existing file is then unchanged.
    pub(crate) fn keep(&self, file: NamedTempFile) -> Result<u64, OutputError> {
        if let Some((user, group)) = invoker() {
            // A recording that belongs to root is better than none.
            let _ = fchown(file.as_file(), Some(user), Some(group));
        }
        let unwritable = |error| self.unwritable(error);
        // The kernel may report an error of an earlier write only here.
        file.as_file().sync_data().map_err(unwritable)?;
        let bytes = file.as_file().metadata().map_err(unwritable)?.len();
        let kept = match self.existing {
            Existing::Keep => file.persist_noclobber(&self.target),
            Existing::Replace => file.persist(&self.target),
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

/// Returns the user and the group that called `sudo`, or `None` without `sudo`.
fn invoker() -> Option<(u32, u32)> {
    let number = |name| std::env::var(name).ok()?.parse().ok();
    Some((number("SUDO_UID")?, number("SUDO_GID")?))
}

impl UserError for OutputError {
    fn help(&self) -> Help {
        use io::ErrorKind::{IsADirectory, NotADirectory, NotFound, QuotaExceeded, StorageFull};
        let option = self.option;
        let another = format!("choose another file with {option}");
        match &self.reason {
            Reason::Exists => bad_input(another + ", or add --force"),
            Reason::PartExists => {
                let part = shown(&self.path);
                bad_input(format!("replay {part}.part, or remove it; or {another}"))
            }
            Reason::IsInput | Reason::NotAFile | Reason::Dash => bad_input(another),
            Reason::Directory { .. } => cannot_run(another),
            Reason::Unwritable(error) => match error.kind() {
                NotFound | NotADirectory | IsADirectory => bad_input(another),
                StorageFull | QuotaExceeded => cannot_run(format!(
                    "choose a file on a disk with more free space, with {option}"
                )),
                _ => cannot_run(another),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn closed_pipe_is_not_failure() {
        assert_eq!(StdoutError(io::ErrorKind::BrokenPipe.into()).help().status, 0);
        assert_eq!(StdoutError(io::ErrorKind::StorageFull.into()).help().status, CANNOT_RUN);
    }

    #[test]
    fn page_does_not_replace_input() {
        let directory = tempfile::tempdir().expect("a directory");
        let (input, link) = (directory.path().join("a.shootdown"), directory.path().join("link"));
        fs::write(&input, "a recording").expect("a file");
        fs::hard_link(&input, &link).expect("a link");
        for path in [&input, &link] {
            let error = Output::page(path, "--output", std::slice::from_ref(&input)).unwrap_err();
            assert!(error.to_string().ends_with("is also the input"), "{error}");
        }
        assert!(Output::page(&directory.path().join("b.html"), "--output", &[input]).is_ok());
    }

    #[test]
    fn page_replaces_older_page_completely() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("report.html");
        let page =
            Output::page(&path, "--output", &[]).expect("a directory that can be written to");
        assert_eq!(fs::read_dir(directory.path()).expect("the directory").count(), 0);
        fs::write(&path, "an older page").expect("a file");
        page.write("a page").expect("a page in place of the older");
        assert_eq!(fs::read_to_string(&path).expect("the page"), "a page");
        assert_eq!(fs::read_dir(directory.path()).expect("the directory").count(), 1);
        for bad in [&directory.path().join("no").join("report.html"), directory.path()] {
            assert!(Output::page(bad, "--output", &[]).is_err());
        }
    }

    #[test]
    fn symbolic_link_stays_and_its_target_is_replaced() {
        let directory = tempfile::tempdir().expect("a directory");
        let elsewhere = tempfile::tempdir().expect("a directory");
        let (target, link) = (elsewhere.path().join("target"), directory.path().join("link"));
        fs::write(&target, "old").expect("a file");
        symlink(&target, &link).expect("a link");
        let kept = Output::new(&link, Existing::Keep);
        assert!(matches!(kept, Err(OutputError { reason: Reason::Exists, .. })));
        let page = Output::page(&link, "--output", &[]).expect("an output");
        assert_eq!(page.path(), link);
        page.write("new").expect("a page");
        assert!(fs::symlink_metadata(&link).expect("a file").is_symlink());
        assert_eq!(fs::read_to_string(&target).expect("text"), "new");
        assert_eq!(fs::read_dir(elsewhere.path()).expect("files").count(), 1);
    }

    #[test]
    fn directory_that_is_not_writable_is_named() {
        let directory = tempfile::tempdir().expect("a directory");
        let output = Output::new(&directory.path().join("x"), Existing::Replace);
        let error = output.expect("an output").not_created(io::ErrorKind::PermissionDenied.into());
        let expected = format!(
            "{0}/x: the directory {0} cannot be written to: permission denied",
            directory.path().display()
        );
        assert_eq!((error.to_string(), error.help().status), (expected, CANNOT_RUN));
    }

    #[test]
    fn device_or_dangling_link_is_not_replaced() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        symlink("/dev/null", at("device")).expect("a link");
        symlink(at("missing"), at("dangling")).expect("a link");
        for path in [Path::new("/dev/null"), &at("device"), &at("dangling")] {
            let output = Output::new(path, Existing::Replace);
            assert!(
                matches!(output, Err(OutputError { reason: Reason::NotAFile, .. })),
                "{path:?}"
            );
        }
    }

    #[test]
    fn file_that_appears_before_keep_is_not_replaced() {
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
    fn input_is_recognised_under_any_name() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        fs::write(at("input"), "precious").expect("a file");
        symlink(at("input"), at("link")).expect("a link");
        fs::write(at("other"), "").expect("a file");
        let input = fs::metadata(at("input")).expect("a file");
        let refuse = |name| {
            Output::new(&at(name), Existing::Replace).expect("an output").refuse_input(&input)
        };
        for name in ["input", "./input", "link"] {
            assert!(
                matches!(refuse(name), Err(OutputError { reason: Reason::IsInput, .. })),
                "{name}"
            );
        }
        assert!(refuse("other").is_ok() && refuse("new").is_ok());
    }
}
