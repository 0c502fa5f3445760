//! Interrupts: between CPUs, and of the timer.

#![expect(unsafe_code, reason = "interrupt controllers")]

use core::arch::asm;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Release};

use super::{csr, timer, windows};
use crate::kernel::arch::contract::Interrupt;
use crate::kernel::arch::upcalls;

/// In CSR.ECFG and CSR.ESTAT, of 13 interrupts.
const TIMER: u64 = 1 << 11;
const FROM_CPUS: u64 = 1 << 12;
/// CRMD.IE.
const LET_IN: u64 = 1 << 2;

/// Each core has 32 interrupts that others can send, and four mailboxes of 64 bits.
const STATUS: u64 = 0x1000;
const ENABLED: u64 = 0x1004;
const CLEAR: u64 = 0x100c;
const SEND: u64 = 0x1040;
const SEND_MAIL: u64 = 0x1048;
/// The instruction waits until it has been sent.
const BLOCKING: u32 = 1 << 31;
const CPU_SHIFT: u32 = 16;
const MAIL_HALF_SHIFT: u32 = 2;

/// Which of the 32: the one that firmware waits for, and ours.
const START: u32 = 0;
const FLUSH: u32 = 1;
const WAKE: u32 = 2;

/// Where firmware finds the place to go to, and we the stack.
const MAILBOX_START: u32 = 0;
const MAILBOX_STACK: u32 = 1;

/// The CPU that was started last, of those that have come. They are started one by one.
static ARRIVED: AtomicU32 = AtomicU32::new(0);

#[inline]
pub(super) fn interrupts_masked() -> bool {
    csr::read::<{ csr::CRMD }>() & LET_IN == 0
}

#[inline]
pub(super) fn mask_interrupts() {
    // SAFETY: what is masked comes later.
    unsafe { csr::write_bits::<{ csr::CRMD }>(LET_IN, 0) };
}

#[inline]
pub(super) fn unmask_interrupts() {
    // SAFETY: our caller is where they may come.
    unsafe { csr::write_bits::<{ csr::CRMD }>(LET_IN, LET_IN) };
}

pub(super) fn wait_for_interrupt() {
    unsafe extern "C" {
        fn sleep();
    }
    // SAFETY: a function of `trap.s`.
    unsafe { sleep() };
}

/// Lets this CPU be interrupted by others and by its timer, once interrupts are let in.
pub(super) fn set_up() {
    // SAFETY: `trap_entry` is where they go.
    unsafe {
        csr::write_chip(CLEAR, u32::MAX);
        csr::write_chip(ENABLED, 1 << FLUSH | 1 << WAKE);
        csr::write::<{ csr::ECFG }>(TIMER | FROM_CPUS);
    }
}

/// Handles all interrupts that are pending. They are masked.
pub(super) fn handle() {
    let pending = csr::read::<{ csr::ESTAT }>();
    if pending & TIMER != 0 {
        timer::stop();
        upcalls::interrupt(Interrupt::Timer);
    }
    if pending & FROM_CPUS != 0 {
        let sent = csr::read_chip(STATUS);
        // Before they are handled: who sends again meanwhile sends another one.
        // SAFETY: they are.
        unsafe { csr::write_chip(CLEAR, sent) };
        // What the sender had done before it sent is read after this.
        complete_accesses();
        for (number, interrupt) in [(FLUSH, Interrupt::Flush), (WAKE, Interrupt::Wake)] {
            if sent & 1 << number != 0 {
                upcalls::interrupt(interrupt);
            }
        }
    }
}

pub(super) fn send(cpus: &mut dyn Iterator<Item = u32>, interrupt: Interrupt) {
    let number = match interrupt {
        Interrupt::Flush => FLUSH,
        Interrupt::Wake => WAKE,
        Interrupt::Timer => unreachable!("each CPU has its own"),
    };
    // An IOCSR is no memory: without this, the interrupt could be there before the stores that its
    // handler looks for.
    complete_accesses();
    for cpu in cpus {
        send_one(cpu, number);
    }
}

/// Has a CPU that waits in firmware come to `boot.s`, with a stack.
///
/// Firmware empties its mailbox when it begins, and so may lose what has come before. It is told
/// again until it has come: once it has, nobody looks there any more.
///
/// # Panics
///
/// If it does not come for seconds: there is no such CPU, or no such firmware.
pub(super) fn start_cpu(cpu: u32, stack_end: usize) {
    const PATIENCE_NS: u64 = 1_000_000;
    const ATTEMPTS: u32 = 5_000;
    unsafe extern "C" {
        fn other_start();
    }
    for _ in 0..ATTEMPTS {
        send_mail(cpu, MAILBOX_STACK, stack_end as u64);
        send_mail(cpu, MAILBOX_START, windows::physical(other_start as *const ()));
        complete_accesses();
        send_one(cpu, START);
        let sent_ns = timer::now_ns();
        while ARRIVED.load(Acquire) != cpu && timer::now_ns() - sent_ns < PATIENCE_NS {
            core::hint::spin_loop();
        }
        if ARRIVED.load(Acquire) == cpu {
            return;
        }
    }
    panic!("CPU {cpu} does not start");
}

/// This CPU was started, and has come.
pub(super) fn arrive(cpu: u32) {
    ARRIVED.store(cpu, Release);
}

fn send_one(cpu: u32, number: u32) {
    // SAFETY: to be interrupted is what that CPU has set itself up for, or what firmware waits for.
    unsafe { csr::write_chip(SEND, BLOCKING | cpu << CPU_SHIFT | number) };
}

/// The upper half first: who looks at the lower one finds all.
fn send_mail(cpu: u32, mailbox: u32, value: u64) {
    for (half, word) in [(1, value >> 32), (0, value & 0xffff_ffff)] {
        let to = BLOCKING | cpu << CPU_SHIFT | (mailbox << 1 | half) << MAIL_HALF_SHIFT;
        // SAFETY: mail has no effect of its own.
        unsafe { csr::write_chip_double(SEND_MAIL, word << 32 | u64::from(to)) };
    }
}

/// All accesses are done before any that follow, to memory and beyond.
fn complete_accesses() {
    // SAFETY: a barrier.
    unsafe { asm!("dbar 0", options(nostack, preserves_flags)) };
}
