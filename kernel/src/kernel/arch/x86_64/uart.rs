//! The console: the first serial port, a UART compatible with the 8250.

#![expect(unsafe_code, reason = "writes to the device")]

use x86::instructions::port::Port;

const BASE: u16 = 0x3f8;
const DATA: u16 = BASE;
const INTERRUPTS: u16 = BASE + 1;
const DIVISOR_LOW: u16 = BASE;
const DIVISOR_HIGH: u16 = BASE + 1;
const FIFO_CONTROL: u16 = BASE + 2;
const LINE_CONTROL: u16 = BASE + 3;
const LINE_STATUS: u16 = BASE + 5;

/// Bit of `LINE_STATUS`: there is room for a byte.
const HAS_ROOM: u8 = 1 << 5;
/// Bit of `LINE_STATUS`: all bits have been sent.
const IS_DRAINED: u8 = 1 << 6;

/// Sets 115200 bits a second, 8 data bits, no parity and one stop bit. QEMU ignores the settings;
/// Bochs starts with 5 data bits.
pub(super) fn set_up() {
    const DIVISOR_ACCESS: u8 = 0x80;
    const EIGHT_BITS: u8 = 0x03;
    const ON_AND_EMPTY: u8 = 0x07;
    for (port, value) in [
        (INTERRUPTS, 0),
        (LINE_CONTROL, DIVISOR_ACCESS),
        (DIVISOR_LOW, 1),
        (DIVISOR_HIGH, 0),
        (LINE_CONTROL, EIGHT_BITS),
        (FIFO_CONTROL, ON_AND_EMPTY),
    ] {
        // SAFETY: no other device has these ports. Without a UART, nothing happens.
        unsafe { Port::<u8>::new(port).write(value) };
    }
}

pub(super) fn write(byte: u8) {
    wait_for(HAS_ROOM);
    // SAFETY: no other device has this port.
    unsafe { Port::new(DATA).write(byte) };
}

/// Waits until everything has been sent. If the emulator exited before, the last line would be
/// lost.
pub(super) fn drain() {
    wait_for(IS_DRAINED);
}

/// Waits for a bit of the status. Without a UART, all bits read as set.
fn wait_for(status: u8) {
    // SAFETY: reading the status has no side effect that matters here.
    while unsafe { Port::<u8>::new(LINE_STATUS).read() } & status == 0 {
        core::hint::spin_loop();
    }
}
