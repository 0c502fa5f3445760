//! `memcpy` and `memset` as in `core` on bare metal: bytes up to the address of a word, words, and
//! bytes again. The C library's functions use the widest registers of the host instead.
//!
//! Each iteration counts as an instruction, so moving or clearing a set of 64 words costs 64.

use std::arch::asm;

/// The numbers of bytes before, words, and bytes after, for `bytes` bytes at `to`.
const fn parts(to: usize, bytes: usize) -> (usize, usize, usize) {
    let before = to.wrapping_neg() % 8;
    let before = if before < bytes { before } else { bytes };
    (before, (bytes - before) / 8, (bytes - before) % 8)
}

/// Copies bytes.
///
/// # Safety
///
/// The contract of the C library's `memcpy`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    let (before, words, rest) = parts(to.addr(), bytes);
    // SAFETY: the caller promises that the bytes can be read and written.
    unsafe {
        asm!(
            "rep movsb", "mov rcx, {words}", "rep movsq", "mov rcx, {rest}", "rep movsb",
            words = in(reg) words, rest = in(reg) rest, inout("rcx") before => _,
            inout("rdi") to => _, inout("rsi") from => _, options(nostack, preserves_flags)
        );
    }
    to
}

/// Sets all bytes to one value.
///
/// # Safety
///
/// The contract of the C library's `memset`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, value: i32, bytes: usize) -> *mut u8 {
    let (before, words, rest) = parts(to.addr(), bytes);
    let value = u64::from(value.to_le_bytes()[0]) * 0x0101_0101_0101_0101;
    // SAFETY: the caller promises that the bytes can be written.
    unsafe {
        asm!(
            "rep stosb", "mov rcx, {words}", "rep stosq", "mov rcx, {rest}", "rep stosb",
            words = in(reg) words, rest = in(reg) rest, inout("rcx") before => _,
            inout("rdi") to => _, in("rax") value, options(nostack, preserves_flags)
        );
    }
    to
}
