//! Workloads as text: those that are compiled into the command, and the user's files.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use shootdown_run::text::{CellError, GridError, Text, TextError};

use crate::error::{bad_input, cannot_run, shown, user_errors};

/// A workload whose file is compiled into the command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Embedded {
    pub(crate) name: &'static str,
    source: &'static str,
}

macro_rules! embedded {
    ($($name:literal),*) => {
        /// The files of `workloads/`.
        pub(crate) const EMBEDDED: &[Embedded] = &[$(Embedded {
            name: $name,
            source: include_str!(concat!("../../../workloads/", $name, ".workload")),
        },)*];
    };
}

embedded!(
    "arena-per-thread",
    "madvise-server",
    "fork-server",
    "garbage-collector",
    "page-cache-scan",
    "page-cache-threads",
    "migration",
    "process-starts",
    "thread-starts",
    "page-discards",
    "file-discards",
    "fork-of-threads"
);

impl Embedded {
    /// The first line of the file, which describes the workload.
    pub(crate) fn about(&self) -> &'static str {
        self.source.lines().next().unwrap_or_default().trim_start_matches("# ")
    }
}

/// The largest file that is read, in bytes.
const BYTES_MAX: u64 = 1 << 20;

user_errors! {
    /// A workload is unknown, or its text cannot be used.
    #[derive(Debug, thiserror::Error)]
    pub(crate) enum WorkloadError {
        #[error("{}: {error}", shown(.path))]
        Unreadable { path: PathBuf, error: io::Error } => {
            let known: Vec<_> = EMBEDDED.iter().map(|workload| workload.name).collect();
            bad_input(format!("use a file, or {}", known.join(", ")))
        },
        #[error("{} has more than {} KiB", shown(.path), BYTES_MAX >> 10)]
        TooLong { path: PathBuf } => bad_input("use a shorter text: loops and parameters help"),
        /// The text has a mistake. The excerpt has the line with a caret.
        #[error("{}:{error}\n{excerpt}", shown(.path))]
        Text { path: PathBuf, error: Box<TextError>, excerpt: String } => bad_input(&error.remedy),
        /// A statement cannot be performed.
        #[error("{}:{error} ({of})\n{excerpt}", shown(.path))]
        Step { path: PathBuf, of: String, error: Box<TextError>, excerpt: String } =>
            bad_input(&error.remedy),
        #[error("{}: {error}", shown(.path))]
        Run { path: PathBuf, error: Box<GridError> } =>
            cannot_run("use fewer CPUs or threads, or less memory"),
    }
}

/// A workload, and the path by which errors name it.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) path: PathBuf,
    pub(crate) text: Text,
}

/// Reads a file, or finds an embedded workload by its name.
pub(crate) fn find(wanted: &OsStr) -> Result<Found, WorkloadError> {
    let path = Path::new(wanted);
    let embedded = EMBEDDED.iter().find(|workload| workload.name == wanted);
    let (path, source) = match embedded {
        Some(workload) if !path.exists() => {
            let path = Path::new("workloads").join(workload.name).with_extension("workload");
            (path, workload.source.to_owned())
        }
        _ => (path.to_owned(), read(path)?),
    };
    let stem = path.file_stem().unwrap_or(wanted);
    match Text::parse(&shown(stem), &source) {
        Ok(text) => Ok(Found { path, text }),
        Err(error) => Err(WorkloadError::Text {
            excerpt: error.excerpt(&source),
            error: Box::new(error),
            path,
        }),
    }
}

fn read(path: &Path) -> Result<String, WorkloadError> {
    let mut text = String::new();
    let file = File::open(path).and_then(|file| file.take(BYTES_MAX + 1).read_to_string(&mut text));
    file.map_err(|error| WorkloadError::Unreadable { path: path.to_owned(), error })?;
    if text.len() as u64 > BYTES_MAX {
        return Err(WorkloadError::TooLong { path: path.to_owned() });
    }
    Ok(text)
}

impl Found {
    /// Returns the error of a run as the command prints it.
    pub(crate) fn failed(&self, error: GridError) -> WorkloadError {
        let path = self.path.clone();
        let of = format!("on {} CPUs under {}", error.cpus, error.design);
        match error.error {
            CellError::Text(error) => {
                let excerpt = error.excerpt(self.text.source());
                WorkloadError::Step { path, of, excerpt, error: Box::new(error) }
            }
            CellError::Run(_) => WorkloadError::Run { path, error: Box::new(error) },
        }
    }
}
