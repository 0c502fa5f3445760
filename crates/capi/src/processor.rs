//! Functions of the processor that a handler of page faults calls, and a kernel that maps its own
//! pages.

#![expect(unsafe_code, reason = "the C interface: the kernel promises what Rust's types enforce")]

use shootdown_hw::Processor as _;

use crate::engine::engine;
use crate::extent::ExtentWord;

/// Makes this CPU forget that an access to `address` was refused. In a library with the feature
/// `processor`, like the function below.
///
/// Call this in the handler of page faults, on the CPU that took the fault, before the access is
/// tried again. No flush follows a change that only makes more accesses valid, so a CPU that caches
/// refused accesses (Arm, RISC-V and LoongArch do) would fault again and again.
///
/// # Safety
///
/// Masked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_forget_refused(address: u64) {
    engine().machine().processor().forget_refused(address);
}

/// Makes new entries for the kernel's pages of `extent` usable by the next access of this CPU. The
/// entries must not have been valid before; otherwise, flush.
///
/// Before another CPU uses the pages, it must observe that they are mapped, by an acquiring load
/// for instance. On RISC-V and LoongArch, which cache missing pages, that CPU must also call this
/// function.
///
/// # Safety
///
/// Masked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_publish_kernel(extent: ExtentWord) {
    engine().machine().processor().publish_kernel(extent.extent());
}
