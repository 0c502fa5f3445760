//! Threads of the kernel: stacks that take turns.

#![expect(unsafe_code, reason = "changes the stack")]

unsafe extern "C" {
    /// In `vectors.s`; see [`Architecture`](super::Architecture).
    pub(super) fn switch_stack(from: *mut usize, to: usize);
    /// There; never called, but returned to.
    fn thread_start();
}

/// A stack from which [`switch_stack`] takes six registers and returns.
///
/// # Safety
///
/// See [`Architecture::new_stack`](super::Architecture::new_stack).
pub(super) unsafe fn new(
    stack_end: usize,
    entry: extern "C" fn(usize) -> !,
    argument: usize,
) -> usize {
    // R15, R14, R13, R12, RBX, RBP; where to return to; and two words, so that the stack is then at
    // a multiple of 16, as before any call.
    let start = thread_start as *const () as usize;
    let words = [0, 0, argument, entry as *const () as usize, 0, 0, start, 0, 0];
    let top = (stack_end & !0xf) - size_of_val(&words);
    // SAFETY: the stack is our caller's.
    unsafe { (top as *mut [usize; 9]).write(words) };
    top
}
