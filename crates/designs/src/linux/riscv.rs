//! Linux on RISC-V: global tags, and firmware that fences other CPUs. This is `set_mm` and
//! `__flush_tlb_range` of Linux 7.0, as read in its public source.
//!
//! Tags are allocated as on arm64 (`asids`), and used only if there are more than two for each CPU.
//! Otherwise every switch flushes. With tags, a CPU that has run a space stays in its mask forever,
//! and all later flushes reach it, even if it idles or runs other spaces. The kernel calls the
//! firmware once for the whole mask (an SBI remote fence, which does not interrupt the targets'
//! kernels). If only this CPU has ever run the space, it does not call the firmware. A lazy CPU has
//! a reference (`mm_count`).
//!
//! Reclaim always defers: `arch_tlbbatch_add_pending` adds the space's mask to the batch's, and
//! `arch_tlbbatch_flush` makes those CPUs drop everything under all tags (`FLUSH_TLB_NO_ASID`),
//! even if they idle or run other spaces. For the rest, see `linux/batch.rs`.
//!
//! # Differences from Linux
//!
//! - `Svinval`, deferred `fence.i`, and the flush of new kernel mappings are not modelled, because
//!   they concern no space.
//! - Without such firmware, Linux interrupts the mask, and so does the model. But the machine
//!   cannot drop entries under another tag than the loaded one on this CPU, so tags are not used
//!   then. A space that is not loaded on the CPU of its last flush is dead: the flush costs its
//!   time, and drops nothing.

#![expect(unsafe_code, reason = "the interface's `switch` is unsafe")]

use core::cell::Cell;
use core::ops::Range;
use std::rc::Rc;

use shootdown::{BatchIsFull, Root, StaleWrites};
use shootdown_sim::machine::Tagging;
use shootdown_sim::{BroadcastScope, Sim, SimWord};
use shootdown_vm::{Batching, Change, Flush, Freed, Lifetimes, Policy, Retired, Scheduling};

use super::active_mm::{ActiveMms, CountedMm, put};
use super::asids::{AsidAllocator, tag_of};
use super::batch::{TlbFlushBatched, unmap_batches};
use super::mm_count::MmCount;
use super::rules::LinuxRule;
use super::{CachePadded, Calls, CpuMask, FlushInfo, NO_MM, UnmapBatch};

/// The design `riscv`.
#[derive(Debug)]
#[must_use]
pub struct Riscv {
    sim: Rc<Sim>,
    asids: AsidAllocator,
    has_tags: bool,
    mms: ActiveMms<Mm>,
    last_ctx_id: Cell<u64>,
    /// Used if the machine has no firmware for remote fences.
    calls: Option<Calls>,
    broken: Option<LinuxRule>,
}

/// A space (`mm_struct`).
#[derive(Debug)]
pub struct Mm {
    ctx_id: u64,
    root: u64,
    /// `context.id`.
    id: CachePadded<SimWord>,
    mm_count: MmCount,
    tlb_flush_batched: Rc<TlbFlushBatched>,
    cpumask: Rc<CpuMask>,
}

/// Number of pages above which all entries of the tag are dropped (`tlb_flush_all_threshold`).
const FLUSH_ALL_THRESHOLD: u64 = 64;

impl CountedMm for Mm {
    fn mm_count(&self) -> &MmCount {
        &self.mm_count
    }
}

impl Riscv {
    /// Creates the design on this machine.
    pub fn new(sim: Rc<Sim>) -> Self {
        Self::with_broken_rule(sim, None)
    }

    /// Creates a design that breaks a rule, for tests that expect the oracle to detect it.
    pub fn with_broken_rule(sim: Rc<Sim>, broken: Option<LinuxRule>) -> Self {
        let machine = sim.machine();
        let (cpus, tags) = (machine.cpu_count(), machine.tlb.tags);
        let has_firmware = machine.remote_fence.is_some();
        let has_tags = has_firmware && machine.tagging == Tagging::Global && tags > 2 * cpus;
        Self {
            asids: AsidAllocator::new(&sim, if has_tags { tags } else { 0 }, broken),
            has_tags,
            mms: ActiveMms::new(cpus),
            last_ctx_id: Cell::new(0),
            calls: (!has_firmware).then(|| Calls::new(cpus)),
            broken,
            sim,
        }
    }

    fn has_loaded(&self, ctx_id: u64) -> bool {
        self.mms.active(self.sim.cpu()).is_some_and(|mm| mm.ctx_id == ctx_id)
    }

    /// `switch_mm` and `set_mm`.
    fn switch_mm(&self, next: &Rc<Mm>) {
        let cpu = self.sim.cpu();
        if !self.mms.has_loaded(cpu, next) {
            next.cpumask.insert(cpu);
            let previous = self.mms.active(cpu).filter(|_| !self.has_tags);
            if let Some(previous) = previous {
                previous.cpumask.remove(cpu);
            }
            let asid = self.asids.check_and_switch(&self.sim, &next.id.0);
            self.sim.load_root(next.root, asid.tag, asid.entries);
        }
        self.mms.activate(cpu, next);
    }

    /// `__flush_tlb_range`, or `flush_tlb_mm` if tables are freed, as in `tlb_flush`.
    fn flush_mm(&self, mm: &Rc<Mm>, range: Option<Range<u64>>, freed: Freed) {
        let range = range.filter(|_| freed == Freed::Pages);
        let cpus = mm.cpumask.members();
        let others = cpus.iter().any(|&cpu| cpu != self.sim.cpu());
        match &self.calls {
            None if others => self.fence(mm, cpus, range.as_ref()),
            Some(calls) if others => self.call(calls, &cpus, &Rc::new(info(mm, range))),
            _ if cpus.is_empty() => {}
            _ => self.flush_local(&info(mm, range)),
        }
    }

    /// Flushes by firmware. The kernel names the whole range; the firmware has its own limit.
    fn fence(&self, mm: &Mm, cpus: Vec<usize>, range: Option<&Range<u64>>) {
        let scope = range.map_or(BroadcastScope::Tag, |range| {
            BroadcastScope::Pages(core::slice::from_ref(range))
        });
        self.sim.remote_fence(cpus, tag_of(&mm.id.0), scope);
    }

    /// Interrupts the mask, and flushes this CPU if it is a member (`on_each_cpu_mask`).
    fn call(&self, calls: &Calls, cpus: &[usize], info: &Rc<FlushInfo>) {
        let me = self.sim.cpu();
        let others: Vec<usize> = cpus.iter().copied().filter(|&cpu| cpu != me).collect();
        calls.call(&self.sim, &others, info, || {
            if cpus.contains(&me) {
                self.sim.masked(|| self.flush_local(info));
            }
        });
    }

    /// `arch_tlbbatch_add_pending`.
    #[expect(clippy::unused_self, reason = "as on other architectures")]
    fn try_to_unmap(&self, batch: &mut UnmapBatch, mm: &Mm, _address: u64) {
        batch.add_pending(&mm.tlb_flush_batched, mm.cpumask.members());
    }

    /// `arch_tlbbatch_flush`: `__flush_tlb_range` without a tag.
    fn arch_tlbbatch_flush(&self, batch: &UnmapBatch) {
        if !batch.is_flush_required() || self.broken == Some(LinuxRule::FlushBatch) {
            return;
        }
        let cpus = batch.cpus();
        let others = !batch.others(self.sim.cpu()).is_empty();
        match &self.calls {
            None if others => self.sim.remote_fence(cpus, 0, BroadcastScope::Everything),
            Some(calls) if others => self.call(calls, &cpus, &Rc::new(FlushInfo::of_batch())),
            _ if cpus.is_empty() => {}
            _ => self.sim.invalidate_all(),
        }
    }

    /// `local_flush_tlb_range_asid`.
    fn flush_local(&self, info: &FlushInfo) {
        if info.mm == NO_MM {
            self.sim.invalidate_all();
        } else if self.has_loaded(info.mm) {
            info.invalidate(&self.sim);
        } else {
            self.sim.spend(self.sim.machine().tlb.load_root_and_discard);
        }
    }
}

/// The flush of a range, page by page, or of the whole tag.
fn info(mm: &Mm, range: Option<Range<u64>>) -> FlushInfo {
    FlushInfo::small_pages(mm.ctx_id, &mm.cpumask, range, FLUSH_ALL_THRESHOLD)
}

impl Flush for Riscv {
    type Space = Rc<Mm>;
    synchronous!();

    fn policy(&self) -> Policy {
        super::POLICY
    }

    fn space(&self, root: Root) -> Rc<Mm> {
        self.last_ctx_id.set(self.last_ctx_id.get() + 1);
        Rc::new(Mm {
            ctx_id: self.last_ctx_id.get(),
            root: root.0 >> 12,
            id: CachePadded(SimWord::with(0)),
            mm_count: MmCount::new(root),
            tlb_flush_batched: TlbFlushBatched::new(),
            cpumask: Rc::new(CpuMask::new(self.sim.machine().cpu_count())),
        })
    }

    fn flush(&self, space: &Rc<Mm>, change: &Change) {
        let flush = |change: &Change| self.flush_mm(space, change.range.clone(), change.freed);
        space.tlb_flush_batched.flush_with_pending(change, flush);
    }
}

unmap_batches!(Riscv);

unused!(Riscv: Defer);

impl Lifetimes for Riscv {
    fn retire(&self, space: &Rc<Mm>) -> Retired {
        self.flush_mm(space, None, Freed::Tables);
        put(&**space)
    }

    fn take_dead(&self) -> Option<Root> {
        self.mms.take_free(self.sim.cpu())
    }
}

impl Scheduling for Riscv {
    unsafe fn switch(&self, space: &Rc<Mm>) {
        self.switch_mm(space);
    }

    fn enter_lazy(&self) {
        self.mms.borrow(self.sim.cpu());
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
