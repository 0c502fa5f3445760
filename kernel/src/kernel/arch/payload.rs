//! The load in memory. Its first line is `shootdown-load N`, where N is the number of all its
//! bytes, this line included.

#![expect(unsafe_code, reason = "reads memory that the emulator has filled")]

/// The beginning of the first line.
const MAGIC: &[u8] = b"shootdown-load ";

/// The bytes of the load at `address`; none if the first line is not there.
///
/// # Safety
///
/// There must be mapped memory at `address`, for the whole load, and it must never change.
pub(super) unsafe fn at(address: *const u8) -> &'static [u8] {
    const LINE_MAX: usize = 64;
    // SAFETY: the caller's promise.
    let line = unsafe { core::slice::from_raw_parts(address, LINE_MAX) };
    let length = line.strip_prefix(MAGIC).and_then(|rest| {
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        str::from_utf8(&rest[..end]).ok()?.parse().ok()
    });
    // SAFETY: the caller's promise. The line has the length of the load.
    length.map_or(&[], |length| unsafe { core::slice::from_raw_parts(address, length) })
}
