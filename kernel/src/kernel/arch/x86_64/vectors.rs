//! The vectors, and the interrupt-descriptor table.

#![expect(unsafe_code, reason = "a table that the CPU reads")]

use core::arch::asm;
use core::cell::UnsafeCell;

use super::cpu::KERNEL_CODE;

/// The system call.
pub(super) const CALL: u8 = 0x80;
/// Vectors of the APIC's interrupts. A higher class of 16 vectors has a higher priority.
pub(super) const TIMER: u8 = 0xe0;
pub(super) const WAKE: u8 = 0xe1;
pub(super) const FLUSH: u8 = 0xf0;
/// The vector that the APIC sends instead of an interrupt that has gone.
pub(super) const SPURIOUS: u8 = 0xff;

/// Exceptions, by SDM 3A, table 6-1.
pub(super) const NON_MASKABLE: u8 = 2;
pub(super) const DOUBLE_FAULT: u8 = 8;
pub(super) const MACHINE_CHECK: u8 = 18;
pub(super) const PAGE_FAULT: u8 = 14;

/// Index of the task-state segment's stack for exceptions that may come at any instruction.
pub(super) const EMERGENCY_STACK: usize = 1;

const COUNT: usize = 256;

/// A gate of the interrupt-descriptor table (SDM 3A, section 6.14.1).
type Gate = [u64; 2];

struct Table(UnsafeCell<[Gate; COUNT]>);

// SAFETY: the first CPU writes the table before it starts another CPU.
unsafe impl Sync for Table {}

static TABLE: Table = Table(UnsafeCell::new([[0; 2]; COUNT]));

unsafe extern "C" {
    // In `vectors.s`: a stub of 16 bytes for each vector.
    static vectors: [[u8; 16]; COUNT];
}

/// Writes the table of all CPUs.
///
/// # Safety
///
/// Call this once, on the first CPU, before any other is started.
pub(super) unsafe fn write() {
    // SAFETY: no other CPU runs, and the stubs are never read.
    let (table, stubs) = unsafe { (&mut *TABLE.0.get(), &raw const vectors as u64) };
    for (vector, gate) in (0..=u8::MAX).zip(table) {
        *gate = gate_to(stubs + u64::from(vector) * 16, vector);
    }
}

fn gate_to(stub: u64, vector: u8) -> Gate {
    /// An interrupt gate, which masks interrupts.
    const PRESENT_INTERRUPT_GATE: u64 = 0x8e;
    const FROM_USER_MODE: u64 = 3 << 5;
    let stack = match vector {
        NON_MASKABLE | DOUBLE_FAULT | MACHINE_CHECK => EMERGENCY_STACK as u64,
        _ => 0,
    };
    let privilege = if vector == CALL { FROM_USER_MODE } else { 0 };
    let low = stub & 0xffff
        | u64::from(KERNEL_CODE.0) << 16
        | stack << 32
        | (PRESENT_INTERRUPT_GATE | privilege) << 40
        | (stub >> 16 & 0xffff) << 48;
    [low, stub >> 32]
}

/// Loads the table on this CPU.
pub(super) fn load() {
    #[repr(C, packed)]
    struct Pointer(u16, u64);
    let pointer = Pointer((size_of::<Gate>() * COUNT) as u16 - 1, TABLE.0.get() as u64);
    // SAFETY: the table is written, and stays allocated.
    unsafe { asm!("lidt [{}]", in(reg) &raw const pointer, options(nostack, preserves_flags)) };
}
