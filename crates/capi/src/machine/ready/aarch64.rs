//! The processor on `AArch64`.

use shootdown_hw::Ipi;
use shootdown_hw::aarch64::{Aarch64, Features, GicIpi};

use crate::config::{Config, SHOOTDOWN_AARCH64_REPEAT_BROADCASTS};

pub(super) type Native = Aarch64;

/// The flags of `shootdown_config.processor` that this processor uses.
pub(crate) const FLAGS: u32 = SHOOTDOWN_AARCH64_REPEAT_BROADCASTS;

/// The processor, with the features of this CPU.
pub(super) fn processor(config: &Config) -> Aarch64 {
    let processor = Aarch64::new(Features::detect());
    match config.processor & SHOOTDOWN_AARCH64_REPEAT_BROADCASTS {
        0 => processor,
        _ => processor.repeating(),
    }
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
pub(crate) unsafe fn ipi(number: u32) -> impl Ipi {
    assert!(number < 16, "shootdown_send_ipi: there is no SGI {number}");
    // SAFETY: the caller's promise.
    unsafe { GicIpi::new(number as u8) }
}
