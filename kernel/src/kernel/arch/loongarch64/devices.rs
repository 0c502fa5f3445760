//! The console, and the end.

#![expect(unsafe_code, reason = "devices")]

use super::windows::device;

/// A UART like National's 16550, of which QEMU says that it has been set up.
const UART: u64 = 0x1fe0_01e0;
const LINE_STATUS: u64 = UART + 5;
const HAS_ROOM: u8 = 1 << 5;
const HAS_SENT_ALL: u8 = 1 << 6;

/// The power manager's register for sleep: state 5, with the bit that says "now".
const SLEEP: u64 = 0x100e_001c;
const OFF: u8 = 5 << 2 | 1 << 5;

/// Writes to the console.
pub(super) fn write(byte: u8) {
    wait_for(HAS_ROOM);
    // SAFETY: the UART's data register.
    unsafe { device::<u8>(UART).write_volatile(byte) };
}

/// Switches the machine off, for all CPUs.
pub(super) fn power_off() -> ! {
    wait_for(HAS_SENT_ALL);
    // SAFETY: there is nothing more to lose.
    unsafe { device::<u8>(SLEEP).write_volatile(OFF) };
    loop {
        core::hint::spin_loop();
    }
}

fn wait_for(status: u8) {
    // SAFETY: the UART's status can be read at any time.
    while unsafe { device::<u8>(LINE_STATUS).read_volatile() } & status == 0 {
        core::hint::spin_loop();
    }
}
