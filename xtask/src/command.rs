//! Running other commands, and saying what went wrong.

use std::ffi::OsStr;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{self, ExitStatus, Output, Stdio};

/// One line of cause and one of remedy.
#[derive(Debug)]
pub(crate) struct Failure {
    cause: String,
    remedy: String,
}

impl Failure {
    pub(crate) fn new(cause: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { cause: cause.into(), remedy: remedy.into() }
    }

    pub(crate) fn cause(&self) -> &str {
        &self.cause
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}\ntry:   {}", self.cause, self.remedy)
    }
}

/// A command that runs in the root of the repository.
#[derive(Debug)]
pub(crate) struct Command {
    command: process::Command,
    line: String,
}

/// `cargo` with the words of `arguments`.
pub(crate) fn cargo(arguments: &str) -> Command {
    // Not the path in `$CARGO`: that one does not know `+nightly`.
    Command::new("cargo").args(arguments)
}

impl Command {
    pub(crate) fn new(program: &str) -> Self {
        let mut command = process::Command::new(program);
        command.current_dir(crate::root());
        // Set by the cargo that runs us, for the toolchain that runs us.
        for inherited in ["CARGO", "RUSTUP_TOOLCHAIN", "RUSTC", "RUSTDOC"] {
            command.env_remove(inherited);
        }
        Self { command, line: program.to_owned() }
    }

    pub(crate) fn args(mut self, words: &str) -> Self {
        self.command.args(words.split_whitespace());
        self.line = format!("{} {words}", self.line);
        self
    }

    pub(crate) fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.line = format!("{} {}", self.line, argument.as_ref().display());
        self.command.arg(argument);
        self
    }

    pub(crate) fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(key, value);
        self
    }

    /// Runs it in another directory than the root.
    pub(crate) fn within(mut self, directory: &Path) -> Self {
        self.command.current_dir(directory);
        self
    }

    /// Runs it, with its output shown.
    pub(crate) fn run(mut self) -> Result<(), Failure> {
        match self.command.status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(Failure::new(
                format!("`{}` failed ({status})", self.line),
                "read what it says above",
            )),
            Err(error) => Err(self.not_run(&error)),
        }
    }

    /// Runs it, with its output shown, and returns how it ended.
    pub(crate) fn status(mut self) -> Result<ExitStatus, Failure> {
        self.command.status().map_err(|error| self.not_run(&error))
    }

    /// Runs it, hands over each line that it prints, and returns how it ended.
    pub(crate) fn lines(mut self, mut line: impl FnMut(&str)) -> Result<ExitStatus, Failure> {
        let mut run = || {
            let mut child = self.command.stdout(Stdio::piped()).spawn()?;
            if let Some(output) = child.stdout.take() {
                // Messages of panics may hold anything.
                for text in BufReader::new(output).split(b'\n') {
                    line(&String::from_utf8_lossy(&text?));
                }
            }
            child.wait()
        };
        run().map_err(|error| self.not_run(&error))
    }

    /// Runs it, and returns what it printed.
    pub(crate) fn output(mut self) -> Result<String, Failure> {
        match self.command.output() {
            Ok(output) if output.status.success() => {
                Ok(String::from_utf8_lossy(&output.stdout).into_owned())
            }
            Ok(output) => Err(Failure::new(
                format!("`{}` failed ({})", self.line, output.status),
                "run it by hand to see why",
            )),
            Err(error) => Err(self.not_run(&error)),
        }
    }

    /// Runs it, and returns what it printed and how it ended, whichever that is.
    pub(crate) fn captured(mut self) -> Result<Output, Failure> {
        self.command.output().map_err(|error| self.not_run(&error))
    }

    /// Runs it, and shows what it printed only if it fails.
    pub(crate) fn output_or_show(mut self) -> Result<(), Failure> {
        let output = self.command.output().map_err(|error| self.not_run(&error))?;
        if output.status.success() {
            return Ok(());
        }
        eprint!("{}", String::from_utf8_lossy(&output.stdout));
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
        Err(Failure::new(
            format!("`{}` failed ({})", self.line, output.status),
            "read what it says above",
        ))
    }

    fn not_run(&self, error: &std::io::Error) -> Failure {
        let program = self.command.get_program().display();
        Failure::new(format!("`{program}` did not start: {error}"), format!("install {program}"))
    }
}
