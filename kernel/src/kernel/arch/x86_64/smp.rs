//! The other CPUs.

#![expect(unsafe_code, reason = "writes the code that they begin with")]

use core::sync::atomic::{AtomicU64, Ordering};

use super::{apic, cpu, paging, time};
use crate::kernel::arch::upcalls;

/// Where the trampoline goes: below 1 MiB, at a page, and not the BIOS's.
pub(super) const TRAMPOLINE: u64 = 0x8000;

/// What a CPU that starts is to know; `boot.s` reads it. One starts at a time.
#[repr(C)]
pub(super) struct Mailbox {
    root: AtomicU64,
    stack_end: AtomicU64,
    cpu: AtomicU64,
    /// Whether it has been read.
    is_taken: AtomicU64,
}

pub(super) static MAILBOX: Mailbox = Mailbox {
    root: AtomicU64::new(0),
    stack_end: AtomicU64::new(0),
    cpu: AtomicU64::new(0),
    is_taken: AtomicU64::new(0),
};

unsafe extern "C" {
    static trampoline: u8;
    static trampoline_end: u8;
}

/// Between the two interrupts. Processors since 2008 need no pause; older ones are given 10 ms.
const AFTER_RESET_NS: u64 = 200_000;
/// After this, it is asked once more.
const AGAIN_AFTER_NS: u64 = 100_000_000;
const GIVEN_UP_AFTER_NS: u64 = 2_000_000_000;

/// See [`Architecture::start_cpu`](super::Architecture::start_cpu).
pub(super) fn start_cpu(number: u32, stack_end: usize) {
    assert!((number as usize) < cpu::CPUS_MAX, "no room for CPU {number}");
    let (start, end) = (&raw const trampoline, &raw const trampoline_end);
    let target = paging::phys_to_virt::<u8>(TRAMPOLINE);
    // SAFETY: the page is memory, and nobody else's.
    unsafe { target.copy_from_nonoverlapping(start, end as usize - start as usize) };
    MAILBOX.root.store(paging::root().0, Ordering::Relaxed);
    MAILBOX.stack_end.store(stack_end as u64, Ordering::Relaxed);
    MAILBOX.cpu.store(u64::from(number), Ordering::Relaxed);
    MAILBOX.is_taken.store(0, Ordering::Release);

    apic::reset(number);
    wait_until(AFTER_RESET_NS, || false);
    apic::start_up(number, TRAMPOLINE);
    let is_taken = || MAILBOX.is_taken.load(Ordering::Acquire) != 0;
    if !wait_until(AGAIN_AFTER_NS, is_taken) {
        apic::start_up(number, TRAMPOLINE);
        assert!(wait_until(GIVEN_UP_AFTER_NS, is_taken), "CPU {number} does not start");
    }
}

/// See [`Architecture::switch_off`](super::Architecture::switch_off): until the `INIT` of
/// [`start_cpu`], which a CPU takes wherever it is, and which empties its TLB.
pub(super) fn switch_off() -> ! {
    loop {
        x86::instructions::hlt();
    }
}

/// Waits for that long at most. Returns whether it is so.
fn wait_until(delay_ns: u64, is_so: impl Fn() -> bool) -> bool {
    let start_ns = time::now_ns();
    while !is_so() {
        if time::now_ns() - start_ns >= delay_ns {
            return false;
        }
        core::hint::spin_loop();
    }
    true
}

/// Where the others come from `boot.s`, on their own stacks, under the kernel's tables.
pub(super) extern "C" fn other_cpu(number: u64) -> ! {
    // SAFETY: once since it was reset; the first has written the vectors before it started us.
    unsafe { cpu::install(number as u32) };
    MAILBOX.is_taken.store(1, Ordering::Release);
    upcalls::main_on_other_cpu(number as u32)
}
