//! Calls from an architecture into the kernel: two entry points, which the linker resolves, and the
//! interrupt handler, which the kernel registers. An architecture reports an impossible event by a
//! panic.

#![expect(
    unsafe_code,
    reason = "the linker resolves the entry points; stores a function's address"
)]

use core::mem;
use core::sync::atomic::{AtomicPtr, Ordering};

use super::contract::{Boot, Interrupt};

unsafe extern "Rust" {
    /// Entry point of the first CPU, with interrupts masked.
    pub(super) safe fn main_on_first_cpu(boot: &Boot) -> !;
    /// Entry point of each CPU that was [started](super::Architecture::start_cpu), with interrupts
    /// masked.
    pub(super) safe fn main_on_other_cpu(cpu: u32) -> !;
}

type Handler = fn(Interrupt);

/// The [`Handler`] of all CPUs.
static HANDLER: AtomicPtr<()> = AtomicPtr::new(ignore as Handler as *mut ());

fn ignore(_: Interrupt) {}

/// Sets the interrupt handler of all CPUs. An interrupt that the caller sends afterwards is handled
/// by `handler`. It is called with interrupts masked, after the interrupt controller was informed
/// that the interrupt was taken.
pub(crate) fn set_interrupt_handler(handler: Handler) {
    HANDLER.store(handler as *mut (), Ordering::Release);
}

/// Calls the interrupt handler.
pub(super) fn interrupt(interrupt: Interrupt) {
    // SAFETY: every value of `HANDLER` was made from a `Handler`.
    let handler: Handler = unsafe { mem::transmute(HANDLER.load(Ordering::Acquire)) };
    handler(interrupt);
}
