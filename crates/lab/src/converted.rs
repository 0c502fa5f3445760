//! The files of other tools as text.
//!
//! The tool that a format belongs to converts the file: it also finds the functions and libraries
//! of the machine, whose addresses are all that `perf.data` has.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{bad_input, cannot_run, shown, user_errors};

/// A format that its tool converts.
#[derive(Debug)]
struct Format {
    beginning: &'static [u8],
    program: &'static str,
    arguments: &'static [&'static str],
    /// `true` if the tool reads standard input. Otherwise, the file is its last argument.
    is_filter: bool,
}

const FORMATS: [Format; 4] = [
    Format {
        beginning: b"\x1f\x8b",
        program: "gzip",
        arguments: &["--decompress", "--stdout"],
        is_filter: true,
    },
    Format {
        beginning: b"\x28\xb5\x2f\xfd",
        program: "zstd",
        arguments: &["--decompress", "--stdout", "--quiet"],
        is_filter: true,
    },
    Format {
        beginning: b"PERFILE2",
        program: "perf",
        // The file may be another user's. Inlined functions take perf minutes to find.
        arguments: &[
            "script",
            "--ns",
            "--force",
            "--no-inline",
            "--show-lost-events",
            "-F",
            "pid,tid,comm,cpu,time,event,trace,ip,sym,symoff,dso",
            "-i",
        ],
        is_filter: false,
    },
    Format {
        beginning: b"\x17\x08\x44tracing",
        program: "trace-cmd",
        arguments: &["report", "-t", "-i"],
        is_filter: false,
    },
];

/// Largest number of formats inside each other, such as a compressed `perf.data`.
const DEPTH_MAX: usize = 2;

user_errors! {
    /// A file was not converted.
    #[derive(Debug, thiserror::Error)]
    pub(crate) enum ConversionError {
        #[error("{} needs `{program}`: {error}", shown(.path))]
        NoProgram { path: PathBuf, program: &'static str, error: io::Error } =>
            cannot_run(format!("install {program}, or convert the file where it was recorded")),
        #[error("{}: `{program}` cannot read it: {}", shown(.path), shown(.message))]
        Refused { path: PathBuf, program: &'static str, message: String } =>
            bad_input(format!("convert the file with the version of {program} that wrote it")),
    }
}

/// A file that may have been converted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Converted {
    pub(crate) path: PathBuf,
    /// `false` if the tool reported an error after a part of the file.
    pub(crate) is_whole: bool,
}

/// Converts `path` to a file in `directory` if its format is another tool's. Any other file, also
/// one that cannot be read, is left to its reader.
///
/// # Errors
///
/// If the tool is missing, or makes nothing of the file.
pub(crate) fn converted(path: &Path, directory: &Path) -> Result<Converted, ConversionError> {
    let mut file = Converted { path: path.to_owned(), is_whole: true };
    for depth in 0..DEPTH_MAX {
        let Some(format) = format_of(&file.path) else { break };
        let to = directory.join(format!("converted-{depth}"));
        if let Some(message) = format.convert(&file.path, &to, path)? {
            // If standard error is closed, only the note is lost.
            let _ = writeln!(
                io::stderr(),
                "note: {} is used as far as `{}` can read it: {}",
                shown(path),
                format.program,
                shown(message)
            );
            file.is_whole = false;
        }
        file.path = to;
    }
    Ok(file)
}

/// Returns the first bytes of a file; none if it cannot be read.
pub(crate) fn beginning(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    if path.is_file()
        && let Ok(file) = File::open(path)
    {
        // The reader of the file reports the error.
        let _ = file.take(16).read_to_end(&mut bytes);
    }
    bytes
}

fn format_of(path: &Path) -> Option<&'static Format> {
    let bytes = beginning(path);
    FORMATS.iter().find(|format| bytes.starts_with(format.beginning))
}

impl Format {
    /// Converts a file, which errors name `named`. Returns the tool's last message if it failed
    /// after a part.
    fn convert(
        &self,
        from: &Path,
        to: &Path,
        named: &Path,
    ) -> Result<Option<String>, ConversionError> {
        let Self { program, .. } = *self;
        let path = || named.to_owned();
        let unread = |error: io::Error| {
            let message = error.to_string();
            ConversionError::Refused { path: path(), program, message }
        };
        let mut command = Command::new(program);
        command.args(self.arguments).env("LC_ALL", "C").stdin(Stdio::null());
        if self.is_filter {
            command.stdin(File::open(from).map_err(unread)?);
        } else {
            command.arg(from);
        }
        command.stdout(File::create(to).map_err(unread)?).stderr(Stdio::piped());
        let child = command.spawn();
        let child = child.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => ConversionError::NoProgram { path: path(), program, error },
            _ => unread(error),
        })?;
        let output = child.wait_with_output().map_err(unread)?;
        if output.status.success() {
            return Ok(None);
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = errors.lines().rfind(|line| !line.trim().is_empty());
        let message = last.map_or_else(|| output.status.to_string(), |line| line.trim().to_owned());
        if to.metadata().is_ok_and(|text| text.len() > 0) {
            Ok(Some(message))
        } else {
            Err(ConversionError::Refused { path: path(), program, message })
        }
    }
}
