//! RISC-V. Neither the firmware's remote fences nor ASIDs are used.
//!
//! The manual does not promise that a write of `satp` ends the walks that began with the old root:
//! see `RiscV64::assuming_satp_ends_walks`. A framework for any processor cannot promise it either.
//! So each switch drops what was cached under the old root, and ASIDs would save nothing.

use shootdown_hw::riscv64::{Features, RiscV64};

use super::WithoutBroadcasts;

/// The processor that [`detect`] finds.
pub(in crate::mm::coherence) type Detected = WithoutBroadcasts<RiscV64, 0>;

/// # Safety
///
/// `set_up_cpu` must be called on every CPU. All kernel pages must be global, and no others.
pub(in crate::mm::coherence) unsafe fn detect() -> Detected {
    let features = Features { asid_bits: 0, ..Features::detect() };
    // SAFETY: the caller's promise.
    WithoutBroadcasts(unsafe { RiscV64::new(features) })
}
