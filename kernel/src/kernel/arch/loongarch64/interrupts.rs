//! Interrupts between CPUs, and the timer's.

#![expect(unsafe_code, reason = "interrupt controllers")]

use core::iter;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Release};

use shootdown_hw::Ipi as _;
use shootdown_hw::loongarch64::IocsrIpi;

use super::{LoongArch64, csr, timer, windows};
use crate::kernel::arch::contract::{Architecture as _, Interrupt};
use crate::kernel::arch::upcalls;

/// Bits of CSR.ECFG and CSR.ESTAT, which have 13 interrupts.
const TIMER: u64 = 1 << 11;
const FROM_CPUS: u64 = 1 << 12;
/// CRMD.IE: interrupts are enabled.
const LET_IN: u64 = 1 << 2;

/// Registers of the chip. Each core has 32 interrupts that other cores can send, and four mailboxes
/// of 64 bits.
const STATUS: u64 = 0x1000;
const ENABLED: u64 = 0x1004;
const CLEAR: u64 = 0x100c;
const SEND_MAIL: u64 = 0x1048;
/// The write completes only when the interrupt or mail has been sent.
const BLOCKING: u32 = 1 << 31;
const CPU_SHIFT: u32 = 16;
const MAIL_HALF_SHIFT: u32 = 2;

/// Numbers of the 32 interrupts: the one for which firmware waits, and the kernel's.
const START: u8 = 0;
const FLUSH: u8 = 1;
const WAKE: u8 = 2;
/// The bits of those that interrupt the kernel.
const ENABLED_HERE: u32 = 1 << FLUSH | 1 << WAKE;

/// The mailbox with the address to which firmware jumps, and the one with the stack for `boot.s`.
const MAILBOX_START: u32 = 0;
const MAILBOX_STACK: u32 = 1;

/// The CPU that was the last to arrive in Rust. CPUs are started one by one.
static ARRIVED: AtomicU32 = AtomicU32::new(0);

#[inline]
pub(super) fn interrupts_masked() -> bool {
    csr::read::<{ csr::CRMD }>() & LET_IN == 0
}

#[inline]
pub(super) fn mask_interrupts() {
    // SAFETY: masked interrupts are taken later.
    unsafe { csr::write_bits::<{ csr::CRMD }>(LET_IN, 0) };
}

#[inline]
pub(super) fn unmask_interrupts() {
    // SAFETY: the caller can be interrupted here.
    unsafe { csr::write_bits::<{ csr::CRMD }>(LET_IN, LET_IN) };
}

pub(super) fn wait_for_interrupt() {
    unsafe extern "C" {
        fn sleep();
    }
    // SAFETY: `trap.s` defines the function.
    unsafe { sleep() };
}

/// Enables the interrupts of other CPUs and of the timer on this CPU. They stay masked.
pub(super) fn set_up() {
    // SAFETY: `trap_entry` handles these interrupts.
    unsafe {
        csr::write_chip(CLEAR, u32::MAX);
        csr::write_chip(ENABLED, ENABLED_HERE);
        csr::write::<{ csr::ECFG }>(TIMER | FROM_CPUS);
    }
}

/// Handles all pending interrupts. Call this with interrupts masked.
pub(super) fn handle() {
    let pending = csr::read::<{ csr::ESTAT }>();
    if pending & TIMER != 0 {
        timer::stop();
        upcalls::interrupt(Interrupt::Timer);
    }
    if pending & FROM_CPUS != 0 {
        let sent = csr::read_chip(STATUS);
        // `START` is sent again until the CPU has arrived, and the last may come after `set_up`.
        // While it is pending, QEMU's controller goes on interrupting for those that are cleared.
        // SAFETY: the CPU is started, and `FLUSH` and `WAKE` are handled below.
        unsafe { csr::write_chip(CLEAR, sent & !ENABLED_HERE) };
        for (number, interrupt) in [(FLUSH, Interrupt::Flush), (WAKE, Interrupt::Wake)] {
            if sent & 1 << number != 0 {
                // Before the interrupt is handled: a CPU that sends one in the meantime then causes
                // another interrupt.
                ipi(number).acknowledge();
                upcalls::interrupt(interrupt);
            }
        }
    }
}

pub(super) fn send(cpus: &mut dyn Iterator<Item = u32>, interrupt: Interrupt) {
    let number = match interrupt {
        Interrupt::Flush => FLUSH,
        Interrupt::Wake => WAKE,
        Interrupt::Timer => unreachable!("a timer interrupts only its own CPU"),
    };
    ipi(number).send(cpus.map(u64::from));
}

fn ipi(number: u8) -> IocsrIpi {
    // SAFETY: the kernel runs at PLV0. It handles its interrupts, and firmware handles `START`.
    unsafe { IocsrIpi::new(number) }
}

/// Makes a CPU that waits in firmware jump to `boot.s`, with a stack.
///
/// Firmware clears its mailbox when it starts, and may lose mail that was sent before. So the mail
/// is repeated until the CPU has arrived. After that, no code reads the mailbox.
///
/// # Panics
///
/// If the CPU does not arrive within some seconds: there is no such CPU, or no such firmware.
pub(super) fn start_cpu(cpu: u32, stack_end: usize) {
    const TIMEOUT_NS: u64 = 1_000_000;
    const ATTEMPTS: u32 = 5_000;
    unsafe extern "C" {
        fn other_start();
    }
    for _ in 0..ATTEMPTS {
        send_mail(cpu, MAILBOX_STACK, stack_end as u64);
        send_mail(cpu, MAILBOX_START, windows::physical(other_start as *const ()));
        ipi(START).send(iter::once(cpu.into()));
        if LoongArch64::wait_until(TIMEOUT_NS, || ARRIVED.load(Acquire) == cpu) {
            return;
        }
    }
    panic!("CPU {cpu} does not start");
}

/// Records that this CPU was started.
pub(super) fn acknowledge_start(cpu: u32) {
    ARRIVED.store(cpu, Release);
}

/// Sends the upper half first: when the receiver reads the lower half, both are there.
fn send_mail(cpu: u32, mailbox: u32, value: u64) {
    for (half, word) in [(1, value >> 32), (0, value & 0xffff_ffff)] {
        let to = BLOCKING | cpu << CPU_SHIFT | (mailbox << 1 | half) << MAIL_HALF_SHIFT;
        // SAFETY: mail has no effect until the receiver reads it.
        unsafe { csr::write_chip_double(SEND_MAIL, word << 32 | u64::from(to)) };
    }
}
