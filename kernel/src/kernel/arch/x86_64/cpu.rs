//! What each CPU has of its own, and how it finds it: by the base of GS, which `swapgs` exchanges
//! with user mode's.

#![expect(unsafe_code, reason = "tables that the CPU reads")]

use core::arch::asm;
use core::arch::x86_64::{__cpuid, __cpuid_count};
use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::sync::atomic::AtomicU64;

use shootdown_hw::x86_64::Features;

use super::registers::{read_msr, set_in_cr4, write_msr};
use super::vectors;

/// How many there can be. CPU *n* is the one with APIC id *n*.
pub(super) const CPUS_MAX: usize = 64;

/// Selectors: indices into [`PerCpu::segments`] times 8, and the privilege.
pub(super) const KERNEL_CODE: u16 = 0x08;
const KERNEL_DATA: u16 = 0x10;
pub(super) const USER_CODE: u16 = 0x18 | 3;
pub(super) const USER_DATA: u16 = 0x20 | 3;
const TASK: u16 = 0x28;

/// Present, of 64 bits if code; marked as accessed, so that the CPU need not write that.
const SEGMENTS: [u64; 5] =
    [0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff, 0x00af_fb00_0000_ffff, 0x00cf_f300_0000_ffff];

/// For what must not happen, and may have been caused by the stack that was used.
const EMERGENCY_STACK_BYTES: usize = 16 << 10;

const GS_BASE: u32 = 0xc000_0101;
const KERNEL_GS_BASE: u32 = 0xc000_0102;

/// The task-state segment (SDM 3A, section 8.7).
#[repr(C, packed(4))]
struct TaskState {
    reserved: u32,
    /// The stacks that interrupts from a lower privilege use; the first is ours.
    stacks: [u64; 3],
    reserved_too: u64,
    /// The stacks of those vectors that ask for one.
    interrupt_stacks: [u64; 7],
    and_more: u64,
    and_still: u16,
    /// Beyond the end: user mode has no ports.
    port_permissions: u16,
}

/// What a CPU has of its own.
#[repr(C, align(4096))]
pub(super) struct PerCpu {
    number: u32,
    /// When its timer is due: see `time`.
    pub(super) deadline_ns: AtomicU64,
    segments: [u64; 7],
    task_state: TaskState,
    emergency_stack: [u8; EMERGENCY_STACK_BYTES],
}

/// One for each CPU, which alone uses it. All zeros at first: so it takes no room in the file.
struct All([UnsafeCell<PerCpu>; CPUS_MAX]);

// SAFETY: see above; what others may look at is atomic.
unsafe impl Sync for All {}

static ALL: All = All([const { UnsafeCell::new(PerCpu::new()) }; CPUS_MAX]);

impl PerCpu {
    const fn new() -> Self {
        Self {
            number: 0,
            deadline_ns: AtomicU64::new(0),
            segments: [0; 7],
            task_state: TaskState {
                reserved: 0,
                stacks: [0; 3],
                reserved_too: 0,
                interrupt_stacks: [0; 7],
                and_more: 0,
                and_still: 0,
                port_permissions: 0,
            },
            emergency_stack: [0; EMERGENCY_STACK_BYTES],
        }
    }
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
    let this = ALL.0[number as usize].get();
    // SAFETY: it is this CPU's own, and nobody looks at it yet. The tables have the manual's form.
    unsafe {
        (*this).number = number;
        let stack_end = &raw mut (*this).emergency_stack as u64 + EMERGENCY_STACK_BYTES as u64;
        (*this).task_state.interrupt_stacks[vectors::EMERGENCY_STACK - 1] = stack_end;
        let [low, high] = task_descriptor(&raw const (*this).task_state as u64);
        (*this).task_state.port_permissions = size_of::<TaskState>() as u16;
        let (segments, task) = (&mut *this).segments.split_at_mut(SEGMENTS.len());
        segments.copy_from_slice(&SEGMENTS);
        task.copy_from_slice(&[low, high]);
        load_segments(&(*this).segments);
        write_msr(GS_BASE, this as u64);
        write_msr(KERNEL_GS_BASE, 0);
        vectors::load();
        keep_out_of_user_memory();
        shootdown_hw::x86_64::enable(features());
    }
}

/// A present 64-bit task-state segment, which is not busy (SDM 3A, section 8.2.3).
fn task_descriptor(base: u64) -> [u64; 2] {
    const AVAILABLE_AND_PRESENT: u64 = 0x89 << 40;
    let limit = size_of::<TaskState>() as u64 - 1;
    let low = limit | (base & 0xff_ffff) << 16 | AVAILABLE_AND_PRESENT | (base >> 24 & 0xff) << 56;
    [low, base >> 32]
}

/// # Safety
///
/// They must stay where they are.
unsafe fn load_segments(segments: &[u64; 7]) {
    #[repr(C, packed)]
    struct Pointer(u16, u64);
    let pointer = Pointer(size_of_val(segments) as u16 - 1, segments.as_ptr() as u64);
    // SAFETY: as our caller promises. What is loaded after is within, and means what it meant.
    unsafe {
        asm!(
            "lgdt [{pointer}]",
            "push {code}",
            "lea {scratch}, [rip + 2f]",
            "push {scratch}",
            "retfq",
            "2:",
            "mov ss, {data:x}",
            "ltr {task:x}",
            pointer = in(reg) &raw const pointer,
            code = const KERNEL_CODE,
            scratch = out(reg) _,
            data = in(reg) KERNEL_DATA,
            task = in(reg) TASK,
        );
    }
}

/// Has the kernel fault where it executes (SMEP) or uses (SMAP) what is user mode's, if the CPU
/// can: it sees memory by addresses of its own.
fn keep_out_of_user_memory() {
    const SMEP: (u32, u64) = (1 << 7, 1 << 20);
    const SMAP: (u32, u64) = (1 << 20, 1 << 21);
    let structured = if cpuid(0).eax >= 7 { cpuid_leaf_7().ebx } else { 0 };
    for (feature, bit) in [SMEP, SMAP] {
        if structured & feature != 0 {
            // SAFETY: it has it, and nothing of ours is user mode's.
            unsafe { set_in_cr4(bit) };
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
    unsafe { &(*ALL.0[cpu() as usize].get()).deadline_ns }
}

/// Where this CPU reads which stack interrupts from user mode are to use.
pub(super) fn interrupt_stack() -> *mut u64 {
    let this = ALL.0[cpu() as usize].get();
    // SAFETY: within what is this CPU's own.
    unsafe { (&raw mut (*this).task_state.stacks).cast() }
}

/// Finds the base of GS again in a handler of what must not happen, which may have come between a
/// `swapgs` and its `iretq`.
pub(super) fn recover() {
    // SAFETY: the registers exist, and the base is one or the other.
    unsafe {
        if read_msr(GS_BASE).cast_signed() >= 0 {
            write_msr(GS_BASE, read_msr(KERNEL_GS_BASE));
        }
    }
}
