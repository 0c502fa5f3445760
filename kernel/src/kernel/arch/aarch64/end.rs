//! The end of a run: by semihosting, which gives the emulator's exit a status.

use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering};

use super::{console, firmware};
use crate::kernel::arch::contract::Status;

/// `SYS_EXIT_EXTENDED`.
const EXIT: u64 = 0x20;
/// `ADP_Stopped_ApplicationExit`: it has a status.
const APPLICATION_EXIT: u64 = 0x2_0026;

const STATUS_PASSED: u64 = 42;
const STATUS_FAILED: u64 = 43;

static IS_ENDING: AtomicBool = AtomicBool::new(false);

pub(super) fn exit(status: Status) -> ! {
    console::drain();
    let code = match status {
        Status::Passed => STATUS_PASSED,
        Status::Failed => STATUS_FAILED,
    };
    IS_ENDING.store(true, Ordering::Relaxed);
    let block = [APPLICATION_EXIT, code];
    // SAFETY: it ends the run, or is an exception, by which we come to `if_begun`.
    unsafe {
        asm!("hlt #0xf000", in("x0") EXIT, in("x1") block.as_ptr(), options(nostack));
    }
    firmware::power_off()
}

/// Ends the run if its end has begun: nobody listened to that instruction.
pub(super) fn if_begun() {
    if IS_ENDING.load(Ordering::Relaxed) {
        firmware::power_off();
    }
}
