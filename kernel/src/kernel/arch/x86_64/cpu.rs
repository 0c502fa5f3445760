//! What each CPU has of its own, and how it finds it: by the base of GS, which `swapgs` exchanges
//! with user mode's.

#![expect(unsafe_code, reason = "tables that the CPU reads")]

use core::arch::asm;
use core::arch::x86_64::{__cpuid, __cpuid_count};
use core::cell::UnsafeCell;
use core::mem::{MaybeUninit, offset_of};
use core::sync::atomic::AtomicU64;

use shootdown_hw::x86_64::Features;
use x86::PrivilegeLevel;
use x86::VirtAddr;
use x86::instructions::segmentation::{CS, SS, Segment as _};
use x86::instructions::tables::load_tss;
use x86::registers::control::{Cr4, Cr4Flags};
use x86::registers::model_specific::Msr;
use x86::structures::gdt::{Descriptor, GlobalDescriptorTable, SegmentSelector};
use x86::structures::tss::TaskStateSegment;

use super::vectors;

/// How many there can be. CPU *n* is the one with APIC id *n*.
pub(super) const CPUS_MAX: usize = 64;

/// Selectors, in the order in which [`install`] appends their segments.
pub(super) const KERNEL_CODE: SegmentSelector = SegmentSelector::new(1, PrivilegeLevel::Ring0);
const KERNEL_DATA: SegmentSelector = SegmentSelector::new(2, PrivilegeLevel::Ring0);
pub(super) const USER_CODE: SegmentSelector = SegmentSelector::new(3, PrivilegeLevel::Ring3);
pub(super) const USER_DATA: SegmentSelector = SegmentSelector::new(4, PrivilegeLevel::Ring3);

/// For what must not happen, and may have been caused by the stack that was used.
const EMERGENCY_STACK_BYTES: usize = 16 << 10;

const GS_BASE: u32 = 0xc000_0101;
const KERNEL_GS_BASE: u32 = 0xc000_0102;

/// What a CPU has of its own.
#[repr(C, align(4096))]
pub(super) struct PerCpu {
    number: u32,
    /// When its timer is due: see `time`.
    pub(super) deadline_ns: AtomicU64,
    segments: GlobalDescriptorTable,
    task_state: TaskStateSegment,
    emergency_stack: [u8; EMERGENCY_STACK_BYTES],
}

/// One for each CPU, which alone uses it, once it is [installed](install). All zeros before: so it
/// takes no room in the file.
struct All([UnsafeCell<MaybeUninit<PerCpu>>; CPUS_MAX]);

// SAFETY: see above; what others may look at is atomic.
unsafe impl Sync for All {}

static ALL: All = All([const { UnsafeCell::new(MaybeUninit::zeroed()) }; CPUS_MAX]);

/// What a CPU has of its own.
fn of(cpu: u32) -> *mut PerCpu {
    ALL.0[cpu as usize].get().cast()
}

/// What all CPUs can do: they are taken to be alike.
pub(super) fn features() -> Features {
    shootdown_hw::x86_64::detect()
}

/// Gives the calling CPU its number, its tables, and the rules by which it runs.
///
/// # Safety
///
/// Once on each CPU since its reset, with a number below [`CPUS_MAX`] that no other has, with
/// interrupts masked, in the upper half. The first has written the vectors.
pub(super) unsafe fn install(number: u32) {
    let this = of(number);
    // SAFETY: it is this CPU's own, and nobody looks at it yet. The descriptor is of a task state
    // that stays. What is loaded after the table is within it, and means what it meant.
    unsafe {
        (*this).number = number;
        let stack_end = &raw const (*this).emergency_stack as u64 + EMERGENCY_STACK_BYTES as u64;
        let mut task_state = TaskStateSegment::new();
        task_state.interrupt_stack_table[vectors::EMERGENCY_STACK - 1] = VirtAddr::new(stack_end);
        (&raw mut (*this).task_state).write(task_state);
        let mut segments = GlobalDescriptorTable::new();
        for segment in [
            Descriptor::kernel_code_segment(),
            Descriptor::kernel_data_segment(),
            Descriptor::user_code_segment(),
            Descriptor::user_data_segment(),
        ] {
            segments.append(segment);
        }
        let task =
            segments.append(Descriptor::tss_segment_unchecked(&raw const (*this).task_state));
        (&raw mut (*this).segments).write(segments);
        (*this).segments.load_unsafe();
        CS::set_reg(KERNEL_CODE);
        SS::set_reg(KERNEL_DATA);
        load_tss(task);
        Msr::new(GS_BASE).write(this as u64);
        Msr::new(KERNEL_GS_BASE).write(0);
        vectors::load();
        keep_out_of_user_memory();
        shootdown_hw::x86_64::enable(features());
    }
}

/// Has the kernel fault where it executes (SMEP) or uses (SMAP) what is user mode's, if the CPU
/// can: it sees memory by addresses of its own.
fn keep_out_of_user_memory() {
    const SMEP: (u32, Cr4Flags) = (1 << 7, Cr4Flags::SUPERVISOR_MODE_EXECUTION_PROTECTION);
    const SMAP: (u32, Cr4Flags) = (1 << 20, Cr4Flags::SUPERVISOR_MODE_ACCESS_PREVENTION);
    let structured = if cpuid(0).eax >= 7 { cpuid_leaf_7().ebx } else { 0 };
    for (feature, flag) in [SMEP, SMAP] {
        if structured & feature != 0 {
            // SAFETY: it has it, and nothing of ours is user mode's.
            unsafe { Cr4::update(|flags| flags.insert(flag)) };
        }
    }
}

#[allow(unused_unsafe, reason = "it is safe since Rust 1.94")]
pub(super) fn cpuid(leaf: u32) -> core::arch::x86_64::CpuidResult {
    // SAFETY: every CPU of this architecture has it.
    unsafe { __cpuid(leaf) }
}

#[allow(unused_unsafe, reason = "it is safe since Rust 1.94")]
fn cpuid_leaf_7() -> core::arch::x86_64::CpuidResult {
    // SAFETY: as above.
    unsafe { __cpuid_count(7, 0) }
}

/// The number of the CPU that runs this.
pub(super) fn cpu() -> u32 {
    let number;
    // SAFETY: the base of GS is its own.
    unsafe {
        asm!(
            "mov {:e}, gs:[{}]",
            out(reg) number,
            const offset_of!(PerCpu, number),
            options(nostack, preserves_flags, readonly),
        );
    }
    number
}

/// When this CPU's timer is due.
pub(super) fn deadline_ns() -> &'static AtomicU64 {
    // SAFETY: it is initialised, and atomic.
    unsafe { &(*of(cpu())).deadline_ns }
}

/// Where this CPU reads which stack interrupts from user mode are to use.
pub(super) fn interrupt_stack() -> *mut u64 {
    // SAFETY: within what is this CPU's own.
    unsafe { (&raw mut (*of(cpu())).task_state.privilege_stack_table).cast() }
}

/// Finds the base of GS again in a handler of what must not happen, which may have come between a
/// `swapgs` and its `iretq`.
pub(super) fn recover() {
    // SAFETY: the registers exist, and the base is one or the other.
    unsafe {
        if Msr::new(GS_BASE).read().cast_signed() >= 0 {
            Msr::new(GS_BASE).write(Msr::new(KERNEL_GS_BASE).read());
        }
    }
}
