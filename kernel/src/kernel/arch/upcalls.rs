//! What an architecture calls of the kernel, of which it knows nothing else: two entry points,
//! which the linker finds, and the handler of interrupts, which the kernel registers. What must not
//! happen is a panic.

#![expect(
    unsafe_code,
    reason = "entry points are the linker's to find; keeps a function's address"
)]

use core::mem;
use core::sync::atomic::{AtomicPtr, Ordering};

use super::contract::{Boot, Interrupt};

unsafe extern "Rust" {
    /// Where the first CPU begins, with interrupts masked.
    pub(super) safe fn main_on_first_cpu(boot: &Boot) -> !;
    /// Where each CPU begins that was [started](super::Architecture::start_cpu), with interrupts
    /// masked.
    pub(super) safe fn main_on_other_cpu(cpu: u32) -> !;
}

type Handler = fn(Interrupt);

/// A [`Handler`], of all CPUs.
static HANDLER: AtomicPtr<()> = AtomicPtr::new(ignore as Handler as *mut ());

fn ignore(_: Interrupt) {}

/// From now on, interrupts are this function's to handle, on all CPUs: those that the caller sends
/// after this find it there. It is called with interrupts masked, when the interrupt controller has
/// been told that the interrupt was taken.
pub(crate) fn set_interrupt_handler(handler: Handler) {
    HANDLER.store(handler as *mut (), Ordering::Release);
}

/// An interrupt was taken.
pub(super) fn interrupt(interrupt: Interrupt) {
    // SAFETY: only a `Handler` is ever stored there.
    let handler: Handler = unsafe { mem::transmute(HANDLER.load(Ordering::Acquire)) };
    handler(interrupt);
}
