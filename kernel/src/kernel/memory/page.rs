//! The contents of frames, where the kernel sees them.

#![expect(unsafe_code, reason = "reads and writes frames where the kernel sees them")]

use core::sync::atomic::{AtomicU64, Ordering};

use shootdown_vm::{Frame, PAGE_BYTES};

use crate::kernel::arch::{Arch, Architecture};

/// Where the kernel sees a frame.
pub(crate) fn phys_to_virt<T>(frame: Frame) -> *mut T {
    Arch::phys_to_virt(frame.address())
}

/// Fills a frame with zeros.
pub(crate) fn clear(frame: Frame) {
    // SAFETY: the frame is the caller's, and mapped there.
    unsafe { phys_to_virt::<u8>(frame).write_bytes(0, PAGE_BYTES as usize) };
}

/// Copies a frame by words, because user threads may write to it at the same time.
pub(crate) fn copy(from: Frame, to: Frame) {
    for index in 0..PAGE_BYTES as usize / 8 {
        word_at(to, index).store(word_at(from, index).load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Fills a frame with bytes, which are not more than a page, and zeros.
pub(crate) fn fill(frame: Frame, bytes: &[u8]) {
    clear(frame);
    let count = bytes.len().min(PAGE_BYTES as usize);
    // SAFETY: as in `clear`, and the bytes are not in the frame, which is nobody else's yet.
    unsafe { phys_to_virt::<u8>(frame).copy_from_nonoverlapping(bytes.as_ptr(), count) };
}

/// A word of a frame. User threads and the MMU may write it at the same time.
pub(crate) fn word_at(frame: Frame, index: usize) -> &'static AtomicU64 {
    assert!(index < PAGE_BYTES as usize / 8);
    // SAFETY: all of physical memory is mapped there for ever, and frames that are shared are
    // accessed by atomic words alone.
    unsafe { &*phys_to_virt::<AtomicU64>(frame).wrapping_add(index) }
}
