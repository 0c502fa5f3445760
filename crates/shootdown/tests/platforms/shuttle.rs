//! The software machine under shuttle: random schedules of many threads.
//!
//! shuttle executes all accesses in one total order. It detects lost wake-ups, missing steps and
//! deadlocks, and cannot detect a missing barrier.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use shootdown::CpuId;
use shootdown::soft::Platform;
use shuttle::sync::atomic::{AtomicU64, fence};

/// Threads and words that shuttle schedules.
#[derive(Debug)]
pub(crate) struct Shuttle;

/// A word at whose every access shuttle may switch threads.
pub(crate) struct ShuttleWord(AtomicU64);
shootdown::word_by_atomic!(ShuttleWord, |value| Self(AtomicU64::new(value)), |this| this.0);

shuttle::thread_local! {
    static CPU: Cell<CpuId> = Cell::new(CpuId(0));
}

impl Platform for Shuttle {
    type Word = ShuttleWord;
    type Frame = std::sync::atomic::AtomicU64;
    fn fence() {
        fence(Ordering::SeqCst);
    }
    fn spin_hint() {
        shuttle::thread::yield_now();
    }
    fn cpu() -> CpuId {
        CPU.with(Cell::get)
    }
    fn set_cpu(cpu: CpuId) {
        CPU.with(|this| this.set(cpu));
    }
}
