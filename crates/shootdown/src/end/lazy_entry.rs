//! A predictor for kernels whose threads touch no user address while they are in the kernel:
//! whether it pays for a CPU to [enter lazy](crate::PinnedCpu::enter_lazy) on kernel entry.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// Number of kernel entries at which a CPU enters lazy after it was observed that this saves an
/// interrupt.
///
/// To enter lazy costs about 10 ns per kernel entry: a store, a locked operation on return, and a
/// cache miss if another CPU has read the presence. It saves the interrupt, 1 to 4 µs, of every
/// flush that is sent while the thread is in the kernel, where threads of a process that changes
/// its memory often are. The saving is observed as an interrupt that arrives in the kernel, or as a
/// flush that the CPU catches up with on return. A CPU that is interrupted in user mode only, or
/// not at all, pays nothing. A CPU that was interrupted in the kernel once pays for as many entries
/// as an interrupt costs.
const ENTRIES: u32 = 128;

/// Predictor, one per CPU, of whether entering lazy on kernel entry saves interrupts.
///
/// Only the CPU itself and its interrupt handlers may use it.
#[derive(Debug, Default)]
pub struct LazyEntryPredictor {
    /// Number of kernel entries at which the CPU still enters lazy.
    left: AtomicU32,
    is_in_kernel: AtomicBool,
}

impl LazyEntryPredictor {
    /// The predictor of a CPU in user mode that has observed no saving.
    #[must_use]
    pub const fn new() -> Self {
        Self { left: AtomicU32::new(0), is_in_kernel: AtomicBool::new(false) }
    }

    /// Records that the CPU has switched to a space, whose thread is in the kernel. Returns whether
    /// to enter lazy.
    #[must_use]
    pub fn switched(&self) -> bool {
        // Relaxed: only this CPU reads and writes the two fields, here and below.
        self.is_in_kernel.store(true, Relaxed);
        self.left.load(Relaxed) > 0
    }

    /// Records that the thread enters the kernel. Returns whether to enter lazy.
    #[must_use]
    pub fn entered_kernel(&self) -> bool {
        // Relaxed: see `switched`.
        self.is_in_kernel.store(true, Relaxed);
        let left = self.left.load(Relaxed);
        self.left.store(left.saturating_sub(1), Relaxed);
        left > 0
    }

    /// Records that the thread returns to user mode.
    pub fn returned_to_user(&self) {
        // Relaxed: see `switched`.
        self.is_in_kernel.store(false, Relaxed);
    }

    /// Records that the CPU caught up with a flush on its way to user mode: the entry into lazy has
    /// saved an interrupt.
    pub fn caught_up(&self) {
        // Relaxed: see `switched`.
        self.left.store(ENTRIES, Relaxed);
    }

    /// Records that the flush interrupt has arrived.
    pub fn interrupted(&self) {
        // Relaxed: see `switched`.
        if self.is_in_kernel.load(Relaxed) {
            self.left.store(ENTRIES, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_that_enters_is_in_the_kernel() {
        let predictor = LazyEntryPredictor::new();
        assert!(!predictor.entered_kernel());
        predictor.interrupted();
        assert!(predictor.entered_kernel());
    }

    #[test]
    fn interrupt_in_the_kernel_makes_entries_lazy() {
        let predictor = LazyEntryPredictor::new();
        predictor.interrupted();
        assert!(!predictor.switched() && !predictor.entered_kernel(), "that was in user mode");
        predictor.interrupted();
        for _ in 0..ENTRIES {
            assert!(predictor.switched() && predictor.entered_kernel());
        }
        assert!(!predictor.switched() && !predictor.entered_kernel());
        predictor.returned_to_user();
        predictor.interrupted();
        assert!(!predictor.entered_kernel());
        predictor.caught_up();
        assert!(predictor.entered_kernel());
    }
}
