//! Guests at EL1, and their set-up on a CPU that has booted at EL2.

use core::arch::global_asm;

use shootdown::{Extent, Root};
pub(crate) use shootdown_hw::aarch64::Stage2;
use shootdown_hw::aarch64::{Aarch64, Features};

use super::register::{read, run, write};
use super::{interrupts, user};
use crate::kernel::arch::contract::{User, UserExit};

// A guest's code: x1 is an address, x3 the distance from there to the count of the loads so far,
// and the loop ends when it loads another word than x0. From the start on, it first invalidates
// what this CPU has cached of stage 1, without an exit.
global_asm!(
    ".section .text.guest, \"ax\"",
    ".global guest_code_start",
    "guest_code_start:",
    "tlbi vmalle1",
    "dsb nsh",
    "isb",
    "1: ldr x4, [x1]",
    "add x2, x2, #1",
    "str x2, [x1, x3]",
    "yield",
    "cmp x4, x0",
    "b.eq 1b",
    "hvc #0",
    ".global guest_code_end",
    "guest_code_end:",
);

/// Offset of the guest's loop in its code.
pub(crate) const LOOP: usize = 12;

/// `HCR_EL2`: `E2H`, `RW`, physical interrupts are taken at EL2 (`AMO`, `IMO`, `FMO`), and stage 2
/// translates (`VM`). `TGE` is 0, so that `VMALLE1` names guests.
const HCR: u64 = 1 << 34 | 1 << 31 | 0b111 << 3 | 1;
/// `VTCR_EL2`: 48 bits from level 0, granules of 4 KiB, walks are cached and inner shareable, and
/// VMIDs have 16 bits.
const VTCR: u64 = 1 << 31 | 1 << 19 | 3 << 12 | 1 << 10 | 1 << 8 | 2 << 6 | 16;
/// The guest's `SCTLR_EL1`: the bits that are RES1, and the MMU and caches on.
const SCTLR: u64 = 0x30d0_0800 | 1 << 12 | 1 << 2 | 1;
/// The ASID of every guest's program.
const ASID: u64 = 1 << 48;
/// `ESR_EL2.EC`.
const HYPERVISOR_CALL: u64 = 0x16;
/// `PSTATE` at EL1, on its own stack pointer, with the guest's interrupts masked.
const EL1: usize = 0x3c5;

/// Sets up this CPU for guests. `empty` is an empty table of stage 2.
pub(crate) fn set_up_cpu(empty: Root) {
    assert_eq!(read!("currentel"), 2 << 2, "guests need virtualization=on");
    let size = (read!("id_aa64mmfr0_el1") & 0xf).min(5);
    let (tcr, mair) = (read!("tcr_el1"), read!("mair_el1"));
    // SAFETY: EL2 keeps its own tables, and the guests' are valid. The registers with numbers are
    // SCTLR_EL12, TCR_EL12 and MAIR_EL12: the guests' stage 1 is as the kernel's.
    unsafe {
        write!("vttbr_el2", empty.0);
        write!("vtcr_el2", VTCR | size << 16);
        write!("hcr_el2", HCR);
        write!("s3_5_c1_c0_0", SCTLR);
        write!("s3_5_c2_c0_2", tcr);
        write!("s3_5_c10_c2_0", mair);
    }
    run!("isb");
}

/// The processor whose spaces are guests.
pub(crate) fn processor(empty: Root) -> Stage2 {
    // SAFETY: all emulated CPUs have the features, and `set_up_cpu` keeps the requirements.
    unsafe { Stage2::new(Aarch64::new(Features::detect_stage_2()), empty) }
}

/// A leaf of stage 2: a valid, accessed page of normal memory that guests read, write and execute.
pub(crate) fn leaf(address: u64) -> u64 {
    address | 1 << 10 | 3 << 8 | 3 << 6 | 0xf << 2 | 3
}

/// The leaf of a user page as one of the guest's kernel: without PXN.
pub(crate) fn privileged(leaf: u64) -> u64 {
    leaf & !(1 << 53)
}

/// Invalidates a page of stage 2 on this CPU, and leaves what was combined from it.
pub(crate) fn drop_stage_2_alone(extent: Extent) {
    let page = extent.start() >> 12;
    // SAFETY: the instruction drops entries, and nothing else.
    unsafe { core::arch::asm!("tlbi ipas2e1, {}", in(reg) page, options(nostack)) };
    run!("dsb nsh");
    run!("isb");
}

/// Runs a guest with this table of stage 1 until it calls the hypervisor, an access is refused at
/// stage 2, or an interrupt comes. Call this with interrupts masked.
pub(crate) fn run(user: &mut User, stage_1: Root) -> UserExit {
    if user.machine[0] == 0 {
        user.machine[0] = EL1;
    }
    // SAFETY: a guest changes only its registers and the memory that stage 2 maps. The register is
    // TTBR0_EL12.
    let kind = unsafe {
        write!("s3_5_c2_c0_0", stage_1.0 | ASID);
        user::enter_user(user)
    };
    if kind != user::EXCEPTION {
        interrupts::take_interrupt();
        return UserExit::Interrupt;
    }
    if read!("esr_el1") >> 26 & 0x3f == HYPERVISOR_CALL {
        return UserExit::Done;
    }
    user::exit_by_exception()
}
