//! User mode: entry and return.

#![expect(unsafe_code, reason = "enters user mode")]

use core::arch::global_asm;
use core::mem::offset_of;

use shootdown_vm::Access;

use super::traps::{Event, FAULT_ADDRESS, FAULT_ERROR, FLAGS, Frame, SCRATCH};
use super::traps::{trap_from_user, trap_in_kernel, unexpected};
use super::{cpu, user_half, vectors};
use crate::kernel::arch::contract::{Task, User, UserExit};

const WORD: usize = size_of::<usize>();
const MACHINE: usize = offset_of!(User, machine);

global_asm!(
    include_str!("vectors.s"),
    trap_in_kernel = sym trap_in_kernel,
    trap_from_user = sym trap_from_user,
    unexpected = sym unexpected,
    non_maskable = const vectors::NON_MASKABLE,
    double_fault = const vectors::DOUBLE_FAULT,
    machine_check = const vectors::MACHINE_CHECK,
    frame_bytes = const size_of::<Frame>(),
    user_task = const offset_of!(User, task),
    user_address = const offset_of!(User, address),
    user_count = const offset_of!(User, count),
    user_stride = const offset_of!(User, stride),
    user_value = const offset_of!(User, value),
    user_pc = const offset_of!(User, pc),
    user_flags = const MACHINE + FLAGS * WORD,
    user_scratch = const MACHINE + SCRATCH * WORD,
    user_code_segment = const cpu::USER_CODE.0,
    user_data = const cpu::USER_DATA.0,
    options(att_syntax),
);

global_asm!(
    include_str!("user.s"),
    write = const Task::Write as usize,
    read_while = const Task::ReadWhile as usize,
    spin = const Task::Spin as usize,
    options(att_syntax),
);

unsafe extern "C" {
    fn enter_user(user: *mut User, interrupt_stack: *mut u64) -> Event;
}

/// Bits of RFLAGS that a thread keeps: the arithmetic flags.
const KEPT: usize = 0x8d5;
/// Bits of RFLAGS that are always set: the interrupt flag, and a reserved bit.
const ALWAYS: usize = 0x202;

/// Bits of a page fault's error code (SDM 3A, section 4.7).
const BY_WRITE: usize = 1 << 1;
const BY_FETCH: usize = 1 << 4;

/// See [`Architecture::run_user`](super::Architecture::run_user).
pub(super) fn run_user(user: &mut User) -> UserExit {
    loop {
        user.machine[FLAGS] = user.machine[FLAGS] & KEPT | ALWAYS;
        user_half::enter();
        // SAFETY: interrupts are masked. Until the call returns, interrupts use this stack, and the
        // thread stays on this CPU.
        match unsafe { enter_user(user, cpu::interrupt_stack()) } {
            Event::Call => return UserExit::Done,
            Event::Interrupt => return UserExit::Interrupt,
            Event::Fault => return fault(user),
            Event::Ignored => {}
        }
    }
}

fn fault(user: &User) -> UserExit {
    let error = user.machine[FAULT_ERROR];
    let access = if error & BY_FETCH != 0 {
        Access::Execute
    } else if error & BY_WRITE != 0 {
        Access::Write
    } else {
        Access::Read
    };
    UserExit::Fault { address: user.machine[FAULT_ADDRESS] as u64, access }
}
