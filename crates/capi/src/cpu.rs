//! The functions of a CPU on its own translations, and the handler of the flush interrupt.

#![expect(unsafe_code, reason = "the C interface: the kernel promises what Rust's types enforce")]

use shootdown::CpuState;

use crate::engine::{engine, pin};
use crate::storage::{CpuStorage, SpaceStorage, Storage};

/// Initialises the state of a CPU that is offline. Call this before the CPU comes online, and
/// before `shootdown_os_cpu` returns the state. May be called before `shootdown_init`.
///
/// # Safety
///
/// `cpu` must be valid for writes, and stay in place as long as the engine is used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_cpu_init(cpu: *mut CpuStorage) {
    // SAFETY: the caller's promise.
    unsafe { CpuStorage::init(cpu, CpuState::new()) };
}

/// Brings this CPU online: from now on, flushes interrupt it. Empties its TLB. Call this as the
/// last step before the CPU runs threads, when its flush interrupt is set up.
///
/// # Safety
///
/// The flush interrupt is masked on this CPU, and so is every interrupt whose handler calls the
/// library. The CPU runs on the kernel's own page table. Do not call it in an NMI or a
/// machine-check handler. The same holds for all functions below that say "masked".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_online() {
    // SAFETY: the caller's promise.
    unsafe { pin() }.online();
}

/// Takes this CPU offline: it leaves its space, and no other CPU interrupts it or waits for it
/// until it comes back online. Until then, it may use only kernel pages that are never flushed.
///
/// # Safety
///
/// Masked, and the interrupt stays masked until `shootdown_online`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_offline() {
    // SAFETY: the caller's promise.
    unsafe { pin() }.offline();
}

/// Handles the flush interrupt: a call of this function is the whole handler. Also call it in loops
/// that wait for a lock with the interrupt masked, because the holder may be waiting for this CPU.
///
/// # Safety
///
/// Masked. May also be called in `shootdown_os_ring`, `shootdown_os_wait_hint` and
/// `shootdown_os_reclaim`, where they wait for a lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_handle_flush_ipi() {
    // SAFETY: the caller's promise.
    unsafe { pin() }.handle_flush_ipi();
}

/// Makes `space` active on this CPU: call this before it runs a thread of the space. Cheap if the
/// space is still loaded, as after `shootdown_enter_lazy`.
///
/// # Safety
///
/// Masked, and this CPU is online. `space` is initialised, and not retired. From now on until
/// `shootdown_os_reclaim` gets it, it must not move, nor be freed or written, and its root must
/// stay a valid page table.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_switch(space: *mut SpaceStorage) {
    // SAFETY: the caller's promises.
    unsafe { pin().switch(SpaceStorage::get(space)) };
}

/// Publishes that this CPU keeps its space loaded, but accesses no user memory: it idles, or runs a
/// kernel thread. From now on flushes do not interrupt it. It catches up at `shootdown_switch`.
///
/// # Safety
///
/// Masked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_enter_lazy() {
    // SAFETY: the caller's promise.
    unsafe { pin() }.enter_lazy();
}

/// Loads the kernel's own page table. Call this on a CPU that enters a deep idle state, so that it
/// keeps no dead space's page tables allocated.
///
/// # Safety
///
/// Masked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_leave_space() {
    // SAFETY: the caller's promise.
    unsafe { pin() }.leave_space();
}

/// Returns true if a handler that cannot be masked, such as that of an NMI, may access user memory
/// of `space` on this CPU until it returns. The handler must not call any other function of the
/// library.
///
/// # Safety
///
/// `space` must be initialised, and not reclaimed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_nmi_may_touch_user(space: *const SpaceStorage) -> bool {
    // SAFETY: the caller's promise.
    engine().nmi_may_touch_user(unsafe { SpaceStorage::get(space) }.id())
}
