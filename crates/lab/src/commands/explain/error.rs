//! The errors of `shootdown explain`.

use std::io;

use crate::error::{Help, UserError, bad_input, cannot_run, found};

#[derive(Debug, thiserror::Error)]
pub(super) enum ExplainError {
    #[error("no CPU {cpu}: the machine has CPUs 0 to {last}")]
    NoCpu { cpu: u32, last: u32 },
    /// The format shows call sites, and the result has none.
    #[error("--cpu and --compare have no such format")]
    OnlyTables,
    /// `--pid` with a recording, or several numbers with a text.
    #[error("--pid selects one process of another tool's file")]
    OneProgram,
    #[error("no temporary directory: {0}")]
    NoDirectory(#[source] io::Error),
    /// The limits that a program exceeds.
    #[error("{0}")]
    Exceeded(String),
    /// A program is within its budget as far as it was recorded.
    #[error("the budget cannot be checked, because the recording lacks events")]
    Undecided,
}

impl UserError for ExplainError {
    fn help(&self) -> Help {
        match self {
            Self::NoCpu { last, .. } => bad_input(format!("--cpu N, with N from 0 to {last}")),
            Self::OnlyTables => bad_input("use --format text or --format json"),
            Self::OneProgram => bad_input("give a recording without --pid, a text with one"),
            Self::NoDirectory(_) => cannot_run("name a file for the recording with --output FILE"),
            Self::Exceeded(_) => {
                found("compare with an earlier recording: shootdown explain --compare EARLIER FILE")
            }
            Self::Undecided => cannot_run("record again, on a host with less load"),
        }
    }
}
