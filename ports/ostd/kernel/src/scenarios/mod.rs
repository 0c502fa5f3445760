//! The scenarios.

mod by_turns;
mod forks;
mod protection;
mod replacement;
mod stuck;
mod unmapping;

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering::SeqCst};

use ostd::cpu::num_cpus;

use crate::measurement;

/// Whether CPUs are notified of other CPUs' flushes.
static NOTIFIES: AtomicBool = AtomicBool::new(true);

/// Returns the number of operations of most scenarios. Where nothing is counted, the host's threads
/// take turns, and an operation that waits for all CPUs may take a turn of each.
fn round_count() -> usize {
    if measurement::is_counted() { 200 } else { 50 }
}

/// The scenarios, each with the function that runs it.
const SCENARIOS: &[(&str, fn())] = &[
    ("replaces", replacement::replaces),
    ("alone", unmapping::alone),
    ("idle", unmapping::idle),
    ("active", unmapping::active),
    ("unwaited", unmapping::unwaited),
    ("moved", unmapping::moved),
    ("protect", protection::protect),
    ("storm", unmapping::storm),
    ("forks", forks::forks),
    ("switches", by_turns::switches),
];

/// Runs the scenarios that the command line names.
///
/// # Panics
///
/// If it has another word.
pub fn run(line: &str) {
    let mut is_all = false;
    for word in line.split_whitespace() {
        match word {
            "all" => is_all = true,
            "stuck" => stuck::stuck(),
            "counted" => measurement::count_instructions(),
            "unnotified" => {
                NOTIFIES.store(false, SeqCst);
                ostd::mm::measure::notify_nobody();
            }
            _ => assert!(SCENARIOS.iter().any(|(name, _)| *name == word), "what is `{word}`?"),
        }
    }
    for (name, scenario) in SCENARIOS {
        if is_all || line.split_whitespace().any(|word| word == *name) {
            scenario();
        }
    }
}

/// All CPUs but the first, which runs the scenarios.
fn others() -> Vec<usize> {
    (1..num_cpus()).collect()
}
