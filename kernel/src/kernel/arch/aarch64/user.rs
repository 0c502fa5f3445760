//! User mode: entry, and return for a system call, a fault or an interrupt.

use core::arch::global_asm;

use shootdown_vm::Access;

use super::register::read;
use super::{interrupts, user_half};
use crate::kernel::arch::contract::{User, UserExit};

global_asm!(include_str!("user.s"));

unsafe extern "C" {
    pub(super) fn enter_user(user: *mut User) -> u64;
}

/// The kind of return that stands for a synchronous exception, as in `vectors.s`.
pub(super) const EXCEPTION: u64 = 0;

pub(super) fn run_user(user: &mut User) -> UserExit {
    // SAFETY: user code changes only its registers and the memory that is mapped for it.
    let kind = user_half::run(|| unsafe { enter_user(user) });
    if kind == EXCEPTION {
        exit_by_exception()
    } else {
        interrupts::take_interrupt();
        UserExit::Interrupt
    }
}

/// `ESR_EL1.EC`.
const SYSTEM_CALL: u64 = 0x15;
const INSTRUCTION_ABORT: u64 = 0x20;
const DATA_ABORT: u64 = 0x24;

/// The event that `ESR_EL1` describes. Call this before another exception can be taken.
pub(super) fn exit_by_exception() -> UserExit {
    let (syndrome, address) = (read!("esr_el1"), read!("far_el1"));
    let access = match syndrome >> 26 & 0x3f {
        SYSTEM_CALL => return UserExit::Done,
        INSTRUCTION_ABORT if is_refusal(syndrome) => Access::Execute,
        DATA_ABORT if is_refusal(syndrome) => {
            const WRITE: u64 = 1 << 6;
            if syndrome & WRITE != 0 { Access::Write } else { Access::Read }
        }
        _ => {
            let pc = read!("elr_el1");
            panic!("user exception: esr={syndrome:#x} far={address:#x} pc={pc:#x}")
        }
    };
    UserExit::Fault { address, access }
}

/// Returns `true` if the fault status is that of page tables: a translation, access flag or
/// permission fault at any level.
fn is_refusal(syndrome: u64) -> bool {
    matches!(syndrome >> 2 & 0xf, 1..=3)
}
