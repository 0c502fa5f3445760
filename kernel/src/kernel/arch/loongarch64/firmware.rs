//! The size of memory, from QEMU's `fw_cfg` device.

#![expect(unsafe_code, reason = "reads a device")]

use super::windows::device;

/// The data register. The selector is 8 bytes above it.
const FW_CFG: u64 = 0x1e02_0000;
const SELECTOR: u64 = FW_CFG + 8;
/// The item with the size of memory in bytes.
const RAM_SIZE: u16 = 3;

/// The size of memory in bytes.
pub(super) fn memory_bytes() -> u64 {
    // SAFETY: the device is there, and nothing else uses it. The selector is big-endian, the item
    // is little-endian, and its bytes are read one by one.
    unsafe {
        device::<u16>(SELECTOR).write_volatile(RAM_SIZE.to_be());
        u64::from_le_bytes([(); 8].map(|()| device::<u8>(FW_CFG).read_volatile()))
    }
}
