//! The coherence work of a scenario, as one line of output.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use ostd::mm::measure::{Counts, counts};
use ostd::prelude::println;

use crate::clock;

/// Reads of contents that belong to another owner, since the last scenario was printed.
static STALE_READS: AtomicU64 = AtomicU64::new(0);

/// Whether the clock counts instructions.
static IS_COUNTED: AtomicBool = AtomicBool::new(false);

pub fn count_instructions() {
    IS_COUNTED.store(true, SeqCst);
}

pub fn is_counted() -> bool {
    IS_COUNTED.load(SeqCst)
}

pub fn add_stale_reads(count: u64) {
    STALE_READS.fetch_add(count, SeqCst);
}

/// Work in intervals between [`start`](Self::start) and [`stop`](Self::stop).
pub struct Measurement {
    before: Counts,
    began: u64,
    instructions: u64,
    interrupts: u64,
    pages_invalidated: u64,
    flushes_full: u64,
}

impl Measurement {
    pub fn start() -> Self {
        Self {
            before: counts(),
            began: clock::now(),
            instructions: 0,
            interrupts: 0,
            pages_invalidated: 0,
            flushes_full: 0,
        }
    }

    pub fn stop(&mut self) {
        let (ended, after) = (clock::now(), counts());
        self.instructions += ended - self.began;
        self.interrupts += after.interrupts - self.before.interrupts;
        self.pages_invalidated += after.pages_invalidated - self.before.pages_invalidated;
        self.flushes_full += after.flushes_full - self.before.flushes_full;
    }

    pub fn resume(&mut self) {
        (self.before, self.began) = (counts(), clock::now());
    }

    /// Prints the sum of all intervals.
    pub fn print(self, scenario: &str, operations: u64) {
        let instructions = if is_counted() { self.instructions } else { 0 };
        println!(
            "row {} {} {} {} {} {} {}",
            scenario,
            operations,
            self.interrupts,
            instructions,
            self.pages_invalidated,
            self.flushes_full,
            STALE_READS.swap(0, SeqCst)
        );
    }
}

/// Measures `operations` operations that `work` does.
pub fn measure(scenario: &str, operations: u64, work: impl FnOnce()) {
    let mut measurement = Measurement::start();
    work();
    measurement.stop();
    measurement.print(scenario, operations);
}

/// Waits for a number of ticks of the clock.
pub fn spin(ticks: u64) {
    let end = clock::now() + ticks;
    while clock::now() < end {
        core::hint::spin_loop();
    }
}
