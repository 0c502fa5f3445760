//! The console, and the power switch.

#![expect(unsafe_code, reason = "devices")]

use super::windows::device;

/// A UART compatible with National's 16550. QEMU has initialised it.
const UART: u64 = 0x1fe0_01e0;
const LINE_STATUS: u64 = UART + 5;
const HAS_ROOM: u8 = 1 << 5;
const HAS_SENT_ALL: u8 = 1 << 6;

/// The power manager's sleep register: state 5, with the bit that enters it.
const SLEEP: u64 = 0x100e_001c;
const OFF: u8 = 5 << 2 | 1 << 5;

/// Writes a byte to the console.
pub(super) fn write(byte: u8) {
    wait_for(HAS_ROOM);
    // SAFETY: the address is that of the UART's data register.
    unsafe { device::<u8>(UART).write_volatile(byte) };
}

/// Switches the machine off after all output has been sent.
pub(super) fn power_off() -> ! {
    wait_for(HAS_SENT_ALL);
    // SAFETY: nothing runs after this.
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
