//! The processor on x86-64.

use shootdown_hw::Ipi;
use shootdown_hw::x86_64::{Features, KernelPages, X2ApicIpi, X86_64, detect, tags_are_enabled};

use crate::config::{
    Config, SHOOTDOWN_NEVER_BROADCAST, SHOOTDOWN_X86_64_GLOBAL_KERNEL,
    SHOOTDOWN_X86_64_KERNEL_SETS_CR4,
};

pub(super) type Native = X86_64;

/// The flags of `shootdown_config.processor` that this processor uses.
pub(crate) const FLAGS: u32 =
    SHOOTDOWN_X86_64_GLOBAL_KERNEL | SHOOTDOWN_NEVER_BROADCAST | SHOOTDOWN_X86_64_KERNEL_SETS_CR4;

/// The processor, with the features of this CPU.
pub(super) fn processor(config: &Config) -> X86_64 {
    let kernel_pages = match config.processor & SHOOTDOWN_X86_64_GLOBAL_KERNEL {
        0 => KernelPages::PerTag,
        _ => KernelPages::Global,
    };
    // SAFETY: the kernel promises in `shootdown_init` that its pages are mapped as the flag says.
    // `shootdown_online` sets up each CPU, and refuses one that lacks the features.
    let processor = unsafe {
        if config.processor & SHOOTDOWN_X86_64_KERNEL_SETS_CR4 == 0 {
            X86_64::new(detect(), kernel_pages)
        } else {
            let (features, has_pcid) = (detect(), tags_are_enabled());
            let invlpgb_pages = features.invlpgb_pages.filter(|_| has_pcid);
            let features = Features { has_pcid, invlpgb_pages, ..features };
            X86_64::new(features, kernel_pages).with_cr4_of_kernel()
        }
    };
    match config.processor & SHOOTDOWN_NEVER_BROADCAST {
        0 => processor,
        _ => processor.without_broadcasts(),
    }
}

/// The interrupt with this vector.
///
/// # Safety
///
/// As [`X2ApicIpi::new`].
///
/// # Panics
///
/// If there is no such vector.
pub(crate) unsafe fn ipi(vector: u64) -> impl Ipi {
    assert!((16..256).contains(&vector), "shootdown_send_ipi: there is no vector {vector}");
    // SAFETY: the caller's promise.
    unsafe { X2ApicIpi::new(vector as u8) }
}
