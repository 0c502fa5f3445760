//! Ends a run by semihosting, which passes a status to the emulator.

use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering};

use super::{console, firmware};
use crate::kernel::arch::contract::Status;

/// `SYS_EXIT_EXTENDED`.
const EXIT: u64 = 0x20;
/// `ADP_Stopped_ApplicationExit`: the exit has a status.
const APPLICATION_EXIT: u64 = 0x2_0026;

const STATUS_PASSED: u64 = 42;
const STATUS_FAILED: u64 = 43;

static IS_ENDING: AtomicBool = AtomicBool::new(false);

pub(super) fn exit(status: Status) -> ! {
    console::drain();
    let code = if status == Status::Passed { STATUS_PASSED } else { STATUS_FAILED };
    IS_ENDING.store(true, Ordering::Relaxed);
    let block = [APPLICATION_EXIT, code];
    // SAFETY: the instruction ends the run, or raises an exception, which leads to `if_begun`.
    unsafe {
        asm!("hlt #0xf000", in("x0") EXIT, in("x1") block.as_ptr(), options(nostack));
    }
    firmware::power_off()
}

/// Switches the machine off if [`exit`] has been called. The exception handlers call this, because
/// the semihosting instruction raises an exception where semihosting is disabled.
pub(super) fn if_begun() {
    if IS_ENDING.load(Ordering::Relaxed) {
        firmware::power_off();
    }
}
