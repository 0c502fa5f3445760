//! Linux on RISC-V: tags that are the same on all CPUs, and firmware that reaches into other CPUs:
//! `set_mm` and `__flush_tlb_range` of Linux 7.0, as read in its public source.
//!
//! Tags are arm64's (`asids`), and used only if there are more than two for each
//! CPU; else every switch flushes. With tags, a CPU that has run a space stays in its mask for
//! ever, and is told of all flushes since, idle or elsewhere. The firmware is asked once for all of
//! them (an SBI remote fence, whose targets the kernel does not interrupt); where only this CPU has
//! ever run the space, it is not asked. A lazy CPU is counted (`mm_count`).
//!
//! What reclaim takes is put off, always: `arch_tlbbatch_add_pending` adds the space's mask to the
//! batch's, and `arch_tlbbatch_flush` has all of that drop everything, under all tags
//! (`FLUSH_TLB_NO_ASID`), idle or elsewhere. The rest is in `linux/batch.rs`.
//!
//! # What the model leaves out
//!
//! - `Svinval`, deferred `fence.i`, and the flush of new kernel mappings: they concern no space.
//! - Where there is no such firmware, Linux interrupts the mask, and so does this; but the machine
//!   has no way to drop what another tag than the loaded one has on this CPU, so tags are not used
//!   then. A space that is not loaded where its last flush is made is dead: that costs the time of
//!   a flush, and drops nothing.

#![expect(unsafe_code, reason = "the seam's `switch` is unsafe")]

use core::cell::Cell;
use core::ops::Range;
use std::rc::Rc;

use shootdown::{BatchIsFull, Horizon, Root, StaleWrites};
use shootdown_sim::machine::Tagging;
use shootdown_sim::{BroadcastScope, Sim, SimWord};
use shootdown_vm::{Batching, Change, Flush, Freed, Lifetimes, Policy, Retired, Scheduling};

use super::active_mm::{ActiveMms, CountedMm, put};
use super::asids::{Asids, tag_of};
use super::batch::{TlbFlushBatched, unmap_batches};
use super::mm_count::MmCount;
use super::rules::LinuxRule;
use super::{CachePadded, Calls, CpuMask, FlushInfo, NO_MM, UnmapBatch};
use crate::design::{Design, Purpose};

impl Design {
    /// Linux on RISC-V.
    pub const RISCV: Self =
        Self::new("riscv", Purpose::OtherHardware, |sim| Riscv::new(sim).into());
}

/// The design.
#[derive(Debug)]
pub struct Riscv {
    sim: Rc<Sim>,
    asids: Asids,
    has_tags: bool,
    mms: ActiveMms<Mm>,
    last_ctx_id: Cell<u64>,
    /// Where firmware does not do it.
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

/// More pages than this are all of the tag (`tlb_flush_all_threshold`).
const FLUSH_ALL_THRESHOLD: u64 = 64;

impl CountedMm for Mm {
    fn mm_count(&self) -> &MmCount {
        &self.mm_count
    }
    fn root(&self) -> Root {
        Root(self.root << 12)
    }
}

impl Riscv {
    /// On this machine.
    #[must_use]
    pub fn new(sim: Rc<Sim>) -> Self {
        Self::with_broken_rule(sim, None)
    }

    /// One that breaks a rule, for tests that expect the oracle to notice.
    #[must_use]
    pub fn with_broken_rule(sim: Rc<Sim>, broken: Option<LinuxRule>) -> Self {
        let machine = sim.machine();
        let (cpus, tags) = (machine.cpu_count(), machine.tlb.tags);
        let has_firmware = machine.remote_fence.is_some();
        let has_tags = has_firmware && machine.tagging == Tagging::Global && tags > 2 * cpus;
        Self {
            asids: Asids::new(&sim, if has_tags { tags } else { 0 }, broken),
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

    /// `__flush_tlb_range`, with `flush_tlb_mm` where tables are freed, as `tlb_flush` has it.
    fn flush_mm(&self, mm: &Rc<Mm>, range: Option<Range<u64>>, freed: Freed) {
        let range = range.filter(|_| freed == Freed::Pages);
        let cpus = mm.cpumask.members();
        let others = cpus.iter().any(|&cpu| cpu != self.sim.cpu());
        match &self.calls {
            None if others => self.fence(mm, cpus, range.as_ref()),
            Some(calls) if others => self.call(calls, &cpus, &Rc::new(info(mm, range))),
            _ if cpus.is_empty() => {}
            _ => self.flush_here(&info(mm, range)),
        }
    }

    /// Has firmware flush. The kernel names all of the range; the firmware has a limit of its own.
    fn fence(&self, mm: &Mm, cpus: Vec<usize>, range: Option<&Range<u64>>) {
        let scope = range.map_or(BroadcastScope::Tag, |range| {
            BroadcastScope::Pages(core::slice::from_ref(range))
        });
        self.sim.remote_fence(cpus, tag_of(&mm.id.0), scope);
    }

    /// Interrupts the mask, this CPU included if it is in it (`on_each_cpu_mask`).
    fn call(&self, calls: &Calls, cpus: &[usize], info: &Rc<FlushInfo>) {
        let me = self.sim.cpu();
        let others: Vec<usize> = cpus.iter().copied().filter(|&cpu| cpu != me).collect();
        calls.call(&self.sim, &others, info, || {
            if cpus.contains(&me) {
                self.sim.mask();
                self.flush_here(info);
                self.sim.unmask();
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
    fn flush_here(&self, info: &FlushInfo) {
        if info.mm == NO_MM {
            self.sim.invalidate_all();
        } else if self.has_loaded(info.mm) {
            info.invalidate(&self.sim);
        } else {
            self.sim.spend(self.sim.machine().tlb.load_root_and_discard);
        }
    }
}

/// What a CPU is to flush: pages one by one, or all of the tag.
fn info(mm: &Mm, range: Option<Range<u64>>) -> FlushInfo {
    let few = |range: &Range<u64>| range.end.wrapping_sub(range.start) >> 12 <= FLUSH_ALL_THRESHOLD;
    FlushInfo {
        mm: mm.ctx_id,
        cpumask: Rc::clone(&mm.cpumask),
        range: range.filter(few),
        stride: 1 << 12,
        new_tlb_gen: 0,
        freed_tables: false,
    }
}

impl Flush for Riscv {
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
            id: CachePadded(SimWord::with(0)),
            mm_count: MmCount::new(),
            tlb_flush_batched: TlbFlushBatched::new(),
            cpumask: Rc::new(CpuMask::new(self.sim.machine().cpu_count())),
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
        // The TLB is lost without its help.
    }

    fn interrupt(&self) {
        if let Some(calls) = &self.calls {
            calls.serve(&self.sim, |info| self.flush_here(info));
        }
    }
}
