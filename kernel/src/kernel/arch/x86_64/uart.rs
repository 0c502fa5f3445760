//! The console: the first serial port, an 8250 or one of those that came after it.

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

/// In `LINE_STATUS`: there is room for a byte.
const HAS_ROOM: u8 = 1 << 5;
/// There: and the last bit has left.
const IS_DRAINED: u8 = 1 << 6;

/// 115200 bits a second, 8 data bits, no parity, one stop bit. QEMU does not care; Bochs begins
/// with 5 data bits.
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
        // SAFETY: the port of no other device; if it has none, nothing happens.
        unsafe { Port::<u8>::new(port).write(value) };
    }
}

pub(super) fn write(byte: u8) {
    wait_for(HAS_ROOM);
    // SAFETY: as above.
    unsafe { Port::new(DATA).write(byte) };
}

/// Waits until all has been sent: who ends the emulator before loses the last line.
pub(super) fn drain() {
    wait_for(IS_DRAINED);
}

/// Where there is no such device, all bits are set.
fn wait_for(status: u8) {
    // SAFETY: reading the status changes nothing that we look at.
    while unsafe { Port::<u8>::new(LINE_STATUS).read() } & status == 0 {
        core::hint::spin_loop();
    }
}
