//! Whether a CPU tells when it enters the kernel: for a [`Coherence`](crate::Coherence) that can
//! leave CPUs alone whose threads are in the kernel.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// How many more times a CPU tells when it enters the kernel, after it was seen that this saves an
/// interrupt.
///
/// To tell costs a store, and a locked operation at the return, some 10 ns together, and a cache
/// miss if somebody looked meanwhile. It saves the interrupt, 1 to 4 µs, of every flush that comes
/// while the CPU is in the kernel, where threads of a process that changes its memory often are.
/// Seen is that by an interrupt that comes there, or by a flush that was made up for on the way
/// back. A CPU that is interrupted in user mode only, or not at all, pays nothing; one that was
/// interrupted in the kernel once pays for as many entries as an interrupt costs.
const TELLS: u32 = 128;

/// What one CPU knows of it. Only that CPU, and its handlers, use it.
#[derive(Debug, Default)]
pub struct Teller {
    /// How many more times it tells.
    left: AtomicU32,
    /// Whether its thread is in the kernel.
    is_in_kernel: AtomicBool,
}

impl Teller {
    /// In user mode, with nothing to tell.
    #[must_use]
    pub const fn new() -> Self {
        Self { left: AtomicU32::new(0), is_in_kernel: AtomicBool::new(false) }
    }

    /// A space was switched to: its thread is in the kernel. Whether to tell.
    #[must_use]
    pub fn switched(&self) -> bool {
        self.is_in_kernel.store(true, Relaxed);
        self.left.load(Relaxed) > 0
    }

    /// The thread enters the kernel. Whether to tell.
    #[must_use]
    pub fn enters_kernel(&self) -> bool {
        self.is_in_kernel.store(true, Relaxed);
        let left = self.left.load(Relaxed);
        self.left.store(left.saturating_sub(1), Relaxed);
        left > 0
    }

    /// The thread goes on to user mode.
    pub fn returns_to_user(&self) {
        self.is_in_kernel.store(false, Relaxed);
    }

    /// On the way back, a flush was made up for: to have told has saved an interrupt.
    pub fn made_up(&self) {
        self.left.store(TELLS, Relaxed);
    }

    /// The flush interrupt has come.
    pub fn interrupted(&self) {
        if self.is_in_kernel.load(Relaxed) {
            self.left.store(TELLS, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_in_the_kernel_is_worth_telling_for_a_while() {
        let teller = Teller::new();
        teller.interrupted();
        assert!(!teller.switched() && !teller.enters_kernel(), "that was in user mode");
        teller.interrupted();
        for _ in 0..TELLS {
            assert!(teller.switched() && teller.enters_kernel());
        }
        assert!(!teller.switched() && !teller.enters_kernel());
        teller.returns_to_user();
        teller.interrupted();
        assert!(!teller.enters_kernel());
        teller.made_up();
        assert!(teller.enters_kernel());
    }
}
