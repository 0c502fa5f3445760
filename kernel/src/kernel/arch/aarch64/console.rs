//! The console: the machine's first PL011.

use super::register::Device;

const UART: Device = Device(0x0900_0000);

/// UARTDR: the byte to send.
const DATA: usize = 0x00;
/// UARTFR: flags.
const FLAGS: usize = 0x18;
const IS_BUSY: u32 = 1 << 3;
const IS_FULL: u32 = 1 << 5;
/// `UARTLCR_H`.
const LINE: usize = 0x2c;
const EIGHT_BITS_BY_FIFO: u32 = 3 << 5 | 1 << 4;
/// UARTCR.
const CONTROL: usize = 0x30;
const ENABLED_TO_SEND: u32 = 1 << 8 | 1 << 0;

/// Enables the UART. Call this before the first write.
pub(super) fn set_up() {
    UART.write(CONTROL, 0);
    UART.write(LINE, EIGHT_BITS_BY_FIFO);
    UART.write(CONTROL, ENABLED_TO_SEND);
}

pub(super) fn write(byte: u8) {
    while UART.read(FLAGS) & IS_FULL != 0 {
        core::hint::spin_loop();
    }
    UART.write(DATA, byte.into());
}

/// Waits until everything has been sent. If the run ended before, the last line could be lost.
pub(super) fn drain() {
    while UART.read(FLAGS) & IS_BUSY != 0 {
        core::hint::spin_loop();
    }
}
