//! The processor on `LoongArch64`.

use shootdown_hw::loongarch64::LoongArch64;

use crate::config::Config;

pub(super) type Native = LoongArch64;

/// The flags of `shootdown_config.processor` that this processor uses.
pub(crate) const FLAGS: u32 = 0;

/// The processor, with the features of this CPU.
pub(super) fn processor(_: &Config) -> LoongArch64 {
    LoongArch64::detect()
}

/// Does nothing: all features are enabled.
///
/// # Safety
///
/// There are no requirements.
pub(crate) unsafe fn enable() {}
