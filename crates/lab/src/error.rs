//! Errors as the command prints them: one line with the cause, one line with a remedy.

use std::error::Error;
use std::ffi::OsStr;
use std::fmt;

/// An error with a remedy. Its [`Display`](fmt::Display) is the cause, in one line.
pub(crate) trait UserError: Error + Send + Sync {
    /// A command or an instruction, in one line.
    fn remedy(&self) -> String;

    /// The status that the process exits with.
    fn exit_status(&self) -> u8 {
        1
    }

    /// Whether the reader of the output has closed it, as `| head` does, which is no failure.
    fn is_broken_pipe(&self) -> bool {
        false
    }
}

/// The error of any command.
#[derive(Debug)]
pub(crate) struct Failure(Box<dyn UserError>);

impl Failure {
    pub(crate) fn exit_status(&self) -> u8 {
        self.0.exit_status()
    }

    pub(crate) fn is_broken_pipe(&self) -> bool {
        self.0.is_broken_pipe()
    }
}

impl<E: UserError + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(Box::new(error))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}\ntry:   {}", self.0, self.0.remedy())
    }
}

/// A workload could not be simulated.
#[derive(Debug, thiserror::Error)]
#[error("{} under {design}: {cause}", shown(.workload))]
pub(crate) struct SimulationError {
    workload: String,
    design: String,
    cause: String,
}

impl SimulationError {
    pub(crate) fn new(workload: &str, design: impl ToString, cause: impl ToString) -> Self {
        let (design, cause) = (design.to_string(), cause.to_string());
        Self { workload: workload.to_owned(), design, cause }
    }
}

impl UserError for SimulationError {
    fn remedy(&self) -> String {
        "shootdown machines, which needs no simulation".to_owned()
    }
}

/// The engine let dead translations be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the engine let {0} dead translations be used")]
pub(crate) struct Violations(u64);

impl Violations {
    /// Returns the sum as an error, unless it is 0.
    pub(crate) fn none_in(counts: impl Iterator<Item = u64>) -> Result<(), Self> {
        match counts.sum() {
            0 => Ok(()),
            sum => Err(Self(sum)),
        }
    }
}

impl UserError for Violations {
    fn remedy(&self) -> String {
        "report this, with the command and the seed".to_owned()
    }
}

/// Text from outside of the program, with its control characters escaped: a terminal would obey
/// them.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_text_does_not_act_on_a_terminal() {
        let text = "it's \"\\\" é \x1b[2J\x07\n\r\x7f\u{9b}\u{202e}";
        let expected = "it's \"\\\" é \\u{1b}[2J\\u{7}\\n\\r\\u{7f}\\u{9b}\\u{202e}";
        assert_eq!(shown(text), expected);
    }
}
