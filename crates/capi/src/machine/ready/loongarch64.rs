//! The processor on `LoongArch64`.

use shootdown_hw::Ipi;
use shootdown_hw::loongarch64::{IocsrIpi, LoongArch64};

use crate::config::Config;

pub(super) type Native = LoongArch64;

/// The flags of `shootdown_config.processor` that this processor uses.
pub(crate) const FLAGS: u32 = 0;

/// The processor, with the features of this CPU.
pub(super) fn processor(_: &Config) -> LoongArch64 {
    LoongArch64::detect()
}

/// The interrupt with this number.
///
/// # Safety
///
/// As [`IocsrIpi::new`].
///
/// # Panics
///
/// If there is no such interrupt.
pub(crate) unsafe fn ipi(number: u64) -> impl Ipi {
    assert!(number < 32, "shootdown_send_ipi: there is no interrupt {number}");
    // SAFETY: the caller's promise.
    unsafe { IocsrIpi::new(number as u8) }
}
