//! Events that an observer outside of the machine counts: `shootdown sanitize` stops at these
//! functions, and reads their arguments. They do nothing.

#![expect(unsafe_code, reason = "the observer finds the functions by their names")]

use core::hint::black_box;

/// A frame has a new owner: the flush of its last mapping is complete.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn shootdown_freed(address: u64) {
    black_box(address);
}

/// The flushes of all changes that this CPU has made are complete.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn shootdown_settled() {
    black_box(());
}

/// The trial with this number begins; they are printed in this order, from 1 on. Storms have a
/// number of their own.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn shootdown_trial(number: u64) {
    black_box(number);
}
