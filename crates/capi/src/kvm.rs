//! Virtual CPUs under KVM on x86-64: the guest's end of steal time.

#![expect(unsafe_code, reason = "the C interface: the kernel promises what Rust's types enforce")]

use core::arch::x86_64::__cpuid;

use shootdown_hw::x86_64::kvm::{StealTime, can_defer_flushes};
use shootdown_hw::x86_64::{Registers, Source};

use crate::storage::{StealTimeStorage, Storage};

/// CPUID of the CPU that runs this code.
struct Cpuid;

impl Source for Cpuid {
    fn cpuid(&self, leaf: u32) -> Registers {
        // (The function is unsafe in some versions of Rust that we support.)
        #[allow(unused_unsafe, reason = "it is safe since Rust 1.94")]
        // SAFETY: all x86-64 processors have CPUID, and it accesses no memory.
        let core::arch::x86_64::CpuidResult { eax, ebx, ecx, edx } = unsafe { __cpuid(leaf) };
        Registers { eax, ebx, ecx, edx }
    }

    /// KVM's features do not depend on it.
    fn microcode(&self) -> u32 {
        0
    }
}

/// Returns true if this is a guest of a KVM that empties the TLBs of preempted CPUs on request. If
/// false, `shootdown_os_is_away` must always return false. On x86-64, in a library with the feature
/// `processor`, like all functions below.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_init. Stack: 0.
#[unsafe(no_mangle)]
pub extern "C" fn shootdown_kvm_can_defer_flushes() -> bool {
    const HAS_HYPERVISOR: u32 = 1 << 31;
    Cpuid.cpuid(1).ecx & HAS_HYPERVISOR != 0 && can_defer_flushes(&Cpuid)
}

/// Initialises the record of a CPU, which KVM does not write yet.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_init. Stack: 256.
///
/// # Safety
///
/// `record` must be valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_kvm_init(record: *mut StealTimeStorage) {
    // SAFETY: the caller's promise.
    unsafe { StealTimeStorage::init(record, StealTime::new()) };
}

/// Returns the value with which a CPU registers its record at this physical address, by a write of
/// the register 0x4b564d03 (`MSR_KVM_STEAL_TIME`). 0 in the register ends it.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_init. Stack: 0.
///
/// # Panics
///
/// If the address is not a multiple of 64.
#[unsafe(no_mangle)]
pub extern "C" fn shootdown_kvm_msr_value(physical_address: u64) -> u64 {
    StealTime::msr_value(physical_address)
}

/// Requests that KVM empties the CPU's TLB before it runs the CPU again. Returns false if the CPU
/// runs: then there is no request. For `shootdown_os_is_away`.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 128.
///
/// # Safety
///
/// `record` is initialised, and is that of the CPU.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_kvm_defer_flush(record: *mut StealTimeStorage) -> bool {
    // SAFETY: the caller's promise.
    unsafe { StealTimeStorage::get(record) }.defer_flush()
}
