//! Linux 7.0 on x86, without INVLPGB except in [`invlpgb`]: `switch_mm_irqs_off`,
//! `flush_tlb_mm_range`, `flush_tlb_func`, and the choice of CPUs to interrupt, case by case. The
//! names are Linux's, so that you can read both side by side.
//!
//! Each CPU has six tags, used in turn. A lazy CPU stays in the mask, and is skipped unless page
//! tables are freed. A CPU that runs another space also stays in the mask, and is trimmed once a
//! second. A CPU that has missed more than one flush drops everything. Local and remote flushes
//! overlap. Reclaim defers flushes, and does not record addresses: see `v7_0/batch.rs`. Until 6.13,
//! a CPU left the mask when it switched: see [`v6_12`].
//!
//! A [`Lifetime`] keeps a space while CPUs are lazy on it. `linux-7.0` counts these CPUs, as Linux
//! does on all architectures but powerpc. `linux-7.0-uncounted` leaves the count out.

#![expect(unsafe_code, reason = "the interface's `switch` is unsafe")]

use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering::Relaxed;
use std::rc::Rc;

use shootdown::{BatchIsFull, Root, StaleWrites, Word};
use shootdown_sim::{Sim, SimWord, TagEntries, Time};
use shootdown_vm::{
    Batching, Change, ExtraFlushes, Flush, Freed, Lifetimes, Policy, Retired, Scheduling,
};

use super::batch::{TlbFlushBatched, unmap_batches};
use super::gathers::{TlbFlushPending, gathers};
use super::lifetime::{ExitFlush, Lifetime, Uncounted};
use super::mm_count::MmCount;
use super::rules::LinuxRule;
use super::{CachePadded, Calls, CpuMask, FlushInfo, INIT_MM, NO_MM, SWITCHING};
use super::{TLB_GENERATION_INVALID, UnmapBatch};
use invlpgb::{GlobalAsids, MmGlobal};
use luf::{Luf, LufBatch};
use pv::StoppedFlush;
use v6_12::MaskClearing;

mod batch;
pub mod invlpgb;
pub mod luf;
pub mod pv;
pub mod v6_12;
pub mod v7_3;

/// The design `linux-7.0`, and those with other lifetimes or with INVLPGB.
#[derive(Debug)]
#[must_use]
pub struct Linux70 {
    sim: Rc<Sim>,
    cpus: Vec<TlbState>,
    calls: Calls,
    last_ctx_id: Cell<u64>,
    exit_flush: ExitFlush,
    mask_clearing: MaskClearing,
    stopped_flush: StoppedFlush,
    lifetime: Box<dyn Lifetime>,
    /// Used if the machine has INVLPGB.
    global: Option<GlobalAsids>,
    luf: Option<Luf>,
    broken: Option<LinuxRule>,
}

/// A space (`mm_struct`).
#[derive(Debug)]
pub struct Mm {
    pub(super) ctx_id: u64,
    root: u64,
    pub(super) mm_count: MmCount,
    tlb_gen: CachePadded<SimWord>,
    tlb_flush_batched: Rc<TlbFlushBatched>,
    tlb_flush_pending: TlbFlushPending,
    pub(super) cpumask: Rc<CpuMask>,
    /// Time of the next flush that also interrupts CPUs that run other spaces, to trim the mask.
    next_trim_cpumask: Cell<Time>,
    global: MmGlobal,
}

/// A CPU's state (`cpu_tlbstate`, and `cpu_tlbstate_shared` in a line of its own).
#[derive(Debug)]
struct TlbState {
    /// `ctx_id` of the loaded space, or [`SWITCHING`]; other CPUs read it.
    loaded_mm: CachePadded<SimWord>,
    is_lazy: CachePadded<SimWord>,
    /// The loaded space; `None` for `init_mm`.
    mm: RefCell<Option<Rc<Mm>>>,
    /// Private copy of `is_lazy`, which this CPU reads without cost.
    lazy: Cell<bool>,
    loaded_mm_asid: Cell<usize>,
    next_asid: Cell<usize>,
    ctxs: [Cell<TlbContext>; TLB_NR_DYN_ASIDS],
}

/// The space whose translations are cached under a tag, and their generation (`tlb_context`).
#[derive(Clone, Copy, Debug, Default)]
struct TlbContext {
    ctx_id: u64,
    tlb_gen: u64,
}

const TLB_NR_DYN_ASIDS: usize = 6;
const TRIM_INTERVAL: Time = Time::from_ms(1000);
/// Replaces the generation in a call that is not a flush, but `do_shoot_lazy_tlb`.
const SHOOT: u64 = u64::MAX;

impl Linux70 {
    /// Creates the design `linux-7.0-uncounted` on this machine.
    pub fn uncounted(sim: Rc<Sim>) -> Self {
        Self::with_lifetime(sim, ExitFlush::Interrupts, Uncounted)
    }

    /// Creates the design on this machine, with a lifetime for spaces on which CPUs are lazy.
    pub fn with_lifetime(
        sim: Rc<Sim>,
        exit_flush: ExitFlush,
        lifetime: impl Lifetime + 'static,
    ) -> Self {
        let cpus = sim.machine().cpu_count();
        let cpu = |_| TlbState {
            loaded_mm: CachePadded(SimWord::with(INIT_MM)),
            is_lazy: CachePadded(SimWord::with(0)),
            mm: RefCell::new(None),
            lazy: Cell::new(false),
            loaded_mm_asid: Cell::new(0),
            // Slot 0 is the kernel's own space, as after boot.
            next_asid: Cell::new(1),
            ctxs: core::array::from_fn(|slot| {
                Cell::new(TlbContext { ctx_id: u64::from(slot == 0), tlb_gen: 0 })
            }),
        };
        Self {
            cpus: (0..cpus).map(cpu).collect(),
            calls: Calls::new(cpus),
            last_ctx_id: Cell::new(INIT_MM),
            exit_flush,
            mask_clearing: MaskClearing::AtFlush,
            stopped_flush: StoppedFlush::ByInterrupt,
            lifetime: Box::new(lifetime),
            global: None,
            luf: None,
            broken: None,
            sim,
        }
    }

    /// Returns this design with a broken rule, for tests that expect the oracle to detect it.
    pub fn breaking(self, broken: Option<LinuxRule>) -> Self {
        Self { broken, ..self }
    }

    pub(super) fn sim(&self) -> &Sim {
        &self.sim
    }

    /// The CPU that this runs on.
    pub(super) fn cpu(&self) -> usize {
        self.sim.cpu()
    }

    fn me(&self) -> &TlbState {
        &self.cpus[self.sim.cpu()]
    }

    fn has_loaded(&self, space: &Mm) -> bool {
        self.me().mm.borrow().as_ref().is_some_and(|mm| mm.ctx_id == space.ctx_id)
    }

    fn has_pcid(&self) -> bool {
        self.sim.machine().tlb.tags > 0
    }

    /// `switch_mm_irqs_off`. `None` is `init_mm`.
    fn switch_mm(&self, next: Option<&Rc<Mm>>) {
        let (me, cpu) = (self.me(), self.sim.cpu());
        let was_lazy = me.lazy.replace(false);
        if was_lazy {
            me.is_lazy.0.store(0, Relaxed);
        }
        let next_id = next.map_or(INIT_MM, |mm| mm.ctx_id);
        let previous_id = me.mm.borrow().as_ref().map_or(INIT_MM, |mm| mm.ctx_id);
        let next_gen = || next.map_or(0, |mm| mm.tlb_gen.0.load(Relaxed));
        let (asid, tlb_gen, flush);
        if next_id == previous_id {
            if let Some(mm) = next
                && let Some(asid) = self.global_asid(mm)
            {
                return self.load_global(mm, asid);
            }
            if !was_lazy {
                return;
            }
            self.sim.fence();
            tlb_gen = next_gen();
            asid = me.loaded_mm_asid.get();
            if me.ctxs[asid].get().tlb_gen == tlb_gen {
                return;
            }
            flush = true;
        } else {
            self.clear_mask_at_switch();
            me.loaded_mm.0.store(SWITCHING, Relaxed);
            match next {
                Some(mm) if !mm.cpumask.contains(cpu) => mm.cpumask.insert(cpu),
                _ => self.sim.fence(),
            }
            tlb_gen = next_gen();
            (asid, flush) = match next.and_then(|mm| self.global_asid(mm)) {
                Some(global) => (global, false),
                None => self.choose_new_asid(next_id, tlb_gen),
            };
        }
        if flush {
            me.ctxs[asid].set(TlbContext { ctx_id: next_id, tlb_gen });
        }
        self.load_cr3(next, asid, flush);
        me.mm.replace(next.cloned());
        me.loaded_mm.0.store(next_id, Relaxed);
        me.loaded_mm_asid.set(asid);
    }

    /// Unloads the space.
    fn unlazy_mm(&self) {
        let was_lazy = self.me().lazy.get();
        self.switch_mm(None);
        if was_lazy {
            self.lifetime.unlazied(self);
        }
    }

    fn load_cr3(&self, next: Option<&Rc<Mm>>, asid: usize, flush: bool) {
        let entries = if flush { TagEntries::Discarded } else { TagEntries::Kept };
        let tag = if self.has_pcid() { asid as u16 + 1 } else { 0 };
        match next {
            Some(mm) => self.sim.load_root(mm.root, tag, entries),
            None => self.sim.load_kernel_root(),
        }
    }

    fn choose_new_asid(&self, ctx_id: u64, tlb_gen: u64) -> (usize, bool) {
        if !self.has_pcid() {
            return (0, true);
        }
        let me = self.me();
        if let Some(asid) = me.ctxs.iter().position(|ctx| ctx.get().ctx_id == ctx_id) {
            return (asid, me.ctxs[asid].get().tlb_gen < tlb_gen);
        }
        let mut asid = me.next_asid.get();
        me.next_asid.set(asid + 1);
        if asid >= TLB_NR_DYN_ASIDS {
            asid = 0;
            me.next_asid.set(1);
        }
        (asid, true)
    }

    /// Returns `true` if a flush must interrupt a CPU of the mask (`should_flush_tlb`).
    fn should_flush(&self, cpu: usize, info: &FlushInfo, trim: bool) -> bool {
        let cpu = &self.cpus[cpu];
        let loaded = cpu.loaded_mm.0.load(Relaxed);
        if cpu.is_lazy.0.load(Relaxed) != 0 {
            return false;
        }
        // All members of the mask have the space loaded (`tlb_is_not_lazy`).
        let is_loaded = self.mask_clearing == MaskClearing::AtSwitch;
        is_loaded || info.mm == NO_MM || loaded == SWITCHING || loaded == info.mm || trim
    }

    /// Prefetches the words that [`should_flush`](Self::should_flush) loads. These loads are
    /// independent, and an x86 CPU overlaps them.
    fn prefetch_states(&self, cpus: &[usize]) {
        for &cpu in cpus {
            self.cpus[cpu].loaded_mm.0.prefetch();
            self.cpus[cpu].is_lazy.0.prefetch();
        }
    }

    /// `flush_tlb_func`: handles a flush on a CPU that was interrupted, or on the flushing CPU.
    fn flush_func(&self, info: &FlushInfo) {
        let me = self.me();
        let loaded = me.mm.borrow().clone();
        let loaded_id = loaded.as_ref().map_or(INIT_MM, |mm| mm.ctx_id);
        if info.mm != NO_MM && info.mm != loaded_id {
            // The CPU runs another space. It is interrupted once a second, to be removed from the
            // mask.
            if self.mask_clearing == MaskClearing::AtFlush {
                info.cpumask.remove(self.sim.cpu());
            }
            return;
        }
        let Some(mm) = loaded else { return };
        if let Some(asid) = self.global_asid(&mm) {
            // Broadcasts invalidate the entries under the global tag.
            return self.load_global(&mm, asid);
        }
        if me.lazy.get() {
            return self.unlazy_mm();
        }
        let slot = &me.ctxs[me.loaded_mm_asid.get()];
        let local = slot.get().tlb_gen;
        let is_known = info.new_tlb_gen != TLB_GENERATION_INVALID;
        if is_known && info.new_tlb_gen <= local {
            return;
        }
        let current = mm.tlb_gen.0.load(Relaxed);
        if local == current {
            return;
        }
        let is_next = info.new_tlb_gen == local + 1 && info.new_tlb_gen == current;
        if is_next {
            info.invalidate(&self.sim);
        } else {
            self.sim.invalidate_tag();
        }
        slot.set(TlbContext { tlb_gen: current, ..slot.get() });
    }

    /// Handles a flush on the CPU that sends it.
    fn flush_local(&self, space: &Mm, info: &FlushInfo) {
        self.sim.masked(|| {
            if self.has_loaded(space) {
                self.flush_func(info);
            }
        });
    }

    fn flush_tlb_mm_range(&self, space: &Rc<Mm>, change: &Change) {
        let sim = &self.sim;
        let new_tlb_gen = space.tlb_gen.0.fetch_add(1, Relaxed) + 1;
        sim.report_counted();
        let info = Rc::new(FlushInfo::new(space.ctx_id, &space.cpumask, new_tlb_gen, change));
        if self.global_asid(space).is_some() {
            return self.broadcast_tlb_flush(space, &info);
        }
        let flush_local = || self.flush_local(space, &info);
        let others = self.without_stopped(space.cpumask.others(sim.cpu()));
        if others.is_empty() {
            return flush_local();
        }
        let trim = self.mask_clearing == MaskClearing::AtFlush
            && sim.now() > space.next_trim_cpumask.get();
        if trim {
            space.next_trim_cpumask.set(sim.now() + TRIM_INTERVAL);
        }
        if !info.freed_tables {
            self.prefetch_states(&others);
        }
        let is_notified = |cpu: &usize| info.freed_tables || self.should_flush(*cpu, &info, trim);
        let targets: Vec<usize> = others.into_iter().filter(is_notified).collect();
        let call = || self.calls.call(sim, &targets, &info, flush_local);
        if v7_3::locks_table(change.cause) {
            sim.without_preemption(call);
        } else {
            call();
        }
        self.consider_global_asid(space);
    }

    /// Makes all CPUs of the mask that are lazy on the space switch to `init_mm`.
    pub(super) fn shoot_lazy_tlbs(&self, mm: &Mm) {
        self.sim.walker_flush_began(Some(mm.root));
        let change = Change::whole(Freed::Tables);
        let info = Rc::new(FlushInfo::new(mm.ctx_id, &mm.cpumask, SHOOT, &change));
        self.calls.call(&self.sim, &mm.cpumask.others(self.cpu()), &info, || {});
        self.sim.masked(|| self.do_shoot_lazy_tlb(mm.ctx_id));
    }

    fn do_shoot_lazy_tlb(&self, ctx_id: u64) {
        let is_loaded = self.me().mm.borrow().as_ref().is_some_and(|mm| mm.ctx_id == ctx_id);
        if is_loaded {
            self.unlazy_mm();
        }
    }
}

impl Flush for Linux70 {
    type Space = Rc<Mm>;
    synchronous!();
    gathers!();

    fn policy(&self) -> Policy {
        let recent = match self.mask_clearing {
            MaskClearing::AtSwitch => ExtraFlushes::empty(),
            MaskClearing::AtFlush => ExtraFlushes::TABLE_PER_DISCARD,
        };
        let policy = super::POLICY;
        let extra_flushes = policy.extra_flushes | recent;
        self.policy_with_luf(Policy { extra_flushes, ..policy })
    }

    fn space(&self, root: Root) -> Rc<Mm> {
        self.last_ctx_id.set(self.last_ctx_id.get() + 1);
        Rc::new(Mm {
            ctx_id: self.last_ctx_id.get(),
            root: root.0 >> 12,
            mm_count: MmCount::new(root),
            tlb_gen: CachePadded(SimWord::with(0)),
            tlb_flush_batched: TlbFlushBatched::new(),
            tlb_flush_pending: TlbFlushPending::default(),
            cpumask: Rc::new(CpuMask::new(self.cpus.len())),
            next_trim_cpumask: Cell::new(self.sim.now() + TRIM_INTERVAL),
            global: MmGlobal::new(),
        })
    }

    fn flush(&self, space: &Rc<Mm>, change: &Change) {
        let flush = |change: &Change| self.flush_tlb_mm_range(space, change);
        space.tlb_flush_batched.flush_with_pending(change, flush);
    }
}

unmap_batches!(Linux70 {
    fn flush_batch(&self, batch: UnmapBatch) {
        self.flush_and_mark(&batch);
        batch.finish();
    }

    fn defer_batch(&self, batch: UnmapBatch) -> Option<LufBatch> {
        self.wait_for_reuse(batch)
    }
});

impl Lifetimes for Linux70 {
    fn retire(&self, space: &Rc<Mm>) -> Retired {
        // An exiting thread is lazy on its own space by now, and a thread that executes another
        // program has left the space. Freed tables make all lazy CPUs, including this one, switch
        // to `init_mm`.
        if self.has_loaded(space) {
            self.enter_lazy();
        }
        if self.exit_flush == ExitFlush::Interrupts {
            self.flush(space, &Change::whole(Freed::Tables));
        }
        let retired = self.lifetime.put(self, space);
        if retired == Retired::Free {
            self.free_global_asid(space.root);
        }
        retired
    }

    fn take_dead(&self) -> Option<Root> {
        let root = self.lifetime.finish_switch(self)?;
        self.free_global_asid(root.0 >> 12);
        Some(root)
    }
}

impl Scheduling for Linux70 {
    unsafe fn switch(&self, space: &Rc<Mm>) {
        self.switch_mm(Some(space));
        self.lifetime.enter_user(self);
    }

    fn enter_lazy(&self) {
        let me = self.me();
        let Some(mm) = me.mm.borrow().clone() else { return };
        if !me.lazy.replace(true) {
            me.is_lazy.0.store(1, Relaxed);
            self.lifetime.enter_lazy(self, &mm);
        }
    }

    fn leave_space(&self) {
        self.unlazy_mm();
    }

    fn interrupt(&self) {
        self.calls.handle_calls(&self.sim, |info| match info.new_tlb_gen {
            SHOOT => self.do_shoot_lazy_tlb(info.mm),
            _ => self.flush_func(info),
        });
    }
}
