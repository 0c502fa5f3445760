//! How a run ends.

#![expect(unsafe_code, reason = "writes to the device, or crashes on purpose")]

use core::arch::asm;

use x86::instructions::port::Port;

use super::uart;
use crate::kernel::arch::contract::Status;

/// QEMU's `isa-debug-exit`: ends it with twice what is written and one more, so never with 0, which
/// is what a triple fault ends with.
const DEBUG_EXIT: u16 = 0xf4;
const PASSED: u32 = 0x10;
const FAILED: u32 = 0x11;

/// Bochs ends when it reads this word here.
const BOCHS_SHUTDOWN: u16 = 0x8900;
/// ACPI's sleep control of QEMU's machines, and how it is told to be off.
const SLEEP_CONTROL: u16 = 0x604;
const SOFT_OFF: u16 = 0x2000;

pub(super) fn exit(status: Status) -> ! {
    uart::drain();
    let code = match status {
        Status::Passed => PASSED,
        Status::Failed => FAILED,
    };
    // SAFETY: where there is no such device, nothing happens.
    unsafe {
        Port::new(DEBUG_EXIT).write(code);
        b"Shutdown".iter().for_each(|byte| Port::new(BOCHS_SHUTDOWN).write(*byte));
        Port::new(SLEEP_CONTROL).write(SOFT_OFF);
    }
    crash()
}

/// Nobody ends us: without vectors, any exception resets the machine (QEMU: `-no-reboot`).
fn crash() -> ! {
    let no_vectors = [0_u16; 5];
    // SAFETY: it is the end.
    unsafe {
        asm!("cli", "lidt [{}]", "int3", "ud2", in(reg) &raw const no_vectors, options(noreturn))
    }
}
