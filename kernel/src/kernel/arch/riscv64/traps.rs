//! User mode, and unexpected exceptions, which end the run.

use core::arch::global_asm;

use shootdown_vm::Access;

use super::csr::read;
use super::{devices, interrupts};
use crate::kernel::arch::contract::{Status, User, UserExit};

global_asm!(include_str!("trap.s"));

unsafe extern "C" {
    pub(super) fn enter_user(user: *mut User);
}

/// The highest bit of `scause`.
pub(super) const INTERRUPT: u64 = 1 << 63;
/// Causes of exceptions.
const SYSTEM_CALL: u64 = 8;
const FETCH_PAGE_FAULT: u64 = 12;
const LOAD_PAGE_FAULT: u64 = 13;
const STORE_PAGE_FAULT: u64 = 15;

const INSTRUCTION_BYTES: usize = 4;

pub(super) fn run_user(user: &mut User) -> UserExit {
    // SAFETY: user code changes only its registers and the memory that is mapped for it.
    unsafe { enter_user(user) };
    let (cause, address) = (read!("scause"), read!("stval"));
    let access = match cause {
        interrupt if interrupt & INTERRUPT != 0 => {
            interrupts::take_interrupts();
            return UserExit::Interrupt;
        }
        SYSTEM_CALL => {
            user.pc += INSTRUCTION_BYTES;
            return UserExit::Done;
        }
        FETCH_PAGE_FAULT => Access::Execute,
        LOAD_PAGE_FAULT => Access::Read,
        STORE_PAGE_FAULT => Access::Write,
        _ => panic!("user exception: scause={cause:#x} stval={address:#x} pc={:#x}", user.pc),
    };
    UserExit::Fault { address, access }
}

/// Reports an unexpected exception. `trap.s` calls this once, on a stack that is valid.
#[unsafe(no_mangle)]
extern "C" fn report_unexpected(stack: usize) -> ! {
    let (cause, address) = (read!("scause"), read!("stval"));
    panic!(
        "exception in kernel: {} scause={cause:#x} stval={address:#x} pc={:#x} sp={stack:#x}",
        name(cause),
        read!("sepc"),
    )
}

/// Ends the run. `trap.s` calls this if an exception is taken while another is reported.
#[unsafe(no_mangle)]
extern "C" fn end_immediately() -> ! {
    b"\nend failed during a report\n".iter().copied().for_each(devices::write);
    devices::exit(Status::Failed)
}

/// The name of an exception that an error of a kernel causes.
fn name(cause: u64) -> &'static str {
    match cause {
        0 => "a misaligned program counter",
        2 => "an unknown instruction",
        3 => "a breakpoint",
        1 | FETCH_PAGE_FAULT => "fetch refused",
        4 | 6 => "a misaligned access",
        5 | LOAD_PAGE_FAULT => "load refused",
        7 | STORE_PAGE_FAULT => "store refused",
        _ => "see scause",
    }
}
