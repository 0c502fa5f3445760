//! Exceptions, and what is made of those that the kernel raises itself.

#![expect(unsafe_code, reason = "exception vectors")]

use core::arch::global_asm;

use super::{csr, interrupts, windows};

global_asm!(include_str!("trap.s"));

unsafe extern "C" {
    fn trap_entry();
    fn refill_entry();
}

/// Why there is an exception: ESTAT.Ecode.
pub(super) mod cause {
    pub(crate) const INTERRUPT: u64 = 0x0;
    /// The TLB's page is not valid.
    pub(crate) const INVALID_LOAD: u64 = 0x1;
    pub(crate) const INVALID_STORE: u64 = 0x2;
    pub(crate) const INVALID_FETCH: u64 = 0x3;
    /// The page has D clear.
    pub(crate) const MODIFY: u64 = 0x4;
    pub(crate) const NOT_READABLE: u64 = 0x5;
    pub(crate) const NOT_EXECUTABLE: u64 = 0x6;
    pub(crate) const PRIVILEGE: u64 = 0x7;
    /// The address is none, or in no window of this privilege. Of a fetch, if the subcode is 0.
    pub(crate) const ADDRESS: u64 = 0x8;
    pub(crate) const SYSTEM_CALL: u64 = 0xb;
}

/// Has exceptions of this CPU come to `trap.s`.
pub(super) fn set_up() {
    // SAFETY: both are what the registers are for, and aligned to 4096. Refills come in direct
    // address mode.
    unsafe {
        csr::write::<{ csr::EENTRY }>(trap_entry as *const () as u64);
        csr::write::<{ csr::TLBRENTRY }>(windows::physical(refill_entry as *const ()));
    }
}

/// Why this CPU is here, and the subcode.
pub(super) fn why() -> (u64, u64) {
    let status = csr::read::<{ csr::ESTAT }>();
    ((status >> 16) & 0x3f, (status >> 22) & 0x1ff)
}

#[unsafe(no_mangle)]
extern "C" fn trap_in_kernel(place: u64) {
    let (cause, subcode) = why();
    if cause == cause::INTERRUPT {
        return interrupts::handle();
    }
    unexpected("in the kernel", cause, subcode, place)
}

/// The stack pointer was lost before.
#[unsafe(no_mangle)]
extern "C" fn trap_without_stack(place: u64) -> ! {
    let (cause, subcode) = why();
    unexpected("without a stack", cause, subcode, place)
}

/// Ends the run.
pub(super) fn unexpected(whose: &str, cause: u64, subcode: u64, place: u64) -> ! {
    let address = csr::read::<{ csr::BADV }>();
    panic!("exception {cause:#x}.{subcode} {whose} at {place:#x}, address {address:#x}")
}
