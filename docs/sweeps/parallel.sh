#!/bin/sh
# Runs the shards of a sweep with GNU parallel, one core each, and merges their rows:
#   sh parallel.sh spec.toml rows.jsonl 64
# For other hosts that see the same files, set PARALLEL='--sshloginfile HOSTS --workdir .'.
set -eu
status=0
seq "$3" | parallel -q --halt never shootdown sweep "$1" --output "$2.shard-{}" --shard "{}/$3" \
    --resume --jobs 1 || status=$?
shootdown sweep merge "$2".shard-* --output "$2" || status=$?
exit "$status"
