//! CPUs in user mode, which flushes of the kernel's pages do not interrupt.

#![expect(unsafe_code, reason = "the C interface: the kernel promises what Rust's types enforce")]

use crate::engine::try_pin;

/// Publishes that this CPU is in user mode, where `shootdown_flush_kernel` does not interrupt it.
/// In a library with the feature `isolation`, like the next function.
///
/// Call this as late as possible before the return to user mode, or before a long idle state, on
/// the CPUs that must not be interrupted. From here until `shootdown_enter_kernel` returns, the CPU
/// may use only kernel pages that are never flushed, or that `shootdown_os_is_used_on_entry` names,
/// in NMI handlers too; and it may call no other function of the library. Kernel flushes that free
/// tables interrupt it, and so do flushes of the space that it has loaded.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_init. Stack: 128.
///
/// # Safety
///
/// Masked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_enter_user() {
    // SAFETY: the caller's promise.
    if let Some(pin) = unsafe { try_pin() } {
        pin.enter_user();
    }
}

/// Publishes that this CPU is in the kernel, and catches up with the flushes of the kernel's pages
/// that it has missed. Call this first on each entry from user mode. On a CPU that is in the kernel
/// already, it only costs a barrier.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_init. Stack: 640.
///
/// # Safety
///
/// Masked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_enter_kernel() {
    // SAFETY: the caller's promise.
    if let Some(pin) = unsafe { try_pin() } {
        pin.enter_kernel();
    }
}
