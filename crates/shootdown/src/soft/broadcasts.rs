//! Broadcasts of the software machine. Each is delivered only when its issuer completes it, which
//! is as late as hardware may do it.
//!
//! The completion also waits for an access that a CPU is just doing with a translation that the
//! broadcast invalidates: for broadcasts, each use of the TLB is one step.

#![expect(unsafe_code, reason = "implements `Broadcaster`")]

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::Mutex;
use std::vec::Vec;

use super::tlb::Tlb;
use super::{Config, Platform, Soft, guard};
use crate::base::costs::NotifyCosts;
use crate::base::ids::{CpuId, Tag};
use crate::base::memory::Word;
use crate::parts::cpu_set::{CpuBits, CpuSet};
use crate::parts::extent::Extent;
use crate::state::broadcaster::{Broadcast, Broadcaster, DomainCosts, Reach, Refused};
use crate::state::machine::Machine;

/// The translations that a broadcast invalidates.
#[derive(Clone, Copy, Debug)]
pub(super) enum Invalidation {
    /// Translations of user pages under a tag.
    Tag(Tag, Extent),
    /// Translations of the kernel's pages.
    Kernel(Extent),
}

/// The broadcasts that one CPU has issued, and those that have reached it.
pub(super) struct Broadcasts<P: Platform> {
    /// The broadcasts that this CPU has issued and not completed, with their targets.
    issued: Mutex<Vec<(Vec<CpuId>, Invalidation)>>,
    /// The invalidations that have reached this CPU. They are applied before the next use of the
    /// TLB.
    arrived: Mutex<Vec<Invalidation>>,
    /// The TLB is in use.
    busy: AtomicBool,
    /// Orders uses of the TLB with completions, as hardware does, for model checkers.
    order: P::Word,
}

impl<P: Platform> Broadcasts<P> {
    pub(super) fn new() -> Self {
        Self {
            issued: Mutex::default(),
            arrived: Mutex::default(),
            busy: AtomicBool::new(false),
            order: P::Word::new(0),
        }
    }

    pub(super) fn issue(&self, targets: Vec<CpuId>, invalidation: Invalidation) {
        guard(&self.issued).push((targets, invalidation));
    }

    /// Removes and returns the broadcasts that this CPU has issued and not completed.
    pub(super) fn take_issued(&self) -> Vec<(Vec<CpuId>, Invalidation)> {
        core::mem::take(&mut guard(&self.issued))
    }

    /// Delivers an invalidation to this CPU, and waits until the CPU uses none of the translations.
    pub(super) fn deliver(&self, invalidation: Invalidation) {
        // A CPU that applies the invalidation then walks page tables at least as new as it.
        self.order.fetch_add(1, AcqRel);
        guard(&self.arrived).push(invalidation);
        while self.busy.load(Acquire) {
            P::spin_hint();
        }
        self.order.fetch_add(1, AcqRel);
    }

    /// Uses the TLB of this CPU: applies the invalidations that have arrived, then calls `f`.
    pub(super) fn using<R>(&self, tlb: &mut Tlb, f: impl FnOnce(&mut Tlb) -> R) -> R {
        // Set before the arrived invalidations are read: a later delivery finds this CPU busy.
        self.busy.store(true, SeqCst);
        let arrived = core::mem::take(&mut *guard(&self.arrived));
        self.order.fetch_add(1, AcqRel);
        for invalidation in arrived {
            match invalidation {
                Invalidation::Tag(tag, extent) => tlb.invalidate_under(tag, extent),
                Invalidation::Kernel(extent) if extent.is_whole() => tlb.invalidate_all(),
                Invalidation::Kernel(extent) => tlb.invalidate_kernel(extent),
            }
        }
        let result = f(tlb);
        self.order.fetch_add(1, AcqRel);
        self.busy.store(false, Release);
        result
    }
}

impl<P: Platform, const WORDS: usize> Soft<P, WORDS> {
    /// Issues a broadcast to these CPUs. One that is refused reaches none of them.
    fn issue(&self, targets: Vec<CpuId>, invalidation: Invalidation) -> Result<(), Refused> {
        let count = self.broadcasts.fetch_add(1, Relaxed) + 1;
        if count.checked_rem(self.config.refuses_each) == Some(0) {
            return Err(Refused);
        }
        self.cpus[P::cpu().index()].broadcasts.issue(targets, invalidation);
        Ok(())
    }

    fn all_cpus(&self) -> Vec<CpuId> {
        (0..self.config.cpus).map(CpuId).collect()
    }
}

// SAFETY: a broadcast is delivered to every CPU that it reaches before `complete` returns, and a
// CPU that uses its TLB applies what was delivered first.
unsafe impl<P: Platform, const WORDS: usize> Broadcaster for Soft<P, WORDS> {
    fn capabilities(&self) -> Broadcast {
        let reach = self.config.broadcast.expect("the machine has a broadcaster");
        Broadcast {
            reach,
            pages_per_operation: 1,
            operation_ceiling: self.flush_ceiling(),
            completes_at_issue: self.config.completes_at_issue,
        }
    }
    fn costs(&self) -> NotifyCosts {
        let Config { costs, costs_swap_after, .. } = self.config;
        let reads = self.cost_reads.fetch_add(1, Relaxed);
        let swaps = reads.checked_div(costs_swap_after).unwrap_or(0);
        if swaps % 2 == 0 {
            return costs;
        }
        let NotifyCosts { interrupt_ns, broadcast_ns, .. } = costs;
        NotifyCosts { interrupt_ns: broadcast_ns, broadcast_ns: interrupt_ns, ..costs }
    }
    fn broadcast<B: CpuBits>(
        &self,
        cpus: &CpuSet<B>,
        tag: Tag,
        extent: Extent,
    ) -> Result<(), Refused> {
        let targets = match self.config.broadcast {
            Some(Reach::Targets) => cpus.iter().collect(),
            _ => self.all_cpus(),
        };
        self.issue(targets, Invalidation::Tag(tag, extent))
    }
    fn broadcast_kernel(&self, extent: Extent) -> Result<(), Refused> {
        self.issue(self.all_cpus(), Invalidation::Kernel(extent))
    }
    fn costs_in_domains<B: CpuBits>(&self, cpus: &CpuSet<B>) -> Option<DomainCosts> {
        (cpus.len() <= self.config.domains_max)
            .then_some(DomainCosts { broadcast_ns: 0, refill_ns: 0 })
    }
    /// Each CPU is a domain.
    fn broadcast_in_domains<B: CpuBits>(&self, cpus: &CpuSet<B>, tag: Tag) -> Result<(), Refused> {
        self.issue(cpus.iter().collect(), Invalidation::Tag(tag, Extent::whole()))
    }
    fn complete(&self) -> u64 {
        for (cpus, invalidation) in self.cpus[P::cpu().index()].broadcasts.take_issued() {
            for cpu in cpus {
                self.cpus[cpu.index()].broadcasts.deliver(invalidation);
            }
        }
        0
    }
}
