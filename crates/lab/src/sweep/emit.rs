//! Job files for batch systems, which run the shards of a sweep and merge their rows.

use std::path::Path;

use clap::ValueEnum;

/// A system that runs jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Batch {
    /// A job array of Slurm, for `sbatch`
    Slurm,
    /// A script with GNU parallel, for one host or for hosts in its --sshloginfile
    Parallel,
}

/// The paths of a sweep and the number of its shards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job<'a> {
    pub(crate) spec: &'a Path,
    pub(crate) output: &'a Path,
    pub(crate) shards: u64,
}

/// Returns a job file. Each shard resumes its own file of rows, so that a job that was killed or
/// preempted can be submitted again.
pub(crate) fn emit(batch: Batch, job: Job<'_>) -> String {
    let [spec, output] = [job.spec, job.output].map(|path| quoted(&path.to_string_lossy()));
    let shards = job.shards;
    let shard = |number: &str| {
        format!(
            "shootdown sweep {spec} --output {output}.shard-{number} --shard {number}/{shards} \
             --resume"
        )
    };
    match batch {
        Batch::Slurm => format!(
            "#!/bin/sh\n\
             # Submit this file with `sbatch`. Jobs run in the folder from which it is submitted.\n\
             # When all shards are done, merge them:\n\
             #   shootdown sweep merge {output}.shard-* --output {output}\n\
             #SBATCH --job-name=shootdown-sweep\n\
             #SBATCH --array=1-{shards}\n\
             #SBATCH --ntasks=1\n\
             #SBATCH --cpus-per-task=8\n\
             #SBATCH --mem-per-cpu=2G\n\
             #SBATCH --time=24:00:00\n\
             #SBATCH --requeue\n\
             set -eu\n\
             exec {} --jobs \"${{SLURM_CPUS_PER_TASK:-1}}\"\n",
            shard("\"$SLURM_ARRAY_TASK_ID\"")
        ),
        Batch::Parallel => format!(
            "#!/bin/sh\n\
             # Runs the shards on this host, one core each. For other hosts that see the same\n\
             # files, set PARALLEL='--sshloginfile HOSTS --workdir .'.\n\
             set -eu\n\
             status=0\n\
             seq {shards} | parallel --halt never {} || status=$?\n\
             shootdown sweep merge {output}.shard-* --output {output} || status=$?\n\
             exit \"$status\"\n",
            quoted(&format!("{} --jobs 1", shard("{}"))),
        ),
    }
}

/// Returns the text as one word of a shell.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./+:@%".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_shell_are_quoted() {
        assert_eq!(quoted("a/b-1.toml"), "a/b-1.toml");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert_eq!(quoted(""), "''");
    }
}
