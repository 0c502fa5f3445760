//! Calls of the firmware (SBI): start and stop CPUs, and set timers.
//!
//! Interrupts to other CPUs are such calls: see [`send_ipis`](shootdown_hw::riscv64::sbi).

use core::arch::asm;

/// Extensions: hart state management, and timer.
const HARTS: u64 = 0x48_534d;
const TIMER: u64 = 0x5449_4d45;

/// The result of a call: an error, 0 if there is none, and a value.
type Answer = (i64, u64);

/// Starts a hart at a physical address, with `context` in a1. Waits for a hart that is about to
/// stop itself: until then, the firmware refuses to start it.
pub(super) fn start_hart(hart: u64, address: u64, context: u64) {
    const TURNS_MAX: u32 = 1_000_000;
    const HART_START: u64 = 0;
    const HART_STATUS: u64 = 2;
    const IS_STOPPED: Answer = (0, 1);
    let has_stopped = (0..TURNS_MAX).any(|_| call(HARTS, HART_STATUS, [hart, 0, 0]) == IS_STOPPED);
    assert!(has_stopped, "hart {hart} does not stop");
    let (error, _) = call(HARTS, HART_START, [hart, address, context]);
    assert!(error == 0, "the firmware does not start hart {hart}: error {error}");
}

/// Stops the calling hart.
pub(super) fn stop_hart() -> ! {
    const HART_STOP: u64 = 1;
    panic!("the firmware does not stop this hart: error {:?}", call(HARTS, HART_STOP, [0; 3]));
}

/// Requests the timer's interrupt when the clock has reached this value, and clears a pending one.
pub(super) fn set_timer(ticks: u64) {
    let (error, _) = call(TIMER, 0, [ticks, 0, 0]);
    assert!(error == 0, "the firmware sets no timer: error {error}");
}

/// Calls the firmware.
fn call(extension: u64, function: u64, [a0, a1, a2]: [u64; 3]) -> Answer {
    let (error, value);
    // SAFETY: these calls change no memory of the kernel. The firmware preserves all registers but
    // a0 and a1.
    unsafe {
        asm!(
            "ecall",
            inlateout("a0") a0 => error, inlateout("a1") a1 => value,
            in("a2") a2, in("a6") function, in("a7") extension,
            options(nostack),
        );
    }
    (error, value)
}
