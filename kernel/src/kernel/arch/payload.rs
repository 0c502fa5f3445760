//! What `shootdown boot` puts into memory: a line `shootdown-load N` with the number of all bytes,
//! this line included, and those bytes.

#![expect(unsafe_code, reason = "reads memory that the emulator has filled")]

/// What the first line begins with.
const MAGIC: &[u8] = b"shootdown-load ";

/// The bytes at an address; none if that line is not there.
///
/// # Safety
///
/// There must be memory, which stays as it is.
pub(super) unsafe fn at(address: *const u8) -> &'static [u8] {
    const LINE_MAX: usize = 64;
    // SAFETY: as our caller promises.
    let line = unsafe { core::slice::from_raw_parts(address, LINE_MAX) };
    let length = line.strip_prefix(MAGIC).and_then(|rest| {
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        str::from_utf8(&rest[..end]).ok()?.parse().ok()
    });
    // SAFETY: as above: the line says how much there is.
    length.map_or(&[], |length| unsafe { core::slice::from_raw_parts(address, length) })
}
