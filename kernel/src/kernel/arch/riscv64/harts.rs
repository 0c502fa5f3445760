//! Numbers of CPUs and of *harts*, by which the firmware names them.
//!
//! Any hart may be the first to enter the kernel; the firmware chooses. It is CPU 0, and hart 0, if
//! that is another one, has the number that is left.

use core::sync::atomic::{AtomicU32, Ordering};

static FIRST_HART: AtomicU32 = AtomicU32::new(0);

/// Records the hart of CPU 0. Call this before any other function of this module.
pub(super) fn set_first(hart: u32) {
    FIRST_HART.store(hart, Ordering::Relaxed);
}

/// The hart of a CPU.
pub(super) fn of_cpu(cpu: u32) -> u64 {
    // Relaxed: other CPUs are started after the store.
    let first = FIRST_HART.load(Ordering::Relaxed);
    u64::from(match cpu {
        0 => first,
        cpu if cpu == first => 0,
        cpu => cpu,
    })
}

/// The CPU of a hart: the same exchange of two numbers.
pub(super) fn cpu_of(hart: u32) -> u32 {
    of_cpu(hart) as u32
}
