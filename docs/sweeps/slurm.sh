#!/bin/sh
# Runs the shards of a sweep as a job array of Slurm, in the folder from which it is submitted:
#   sbatch --array=1-64 slurm.sh spec.toml rows.jsonl
# When all shards are done, merge them:
#   shootdown sweep merge rows.jsonl.shard-* --output rows.jsonl
#SBATCH --job-name=shootdown-sweep
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --mem-per-cpu=2G
#SBATCH --time=24:00:00
#SBATCH --requeue
set -eu
shard=$SLURM_ARRAY_TASK_ID
exec shootdown sweep "$1" --output "$2.shard-$shard" --shard "$shard/$SLURM_ARRAY_TASK_COUNT" \
    --resume --jobs "${SLURM_CPUS_PER_TASK:-1}"
