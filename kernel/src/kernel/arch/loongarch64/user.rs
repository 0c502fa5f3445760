//! User mode: entry, return, and page faults.

#![expect(unsafe_code, reason = "user mode")]

use shootdown_hw::Processor as _;
use shootdown_hw::loongarch64::LoongArch64;
use shootdown_vm::Access;

use super::{csr, interrupts, trap, walk};
use crate::kernel::arch::contract::{User, UserExit};

unsafe extern "C" {
    fn enter_user(user: *mut User);
}

const INSTRUCTION_BYTES: usize = 4;

/// Runs in user mode until an event. Page faults that a hardware MMU would resolve by itself are
/// resolved here.
pub(super) fn run_user(user: &mut User) -> UserExit {
    // QEMU refuses no fetch (see `mod.rs`, NX). User code stays on its page, so this check has the
    // result of its fetches, unless another CPU removes the permission in the meantime.
    let pc = user.pc as u64;
    if !walk::allows(pc, Access::Execute) {
        return UserExit::Fault { address: pc, access: Access::Execute };
    }
    loop {
        // SAFETY: user mode has only its own registers, and cannot access the kernel's memory.
        unsafe { enter_user(user) };
        let (cause, subcode) = trap::cause_and_subcode();
        let access = match cause {
            trap::cause::INTERRUPT => {
                interrupts::handle();
                return UserExit::Interrupt;
            }
            trap::cause::SYSTEM_CALL => {
                user.pc += INSTRUCTION_BYTES;
                return UserExit::Done;
            }
            trap::cause::INVALID_LOAD | trap::cause::NOT_READABLE => Access::Read,
            trap::cause::INVALID_STORE | trap::cause::MODIFY => Access::Write,
            trap::cause::INVALID_FETCH | trap::cause::NOT_EXECUTABLE => Access::Execute,
            trap::cause::ADDRESS if subcode == 0 => Access::Execute,
            trap::cause::ADDRESS | trap::cause::PRIVILEGE => access_of_instruction(),
            _ => trap::unexpected("in user mode", cause, subcode, user.pc as u64),
        };
        let address = csr::read::<{ csr::BADV }>();
        if !walk::allows(address, access) {
            return UserExit::Fault { address, access };
        }
        // The TLB still holds the pair as it was when the access was refused. (Linux rewrites the
        // pair in the TLB, which saves the refill.)
        LoongArch64::detect().forget_refused(address);
    }
}

/// The kind of access of the refused instruction, for exceptions that do not report it. `user_code`
/// has only `LD.D` and `ST.D`.
fn access_of_instruction() -> Access {
    /// `ST.B`, `ST.H`, `ST.W` and `ST.D` in bits 31 to 22.
    const STORES: core::ops::RangeInclusive<u64> = 0xa4..=0xa7;
    let operation = (csr::read::<{ csr::BADI }>() >> 22) & 0x3ff;
    if STORES.contains(&operation) { Access::Write } else { Access::Read }
}
