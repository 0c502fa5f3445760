//! Errors as the command prints them: one line with the cause, one line with a remedy.

use std::error::Error;
use std::ffi::OsStr;
use std::fmt::{self, Display};

/// The exit status if the command found a violation, a bug or a failed kernel.
pub(crate) const FOUND: u8 = 1;
/// The exit status if an option, a name or an input file cannot be used.
pub(crate) const BAD_INPUT: u8 = 2;
/// The exit status if the command could not run, or could not finish what it was asked for.
pub(crate) const CANNOT_RUN: u8 = 3;
/// The exit status that shells report for a command that Ctrl-C ended.
pub(crate) const INTERRUPTED: u8 = 130;

/// The exit status of an error, and the remedy for it.
pub(crate) struct Help {
    /// The exit status of the process, or 0 if the error is not reported.
    pub(crate) status: u8,
    /// A command or an imperative, in one line.
    pub(crate) remedy: String,
}

impl Help {
    pub(crate) fn new(status: u8, remedy: impl Into<String>) -> Self {
        Self { status, remedy: remedy.into() }
    }
}

/// The help for a violation, a bug or a failed kernel.
pub(crate) fn found(remedy: impl Into<String>) -> Help {
    Help::new(FOUND, remedy)
}

/// The help for an error of the input.
pub(crate) fn bad_input(remedy: impl Into<String>) -> Help {
    Help::new(BAD_INPUT, remedy)
}

/// The help for a command that could not run.
pub(crate) fn cannot_run(remedy: impl Into<String>) -> Help {
    Help::new(CANNOT_RUN, remedy)
}

/// An error with a remedy. Its [`Display`] is the cause, in one line.
pub(crate) trait UserError: Error + Send + Sync {
    /// Returns the exit status and the remedy.
    fn help(&self) -> Help;
}

/// Implements [`UserError`] for an enum that derives `thiserror::Error`. After `=>`, each variant
/// has its [`Help`]: an expression in which the fields of the variant are references.
macro_rules! user_errors {
    ($(#[$about:meta])* $visible:vis enum $name:ident {$(
        $(#[$cause:meta])*
        $variant:ident $(($value:tt: $(#[$from:meta])? $of:ty))? $({ $($field:ident: $type:ty),* })?
            => $help:expr,
    )*}) => {
        $(#[$about])*
        $visible enum $name {$(
            $(#[$cause])*
            $variant $(($(#[$from])? $of))? $({ $($field: $type),* })?,
        )*}

        impl $crate::error::UserError for $name {
            #[allow(unused_variables, reason = "some helps need no field")]
            fn help(&self) -> $crate::error::Help {
                match self {
                    $(Self::$variant $(($value))? $({ $($field),* })? => $help,)*
                }
            }
        }
    };
}
pub(crate) use user_errors;

/// The error of any command.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) Box<dyn UserError>);

impl<E: UserError + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(Box::new(error))
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}\ntry:   {}", self.0, self.0.help().remedy)
    }
}

/// The command could not run, or could not finish.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
pub(crate) struct CannotRun {
    cause: String,
    remedy: &'static str,
}

impl CannotRun {
    pub(crate) fn new(cause: String, remedy: &'static str) -> Self {
        Self { cause, remedy }
    }

    /// Returns the error of a workload that could not be simulated.
    pub(crate) fn simulation(workload: &str, design: impl Display, cause: impl Display) -> Self {
        let cause = format!("{} under {design}: {cause}", shown(workload));
        Self::new(cause, "use another machine, or report this with the whole command")
    }
}

impl UserError for CannotRun {
    fn help(&self) -> Help {
        cannot_run(self.remedy)
    }
}

/// Simulated CPUs used translations after the engine had reported their flushes as complete.
///
/// The field is the number of these uses.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("under shootdown, {0} translations were used after their flush was complete")]
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
    fn help(&self) -> Help {
        found("report this bug, with the command and the seed")
    }
}

/// Returns text from outside the program with its control characters escaped, because a terminal
/// would interpret them.
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
    fn shown_text_has_no_control_characters() {
        let text = "it's \"\\\" é \x1b[2J\x07\n\r\x7f\u{9b}\u{202e}";
        let expected = "it's \"\\\" é \\u{1b}[2J\\u{7}\\n\\r\\u{7f}\\u{9b}\\u{202e}";
        assert_eq!(shown(text), expected);
    }
}
