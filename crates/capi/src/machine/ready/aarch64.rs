//! The processor on `AArch64`.

use shootdown_hw::aarch64::{Aarch64, Features};

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

/// Does nothing: all features are enabled.
///
/// # Safety
///
/// There are no requirements.
pub(crate) unsafe fn enable() {}
