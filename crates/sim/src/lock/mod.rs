//! The locks of a kernel: one whose waiters sleep or spin as in Linux, one whose waiters spin, and
//! one whose readers write nothing.

pub(crate) mod queue;
pub(crate) mod queued;
mod read_mostly;
mod sleeping;
mod spinning;
pub(crate) mod waiting;

use lock_api::{GuardSend, RawMutex};
use shootdown::Word;
use std::sync::atomic::Ordering::Relaxed;

pub use queued::QueuedLock;
pub use read_mostly::ReadMostlyLock;
pub use sleeping::SleepingLock;
pub use waiting::LockWaiting;

use crate::causes::Cause;
use crate::lines::LineId;
use crate::sim::{Sim, with_running};
use crate::word::SimWord;

/// A lock whose waiters spin.
#[derive(Debug)]
#[repr(align(64))]
pub struct SpinLock(SimWord);

#[expect(unsafe_code, reason = "the library's contract for locks")]
// SAFETY: only one thread swaps a 1 for a 0.
unsafe impl RawMutex for SpinLock {
    const INIT: Self = Self(SimWord::with(0));
    type GuardMarker = GuardSend;

    #[track_caller]
    fn lock(&self) {
        if !self.try_lock() {
            self.lock_contended();
        }
    }
    #[track_caller]
    fn try_lock(&self) -> bool {
        let is_taken = self.0.swap(1, Relaxed) == 0;
        if is_taken {
            with_running(Sim::spin_lock_taken);
        }
        is_taken
    }
    unsafe fn unlock(&self) {
        self.0.store(0, Relaxed);
        with_running(Sim::spin_lock_released);
    }
}

impl SpinLock {
    #[cold]
    fn lock_contended(&self) {
        let spun = with_running(|sim| {
            let began = sim.now();
            sim.attribute(Cause::LockWait, || {
                loop {
                    while self.0.load(Relaxed) != 0 {
                        sim.spin_hint();
                    }
                    if self.try_lock() {
                        break;
                    }
                }
            });
            let spun = sim.now() - began;
            sim.waited_for_lock(LineId::of_host(core::ptr::from_ref(self).addr()), spun);
            sim.count(|counts| {
                counts.lock_waits += 1;
                counts.lock_spin += spun;
            });
        });
        assert!(spun.is_some(), "a spin lock is taken, and no other CPU can release it");
    }
}
