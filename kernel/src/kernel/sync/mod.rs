//! Spin locks, and a cell that is written once.

mod once;
mod spin;
mod spin_rw;

pub(crate) use once::Once;
pub(crate) use spin::SpinLock;
pub(crate) use spin_rw::SpinRwLock;

use crate::kernel::arch::{Arch, Architecture};

/// A value under a spin lock.
pub(crate) type Mutex<T> = lock_api::Mutex<SpinLock, T>;

/// Calls `f` with interrupts masked on this CPU.
pub(crate) fn masked<R>(f: impl FnOnce() -> R) -> R {
    let were_masked = Arch::interrupts_masked();
    Arch::mask_interrupts();
    let result = f();
    if !were_masked {
        Arch::unmask_interrupts();
    }
    result
}
