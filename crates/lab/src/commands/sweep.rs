//! `shootdown sweep`: runs a grid of simulations and checks on all cores.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::error::{FOUND, Failure, Help, INTERRUPTED, UserError, found, shown};
use crate::output::{Output, print};
use crate::render::grouped;
use crate::sweep::{End, Local, Merged, Rows, Shard, Start, Summary, Sweep, SweepError, csv};

pub(crate) const EXAMPLES: &str = include_str!("../../help/sweep.txt").trim_ascii_end();

#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct SweepArgs {
    #[command(subcommand)]
    command: Option<SweepCommand>,
    /// The specification
    #[arg(value_name = "SPEC.toml", required = true)]
    spec: Option<PathBuf>,
    /// The file for the rows, as JSON lines
    #[arg(long, short, value_name = "ROWS.jsonl", required = true)]
    output: Option<PathBuf>,
    /// Run only every N-th cell, beginning with the I-th
    #[arg(long, value_name = "I/N", value_parser = shard, default_value = "1/1",
          hide_default_value = true)]
    shard: Shard,
    /// Keep the rows in the output, and run only the cells that have none
    #[arg(long)]
    resume: bool,
    /// Write the rows also to this file at the end, as CSV; it is replaced
    #[arg(long, value_name = "ROWS.csv")]
    csv: Option<PathBuf>,
    /// The number of cores; 0 means all of them
    #[arg(long, short, value_name = "N", default_value_t = 0)]
    jobs: usize,
}

#[derive(Clone, Debug, Subcommand)]
enum SweepCommand {
    /// Merge the rows of shards into one file, sorted by cell
    Merge(Merge),
}

#[derive(Args, Clone, Debug)]
struct Merge {
    /// Files of rows of one sweep
    #[arg(required = true, value_name = "ROWS.jsonl")]
    inputs: Vec<PathBuf>,
    /// The new file for all rows
    #[arg(long, short, value_name = "ROWS.jsonl")]
    output: PathBuf,
}

/// Parses a shard such as `2/16`.
fn shard(text: &str) -> Result<Shard, String> {
    let parsed = text.split_once('/').and_then(|(number, of)| {
        Some(Shard { number: number.parse().ok()?, of: of.parse().ok()? })
    });
    let shard = parsed.filter(|shard| (1..=shard.of).contains(&shard.number));
    shard.ok_or_else(|| "expected a number and the number of shards, such as 2/16".to_owned())
}

/// A sweep ended, and its result is not what everyone hopes for.
#[derive(Debug, thiserror::Error)]
enum SweepEnd {
    /// Ctrl-C, or another signal, ended the sweep.
    #[error("stopped: {} cells of {} have no row yet", grouped(*.0 as u64), shown(.1))]
    Stopped(usize, PathBuf),
    /// Some files of shards are missing, or their sweeps are not complete.
    #[error("{} of {} cells have no row in these files", grouped(*.0), grouped(*.1))]
    Incomplete(u64, u64),
}

impl UserError for SweepEnd {
    fn help(&self) -> Help {
        match self {
            Self::Stopped(..) => Help::new(INTERRUPTED, "the same command with --resume"),
            Self::Incomplete(..) => {
                found("run the missing shards with --shard, and merge all files again")
            }
        }
    }
}

impl From<SweepError> for Failure {
    fn from(error: SweepError) -> Self {
        error.0
    }
}

impl SweepArgs {
    pub(crate) fn run(&self) -> Result<u8, Failure> {
        match (&self.command, &self.spec, &self.output) {
            (Some(SweepCommand::Merge(merge)), ..) => merge.run(),
            (None, Some(spec), Some(output)) => self.sweep(spec, output),
            // clap requires both without a subcommand.
            _ => Ok(0),
        }
    }

    fn sweep(&self, spec: &std::path::Path, output: &std::path::Path) -> Result<u8, Failure> {
        let sweep = Sweep::read(spec)?;
        let start = if self.resume { Start::Resume } else { Start::New };
        let mut rows = Rows::open(&sweep, output, start)?;
        let csv = self.csv.as_deref().map(|path| Output::page(path, "--csv", &[])).transpose()?;
        let local = Local { sweep: &sweep, shard: self.shard, jobs: self.jobs };
        let end = local.run(&mut rows)?;
        if let Some(csv) = &csv {
            csv::write(&mut rows, csv)?;
        }
        if let End::Stopped(cells) = end {
            return Err(SweepEnd::Stopped(cells, output.to_owned()).into());
        }
        let mut summary = Summary::default();
        let digest = rows.each(|row| summary.add(row))?;
        finish(&summary, &digest)
    }
}

impl Merge {
    fn run(&self) -> Result<u8, Failure> {
        let merged = Merged::open(&self.inputs)?;
        let (summary, digest) = merged.write(&self.output)?;
        let status = finish(&summary, &digest)?;
        match merged.cells - merged.len() as u64 {
            0 => Ok(status),
            missing => Err(SweepEnd::Incomplete(missing, merged.cells).into()),
        }
    }
}

/// Prints the summary and the digest. Returns the exit status.
fn finish(summary: &Summary, digest: &str) -> Result<u8, Failure> {
    print(&format!("{}digest: {digest}\n", summary.text()))?;
    Ok(if summary.has_findings() { FOUND } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shard_is_number_and_count() {
        assert_eq!(shard("2/16"), Ok(Shard { number: 2, of: 16 }));
        for bad in ["", "1", "0/2", "3/2", "1/0", "a/b", "1/2/3", "-1/2"] {
            assert!(shard(bad).is_err(), "{bad}");
        }
    }
}
