//! `shootdown sweep`: rows, digests, shards, resumption and errors.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use crate::common::{BAD_INPUT, FOUND, assert_error, command, is_soak, text};

/// 2 x 4 x 3 replays of a short recording, and 4 parts of a small campaign.
const GRIDS: &str = "
[[grid]]
command = \"replay\"
recording = \"ls.shootdown\"
schedule = \"simulated\"
machine = \"xeon-2s\"
design = [\"linux-7.0\", \"shootdown\"]
cpus = { from = 2, to = 16, times = 2 }
seed = { from = 1, to = 3 }

[[grid]]
command = \"check\"
cpus = 4
tasks = 8
parts = 4
";
const CELLS: usize = 28;

/// Returns a directory with a recording and `spec.toml`.
fn directory(spec: &str) -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let recording = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/ls.shootdown");
    fs::copy(recording, directory.path().join("ls.shootdown")).expect("a copy");
    fs::write(directory.path().join("spec.toml"), spec).expect("a file");
    directory
}

fn sweep(directory: &TempDir, arguments: &str) -> Output {
    let mut command = command();
    command.arg("sweep").args(arguments.split_whitespace()).current_dir(directory);
    command.output().expect("the command runs")
}

/// Returns the digest, which is the last line of the output.
fn digest(output: &Output) -> String {
    let printed = text(&output.stdout);
    let last = printed.lines().last().unwrap_or_default();
    let digest = last.strip_prefix("digest: ");
    digest.unwrap_or_else(|| panic!("{printed}{}", text(&output.stderr))).to_owned()
}

fn rows(path: PathBuf) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(path).expect("a file");
    text.lines().map(|line| serde_json::from_str(line).expect("a row")).collect()
}

fn cells(rows: &[serde_json::Value]) -> BTreeSet<u64> {
    rows.iter().filter_map(|row| row["cell"].as_u64()).collect()
}

#[test]
fn digest_is_same_for_cores_shards_and_merge() {
    let directory = directory(GRIDS);
    let one = sweep(&directory, "spec.toml --output one.jsonl --jobs 1");
    assert!(one.status.success(), "{}", text(&one.stderr));
    let two = sweep(&directory, "spec.toml --output two.jsonl --jobs 2 --csv two.csv");
    assert_eq!(digest(&one), digest(&two));
    for shard in 1..=3 {
        let shard = format!("spec.toml --output shard-{shard}.jsonl --shard {shard}/3");
        assert!(sweep(&directory, &shard).status.success());
    }
    let merged = sweep(
        &directory,
        "merge shard-3.jsonl shard-1.jsonl shard-2.jsonl one.jsonl --output merged.jsonl",
    );
    assert_eq!(digest(&merged), digest(&one));
    // The digest is that of the sorted rows, and can be checked with `sha256sum`.
    let bytes = fs::read(directory.path().join("merged.jsonl")).expect("a file");
    let hash: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hash, digest(&one));
    let csv = fs::read_to_string(directory.path().join("two.csv")).expect("a file");
    assert_eq!(csv.lines().count(), 1 + CELLS);
    assert!(csv.starts_with("cell,command,design,"), "{csv}");
    let incomplete =
        sweep(&directory, "merge shard-1.jsonl shard-3.jsonl --output incomplete.jsonl");
    assert_eq!(incomplete.status.code(), Some(FOUND));
    assert!(text(&incomplete.stderr).contains("9 of 28 cells have no row"));
}

#[test]
fn killed_sweep_resumes_without_repeating_or_losing_rows() {
    let directory = directory(GRIDS);
    let whole = digest(&sweep(&directory, "spec.toml --output whole.jsonl"));
    let (mut kills, mut round) = (0, 0);
    let rounds = if is_soak() { 50 } else { 3 };
    // On a busy host, a sweep may end before it is killed.
    while round < rounds || kills == 0 && round < 200 {
        let path = directory.path().join("killed.jsonl");
        let _ = fs::remove_file(&path);
        // A multiple of a prime spreads the moments over the time of a sweep.
        let mut delay_ms = 10 + round * 37 % 90;
        let resumed = loop {
            let mut child = command();
            child.args(["sweep", "spec.toml", "--output", "killed.jsonl", "--resume"]);
            child.current_dir(&directory).stdout(Stdio::null()).stderr(Stdio::null());
            let mut child = child.spawn().expect("the command runs");
            std::thread::sleep(Duration::from_millis(delay_ms));
            child.kill().expect("a child");
            if child.wait().expect("a child").success() {
                break sweep(&directory, "spec.toml --output killed.jsonl --resume");
            }
            kills += 1;
            // A slow host may need longer for the first row.
            delay_ms += 20;
        };
        assert_eq!(digest(&resumed), whole, "round {round}");
        let rows = rows(path);
        assert_eq!((rows.len(), cells(&rows).len()), (CELLS, CELLS), "round {round}");
        round += 1;
    }
    assert!(kills > 0, "no sweep was killed");
}

#[test]
fn torn_row_is_dropped_at_resume() {
    let directory = directory(GRIDS);
    let whole = digest(&sweep(&directory, "spec.toml --output rows.jsonl"));
    let path = directory.path().join("rows.jsonl");
    let text_before = fs::read(&path).expect("a file");
    fs::write(&path, &text_before[..text_before.len() * 2 / 3]).expect("a file");
    assert_error(
        &sweep(&directory, "spec.toml --output rows.jsonl"),
        BAD_INPUT,
        &["rows.jsonl exists", "--resume"],
    );
    let resumed = sweep(&directory, "spec.toml --output rows.jsonl --resume");
    assert_eq!(digest(&resumed), whole);
    assert_eq!(rows(path.clone()).len(), CELLS);
    // Rows of another specification, or of the same with other inputs, are refused.
    fs::write(directory.path().join("spec.toml"), GRIDS.replace("to = 3", "to = 4")).unwrap();
    let other = sweep(&directory, "spec.toml --output rows.jsonl --resume");
    assert_error(&other, BAD_INPUT, &["rows.jsonl has rows of another sweep"]);
    fs::write(&path, "{}\n").expect("a file");
    let damaged = sweep(&directory, "spec.toml --output rows.jsonl --resume");
    assert_error(&damaged, BAD_INPUT, &["line 1: this is not a row"]);
}

#[test]
fn error_of_cell_is_row() {
    let directory = directory(
        "[grid]\ncommand = \"replay\"\nrecording = [\"ls.shootdown\", \"no.shootdown\"]\n\
         design = [\"shootdown\", \"no\"]\nset = { \"tlb.walk_ns\" = [10, -1], \"no.such\" = 1 }\n",
    );
    let output = sweep(&directory, "spec.toml --output rows.jsonl --csv rows.csv");
    assert_eq!(output.status.code(), Some(FOUND));
    assert_eq!(digest(&output).len(), 64);
    let printed = text(&output.stdout);
    assert!(printed.contains("8 errors; the first is of cell 0: "), "{printed}");
    assert!(printed.contains("no number `no.such`"), "{printed}");
    assert!(rows(directory.path().join("rows.jsonl")).iter().all(|row| row["error"].is_string()));
    // Parameters of the machine take effect.
    let spec = "[grid]\ncommand = \"replay\"\nrecording = \"ls.shootdown\"\n\
                set = { \"tlb.walk_ns\" = [10, 1000] }\n";
    fs::write(directory.path().join("spec.toml"), spec).expect("a file");
    assert!(sweep(&directory, "spec.toml --output set.jsonl").status.success());
    let rows = rows(directory.path().join("set.jsonl"));
    let time_ns = |value: u64| {
        let row = rows.iter().find(|row| row["set"]["tlb.walk_ns"] == value);
        row.and_then(|row| row["time_ns"].as_u64()).expect("a time")
    };
    assert!(time_ns(10) < time_ns(1000));
}

#[test]
fn bad_specification_is_refused_with_remedy() {
    for (spec, words) in [
        ("", &["no [[grid]]"][..]),
        ("[grid]\ncpus = 2", &["no `command`", "run, replay, reproduce, check"]),
        ("[grid]\ncommand = \"fly\"", &["cannot run `fly`"]),
        ("[grid]\ncommand = \"check\"\nrecording = 1", &["`recording` is not a parameter", "arch"]),
        ("[grid]\ncommand = \"check\"\nseed = []", &["`seed` has no value"]),
        ("[grid]\ncommand = \"check\"\nseed = { from = 2 }", &["`seed` is not a range"]),
        ("[grid]\ncommand = \"check\"\nseed = \"one\"", &["a cell of `check`", "\"one\""]),
        ("[grid]\ncommand = \"check\"\nparts = 0", &["`parts`"]),
        ("[grid]\ncommand = \"replay\"", &["missing field `recording`"]),
        ("[grid]\ncommand = \"check\"\nseed = { from = 1, to = 9999999 }", &["1000000 cells"]),
        ("[grid\n", &["spec.toml: TOML parse error at line 1"]),
    ] {
        let directory = directory(spec);
        assert_error(&sweep(&directory, "spec.toml --output rows.jsonl"), BAD_INPUT, words);
        assert!(!directory.path().join("rows.jsonl").exists(), "{spec}");
    }
}
