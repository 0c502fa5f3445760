//! Virtual CPUs that are away: the word with which a hypervisor and its guest defer a flush.

#![expect(unsafe_code, reason = "the C interface: the kernel promises what Rust's types enforce")]

use shootdown::{Entries, VcpuWord};

use crate::engine::engine;
use crate::storage::{Storage, VcpuStorage};

/// Initialises the word of a virtual CPU that runs. May be called before `shootdown_init`.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 128.
///
/// # Safety
///
/// `vcpu` must be valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_vcpu_init(vcpu: *mut VcpuStorage) {
    // SAFETY: the caller's promise.
    unsafe { VcpuStorage::init(vcpu, VcpuWord::new()) };
}

/// Records that a virtual CPU has stopped. May be called again before the CPU runs.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 128.
///
/// # Safety
///
/// `vcpu` is initialised. The CPU's accesses happen before this call. From now on until
/// `shootdown_vcpu_resume`, the CPU accesses no memory and walks no page table.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_vcpu_stop(vcpu: *mut VcpuStorage) {
    // SAFETY: the caller's promises.
    unsafe { VcpuStorage::get(vcpu).stop(engine().machine()) };
}

/// Records that a virtual CPU is about to run. The hypervisor calls this before the CPU's first
/// access.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 128.
///
/// # Safety
///
/// `vcpu` is initialised. If the result is true, the caller drops all translations of the CPU,
/// global ones included, under every tag, before the CPU accesses memory or walks page tables.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_vcpu_resume(vcpu: *mut VcpuStorage) -> bool {
    // SAFETY: the caller's promises.
    unsafe { VcpuStorage::get(vcpu).resume(engine().machine()) == Entries::Discard }
}

/// Requests that a virtual CPU's TLB is emptied before the CPU runs again. Returns false if the CPU
/// is not away: then there is no request. For `shootdown_os_is_away`, which is called after the
/// flush's stores.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 128.
///
/// # Safety
///
/// `vcpu` is initialised.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_vcpu_defer_flush(vcpu: *mut VcpuStorage) -> bool {
    // SAFETY: the caller's promise.
    unsafe { VcpuStorage::get(vcpu) }.defer_flush(engine().machine())
}
