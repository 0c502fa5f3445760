//! Access to the contents of frames.

#![expect(unsafe_code, reason = "reads and writes frames at the addresses where they are mapped")]

use core::sync::atomic::{AtomicU64, Ordering};

use shootdown_vm::{Frame, PAGE_BYTES};

use crate::kernel::arch::{Arch, Architecture};

/// The address at which the kernel maps a frame.
pub(crate) fn phys_to_virt<T>(frame: Frame) -> *mut T {
    Arch::phys_to_virt(frame.address())
}

/// Fills a frame with zeros.
pub(crate) fn clear(frame: Frame) {
    // SAFETY: the frame belongs to the caller, and is mapped there.
    unsafe { phys_to_virt::<u8>(frame).write_bytes(0, PAGE_BYTES as usize) };
}

/// Fills a frame with zeros word by word, because user threads may use it at the same time.
pub(crate) fn clear_words(frame: Frame) {
    words_of(frame).for_each(|word| word.store(0, Ordering::Relaxed));
}

/// Returns `true` if a frame, which user threads may use at the same time, is zero.
pub(crate) fn is_zero(frame: Frame) -> bool {
    words_of(frame).all(|word| word.load(Ordering::Relaxed) == 0)
}

/// Copies a frame word by word, because user threads may write to it at the same time.
pub(crate) fn copy(from: Frame, to: Frame) {
    for (from, to) in words_of(from).zip(words_of(to)) {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Fills a frame with `bytes`, at most a page of them, and zeros.
pub(crate) fn fill(frame: Frame, bytes: &[u8]) {
    clear(frame);
    let count = bytes.len().min(PAGE_BYTES as usize);
    // SAFETY: see `clear`. The bytes are not in the frame, which nothing else uses yet.
    unsafe { phys_to_virt::<u8>(frame).copy_from_nonoverlapping(bytes.as_ptr(), count) };
}

/// The words of a frame.
fn words_of(frame: Frame) -> impl Iterator<Item = &'static AtomicU64> {
    (0..PAGE_BYTES as usize / 8).map(move |index| word_at(frame, index))
}

/// A word of a frame. User threads and the MMU may write it at the same time.
pub(crate) fn word_at(frame: Frame, index: usize) -> &'static AtomicU64 {
    assert!(index < PAGE_BYTES as usize / 8);
    // SAFETY: all physical memory is mapped there for ever, and shared frames are accessed only by
    // atomic words.
    unsafe { &*phys_to_virt::<AtomicU64>(frame).wrapping_add(index) }
}
