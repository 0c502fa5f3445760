//! What can go wrong, and what to do about it: one line each.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use shootdown_sim::machine::MachineError;
use shootdown_workload::recording::ReadError;

use crate::commands::boot::BootFailure;
use crate::commands::check::CheckFailure;
use crate::commands::import::ImportFailure;
use crate::commands::record::RecordError;

/// Why the command ended without doing what it was asked to.
#[derive(Debug)]
pub(crate) enum Failure {
    /// No machine file of that name came with the command.
    UnknownMachine { name: String, known: Vec<&'static str> },
    /// A machine file could not be read.
    Unreadable { path: PathBuf, error: io::Error },
    /// A machine file was refused.
    BadMachine { path: PathBuf, error: MachineError },
    /// No experiment is of that seed.
    UnknownSeed { seed: String, known: Vec<&'static str> },
    /// The report could not be written.
    Unwritable { path: PathBuf, error: io::Error },
    /// Standard output could not be written to.
    Output(io::Error),
    /// An experiment could not be simulated.
    Simulation { workload: String, design: String, cause: String },
    /// Nothing was recorded, or not all.
    Record(RecordError),
    /// Nothing was imported, or not all.
    Import(ImportFailure),
    /// There is no design of that name.
    UnknownDesign { name: String, known: Vec<&'static str> },
    /// A recording could not be opened.
    NoRecording { path: PathBuf, error: io::Error },
    /// A recording was refused.
    BadRecording { path: PathBuf, error: ReadError },
    /// A recording needs more CPUs than a machine has.
    TooFewCpus { recorded: usize, machine: usize, name: String, known: Vec<&'static str> },
    /// Nothing was checked, or something is wrong.
    Check(Box<CheckFailure>),
    /// Nothing booted, or something is wrong.
    Boot(Box<BootFailure>),
    /// The engine let a dead translation be used.
    Violated { violations: u64 },
}

impl Failure {
    pub(crate) fn unreadable(path: &Path, error: io::Error) -> Self {
        Self::Unreadable { path: path.to_owned(), error }
    }

    pub(crate) fn bad_machine(path: &Path, error: MachineError) -> Self {
        Self::BadMachine { path: path.to_owned(), error }
    }

    pub(crate) fn unwritable(path: &Path, error: io::Error) -> Self {
        Self::Unwritable { path: path.to_owned(), error }
    }

    pub(crate) fn no_recording(path: &Path, error: io::Error) -> Self {
        Self::NoRecording { path: path.to_owned(), error }
    }

    pub(crate) fn bad_recording(path: &Path, error: ReadError) -> Self {
        Self::BadRecording { path: path.to_owned(), error }
    }

    /// Whether whoever read our output has read enough (`| head`): nothing to complain of.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// With which status the command ends.
    pub(crate) fn exit_status(&self) -> u8 {
        match self {
            Self::Record(error) => error.exit_status(),
            Self::Import(error) => error.exit_status(),
            _ => 1,
        }
    }

    fn cause(&self) -> String {
        match self {
            Self::UnknownMachine { name, .. } => {
                format!("there is no machine `{}`", shown(name))
            }
            Self::Unreadable { path, error }
            | Self::Unwritable { path, error }
            | Self::NoRecording { path, error } => {
                format!("{}: {error}", shown(path))
            }
            Self::BadMachine { path, error } => {
                format!("{}: {}", shown(path), shown(one_line(&error.to_string())))
            }
            Self::UnknownSeed { seed, .. } => {
                format!("there is no experiment of seed `{}`", shown(seed))
            }
            Self::Output(error) => format!("standard output: {error}"),
            Self::Simulation { workload, design, cause } => {
                format!("{} under {design}: {cause}", shown(workload))
            }
            Self::Record(error) => error.cause(),
            Self::Import(error) => error.cause(),
            Self::Check(error) => error.cause(),
            Self::Boot(error) => error.cause(),
            Self::UnknownDesign { name, .. } => {
                format!("there is no design `{}`", shown(name))
            }
            Self::BadRecording { path, error } => format!("{}: {error}", shown(path)),
            Self::TooFewCpus { recorded, machine, name, .. } => {
                format!("{recorded} CPUs were recorded, and {} has {machine}", shown(name))
            }
            Self::Violated { violations } => {
                format!("the engine let {violations} dead translations be used")
            }
        }
    }

    fn remedy(&self) -> String {
        match self {
            Self::UnknownMachine { known, .. } => {
                format!("{}, or a path that ends in .toml", known.join(", "))
            }
            Self::Unreadable { .. } => "shootdown machines, for those that need no file".to_owned(),
            Self::BadMachine { .. } => {
                "mend it; machines/*.toml in the repository are examples".to_owned()
            }
            Self::UnknownSeed { known, .. } => format!("--only {}", known.join(" or --only ")),
            Self::Unwritable { .. } => "another path for --report".to_owned(),
            Self::Output(_) => "another place for the output".to_owned(),
            Self::Simulation { .. } => "shootdown machines, which needs no simulation".to_owned(),
            Self::Record(error) => error.remedy(),
            Self::Import(error) => error.remedy(),
            Self::Check(error) => error.remedy(),
            Self::Boot(error) => error.remedy(),
            Self::UnknownDesign { known, .. } => known.join(", "),
            Self::NoRecording { .. } => "shootdown record -- COMMAND makes one".to_owned(),
            Self::BadRecording { error, .. } => error.remedy().to_owned(),
            Self::TooFewCpus { known, .. } if known.is_empty() => {
                "--schedule simulated, which needs no more CPUs than there are".to_owned()
            }
            Self::TooFewCpus { known, .. } => {
                format!("--machine {}, or --schedule simulated", known.join(" or "))
            }
            Self::Violated { .. } => "report this, with the command and the seed".to_owned(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}\ntry:   {}", self.cause(), self.remedy())
    }
}

impl std::error::Error for Failure {}

/// Text from elsewhere as a terminal may have it: its control characters would act there.
pub(crate) fn shown(text: impl AsRef<OsStr>) -> String {
    let mut shown = String::new();
    for character in text.as_ref().to_string_lossy().chars() {
        match character {
            '\'' | '"' | '\\' => shown.push(character),
            _ => shown.extend(character.escape_debug()),
        }
    }
    shown
}

/// What the TOML parser says in several lines, with a picture: where, and what.
fn one_line(error: &str) -> String {
    match error.split_once('\n') {
        Some((position, rest)) => {
            format!("{position}: {}", rest.lines().last().unwrap_or_default().trim())
        }
        None => error.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shootdown_sim::machine::Machine;

    #[test]
    fn a_bad_file_is_reported_with_its_path_line_and_column_in_one_line() {
        let error = Machine::from_toml("name = \"x\"\nabout = 3\n").unwrap_err();
        let text = Failure::bad_machine(Path::new("my.toml"), error).to_string();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.starts_with("error: my.toml: "), "{text}");
        assert!(text.contains("line 2, column 9"), "{text}");
        assert!(text.contains("\ntry:   "), "{text}");
    }

    #[test]
    fn nothing_that_is_shown_acts_on_a_terminal() {
        let text = "it's \"\\\" é \x1b[2J\x07\n\r\x7f\u{9b}\u{202e}";
        let expected = "it's \"\\\" é \\u{1b}[2J\\u{7}\\n\\r\\u{7f}\\u{9b}\\u{202e}";
        assert_eq!(shown(text), expected);
    }

    #[test]
    fn only_a_reader_that_left_early_is_no_failure() {
        assert!(Failure::Output(io::ErrorKind::BrokenPipe.into()).is_broken_pipe());
        assert!(!Failure::Output(io::ErrorKind::StorageFull.into()).is_broken_pipe());
    }
}
