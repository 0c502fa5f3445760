//! Linux on arm64: tags that are the same on all CPUs, and invalidations that the hardware
//! broadcasts; nobody is interrupted. With and without seed 003, which broadcasts only if another
//! CPU is active on the space.
//!
//! `arm64` is `switch_mm`, `check_and_switch_context` and `__flush_tlb_range` of Linux 7.0, as read
//! in its public source: the tag's broadcast for all of a space, pages one by one or by range
//! operations up to as many as Linux names, and the calling CPU waits. A lazy CPU keeps its root,
//! is counted (`mm_count`), and is told of everything, as every CPU is.
//!
//! `arm64-skip` is seed 003 as posted to the kernel's list ("arm64: tlb: skip tlbi broadcast", v2),
//! never merged. A space counts the CPUs that are active on it (`nr_active_mm`); a CPU that goes
//! idle loads the reserved root and counts itself out. Who flushes, and is the only one, marks the
//! tag as stale on all other CPUs (in `mm_cpumask`, which arm64 has no other use for), looks again,
//! and flushes locally; a CPU that comes counts itself in, and then looks for its mark. Between the
//! two accesses of each is a barrier, and one of the two sees the other. (What a missing barrier
//! does is not for this machine to show: here all accesses are in order.)
//!
//! Of what reclaim takes, the broadcasts go out at once, and are waited for together:
//! `arm64/batch.rs`.
//!
//! # What the model leaves out
//!
//! - Page-table levels in broadcasts (TTL), 8-bit tags in pairs (KPTI), pinned tags, software PAN.
//! - The seam does not tell idle from a kernel thread: under `arm64-skip` every lazy CPU has loaded
//!   the reserved root. An exiting thread is lazy, too, by the time of the last flush, and where
//!   the patch invalidates once more, locally, the model does nothing. Both favour it, by less than
//!   a microsecond per exit.
//! - A huge page that is split or collapsed: the memory manager has none.
//!
//! # On machines without broadcast
//!
//! No arm64 machine is without. Linux on 32-bit Arm, which shares the scheme of tags, interrupts
//! all CPUs where the hardware does not broadcast (`tlb_ops_need_broadcast`), and so does this. No
//! tags are used then, and none on machines that have fewer than CPUs.

#![expect(unsafe_code, reason = "the seam's `switch` is unsafe")]

use core::cell::Cell;
use core::sync::atomic::Ordering::Relaxed;
use std::rc::Rc;

use shootdown::{BatchIsFull, Horizon, Root, StaleWrites, Word};
use shootdown_sim::machine::Tagging;
use shootdown_sim::{BroadcastScope, Sim, SimWord, TagEntries};
use shootdown_vm::{Batching, Change, Flush, Freed, Lifetimes, Policy, Retired, Scheduling};

use super::active_mm::{ActiveMms, CountedMm, put};
use super::asids::{Asids, tag_of};
use super::batch::{TlbFlushBatched, unmap_batches};
use super::mm_count::MmCount;
use super::rules::LinuxRule;
use super::{Calls, CpuMask, FlushInfo, UnmapBatch};
use crate::design::{Design, Purpose};

mod batch;

impl Design {
    /// Linux on arm64.
    pub const ARM64: Self =
        Self::new("arm64", Purpose::OtherHardware, |sim| Arm64::stock(sim).into());
    /// Linux on arm64 with seed 003.
    pub const ARM64_SKIP: Self =
        Self::new("arm64-skip", Purpose::OtherHardware, |sim| Arm64::skip(sim).into());
}

/// The design.
#[derive(Debug)]
pub struct Arm64 {
    sim: Rc<Sim>,
    variant: Variant,
    asids: Asids,
    mms: ActiveMms<Mm>,
    /// For each CPU, whether it has loaded the reserved root (`!cpu_not_lazy_tlb`).
    reserved_root: Vec<Cell<bool>>,
    /// For each CPU, whether all that it has broadcast is complete.
    is_waited_for: Vec<Cell<bool>>,
    last_ctx_id: Cell<u64>,
    /// Where the hardware does not broadcast.
    calls: Option<Calls>,
    broken: Option<LinuxRule>,
}

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Every flush is broadcast: `arm64`.
    Stock,
    /// With seed 003: `arm64-skip`.
    Skip,
}

/// A space (`mm_struct`).
#[derive(Debug)]
pub struct Mm {
    ctx_id: u64,
    root: u64,
    context: MmContext,
    mm_count: MmCount,
    tlb_flush_batched: Rc<TlbFlushBatched>,
    /// The CPUs on which the tag is stale (`mm_cpumask`).
    stale: Rc<CpuMask>,
}

/// `mm_context_t`, within one line.
#[derive(Debug)]
#[repr(align(64))]
struct MmContext {
    id: SimWord,
    /// How many CPUs are active on the space.
    nr_active_mm: SimWord,
}

/// Who must be told of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Nobody,
    Local,
    Everyone,
}

/// More pages than this are not named one by one (`MAX_DVM_OPS`: as many as a page table has
/// entries).
const MAX_DVM_OPS: u64 = 512;
/// Nor more than this where there are range operations (`MAX_TLBI_RANGE_PAGES`).
const MAX_TLBI_RANGE_PAGES: u64 = 32 << 16;

impl CountedMm for Mm {
    fn mm_count(&self) -> &MmCount {
        &self.mm_count
    }
    fn root(&self) -> Root {
        Root(self.root << 12)
    }
}

impl Arm64 {
    /// Linux as it is, on this machine.
    #[must_use]
    pub fn stock(sim: Rc<Sim>) -> Self {
        Self::with_broken_rule(sim, Variant::Stock, None)
    }

    /// With seed 003.
    #[must_use]
    pub fn skip(sim: Rc<Sim>) -> Self {
        Self::with_broken_rule(sim, Variant::Skip, None)
    }

    /// One that breaks a rule, for tests that expect the oracle to notice.
    #[must_use]
    pub fn with_broken_rule(sim: Rc<Sim>, variant: Variant, broken: Option<LinuxRule>) -> Self {
        let machine = sim.machine();
        let (cpus, tags) = (machine.cpu_count(), machine.tlb.tags);
        let has_broadcast = machine.broadcast.is_some();
        let has_tags = has_broadcast && machine.tagging == Tagging::Global && tags > cpus;
        Self {
            variant,
            asids: Asids::new(&sim, if has_tags { tags } else { 0 }, broken),
            mms: ActiveMms::new(cpus),
            reserved_root: (0..cpus).map(|_| Cell::new(false)).collect(),
            is_waited_for: (0..cpus).map(|_| Cell::new(true)).collect(),
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
                // Every CPU empties its TLB before it uses a tag of this generation.
                next.stale.clear();
            }
            // Counted in before the mark is looked for; pairs with `reach`.
            sim.fence();
            if next.stale.contains(cpu) {
                next.stale.remove(cpu);
                if self.broken != Some(LinuxRule::HeedStale) {
                    entries = TagEntries::Discarded;
                }
            }
        }
        sim.load_root(next.root, asid.tag, entries);
    }

    /// `tlb_flush_check`.
    fn reach(&self, mm: &Rc<Mm>) -> Reach {
        let cpu = self.sim.cpu();
        let nr_active_mm = &mm.context.nr_active_mm;
        if !self.skips() || nr_active_mm.load(Relaxed) > 1 {
            return Reach::Everyone;
        }
        let is_local = !self.reserved_root[cpu].get() && self.mms.has_loaded(cpu, mm);
        if self.broken != Some(LinuxRule::MarkStale) {
            mm.stale.fill_but(is_local.then_some(cpu));
        }
        // Marked before the count is looked at again; pairs with `load`.
        self.sim.fence();
        let active = match self.broken {
            Some(LinuxRule::RecheckBell) => u64::from(is_local),
            _ => nr_active_mm.load(Relaxed),
        };
        match (active, is_local) {
            (0 | 1, true) => Reach::Local,
            (0, false) => Reach::Nobody,
            _ => Reach::Everyone,
        }
    }

    fn flush_mm(&self, mm: &Rc<Mm>, range: Option<core::ops::Range<u64>>, freed: Freed) {
        // The new entries are visible before anything is invalidated (`dsb ishst`).
        self.sim.fence();
        let machine = self.sim.machine();
        let has_ranges = machine.broadcast.as_ref().is_some_and(|b| b.pages_per_operation > 1);
        let most = if has_ranges { MAX_TLBI_RANGE_PAGES } else { MAX_DVM_OPS };
        let few = |range: &core::ops::Range<u64>| range.end.wrapping_sub(range.start) >> 12 < most;
        let info = FlushInfo {
            mm: mm.ctx_id,
            cpumask: Rc::clone(&mm.stale),
            range: range.filter(few),
            stride: 1 << 12,
            new_tlb_gen: 0,
            freed_tables: freed == Freed::Tables,
        };
        match (self.reach(mm), &self.calls) {
            (Reach::Nobody, _) => {}
            (Reach::Local, _) => info.invalidate(&self.sim),
            (Reach::Everyone, None) => self.broadcast(mm, &info),
            (Reach::Everyone, Some(calls)) => {
                let cpus = machine.cpu_count();
                let others: Vec<usize> = (0..cpus).filter(|&cpu| cpu != self.sim.cpu()).collect();
                let info = Rc::new(info);
                calls.call(&self.sim, &others, &info, || {
                    self.sim.mask();
                    self.flush_here(&info);
                    self.sim.unmask();
                });
            }
        }
    }

    fn broadcast(&self, mm: &Mm, info: &FlushInfo) {
        let tag = tag_of(&mm.context.id);
        match &info.range {
            Some(range) if info.freed_tables => {
                self.sim.broadcast(tag, BroadcastScope::Tables(core::slice::from_ref(range)));
            }
            Some(range) => {
                self.sim.broadcast(tag, BroadcastScope::Pages(core::slice::from_ref(range)))
            }
            None => self.sim.broadcast(tag, BroadcastScope::Tag),
        }
        self.dsb_ish();
    }

    /// What a CPU does that is interrupted. Nothing is kept of a space that is not loaded.
    fn flush_here(&self, info: &FlushInfo) {
        let cpu = self.sim.cpu();
        let loaded = self.mms.active(cpu);
        if !self.reserved_root[cpu].get() && loaded.is_some_and(|mm| mm.ctx_id == info.mm) {
            info.invalidate(&self.sim);
        }
    }
}

impl Flush for Arm64 {
    type Space = Rc<Mm>;
    type Pending = ();

    fn policy(&self) -> Policy {
        super::POLICY
    }

    fn space(&self, root: Root) -> Rc<Mm> {
        self.last_ctx_id.set(self.last_ctx_id.get() + 1);
        Rc::new(Mm {
            ctx_id: self.last_ctx_id.get(),
            root: root.0 >> 12,
            context: MmContext { id: SimWord::with(0), nr_active_mm: SimWord::with(0) },
            mm_count: MmCount::new(),
            tlb_flush_batched: TlbFlushBatched::new(),
            stale: Rc::new(CpuMask::new(self.reserved_root.len())),
        })
    }

    fn flush(&self, space: &Rc<Mm>, change: &Change) {
        let flush = |change: &Change| self.flush_mm(space, change.range.clone(), change.freed);
        space.tlb_flush_batched.flush_with_pending(change, flush);
    }

    fn wait(&self, (): ()) -> Horizon {
        Horizon::CLEAR
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
        // The TLB is lost without its help.
    }

    fn interrupt(&self) {
        if let Some(calls) = &self.calls {
            calls.serve(&self.sim, |info| self.flush_here(info));
        }
    }
}
