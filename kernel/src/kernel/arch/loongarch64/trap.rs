//! Exceptions, and unexpected exceptions of the kernel.

#![expect(unsafe_code, reason = "exception vectors")]

use core::arch::global_asm;

use super::{csr, interrupts, windows};

global_asm!(include_str!("trap.s"));

unsafe extern "C" {
    fn trap_entry();
    fn refill_entry();
}

/// Causes of exceptions: ESTAT.Ecode.
pub(super) mod cause {
    pub(crate) const INTERRUPT: u64 = 0x0;
    /// The page is not valid in the TLB.
    pub(crate) const INVALID_LOAD: u64 = 0x1;
    pub(crate) const INVALID_STORE: u64 = 0x2;
    pub(crate) const INVALID_FETCH: u64 = 0x3;
    /// The page has D clear.
    pub(crate) const MODIFY: u64 = 0x4;
    pub(crate) const NOT_READABLE: u64 = 0x5;
    pub(crate) const NOT_EXECUTABLE: u64 = 0x6;
    pub(crate) const PRIVILEGE: u64 = 0x7;
    /// The address is not canonical, or in no window of this privilege. The access was a fetch if
    /// the subcode is 0.
    pub(crate) const ADDRESS: u64 = 0x8;
    pub(crate) const SYSTEM_CALL: u64 = 0xb;
}

/// Sets the addresses of the exception handlers on this CPU.
pub(super) fn set_up() {
    // SAFETY: the handlers follow the registers' contracts and are aligned to 4096 bytes. Refills
    // are handled in direct address mode, so that address is physical.
    unsafe {
        csr::write::<{ csr::EENTRY }>(trap_entry as *const () as u64);
        csr::write::<{ csr::TLBRENTRY }>(windows::physical(refill_entry as *const ()));
    }
}

/// The cause of the current exception, and its subcode.
pub(super) fn cause_and_subcode() -> (u64, u64) {
    let status = csr::read::<{ csr::ESTAT }>();
    ((status >> 16) & 0x3f, (status >> 22) & 0x1ff)
}

#[unsafe(no_mangle)]
extern "C" fn trap_in_kernel(place: u64) {
    let (cause, subcode) = cause_and_subcode();
    if cause == cause::INTERRUPT {
        return interrupts::handle();
    }
    unexpected("in the kernel", cause, subcode, place)
}

/// Reports an exception in the kernel whose stack pointer was invalid.
#[unsafe(no_mangle)]
extern "C" fn trap_without_stack(place: u64) -> ! {
    let (cause, subcode) = cause_and_subcode();
    unexpected("without a stack", cause, subcode, place)
}

/// Reports an unexpected exception, and ends the run.
pub(super) fn unexpected(origin: &str, cause: u64, subcode: u64, place: u64) -> ! {
    let address = csr::read::<{ csr::BADV }>();
    panic!("exception {cause:#x}.{subcode} {origin} at {place:#x}, address {address:#x}")
}
