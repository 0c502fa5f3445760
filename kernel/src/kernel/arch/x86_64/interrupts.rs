//! Interrupts on this CPU: masked, let in, and waited for.

#![expect(unsafe_code, reason = "lets handlers run")]

use core::arch::asm;

use x86::instructions::interrupts;

pub(super) fn interrupts_masked() -> bool {
    !interrupts::are_enabled()
}

pub(super) fn mask_interrupts() {
    interrupts::disable();
}

pub(super) fn unmask_interrupts() {
    // The library's has a `nop` behind this one, which each critical section would execute.
    // SAFETY: there are handlers. The compiler moves no access to memory across.
    unsafe { asm!("sti", options(nostack, preserves_flags)) };
}

/// Interrupts are let in after the instruction that follows `sti`: so none comes before `hlt`,
/// which would then wait for another.
pub(super) fn wait_for_interrupt() {
    interrupts::enable_and_hlt();
    interrupts::disable();
}
