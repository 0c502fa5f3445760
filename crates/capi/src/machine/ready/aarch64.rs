//! The processor on `AArch64`.

use shootdown_hw::Ipi;
use shootdown_hw::aarch64::{Aarch64, Features, GicIpi};

use crate::config::{
    Config, SHOOTDOWN_AARCH64_FIQ, SHOOTDOWN_AARCH64_MIXED_CORES, SHOOTDOWN_NEVER_BROADCAST,
};
use crate::errata;

pub(super) type Native = Aarch64;

/// The flags of `shootdown_config.processor` that this processor uses.
pub(crate) const FLAGS: u32 =
    SHOOTDOWN_AARCH64_MIXED_CORES | SHOOTDOWN_AARCH64_FIQ | SHOOTDOWN_NEVER_BROADCAST;

/// The processor, with the features of this CPU.
pub(super) fn processor(config: &Config) -> Aarch64 {
    // SAFETY: `shootdown_online` refuses a CPU that lacks the features. The kernel promises the
    // rest in `shootdown_init`.
    unsafe { errata::aarch64(Features::detect(), config) }
}

/// The SGI with this number.
///
/// # Safety
///
/// As [`GicIpi::new`].
///
/// # Panics
///
/// If there is no such SGI.
pub(crate) unsafe fn ipi(number: u64) -> impl Ipi {
    assert!(number < 16, "shootdown_send_ipi: there is no SGI {number}");
    // SAFETY: the caller's promise.
    unsafe { GicIpi::new(number as u8) }
}
