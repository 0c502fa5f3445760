//! Handlers of interrupts and exceptions.

use x86::registers::control::Cr2;
use x86::structures::idt::ExceptionVector;

use super::{apic, cpu, time, user_half, vectors};
use crate::kernel::arch::contract::{Interrupt, User};
use crate::kernel::arch::upcalls;

/// The words that the stubs of `vectors.s` and the CPU push, in ascending order of addresses.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Frame {
    r15: u64,
    r14: u64,
    r13: u64,
    r12: u64,
    r11: u64,
    r10: u64,
    r9: u64,
    r8: u64,
    rdi: u64,
    rsi: u64,
    rbp: u64,
    rbx: u64,
    rdx: u64,
    rcx: u64,
    rax: u64,
    vector: u64,
    error: u64,
    rip: u64,
    cs: u64,
    flags: u64,
    rsp: u64,
    ss: u64,
}

/// The event for which user mode was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Event {
    /// A system call.
    Call,
    /// An interrupt, which the kernel's handler has handled.
    Interrupt,
    /// A page fault. Its address and error code are in [`User::machine`].
    Fault,
    /// An interrupt that the kernel ignores.
    Ignored,
}

/// Indices of [`User::machine`].
pub(super) const FLAGS: usize = 0;
pub(super) const SCRATCH: usize = 1;
pub(super) const FAULT_ADDRESS: usize = 2;
pub(super) const FAULT_ERROR: usize = 3;

/// Handles an interrupt of the kernel. An exception there is unexpected.
pub(super) extern "C" fn trap_in_kernel(frame: &Frame) {
    if interrupt(frame.vector as u8).is_none() {
        unexpected(frame);
    }
}

pub(super) extern "C" fn trap_from_user(frame: &Frame, user: &mut User) -> Event {
    user_half::leave();
    (user.task, user.address, user.count) =
        (frame.rdi as usize, frame.rsi as usize, frame.rdx as usize);
    (user.stride, user.value, user.pc) =
        (frame.rcx as usize, frame.r8 as usize, frame.rip as usize);
    (user.machine[FLAGS], user.machine[SCRATCH]) = (frame.flags as usize, frame.r9 as usize);
    match frame.vector as u8 {
        vectors::CALL => Event::Call,
        vectors::PAGE_FAULT => {
            user.machine[FAULT_ADDRESS] = Cr2::read_raw() as usize;
            user.machine[FAULT_ERROR] = frame.error as usize;
            Event::Fault
        }
        vector => interrupt(vector).unwrap_or_else(|| unexpected(frame)),
    }
}

/// Handles an interrupt. Returns `None` if the vector is not that of an interrupt.
fn interrupt(vector: u8) -> Option<Event> {
    let interrupt = match vector {
        vectors::FLUSH => Interrupt::Flush,
        vectors::WAKE => Interrupt::Wake,
        vectors::TIMER => Interrupt::Timer,
        // A spurious interrupt must not be ended.
        vectors::SPURIOUS => return Some(Event::Ignored),
        _ => return None,
    };
    apic::end_of_interrupt();
    if interrupt == Interrupt::Timer && !time::is_due() {
        return Some(Event::Ignored);
    }
    upcalls::interrupt(interrupt);
    Some(Event::Interrupt)
}

/// Reports an unexpected exception, and ends the run.
pub(super) extern "C" fn unexpected(frame: &Frame) -> ! {
    cpu::restore_gs_base();
    let Frame { vector, error, rip, cs, flags, rsp, .. } = frame;
    let (exception, cr2) = (ExceptionVector::try_from(*vector as u8), Cr2::read_raw());
    let mode = if *cs == u64::from(cpu::KERNEL_CODE.0) { "kernel" } else { "user" };
    panic!(
        "{exception:?} (vector {vector}) in {mode} mode: error={error:#x} rip={rip:#x} \
         rsp={rsp:#x} flags={flags:#x} cr2={cr2:#x}"
    )
}
