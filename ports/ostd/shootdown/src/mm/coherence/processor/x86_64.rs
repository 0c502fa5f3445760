//! x86-64. `INVLPGB` is not used: no machine that has the instruction has run this code.

use shootdown_hw::x86_64::{Features, KernelPages, X86_64};

use super::WithoutBroadcasts;

/// The processor that [`detect`] finds.
pub(in crate::mm::coherence) type Detected = WithoutBroadcasts<X86_64, { usize::MAX }>;

/// # Safety
///
/// `set_up_cpu` must be called on every CPU. All kernel pages must be global.
pub(in crate::mm::coherence) unsafe fn detect() -> Detected {
    let features = Features { invlpgb_pages: None, ..shootdown_hw::x86_64::detect() };
    // SAFETY: the caller promises the same.
    WithoutBroadcasts(unsafe { X86_64::new(features, KernelPages::Global) })
}
