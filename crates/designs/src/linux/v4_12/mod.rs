//! Linux 4.12, before the lazy TLB of the `x86-lazy-tlb` study.
//!
//! A CPU that goes lazy stays in the space's mask. The first flush interrupts it, and it then
//! switches to the kernel's own space ("an unnecessary CR3 write and, if the flush was remote, an
//! unnecessary IPI"). There are no tags: each load of a root drops everything. The local flush
//! precedes the remote flushes.
//!
//! # Reclaim
//!
//! Each reclaimed page is flushed immediately, from `try_to_unmap_one` through `ptep_clear_flush`
//! and `flush_tlb_page`. This CPU drops the page if it has the space loaded (a lazy CPU leaves the
//! space), and all other members of `mm_cpumask` are interrupted for each page. That is Linux until
//! 4.2, which is the same as 4.12 in all other modelled aspects: `unmap-4.2`. Since 4.3, Linux
//! defers these flushes: see [`batched`]. The reclaim of `linux-4.12` is that of 4.2.

#![expect(unsafe_code, reason = "the interface's `switch` is unsafe")]

use core::cell::{Cell, RefCell};
use std::rc::Rc;

use shootdown::Root;
use shootdown_sim::{LockWaiting, Sim, TagEntries};
use shootdown_vm::{Change, Flush, Freed, Lifetimes, Policy, ReclaimFlush, Retired, Scheduling};

use super::batch::TlbFlushBatched;
use super::{Calls, CpuMask, FlushInfo, INIT_MM, LinuxRule, NO_MM};
use abis::FlushTargets;

pub mod abis;
pub mod batched;
pub mod latr;

/// The designs `linux-4.12`, `unmap-4.2` and `unmap-batched`.
#[derive(Debug)]
#[must_use]
pub struct Linux412 {
    sim: Rc<Sim>,
    cpus: Vec<TlbState>,
    calls: Calls,
    last_ctx_id: Cell<u64>,
    reclaim_flush: ReclaimFlush,
    targets: FlushTargets,
    broken: Option<LinuxRule>,
}

/// A space (`mm_struct`).
#[derive(Debug)]
pub struct Mm {
    ctx_id: u64,
    root: u64,
    cpumask: Rc<CpuMask>,
    /// A word that Linux has since 4.13, used only by batches.
    tlb_flush_batched: Rc<TlbFlushBatched>,
}

/// A CPU's private state (`cpu_tlbstate`).
#[derive(Debug, Default)]
struct TlbState {
    /// `None` for `init_mm`.
    loaded_mm: RefCell<Option<Rc<Mm>>>,
    /// `TLBSTATE_LAZY`.
    is_lazy: Cell<bool>,
}

impl Linux412 {
    /// Creates the design on this machine.
    pub fn new(sim: Rc<Sim>) -> Self {
        sim.set_lock_waiting(LockWaiting::SpinOnWriters);
        let cpus = sim.machine().cpu_count();
        Self {
            cpus: (0..cpus).map(|_| TlbState::default()).collect(),
            calls: Calls::new(cpus),
            last_ctx_id: Cell::new(INIT_MM),
            reclaim_flush: ReclaimFlush::PerPage,
            targets: FlushTargets::Mask,
            broken: None,
            sim,
        }
    }

    fn me(&self) -> &TlbState {
        &self.cpus[self.sim.cpu()]
    }

    fn has_loaded(&self, ctx_id: u64) -> bool {
        self.me().loaded_mm.borrow().as_ref().is_some_and(|mm| mm.ctx_id == ctx_id)
    }

    fn switch_mm(&self, next: Option<&Rc<Mm>>) {
        let (me, cpu) = (self.me(), self.sim.cpu());
        let previous = me.loaded_mm.borrow().clone();
        let same = previous.as_ref().map(|mm| mm.ctx_id) == next.map(|mm| mm.ctx_id);
        me.is_lazy.set(false);
        if same {
            // The CPU is still in the mask: only a flush removes a lazy CPU, and loads `init_mm`.
            return;
        }
        me.loaded_mm.replace(next.cloned());
        match next {
            Some(mm) => {
                mm.cpumask.insert(cpu);
                self.sim.load_root(mm.root, 0, TagEntries::Discarded);
            }
            None => self.sim.load_kernel_root(),
        }
        if let Some(mm) = previous {
            mm.cpumask.remove(cpu);
        }
    }

    /// Flushes this CPU, and returns the flush for the other CPUs.
    fn flush_locally(&self, space: &Mm, change: &Change) -> Rc<FlushInfo> {
        let info = Rc::new(FlushInfo::new(space.ctx_id, &space.cpumask, 0, change));
        self.sim.masked(|| self.flush_func(&info));
        info
    }

    fn flush_tlb_mm_range(&self, space: &Mm, change: &Change) {
        let holders = self.holders(space, change);
        let may_hold = |cpu: &usize| holders.as_ref().is_none_or(|holders| holders.contains(cpu));
        let info = Rc::new(FlushInfo::new(space.ctx_id, &space.cpumask, 0, change));
        if may_hold(&self.sim.cpu()) {
            self.sim.masked(|| self.flush_func(&info));
        }
        let mut targets = space.cpumask.others(self.sim.cpu());
        targets.retain(may_hold);
        if !targets.is_empty() {
            self.calls.call(&self.sim, &targets, &info, || {});
        }
        self.mark_flushed(space, change);
    }

    /// `flush_tlb_func_common`: handles a flush on a CPU that was interrupted, or on this CPU.
    fn flush_func(&self, info: &FlushInfo) {
        let me = self.me();
        if !self.has_loaded(info.mm) {
            return;
        }
        if me.is_lazy.get() {
            self.switch_mm(None); // leave_mm
            return;
        }
        info.invalidate(&self.sim);
    }
}

impl Flush for Linux412 {
    type Space = Rc<Mm>;
    synchronous!();

    fn policy(&self) -> Policy {
        self.policy_with_abis(Policy { reclaim_flush: self.reclaim_flush, ..super::UNBATCHED })
    }

    fn space(&self, root: Root) -> Rc<Mm> {
        self.last_ctx_id.set(self.last_ctx_id.get() + 1);
        let cpumask = Rc::new(CpuMask::new(self.cpus.len()));
        Rc::new(Mm {
            ctx_id: self.last_ctx_id.get(),
            root: root.0 >> 12,
            cpumask,
            tlb_flush_batched: TlbFlushBatched::new(),
        })
    }

    fn flush(&self, space: &Rc<Mm>, change: &Change) {
        let flush = |change: &Change| self.flush_tlb_mm_range(space, change);
        space.tlb_flush_batched.flush_with_pending(change, flush);
    }
}

unused!(Linux412: Defer);

impl Lifetimes for Linux412 {
    fn retire(&self, space: &Rc<Mm>) -> Retired {
        // An exiting thread has become lazy on its own space, and the flush makes all lazy CPUs
        // leave it. A thread that executes another program has left the space already.
        self.sim.masked(|| {
            if self.has_loaded(space.ctx_id) {
                self.me().is_lazy.set(true);
            }
        });
        self.flush(space, &Change::whole(Freed::Tables));
        Retired::Free
    }
}

impl Scheduling for Linux412 {
    unsafe fn switch(&self, space: &Rc<Mm>) {
        self.switch_mm(Some(space));
    }

    fn enter_lazy(&self) {
        let me = self.me();
        if me.loaded_mm.borrow().is_some() {
            me.is_lazy.set(true);
        }
    }

    fn leave_space(&self) {
        self.switch_mm(None);
    }

    fn interrupt(&self) {
        self.calls.handle_calls(&self.sim, |info| match info.mm {
            NO_MM => self.percpu_flush_tlb_batch_pages(),
            _ => self.flush_func(info),
        });
    }
}
