//! Data of each CPU, at the base of GS. `swapgs` exchanges that base with user mode's.

#![expect(unsafe_code, reason = "tables that the CPU reads")]

use core::arch::asm;
use core::arch::x86_64::__cpuid_count;
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

/// Maximum number of CPUs. CPU *n* has APIC id *n*.
pub(super) const CPUS_MAX: usize = 64;

/// Selectors of the segments, in the order in which [`install`] appends the segments.
pub(super) const KERNEL_CODE: SegmentSelector = SegmentSelector::new(1, PrivilegeLevel::Ring0);
const KERNEL_DATA: SegmentSelector = SegmentSelector::new(2, PrivilegeLevel::Ring0);
pub(super) const USER_CODE: SegmentSelector = SegmentSelector::new(3, PrivilegeLevel::Ring3);
pub(super) const USER_DATA: SegmentSelector = SegmentSelector::new(4, PrivilegeLevel::Ring3);

/// The stack for exceptions that must not happen and that a bad stack may have caused.
const EMERGENCY_STACK_BYTES: usize = 16 << 10;

const GS_BASE: u32 = 0xc000_0101;
const KERNEL_GS_BASE: u32 = 0xc000_0102;

/// Data of a CPU.
#[repr(C, align(4096))]
pub(super) struct PerCpu {
    number: u32,
    /// Time at which the CPU's timer is due: see `time`.
    pub(super) deadline_ns: AtomicU64,
    segments: GlobalDescriptorTable,
    task_state: TaskStateSegment,
    emergency_stack: [u8; EMERGENCY_STACK_BYTES],
}

/// The data of all CPUs. Each CPU uses only its own element, once it is [installed](install). Until
/// then it is zero, so the image does not contain it.
struct PerCpuArray([UnsafeCell<MaybeUninit<PerCpu>>; CPUS_MAX]);

// SAFETY: each CPU uses only its own element.
unsafe impl Sync for PerCpuArray {}

static PER_CPU: PerCpuArray =
    PerCpuArray([const { UnsafeCell::new(MaybeUninit::zeroed()) }; CPUS_MAX]);

fn per_cpu(cpu: u32) -> *mut PerCpu {
    PER_CPU.0[cpu as usize].get().cast()
}

/// The features of this CPU. All CPUs are assumed to be alike.
pub(super) fn features() -> Features {
    shootdown_hw::x86_64::detect()
}

/// Sets up the calling CPU: its number, its tables, and its features.
///
/// # Safety
///
/// Call this once on each CPU after its reset, with interrupts masked, in the upper half. `number`
/// must be below [`CPUS_MAX`] and unique. The first CPU must have written the vectors.
pub(super) unsafe fn install(number: u32) {
    let this = per_cpu(number);
    // SAFETY: only this CPU uses the element. The task state that the descriptor describes stays
    // allocated. The selectors that are loaded are in the new table, with the same meaning as
    // before.
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

/// Makes the kernel fault if it executes (SMEP) or accesses (SMAP) user memory, where the CPU has
/// these features. The kernel uses other addresses for that memory.
fn keep_out_of_user_memory() {
    const SMEP: (u32, Cr4Flags) = (1 << 7, Cr4Flags::SUPERVISOR_MODE_EXECUTION_PROTECTION);
    const SMAP: (u32, Cr4Flags) = (1 << 20, Cr4Flags::SUPERVISOR_MODE_ACCESS_PREVENTION);
    let structured = if cpuid(0).eax >= 7 { cpuid(7).ebx } else { 0 };
    for (feature, flag) in [SMEP, SMAP] {
        if structured & feature != 0 {
            // SAFETY: the CPU has the feature, and the kernel's pages are not user pages.
            unsafe { Cr4::update(|flags| flags.insert(flag)) };
        }
    }
}

/// Executes CPUID, with 0 in ECX.
#[allow(unused_unsafe, reason = "it is safe since Rust 1.94")]
pub(super) fn cpuid(leaf: u32) -> core::arch::x86_64::CpuidResult {
    // SAFETY: all x86-64 processors have CPUID.
    unsafe { __cpuid_count(leaf, 0) }
}

/// The number of the CPU that runs this.
pub(super) fn cpu() -> u32 {
    let number;
    // SAFETY: the base of GS is the address of this CPU's data.
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

/// Time at which this CPU's timer is due.
pub(super) fn deadline_ns() -> &'static AtomicU64 {
    // SAFETY: the data is initialised, and the field is atomic.
    unsafe { &(*per_cpu(cpu())).deadline_ns }
}

/// Address of the word from which this CPU loads the stack pointer for interrupts of user mode.
pub(super) fn interrupt_stack() -> *mut u64 {
    // SAFETY: the word is in this CPU's data.
    unsafe { (&raw mut (*per_cpu(cpu())).task_state.privilege_stack_table).cast() }
}

/// Restores the base of GS. A handler of an exception that must not happen calls this, because the
/// exception may have come between `swapgs` and `iretq`.
pub(super) fn restore_gs_base() {
    // SAFETY: the registers exist, and one of the two holds the kernel's base.
    unsafe {
        if Msr::new(GS_BASE).read().cast_signed() >= 0 {
            Msr::new(GS_BASE).write(Msr::new(KERNEL_GS_BASE).read());
        }
    }
}
