//! The predictor of whether it pays for a CPU to enter lazy when its thread enters the kernel.

#![expect(unsafe_code, reason = "the C interface: the kernel promises what Rust's types enforce")]

use shootdown::LazyEntryPredictor;

use crate::storage::{LazyPredictorStorage, Storage};

/// Initialises the predictor of a CPU, for a kernel whose threads access no user address while they
/// are in the kernel. May be called before `shootdown_init`.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_init. Stack: 128.
///
/// # Safety
///
/// `predictor` must be valid for writes. Only its CPU calls the functions below for it, in
/// interrupt handlers or not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_lazy_init(predictor: *mut LazyPredictorStorage) {
    // SAFETY: the caller's promise.
    unsafe { LazyPredictorStorage::init(predictor, LazyEntryPredictor::new()) };
}

/// Records that the CPU has switched to a space, whose thread is in the kernel. Returns true if the
/// CPU should enter lazy.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_init. Stack: 128.
///
/// # Safety
///
/// `predictor` is initialised, and is that of this CPU.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_lazy_switched(predictor: *mut LazyPredictorStorage) -> bool {
    // SAFETY: the caller's promise.
    unsafe { LazyPredictorStorage::get(predictor) }.switched()
}

/// Records that the thread enters the kernel. Returns true if the CPU should enter lazy.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_init. Stack: 128.
///
/// # Safety
///
/// As `shootdown_lazy_switched`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_lazy_entered_kernel(
    predictor: *mut LazyPredictorStorage,
) -> bool {
    // SAFETY: the caller's promise.
    unsafe { LazyPredictorStorage::get(predictor) }.entered_kernel()
}

/// Records that the thread returns to user mode. If the CPU is lazy, first call `shootdown_resume`.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_init. Stack: 128.
///
/// # Safety
///
/// As `shootdown_lazy_switched`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_lazy_returned_to_user(predictor: *mut LazyPredictorStorage) {
    // SAFETY: the caller's promise.
    unsafe { LazyPredictorStorage::get(predictor) }.returned_to_user();
}

/// Records that the CPU caught up with a flush on its way to user mode: `caught_up` in its counters
/// has grown. To enter lazy has then saved an interrupt.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_init. Stack: 128.
///
/// # Safety
///
/// As `shootdown_lazy_switched`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_lazy_caught_up(predictor: *mut LazyPredictorStorage) {
    // SAFETY: the caller's promise.
    unsafe { LazyPredictorStorage::get(predictor) }.caught_up();
}

/// Records that the flush interrupt has arrived. Call this in its handler.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_init. Stack: 128.
///
/// # Safety
///
/// As `shootdown_lazy_switched`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_lazy_interrupted(predictor: *mut LazyPredictorStorage) {
    // SAFETY: the caller's promise.
    unsafe { LazyPredictorStorage::get(predictor) }.interrupted();
}
