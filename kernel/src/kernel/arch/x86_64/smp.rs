//! Start of the other CPUs.

#![expect(unsafe_code, reason = "writes the code with which they begin")]

use core::sync::atomic::{AtomicU64, Ordering};

use super::{X86_64, apic, cpu, paging};
use crate::kernel::arch::contract::Architecture as _;
use crate::kernel::arch::upcalls;

/// Physical address of the trampoline: a page below 1 MiB that the BIOS does not use.
pub(super) const TRAMPOLINE: u64 = 0x8000;

/// Data for a CPU that starts. `boot.s` reads it. CPUs are started one by one.
#[repr(C)]
pub(super) struct Mailbox {
    root: AtomicU64,
    stack_end: AtomicU64,
    cpu: AtomicU64,
    /// 1 if the CPU has read the mailbox.
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

/// Time between the two interrupts. Processors since 2008 need no pause. Linux gives older
/// processors 10 ms.
const AFTER_RESET_NS: u64 = 200_000;
/// Time after which the start-up interrupt is sent again.
const AGAIN_AFTER_NS: u64 = 100_000_000;
const GIVEN_UP_AFTER_NS: u64 = 2_000_000_000;

/// See [`Architecture::start_cpu`](super::Architecture::start_cpu).
pub(super) fn start_cpu(number: u32, stack_end: usize) {
    assert!((number as usize) < cpu::CPUS_MAX, "no room for CPU {number}");
    let (start, end) = (&raw const trampoline, &raw const trampoline_end);
    let target = paging::phys_to_virt::<u8>(TRAMPOLINE);
    // SAFETY: the page is memory that nothing else uses.
    unsafe { target.copy_from_nonoverlapping(start, end as usize - start as usize) };
    MAILBOX.root.store(paging::root().0, Ordering::Relaxed);
    MAILBOX.stack_end.store(stack_end as u64, Ordering::Relaxed);
    MAILBOX.cpu.store(u64::from(number), Ordering::Relaxed);
    MAILBOX.is_taken.store(0, Ordering::Release);

    apic::reset(number);
    X86_64::wait_until(AFTER_RESET_NS, || false);
    apic::start_up(number, TRAMPOLINE);
    let is_taken = || MAILBOX.is_taken.load(Ordering::Acquire) != 0;
    if !X86_64::wait_until(AGAIN_AFTER_NS, is_taken) {
        apic::start_up(number, TRAMPOLINE);
        let is_started = X86_64::wait_until(GIVEN_UP_AFTER_NS, is_taken);
        assert!(is_started, "CPU {number} does not start");
    }
}

/// See [`Architecture::switch_off`](super::Architecture::switch_off). The CPU halts until the
/// `INIT` of [`start_cpu`], which it accepts in any state and which empties its TLB.
pub(super) fn switch_off() -> ! {
    loop {
        x86::instructions::hlt();
    }
}

/// Entry of the other CPUs from `boot.s`, on their own stacks and on the kernel's page tables.
pub(super) extern "C" fn other_cpu(number: u64) -> ! {
    // SAFETY: this is the first call since the CPU's reset. The first CPU has written the vectors.
    unsafe { cpu::install(number as u32) };
    MAILBOX.is_taken.store(1, Ordering::Release);
    upcalls::main_on_other_cpu(number as u32)
}
