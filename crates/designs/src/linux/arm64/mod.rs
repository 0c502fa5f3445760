//! Linux on arm64: global tags, and invalidations that the hardware broadcasts, so that no CPU is
//! interrupted. With and without the patch of the `arm64-skip-broadcast` study, which broadcasts
//! only if another CPU is active on the space; and with TLBI domains.
//!
//! `arm64` is `switch_mm`, `check_and_switch_context` and `__flush_tlb_range` of Linux 7.0, as read
//! in its public source. It broadcasts the tag for a whole space; otherwise single pages or range
//! operations, up to Linux's limit. The calling CPU waits. A lazy CPU keeps its root, has a
//! reference (`mm_count`), and receives every broadcast, as every CPU does.
//!
//! `arm64-skip` is the patch as posted to the kernel's list ("arm64: tlb: skip tlbi broadcast",
//! v2), which was never merged. A space counts the CPUs that are active on it (`nr_active_mm`). A
//! CPU that goes idle loads the reserved root and decrements the count. If the flushing CPU is the
//! only active one, it marks the tag as stale on all other CPUs (in `mm_cpumask`, which arm64 uses
//! for nothing else), checks the count again, and flushes locally. A CPU that loads the space
//! increments the count, and then checks its mark. Each side has a barrier between its two
//! accesses, so at least one of the two CPUs observes the other. (This machine executes all
//! accesses in order, so it cannot show the effect of a missing barrier.)
//!
//! `arm64-5.6` is the kernel to which that patch applied. Like `arm64-skip`, it also flushes a page
//! that a fault makes writable because no other space shares it any more: until the end of 2025,
//! `ptep_set_access_flags` and `flush_tlb_fix_spurious_fault` broadcast for each such page (Huang
//! Ying, "arm64, tlbflush: don't TLBI broadcast if page reused in write fault").
//!
//! `arm64-tlbid` is the series posted to openEuler's list ("Optimize flush_tlb_mm() by using
//! TLBID", known from a description of it): a mask of the CPUs that have run a space, which never
//! forgets one, and an `ASIDE1IS` for the domains of that mask if a flush drops the whole space. A
//! flush of pages reaches every CPU, because its operation has no room for a domain. Where the mask
//! needs more domains than the machine's file allows, every CPU is reached.
//!
//! Reclaim broadcasts immediately and waits once for the whole batch: see `arm64/batch.rs`.
//!
//! # Differences from Linux
//!
//! - Page-table levels in broadcasts (TTL), 8-bit tags in pairs (KPTI), pinned tags and software
//!   PAN are not modelled.
//! - The interface does not distinguish idle from a kernel thread: under `arm64-skip` every lazy
//!   CPU has loaded the reserved root. An exiting thread is also lazy by the time of the last
//!   flush, where the patch invalidates once more, locally, and the model does nothing. Both favour
//!   the model, by less than a microsecond per exit.
//! - Huge pages are not split or collapsed: the memory manager has none.
//!
//! # On machines without broadcast
//!
//! All arm64 machines have broadcasts. Linux on 32-bit Arm has the same tags, and interrupts all
//! CPUs if the hardware does not broadcast (`tlb_ops_need_broadcast`). So does this design, without
//! tags. It also uses no tags on machines that have fewer tags than CPUs.

#![expect(unsafe_code, reason = "the interface's `switch` is unsafe")]

use core::cell::Cell;
use core::sync::atomic::Ordering::Relaxed;
use std::rc::Rc;

use shootdown::{BatchIsFull, Root, StaleWrites, Word};
use shootdown_sim::machine::Tagging;
use shootdown_sim::{BroadcastScope, Sim, SimWord, TagEntries};
use shootdown_vm::{
    Batching, Change, ExtraFlushes, Flush, Freed, Lifetimes, Policy, Retired, Scheduling,
    WriteGrant,
};

use super::active_mm::{ActiveMms, CountedMm, put};
use super::asids::{AsidAllocator, tag_of};
use super::batch::{TlbFlushBatched, unmap_batches};
use super::mm_count::MmCount;
use super::rules::LinuxRule;
use super::{Calls, CpuMask, FlushInfo, UnmapBatch};

mod batch;

/// The designs `arm64`, `arm64-5.6` and `arm64-skip`.
#[derive(Debug)]
#[must_use]
pub struct Arm64 {
    sim: Rc<Sim>,
    variant: Variant,
    asids: AsidAllocator,
    mms: ActiveMms<Mm>,
    /// For each CPU, set while the reserved root is loaded (`!cpu_not_lazy_tlb`).
    reserved_root: Vec<Cell<bool>>,
    /// For each CPU, set if all its broadcasts are complete.
    broadcasts_complete: Vec<Cell<bool>>,
    last_ctx_id: Cell<u64>,
    /// Used if the hardware does not broadcast.
    calls: Option<Calls>,
    broken: Option<LinuxRule>,
}

/// Variant of the design.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Every flush is broadcast: `arm64`.
    Stock,
    /// As `Stock`; and a fault that reuses a page flushes it: `arm64-5.6`.
    Reusing,
    /// As `Reusing`; and a flush is broadcast only if another CPU is active: `arm64-skip`.
    Skip,
    /// As `Stock`; and a flush of a whole space is broadcast to domains: `arm64-tlbid`.
    InDomains,
}

/// A space (`mm_struct`).
#[derive(Debug)]
pub struct Mm {
    ctx_id: u64,
    root: u64,
    context: MmContext,
    mm_count: MmCount,
    tlb_flush_batched: Rc<TlbFlushBatched>,
    /// `mm_cpumask`: the CPUs on which the tag is stale (`arm64-skip`), or those that have run the
    /// space (`arm64-tlbid`).
    cpumask: Rc<CpuMask>,
}

/// `mm_context_t`, in one line.
#[derive(Debug)]
#[repr(align(64))]
struct MmContext {
    id: SimWord,
    /// Number of CPUs that are active on the space.
    nr_active_mm: SimWord,
}

/// The CPUs on which a flush must take effect immediately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// No CPU: the tag is marked as stale on all CPUs.
    None,
    /// This CPU: the tag is marked as stale on all others.
    Local,
    /// All CPUs.
    All,
}

/// Number of pages from which the tag is broadcast instead of single pages (`MAX_DVM_OPS`: the
/// number of entries of a page table).
const MAX_DVM_OPS: u64 = 512;
/// Number of pages from which the tag is broadcast instead of ranges (`MAX_TLBI_RANGE_PAGES`).
const MAX_TLBI_RANGE_PAGES: u64 = 32 << 16;

impl CountedMm for Mm {
    fn mm_count(&self) -> &MmCount {
        &self.mm_count
    }
}

impl Arm64 {
    /// Creates the design `arm64` on this machine.
    pub fn stock(sim: Rc<Sim>) -> Self {
        Self::with_broken_rule(sim, Variant::Stock, None)
    }

    /// Creates the design `arm64-5.6` on this machine.
    pub fn reusing(sim: Rc<Sim>) -> Self {
        Self::with_broken_rule(sim, Variant::Reusing, None)
    }

    /// Creates the design `arm64-skip` on this machine.
    pub fn skip(sim: Rc<Sim>) -> Self {
        Self::with_broken_rule(sim, Variant::Skip, None)
    }

    /// Creates the design `arm64-tlbid` on this machine.
    pub fn in_domains(sim: Rc<Sim>) -> Self {
        Self::with_broken_rule(sim, Variant::InDomains, None)
    }

    /// Creates a design that breaks a rule, for tests that expect the oracle to detect it.
    pub fn with_broken_rule(sim: Rc<Sim>, variant: Variant, broken: Option<LinuxRule>) -> Self {
        let machine = sim.machine();
        let (cpus, tags) = (machine.cpu_count(), machine.tlb.tags);
        let has_broadcast = machine.broadcast.is_some();
        let has_tags = has_broadcast && machine.tagging == Tagging::Global && tags > cpus;
        Self {
            variant,
            asids: AsidAllocator::new(&sim, if has_tags { tags } else { 0 }, broken),
            mms: ActiveMms::new(cpus),
            reserved_root: (0..cpus).map(|_| Cell::new(false)).collect(),
            broadcasts_complete: (0..cpus).map(|_| Cell::new(true)).collect(),
            last_ctx_id: Cell::new(0),
            calls: (!has_broadcast).then(|| Calls::new(cpus)),
            broken,
            sim,
        }
    }

    fn skips(&self) -> bool {
        self.variant == Variant::Skip
    }

    /// `switch_mm`.
    fn switch_mm(&self, next: &Rc<Mm>) {
        self.complete_at_switch();
        let cpu = self.sim.cpu();
        let previous = self.mms.active(cpu);
        let was_reserved = self.reserved_root[cpu].take();
        if was_reserved || !self.mms.has_loaded(cpu, next) {
            if self.skips() {
                next.context.nr_active_mm.fetch_add(1, Relaxed);
            }
            self.load(next);
            if self.skips()
                && !was_reserved
                && let Some(previous) = previous
            {
                previous.context.nr_active_mm.fetch_add(u64::MAX, Relaxed);
            }
        }
        self.mms.activate(cpu, next);
    }

    /// `check_and_switch_context`.
    fn load(&self, next: &Mm) {
        let (sim, cpu) = (&self.sim, self.sim.cpu());
        let asid = self.asids.check_and_switch(sim, &next.context.id);
        let mut entries = asid.entries;
        if self.skips() {
            if asid.is_new {
                // Every CPU flushes its TLB before it uses a tag of this generation.
                next.cpumask.clear();
            }
            // Orders the increment of `nr_active_mm` before the load of the mark. Pairs with the
            // fence in `reach`. Without one of the two, the flushing CPU could miss the increment
            // while this CPU misses the mark.
            sim.fence();
            if next.cpumask.contains(cpu) {
                next.cpumask.remove(cpu);
                if self.broken != Some(LinuxRule::FlushIfStale) {
                    entries = TagEntries::Discarded;
                }
            }
        }
        if self.variant == Variant::InDomains && !next.cpumask.contains(cpu) {
            if self.broken != Some(LinuxRule::MarkRan) {
                next.cpumask.insert(cpu);
            }
            // Orders the mark before the walks that follow. Pairs with the fence in `flush_mm`,
            // after which a flush reads the mask. Without one of the two, this CPU could cache an
            // entry that is gone, while the flush finds it in no domain.
            sim.fence();
        }
        sim.load_root(next.root, asid.tag, entries);
    }

    /// `tlb_flush_check`.
    fn reach(&self, mm: &Rc<Mm>) -> Reach {
        let cpu = self.sim.cpu();
        let nr_active_mm = &mm.context.nr_active_mm;
        if !self.skips() || nr_active_mm.load(Relaxed) > 1 {
            return Reach::All;
        }
        let is_local = !self.reserved_root[cpu].get() && self.mms.has_loaded(cpu, mm);
        if self.broken != Some(LinuxRule::MarkStale) {
            mm.cpumask.fill_but(is_local.then_some(cpu));
        }
        // Orders the mark before the second load of the count. Pairs with the fence in `load`.
        self.sim.fence();
        let active = match self.broken {
            Some(LinuxRule::RecheckActive) => u64::from(is_local),
            _ => nr_active_mm.load(Relaxed),
        };
        match (active, is_local) {
            (0 | 1, true) => Reach::Local,
            (0, false) => Reach::None,
            _ => Reach::All,
        }
    }

    fn flush_mm(&self, mm: &Rc<Mm>, range: Option<core::ops::Range<u64>>, freed: Freed) {
        // Makes the new entries visible before the invalidation (`dsb ishst`).
        self.sim.fence();
        let machine = self.sim.machine();
        let has_ranges = machine.broadcast.as_ref().is_some_and(|b| b.pages_per_operation > 1);
        let max_pages = if has_ranges { MAX_TLBI_RANGE_PAGES } else { MAX_DVM_OPS };
        let info = FlushInfo {
            freed_tables: freed == Freed::Tables,
            ..FlushInfo::small_pages(mm.ctx_id, &mm.cpumask, range, max_pages - 1)
        };
        match (self.reach(mm), &self.calls) {
            (Reach::None, _) => {}
            (Reach::Local, _) => info.invalidate(&self.sim),
            (Reach::All, None) => self.broadcast(mm, &info),
            (Reach::All, Some(calls)) => {
                let cpus = machine.cpu_count();
                let others: Vec<usize> = (0..cpus).filter(|&cpu| cpu != self.sim.cpu()).collect();
                let info = Rc::new(info);
                let flush_local = || self.sim.masked(|| self.flush_local(&info));
                calls.call(&self.sim, &others, &info, flush_local);
            }
        }
    }

    fn broadcast(&self, mm: &Mm, info: &FlushInfo) {
        let (tag, domains) = (tag_of(&mm.context.id), self.sim.machine().domains.as_ref());
        // Only operations on a whole tag can name a domain.
        match domains.filter(|_| self.variant == Variant::InDomains && info.range.is_none()) {
            Some(domains) => {
                let cpus = mm.cpumask.members();
                if domains.covering(cpus.iter().copied()).len() <= domains.most {
                    self.sim.broadcast_in_domains(cpus, tag);
                } else {
                    self.sim.broadcast(tag, BroadcastScope::Tag);
                }
            }
            None => self.sim.broadcast(tag, info.broadcast_scope()),
        }
        self.dsb_ish();
    }

    /// Handles a flush on a CPU that was interrupted. No entries of unloaded spaces are cached.
    fn flush_local(&self, info: &FlushInfo) {
        let cpu = self.sim.cpu();
        let loaded = self.mms.active(cpu);
        if !self.reserved_root[cpu].get() && loaded.is_some_and(|mm| mm.ctx_id == info.mm) {
            info.invalidate(&self.sim);
        }
    }
}

impl Flush for Arm64 {
    type Space = Rc<Mm>;
    synchronous!();

    fn policy(&self) -> Policy {
        match self.variant {
            Variant::Stock | Variant::InDomains => super::POLICY,
            Variant::Reusing | Variant::Skip => Policy {
                write_grant: WriteGrant::AtFault,
                extra_flushes: super::POLICY.extra_flushes | ExtraFlushes::REUSED_PAGES,
                ..super::POLICY
            },
        }
    }

    fn space(&self, root: Root) -> Rc<Mm> {
        self.last_ctx_id.set(self.last_ctx_id.get() + 1);
        Rc::new(Mm {
            ctx_id: self.last_ctx_id.get(),
            root: root.0 >> 12,
            context: MmContext { id: SimWord::with(0), nr_active_mm: SimWord::with(0) },
            mm_count: MmCount::new(root),
            tlb_flush_batched: TlbFlushBatched::new(),
            cpumask: Rc::new(CpuMask::new(self.reserved_root.len())),
        })
    }

    fn flush(&self, space: &Rc<Mm>, change: &Change) {
        let flush = |change: &Change| self.flush_mm(space, change.range.clone(), change.freed);
        space.tlb_flush_batched.flush_with_pending(change, flush);
    }
}

unmap_batches!(Arm64);

unused!(Arm64: Defer);

impl Lifetimes for Arm64 {
    fn retire(&self, space: &Rc<Mm>) -> Retired {
        self.flush_mm(space, None, Freed::Tables);
        put(&**space)
    }

    fn take_dead(&self) -> Option<Root> {
        self.mms.take_free(self.sim.cpu())
    }
}

impl Scheduling for Arm64 {
    unsafe fn switch(&self, space: &Rc<Mm>) {
        self.switch_mm(space);
    }

    fn enter_lazy(&self) {
        self.complete_at_switch();
        let cpu = self.sim.cpu();
        if self.skips()
            && let Some(mm) = self.mms.active(cpu)
            && !self.reserved_root[cpu].replace(true)
        {
            self.sim.load_kernel_root();
            mm.context.nr_active_mm.fetch_add(u64::MAX, Relaxed);
        }
        self.mms.borrow(cpu);
    }

    fn leave_space(&self) {
        // The idle state drops the TLB by itself.
    }

    fn interrupt(&self) {
        if let Some(calls) = &self.calls {
            calls.handle_calls(&self.sim, |info| self.flush_local(info));
        }
    }
}
