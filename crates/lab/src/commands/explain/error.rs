//! The errors of `shootdown explain`.

use std::io;

use crate::error::{BAD_INPUT, CANNOT_RUN, FOUND, UserError};

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
    fn exit_status(&self) -> u8 {
        match self {
            Self::NoCpu { .. } | Self::OnlyTables | Self::OneProgram => BAD_INPUT,
            Self::Exceeded(_) => FOUND,
            Self::NoDirectory(_) | Self::Undecided => CANNOT_RUN,
        }
    }

    fn remedy(&self) -> String {
        match self {
            Self::NoCpu { last, .. } => format!("--cpu N, with N from 0 to {last}"),
            Self::OnlyTables => "use --format text or --format json".to_owned(),
            Self::OneProgram => "give a recording without --pid, a text with one".to_owned(),
            Self::NoDirectory(_) => "name a file for the recording with --output FILE".to_owned(),
            Self::Exceeded(_) => {
                "compare with an earlier recording: shootdown explain --compare EARLIER FILE"
                    .to_owned()
            }
            Self::Undecided => "record again, on a host with less load".to_owned(),
        }
    }
}
