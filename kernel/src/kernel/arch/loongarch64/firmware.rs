//! What QEMU tells of the machine: `fw_cfg`.

#![expect(unsafe_code, reason = "reads a device")]

use super::windows::device;

/// The data register; the selector is 8 bytes further.
const FW_CFG: u64 = 0x1e02_0000;
const SELECTOR: u64 = FW_CFG + 8;
/// How many bytes of memory there are.
const RAM_SIZE: u16 = 3;

/// How many bytes of memory there are.
pub(super) fn memory_bytes() -> u64 {
    // SAFETY: the device is there, and nobody else uses it. The selector is big-endian, the item
    // little-endian; bytes come one by one.
    unsafe {
        device::<u16>(SELECTOR).write_volatile(RAM_SIZE.to_be());
        u64::from_le_bytes([(); 8].map(|()| device::<u8>(FW_CFG).read_volatile()))
    }
}
