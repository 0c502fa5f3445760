//! The errors of `shootdown explain`.

use std::io;

use crate::error::{bad_input, cannot_run, found, user_errors};

user_errors! {
    #[derive(Debug, thiserror::Error)]
    pub(super) enum ExplainError {
        #[error("no CPU {cpu}: the machine has CPUs 0 to {last}")]
        NoCpu { cpu: u32, last: u32 } => bad_input(format!("--cpu N, with N from 0 to {last}")),
        /// The format shows call sites, and the result has none.
        #[error("--cpu and --compare have no such format")]
        OnlyTables => bad_input("use --format text or --format json"),
        /// `--pid` with a recording, or several numbers with a text.
        #[error("--pid selects one process of another tool's file")]
        OneProgram => bad_input("give a recording without --pid, a text with one"),
        #[error("no temporary directory: {0}")]
        NoDirectory(_: #[source] io::Error) =>
            cannot_run("name a file for the recording with --output FILE"),
        /// The limits that a program exceeds.
        #[error("{0}")]
        Exceeded(_: String) =>
            found("compare with an earlier recording: shootdown explain --compare EARLIER FILE"),
        /// A program is within its budget as far as it was recorded.
        #[error("the budget cannot be checked, because the recording lacks events")]
        Undecided => cannot_run("record again, on a host with less load"),
    }
}
