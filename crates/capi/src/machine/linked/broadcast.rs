//! Invalidations on other CPUs, by functions of the C kernel.

#![expect(unsafe_code, reason = "fulfils the engine's contract by that of the kernel's functions")]

use core::ptr;

use shootdown::{
    Broadcast, Broadcaster, CpuBits, CpuSet, Extent, NotifyCosts, Reach, Refused, Tag,
};

use super::parts_of_any;
use crate::config::{
    Config, SHOOTDOWN_REACH_EVERYONE, SHOOTDOWN_REACH_NOBODY, SHOOTDOWN_REACH_TARGETS,
    SHOOTDOWN_TAGS_GLOBAL,
};
use crate::machine::os::for_each_block;
use crate::os;

/// The functions `shootdown_mmu_broadcast…` of the C kernel.
#[derive(Debug)]
pub(crate) struct Broadcasts {
    capabilities: Broadcast,
    costs: NotifyCosts,
}

impl Broadcasts {
    /// The broadcasts that `config` describes; `None` if there are none.
    pub(super) fn new(config: &Config) -> Option<Self> {
        let broadcast = &config.broadcast;
        let reach = match broadcast.reach {
            SHOOTDOWN_REACH_NOBODY => return None,
            SHOOTDOWN_REACH_EVERYONE => Reach::Everyone,
            SHOOTDOWN_REACH_TARGETS => Reach::Targets,
            other => panic!(
                "shootdown_config.broadcast.reach is {other}, which is not a SHOOTDOWN_REACH_ value"
            ),
        };
        assert!(
            config.tagging == SHOOTDOWN_TAGS_GLOBAL,
            "shootdown_config.tagging is {}, and broadcasts need SHOOTDOWN_TAGS_GLOBAL",
            config.tagging,
        );
        let costs = broadcast.costs;
        let costs = NotifyCosts {
            interrupt_ns: costs.interrupt_ns,
            interrupt_each_ns: costs.interrupt_each_ns,
            broadcast_ns: costs.broadcast_ns,
            broadcast_each_ns: costs.broadcast_each_ns,
            operation_ns: costs.operation_ns,
        };
        Some(Self {
            capabilities: Broadcast {
                reach,
                pages_per_operation: (broadcast.pages_per_operation as usize).max(1),
                operation_ceiling: (broadcast.operation_ceiling as usize).max(1),
                completes_at_issue: reach == Reach::Targets,
            },
            costs: if costs.interrupt_ns == 0 { costs.broadcasts_only() } else { costs },
        })
    }
}

// SAFETY: the kernel's functions keep the contracts that the header states. They are those of this
// trait.
unsafe impl Broadcaster for Broadcasts {
    #[inline]
    fn capabilities(&self) -> Broadcast {
        self.capabilities
    }

    #[inline]
    fn costs(&self) -> NotifyCosts {
        self.costs
    }

    fn broadcast<B: CpuBits>(
        &self,
        cpus: &CpuSet<B>,
        tag: Tag,
        extent: Extent,
    ) -> Result<(), Refused> {
        let (address, count, shift, frees_tables) = parts_of_any(extent);
        let send = |cpus, cpu_count| {
            // SAFETY: the array has this many numbers.
            unsafe {
                os::shootdown_mmu_broadcast(
                    cpus,
                    cpu_count,
                    tag.0,
                    address,
                    count,
                    shift,
                    frees_tables,
                )
            }
        };
        let mut is_issued = true;
        match self.capabilities.reach {
            // (The C interface has no domains.)
            Reach::Everyone | Reach::Domains => is_issued = send(ptr::null(), 0),
            Reach::Targets => for_each_block(cpus, |cpus| {
                is_issued = is_issued && send(cpus.as_ptr(), cpus.len());
            }),
        }
        is_issued.then_some(()).ok_or(Refused)
    }

    fn broadcast_kernel(&self, extent: Extent) -> Result<(), Refused> {
        let (address, count, shift, frees_tables) = parts_of_any(extent);
        // SAFETY: the kernel defines this function without preconditions, like those below.
        let is_issued =
            unsafe { os::shootdown_mmu_broadcast_kernel(address, count, shift, frees_tables) };
        is_issued.then_some(()).ok_or(Refused)
    }

    #[inline]
    fn complete(&self) -> u64 {
        // SAFETY: see `broadcast_kernel`.
        unsafe { os::shootdown_mmu_complete_broadcasts() }
    }

    #[inline]
    fn clock_ns(&self) -> u64 {
        // SAFETY: see `broadcast_kernel`.
        unsafe { os::shootdown_mmu_clock_ns() }
    }
}
