//! User threads: their stays in user mode.

#![expect(unsafe_code, reason = "user mode")]

use shootdown_hw::loongarch64::LoongArch64 as Processor;
use shootdown_vm::Access;

use super::{csr, interrupts, trap, walk};
use crate::kernel::arch::contract::{User, UserExit};

unsafe extern "C" {
    fn enter_user(user: *mut User);
}

const INSTRUCTION_BYTES: usize = 4;

/// Runs in user mode until the kernel has something to do. What an MMU in hardware would do by
/// itself, it is not told of.
pub(super) fn run_user(user: &mut User) -> UserExit {
    // QEMU refuses no fetch by NX (see `mod.rs`). User code stays on its page: what is found here
    // is what its fetches would find, as long as nobody takes that permission away meanwhile.
    let pc = user.pc as u64;
    if !walk::allows(pc, Access::Execute) {
        return UserExit::Fault { address: pc, access: Access::Execute };
    }
    loop {
        // SAFETY: its registers are those of user mode, which reaches nothing of the kernel's.
        unsafe { enter_user(user) };
        let (cause, subcode) = trap::why();
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
        // The TLB still has the page as it was refused. (Linux rewrites the pair there, which
        // saves the refill.)
        Processor::detect().forget(address);
    }
}

/// What the instruction does that was refused, where the exception does not say: `user_code` has
/// but `LD.D` and `ST.D`.
fn access_of_instruction() -> Access {
    /// `ST.B`, `ST.H`, `ST.W` and `ST.D`, by bits 31 to 22.
    const STORES: core::ops::RangeInclusive<u64> = 0xa4..=0xa7;
    let operation = (csr::read::<{ csr::BADI }>() >> 22) & 0x3ff;
    if STORES.contains(&operation) { Access::Write } else { Access::Read }
}
