//! The processor of `shootdown-hw` for the target.

#![expect(unsafe_code, reason = "all methods are those of the processor")]

use shootdown::{Memory, TagSlot};
use shootdown_hw::{Processor, forward_memory, forward_processor};

use super::SLOTS;
use crate::config::Config;

#[cfg(target_arch = "aarch64")]
#[path = "aarch64.rs"]
mod native;
#[cfg(target_arch = "loongarch64")]
#[path = "loongarch64.rs"]
mod native;
#[cfg(target_arch = "riscv64")]
#[path = "riscv64.rs"]
mod native;
#[cfg(target_arch = "x86_64")]
#[path = "x86_64.rs"]
mod native;

pub(crate) use native::ipi;

/// The processor of `shootdown-hw`, with the slots for which a CPU's state has room in C.
#[derive(Debug)]
pub(crate) struct Ready(native::Native);

impl Ready {
    /// The processor that `config` describes, with the features of this CPU.
    pub(super) fn new(config: &Config) -> Self {
        let unknown = config.processor & !native::FLAGS;
        assert!(
            unknown == 0,
            "shootdown_config.processor has {unknown:#x}, which this processor does not use",
        );
        assert!(
            config.kernel_root != 0,
            "shootdown_config.kernel_root is 0: set it to the kernel's own page table",
        );
        assert!(
            config.tagging | config.tag_count | config.flush_ceiling | config.broadcast.reach == 0
                && !config.traps_stale_writes
                && !config.tolerates_mixed_sizes,
            "shootdown_config describes a processor, and the library has one: leave tagging, \
             tag_count, flush_ceiling, traps_stale_writes, tolerates_mixed_sizes and broadcast 0",
        );
        Self(native::processor(config))
    }
}

// SAFETY: all methods are those of the processor.
unsafe impl Memory for Ready {
    forward_memory! { self => self.0, native::Native }
}

// SAFETY: all methods are those of the processor. Any number of slots is right.
unsafe impl Processor for Ready {
    type TagSlots = [TagSlot; SLOTS];
    type TagWords = <native::Native as Processor>::TagWords;
    type Broadcaster = <native::Native as Processor>::Broadcaster;

    forward_processor! { self => self.0;
        set_up_cpu, workarounds, publish, synchronize, interrupts_masked, tagging, tag_count,
        flush_ceiling, flush_costs, load, load_kernel, invalidate, invalidate_tag,
        invalidate_kernel, invalidate_all, forget_refused, publish_kernel, traps_stale_writes,
        tolerates_mixed_sizes, broadcaster, spin_hint,
    }
}
