//! The end of a run.

#![expect(unsafe_code, reason = "writes to devices, or crashes on purpose")]

use core::arch::asm;

use x86::instructions::port::Port;

use super::uart;
use crate::kernel::arch::contract::Status;

/// QEMU's `isa-debug-exit`. QEMU exits with twice the written value plus 1. That is never 0, the
/// status of a triple fault.
const DEBUG_EXIT: u16 = 0xf4;
const PASSED: u32 = 0x10;
const FAILED: u32 = 0x11;

/// Bochs exits when this word is written to this port.
const BOCHS_SHUTDOWN: u16 = 0x8900;
/// The ACPI sleep control register of QEMU's machines, and the value that switches them off.
const SLEEP_CONTROL: u16 = 0x604;
const SOFT_OFF: u16 = 0x2000;

pub(super) fn exit(status: Status) -> ! {
    uart::drain();
    let code = if status == Status::Passed { PASSED } else { FAILED };
    // SAFETY: without the device, nothing happens.
    unsafe {
        Port::new(DEBUG_EXIT).write(code);
        b"Shutdown".iter().for_each(|byte| Port::new(BOCHS_SHUTDOWN).write(*byte));
        Port::new(SLEEP_CONTROL).write(SOFT_OFF);
    }
    crash()
}

/// Crashes the machine. Without vectors, any exception resets it (QEMU: `-no-reboot`).
fn crash() -> ! {
    let no_vectors = [0_u16; 5];
    // SAFETY: nothing runs after this.
    unsafe {
        asm!("cli", "lidt [{}]", "int3", "ud2", in(reg) &raw const no_vectors, options(noreturn))
    }
}
