//! Stacks, and going from one to another.

use core::arch::global_asm;

global_asm!(include_str!("switch.s"));

/// x19 to x30, as `switch.s` takes them from a stack.
type Saved = [usize; 12];

/// What is saved of a thread that has not run yet.
///
/// # Safety
///
/// The stack must be nobody else's.
pub(super) unsafe fn new_stack(
    stack_end: usize,
    entry: extern "C" fn(usize) -> !,
    argument: usize,
) -> usize {
    let mut saved: Saved = [0; 12];
    saved[0] = entry as usize;
    saved[1] = argument;
    // x30: where the switch returns to.
    saved[11] = begin_thread as *const () as usize;
    let stack = (stack_end & !15) - size_of::<Saved>();
    // SAFETY: it is within the stack.
    unsafe { (stack as *mut Saved).write(saved) };
    stack
}

unsafe extern "C" {
    /// Goes on with the thread that was left, or made, at `to`.
    pub(super) fn switch_stack(from: *mut usize, to: usize);
    fn begin_thread();
}
