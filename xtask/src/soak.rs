//! Long searches, and the shorter ones of the same kind in CI.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::command::{Failure, cargo};
use crate::test::{builds, proof};
use crate::{boots, demo, port, python, setup};

/// Runs the stress test on threads of the host for some seconds.
fn stress(seconds: u64) -> Result<(), Failure> {
    cargo("test --quiet --release -p shootdown --features soft --test stress")
        .env("SHOOTDOWN_STRESS_SECONDS", seconds.to_string())
        .run()
}

/// Reads damaged recordings and imports damaged texts for some seconds.
fn damage(seconds: u64, seed: u64) -> Result<(), Failure> {
    cargo("test --quiet --test damaged")
        .args(builds::SELECTION)
        .env("SHOOTDOWN_DAMAGE_SECONDS", seconds.to_string())
        .env("SHOOTDOWN_DAMAGE_SEED", seed.to_string())
        .run()
}

/// Examines random programs of the memory manager, others in each pass of about a minute. CI
/// examines the same ones each time.
fn properties(passes: u64, seed: u64) -> Result<(), Failure> {
    for pass in 0..passes {
        let seed = seed + pass;
        println!("random programs of the memory manager, seed {seed}");
        cargo("test --quiet --release -p shootdown-vm --test all -- programs")
            .env("PROPTEST_RNG_SEED", seed.to_string())
            .run()?;
    }
    Ok(())
}

/// The part of the engine's tests that miri runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Miri {
    /// The part that CI runs.
    Sample,
    /// Everything. Tests with threads run under this number of seeds.
    Seeds(u32),
}

/// Runs the engine's own tests under miri, which models C++20's weak memory.
///
/// The word in which a CPU publishes its hazard is a pointer with flags, so miri must accept
/// integers that become pointers.
pub(crate) fn miri(part: Miri) -> Result<(), Failure> {
    // CI has two cores and little time, so it runs one case of each property.
    let (seeds, cases) = match part {
        Miri::Sample => (1, "1"),
        Miri::Seeds(seeds) => (seeds, "4"),
    };
    let tests = |tests: &str, flags: String| {
        cargo("+nightly miri test -p shootdown --features soft")
            .args(tests)
            .env(
                "MIRIFLAGS",
                format!("-Zmiri-disable-isolation -Zmiri-permissive-provenance {flags}"),
            )
            .env("PROPTEST_CASES", cases)
            // miri takes seconds for the backtrace of a panic that a test expects.
            .env("RUST_BACKTRACE", "0")
            .run()
    };
    tests("--lib", String::new())?;
    // These tests use the engine from outside, and execute the same code as those of the library
    // and `stress`.
    if matches!(part, Miri::Seeds(_)) {
        tests("--test engine --test ends", String::new())?;
    }
    tests("--test stress", format!("-Zmiri-many-seeds=0..{seeds}"))
}

/// Parses a number of minutes, from 1 to a year.
pub(crate) fn parse_minutes(text: &str, remedy: &str) -> Result<u64, Failure> {
    const MAX: u64 = 365 * 24 * 60;
    text.parse().ok().filter(|minutes| (1..=MAX).contains(minutes)).ok_or_else(|| {
        let cause = format!("`{}` is not a number of minutes from 1 to {MAX}", text.escape_debug());
        Failure::new(cause, remedy)
    })
}

/// Returns another seed each time. Commands print it when they find a violation.
fn seed_of_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs() & u64::from(u32::MAX)
}

/// Boots the kernel on every machine, or on the one with this name: the last part of [`all`].
pub(crate) fn boots(minutes: u64, only: Option<&str>) -> Result<(), Failure> {
    boots::soak(Duration::from_secs(minutes * 60), seed_of_now(), only)
}

/// Runs every search for a time that depends on `minutes`.
pub(crate) fn all(minutes: u64) -> Result<(), Failure> {
    setup::toolchain()?;
    setup::packages()?;
    stress(minutes * 60 / 2)?;
    cargo("test --release -p shootdown --features soft --test rules")
        .env("SHOOTDOWN_SOAK", "1")
        .run()?;
    // Large machines, more seeds, few tags, and sweeps that are killed. CI runs a sample of each.
    cargo("test --release -p shootdown-lab --test all -- designs matrix choice tags traces sweep")
        .env("SHOOTDOWN_SOAK", "1")
        .run()?;
    let seed = seed_of_now();
    damage(minutes * 60, seed)?;
    properties(minutes, seed)?;
    // About 2000 programs per minute.
    cargo("test --release -p shootdown-run --test all memory_model::memory_matches")
        .env("CONTENTS_PROGRAMS", (minutes * 2000).to_string())
        .env("CONTENTS_SEED", seed.to_string())
        .run()?;
    python::test(python::Part::All)?;
    proof::certify()?;
    demo::run(demo::Studies::Full)?;
    // These are the checker's programs that CI leaves out.
    cargo("test --release -p shootdown-check --test engine --test processors")
        .env("CHECK_ALL", "1")
        .run()?;
    // CI counts a sample.
    boots::run(boots::Part::All)?;
    boots::soak(Duration::from_secs(minutes * 60), seed, None)?;
    port::soak()?;
    // Large random programs get as much time as short programs in every schedule.
    cargo("run --quiet --release -p shootdown-lab -- check --cpus 16 --budget")
        .arg(format!("{minutes}m"))
        .arg("--seed")
        .arg(seed.to_string())
        .run()?;
    // About 16 seeds in two minutes.
    miri(Miri::Seeds(u32::try_from(minutes * 4).unwrap_or(u32::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_are_positive_numbers() {
        assert_eq!(parse_minutes("30", "").ok(), Some(30));
        for text in ["", "0", "-1", "1.5", "ten", "525601", "99999999999999999999"] {
            let failure = parse_minutes(text, "cargo xtask soak boots 30").unwrap_err();
            assert!(failure.to_string().contains("try:   cargo xtask soak boots 30"), "{text}");
        }
    }
}
