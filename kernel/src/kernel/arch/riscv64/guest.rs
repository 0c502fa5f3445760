//! Guests in VS-mode, and their set-up on a hart with H.

use core::arch::global_asm;

use shootdown::{Extent, NotifyCosts, Root, Tag};
pub(crate) use shootdown_hw::riscv64::Stage2;
use shootdown_hw::riscv64::encoding::Mode;
use shootdown_vm::Access;

use super::csr::{read, write};
use super::{interrupts, traps};
use crate::kernel::arch::contract::{Architecture as _, User, UserExit};

// A guest's code: a1 is an address, a3 the distance from there to the count of the loads so far,
// and the loop ends when it loads another word than a0. From the start on, it first invalidates
// what this CPU has cached of stage 1, without an exit.
global_asm!(
    ".section .text.guest, \"ax\"",
    ".option push",
    ".option norvc",
    ".global guest_code_start",
    "guest_code_start:",
    "sfence.vma",
    "1: ld a4, (a1)",
    "addi a2, a2, 1",
    "add a5, a1, a3",
    "sd a2, (a5)",
    ".insn i 0x0f, 0, x0, x0, 0x010", // `pause`
    "beq a4, a0, 1b",
    "ecall",
    ".global guest_code_end",
    "guest_code_end:",
    ".option pop",
);

/// Offset of the guest's loop in its code.
pub(crate) const LOOP: usize = 4;

/// The mode of both stages.
const MODE: Mode = Mode::Sv48;
/// `hstatus.SPV`: the next `sret` is to a guest.
const TO_GUEST: u64 = 1 << 7;
/// `sstatus.SPP`: to VS-mode.
const TO_SUPERVISOR: usize = 1 << 8;
/// `vsstatus.SUM`: the guest's kernel reads its user pages.
const READS_USER_PAGES: u64 = 1 << 18;
/// Number of bits of a VMID in QEMU.
const VMID_BITS: u32 = 14;

/// Causes of exceptions.
const CALL_FROM_VS: u64 = 10;
const FETCH_GUEST_PAGE_FAULT: u64 = 20;
const LOAD_GUEST_PAGE_FAULT: u64 = 21;
const STORE_GUEST_PAGE_FAULT: u64 = 23;

/// Sets up this CPU for guests. `empty` is an empty table of stage 2.
pub(crate) fn set_up_cpu(empty: Root) {
    // SAFETY: a guest handles no exception and no interrupt: hedeleg, hideleg. The others are
    // hgatp, and vsstatus of the guest.
    unsafe {
        write!("csrw 0x602", 0);
        write!("csrw 0x603", 0);
        write!("csrw 0x680", MODE.hgatp(empty, Tag::KERNEL));
        write!("csrw 0x200", READS_USER_PAGES);
    }
}

/// Costs with which a flush uses remote fences, because an interrupt is an exit of the guest, at
/// which QEMU drops all.
const COSTS: NotifyCosts = NotifyCosts {
    interrupt_ns: 1000,
    interrupt_each_ns: 1000,
    broadcast_ns: 0,
    broadcast_each_ns: 0,
    operation_ns: 0,
};

/// The processor whose spaces are guests.
pub(crate) fn processor(empty: Root) -> Stage2 {
    let common = super::Riscv64::broadcasting_processor().with_costs(COSTS);
    // SAFETY: all emulated harts have H with this mode, and `set_up_cpu` loads the empty table.
    unsafe { Stage2::new(common, MODE, VMID_BITS, empty) }
}

/// A leaf of stage 2: D, A, U, X, W, R and V.
pub(crate) fn leaf(address: u64) -> u64 {
    address >> 2 | 0b1101_1111
}

/// The leaf of a user page as one of the guest's kernel: without U.
pub(crate) fn privileged(leaf: u64) -> u64 {
    leaf & !(1 << 4)
}

/// Not possible: the instruction that invalidates stage 2 drops combined entries as well.
pub(crate) fn drop_stage_2_alone(_: Extent) {
    unreachable!("the fault is absent");
}

/// Runs a guest with this table of stage 1 until it calls the hypervisor, an access is refused at
/// stage 2, or an interrupt comes. Call this with interrupts masked.
pub(crate) fn run(user: &mut User, stage_1: Root) -> UserExit {
    user.machine[1] = TO_SUPERVISOR;
    // SAFETY: a guest changes only its registers and the memory that stage 2 maps. The registers
    // are vsatp and hstatus.
    unsafe {
        write!("csrw 0x280", MODE.satp(stage_1, Tag(1)));
        write!("csrs 0x600", TO_GUEST);
        traps::enter_user(user);
        write!("csrc 0x600", TO_GUEST);
    }
    let (cause, address) = (read!("scause"), read!("stval"));
    let access = match cause {
        interrupt if interrupt & traps::INTERRUPT != 0 => {
            interrupts::take_interrupts();
            return UserExit::Interrupt;
        }
        CALL_FROM_VS => return UserExit::Done,
        FETCH_GUEST_PAGE_FAULT => Access::Execute,
        LOAD_GUEST_PAGE_FAULT => Access::Read,
        STORE_GUEST_PAGE_FAULT => Access::Write,
        _ => panic!("guest exception: scause={cause:#x} stval={address:#x} pc={:#x}", user.pc),
    };
    UserExit::Fault { address, access }
}
