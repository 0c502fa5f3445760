//! The recordings in `traces/`: `linux-7.0` is close to the recorded kernel, and shootdown is never
//! worse than `linux-7.0`.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use shootdown_designs::Design;
use shootdown_recording::Reader;
use shootdown_run::replay::{Survey, threads};
use shootdown_run::{Limits, Memory, Outcome, Settings};
use shootdown_sim::Machine;

use crate::common::{command, is_soak};

/// The largest relative error of `linux-7.0`, compared with the recorded kernel.
const FIDELITY: f64 = 0.10;
/// The largest relative error of flushes, and of ranged ones, of the recordings with many faults
/// that copy pages. A fault takes effect when its flush chooses its targets; with an earlier
/// effect, xz has 12 ranged flushes too many.
const FIDELITY_OF_FAULTS: f64 = 0.01;
/// Number of runs under the simulated schedule. Results are means over them.
const RUNS: u64 = 32;
/// Number of runs in CI.
const RUNS_SAMPLED: u64 = 8;

fn recordings() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces");
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut recordings: Vec<_> = files
        .filter(|path| path.extension().is_some_and(|extension| extension == "shootdown"))
        .collect();
    recordings.sort();
    assert_eq!(recordings.len(), 6, "{recordings:?}");
    recordings
}

fn machine() -> Machine {
    Machine::from_toml(include_str!("../../../../machines/emerald-rapids-kvm.toml")).unwrap()
}

fn reader(recording: &Path) -> Reader<'static> {
    Reader::open(File::open(recording).unwrap()).unwrap()
}

fn survey(recording: &Path) -> Survey {
    Survey::of(reader(recording), |_| {}).unwrap()
}

fn replay_recorded(recording: &Path, survey: &Survey, design: Design) -> Outcome {
    shootdown_run::replay::replay(
        machine(),
        Memory::DEFAULT.frames,
        reader(recording),
        survey,
        |_| {},
        |sim| design.on(sim),
    )
    .unwrap()
}

fn replay_simulated(recording: &Path, survey: &Survey, design: Design, seed: u64) -> Outcome {
    let threads = threads(reader(recording), survey, seed, |_| {}).unwrap();
    let settings = Settings {
        limits: Limits { threads: threads.program_count() + 1, ..Limits::DEFAULT },
        ..Settings::DEFAULT
    };
    shootdown_run::run(machine(), settings, Rc::new(threads), |sim| design.on(sim)).unwrap()
}

fn ranged(outcome: &Outcome) -> u64 {
    outcome.counts.flushes_ranged - outcome.counts.flushes_ranged_at_switch
}

fn flushes(outcome: &Outcome) -> u64 {
    outcome.counts.flushes_full - outcome.counts.flushes_full_at_switch + ranged(outcome)
}

#[test]
fn recordings_are_complete_small_and_anonymous() {
    for recording in recordings() {
        assert!(fs::metadata(&recording).unwrap().len() < 1 << 20, "{recording:?}");
        let survey = survey(&recording);
        assert_eq!(survey.totals.lost, 0, "{recording:?}");
        let is_private =
            |word: &String| word.replace("/dev/null", "").trim_start_matches("./").contains('/');
        let has_path = survey.header.command.iter().any(is_private);
        assert!(!has_path, "{recording:?} {:?}", survey.header.command);
    }
}

#[test]
fn linux_7_0_matches_recorded_kernel() {
    for recording in recordings() {
        let survey = survey(&recording);
        let outcome = replay_recorded(&recording, &survey, Design::LINUX_7_0);
        let kernel = &survey.kernel;
        let is_of_faults =
            ["xz", "node"].map(OsStr::new).map(Some).contains(&recording.file_stem());
        let of_flushes = if is_of_faults { FIDELITY_OF_FAULTS } else { FIDELITY };
        for (name, predicted, real, error) in [
            ("interrupts", outcome.counts.interrupts_sent, kernel.interrupts_sent, FIDELITY),
            ("flushes", flushes(&outcome), kernel.flushes_full + kernel.flushes_ranged, of_flushes),
            ("ranged flushes", ranged(&outcome), kernel.flushes_ranged, of_flushes),
        ] {
            let off = predicted.abs_diff(real) as f64;
            assert!(
                off <= error * real as f64,
                "{recording:?} {name}: {predicted} instead of {real}"
            );
        }
    }
}

#[test]
fn recorded_schedule_is_never_worse_than_linux() {
    for recording in recordings() {
        let survey = survey(&recording);
        let linux = replay_recorded(&recording, &survey, Design::LINUX_7_0);
        let ours = replay_recorded(&recording, &survey, Design::SHOOTDOWN);
        assert!(ours.counts.interrupts_sent <= linux.counts.interrupts_sent, "{recording:?}");
        assert!(ours.time <= linux.time, "{recording:?} {:?} {:?}", ours.time, linux.time);
        assert_eq!((ours.violations, linux.violations), (0, 0), "{recording:?}");
    }
}

/// The order of threads is random under this schedule, so the comparison of two means includes
/// their standard errors.
#[test]
fn simulated_schedule_is_never_worse_than_linux() {
    for recording in recordings() {
        let survey = survey(&recording);
        let run = |design| -> Vec<Outcome> {
            let runs = if is_soak() { RUNS } else { RUNS_SAMPLED };
            (1..=runs).map(|seed| replay_simulated(&recording, &survey, design, seed)).collect()
        };
        let (linux, ours) = (run(Design::LINUX_7_0), run(Design::SHOOTDOWN));
        let interrupts =
            |runs: &[Outcome]| runs.iter().map(|run| run.counts.interrupts_sent).sum::<u64>();
        assert!(interrupts(&ours) <= interrupts(&linux), "{recording:?}");
        let ((linux_us, linux_error), (ours_us, ours_error)) = (time_us(&linux), time_us(&ours));
        let error = linux_error.hypot(ours_error);
        // A random difference exceeds three standard errors once in 700 comparisons.
        assert!(ours_us <= linux_us + 3.0 * error, "{recording:?} {ours_us} {linux_us} ± {error}");
        assert!(linux.iter().chain(&ours).all(|run| run.violations == 0), "{recording:?}");
    }
}

/// Returns the mean time and its standard error, in microseconds.
fn time_us(runs: &[Outcome]) -> (f64, f64) {
    let count = runs.len() as f64;
    let times: Vec<f64> = runs.iter().map(|run| run.time.us()).collect();
    let mean = times.iter().sum::<f64>() / count;
    let variance = times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, (variance / count).sqrt())
}

/// On machines with range operations or cheap page flushes, at least 95 % of the `munmap`s flush a
/// range. x86 and ARC drop the whole tag from about 32 pages on, and most `munmap`s in the
/// recordings, those of node's heap, cover 64 pages.
#[test]
fn munmap_flushes_ranges_instead_of_space() {
    for text in [
        include_str!("../../../../machines/arm64-2s.toml"),
        include_str!("../../../../machines/riscv-64.toml"),
    ] {
        let machine = Machine::from_toml(text).unwrap();
        let (mut ranged, mut whole) = (0, 0);
        for recording in recordings() {
            let survey = survey(&recording);
            let (machine, reader) = (machine.clone(), reader(&recording));
            let outcome = shootdown_run::replay::replay(
                machine,
                Memory::DEFAULT.frames,
                reader,
                &survey,
                |_| {},
                |sim| Design::SHOOTDOWN.on(sim),
            )
            .unwrap();
            assert_eq!(outcome.violations, 0, "{recording:?}");
            ranged += outcome.unmaps.ranged;
            whole += outcome.unmaps.whole;
        }
        println!("{}: {ranged} ranged, {whole} whole", machine.name);
        assert!(ranged >= 250 && 20 * whole <= ranged + whole, "{ranged} {whole}");
    }
}

/// Recordings of emulated CPUs, of both kernels, beside those of the README. A table of all is in
/// `docs/data/guests.csv`.
const GUESTS: [&str; 3] = ["node-6.12-8", "sort-7.0-4", "sqlite3-7.0-8"];

#[test]
fn models_match_the_kernels_of_guests() {
    for recording in GUESTS {
        replayed(&format!("guests/{recording}"), "xeon-2s", "linux-7.0");
    }
}

/// Replays a recording, and checks that the counts of the closest model are close to the kernel's.
fn replayed(recording: &str, machine: &str, designs: &str) -> serde_json::Value {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = command()
        .arg("replay")
        .arg(root.join(format!("traces/{recording}.shootdown")))
        .args(["--machine", machine, "--schedule", "recorded", "--format", "json"])
        .args(["--designs", designs])
        .output()
        .unwrap();
    let verdict: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(verdict["fidelity"]["verdict"], "close", "{recording}: {}", verdict["fidelity"]);
    verdict
}

/// The rows of the tables in the README and in the chapter on the memory manager that name a
/// recording: the row's beginning, the recording, and its machine. The README has five of them.
const ROWS: [(&str, &str, &str); 7] = [
    ("PostgreSQL, ", "postgres", "emerald-rapids-kvm"),
    ("`xz`, 2", "xz", "emerald-rapids-kvm"),
    ("Go program, ", "go", "emerald-rapids-kvm"),
    ("`xz`, 8", "guests/xz-7.0-8", "xeon-2s"),
    ("memcached, ", "guests/memcached-7.0-32", "xeon-2s"),
    ("Java program, ", "guests/java-7.0-64", "xeon-2s"),
    ("node, ", "guests/node-7.0-64", "xeon-2s"),
];

#[test]
fn book_and_readme_show_interrupts_of_replays() {
    const DESIGNS: [&str; 3] = ["linux-7.0", "shootdown-alone", "shootdown"];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let shown = [("README.md", 2), ("docs/memory-manager.md", 3)]
        .map(|(page, columns)| (fs::read_to_string(root.join(page)).unwrap(), page, columns));
    let mut in_readme = 0;
    for (begin, recording, machine) in ROWS {
        let verdict = replayed(recording, machine, &DESIGNS.join(","));
        let designs = verdict["designs"].as_array().unwrap();
        let sent = DESIGNS.map(|design| {
            let row = designs.iter().find(|row| row["design"] == design).unwrap();
            with_commas(&row["ipis_sent"].to_string())
        });
        for (text, page, columns) in &shown {
            let row = text.lines().find(|line| line.starts_with(&format!("| {begin}")));
            let Some(row) = row else {
                assert_eq!(*page, "README.md", "no row {begin}");
                continue;
            };
            in_readme += usize::from(*page == "README.md");
            let expected = format!(" | {} |", sent[..*columns].join(" | "));
            assert!(row.ends_with(&expected), "{page}: {row}\nshould end with {expected}");
        }
    }
    assert_eq!(in_readme, 5);
}

/// Separates the digits of a number in groups of three.
fn with_commas(digits: &str) -> String {
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
