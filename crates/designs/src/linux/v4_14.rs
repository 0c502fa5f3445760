//! Seed 000 as it was first merged, on its way to Linux 4.14 (which had tags, too, when released).
//!
//! A CPU that goes lazy takes itself out of the space's mask, so no flush interrupts it; when it
//! comes back it compares generations, and flushes everything if it has missed something. One tag
//! slot: tags came later.
//!
//! The bug that it had is here, too: a lazy CPU is not told of freed page tables either, and its
//! speculation may walk them (mended by b956575bed91). The oracle counts that as hazards.

#![expect(unsafe_code, reason = "the seam's `switch` is unsafe")]

use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering::Relaxed;
use std::rc::Rc;

use shootdown::{Horizon, Root, Word};
use shootdown_sim::{Sim, SimWord, TagEntries};
use shootdown_vm::{Change, Flush, Freed, Lifetimes, Policy, Retired, Scheduling};

use super::{CachePadded, Calls, CpuMask, FlushInfo, INIT_MM};
use crate::design::{Design, Purpose};

impl Design {
    /// Linux with seed 000, as first merged.
    pub const LINUX_4_14: Self =
        Self::new("linux-4.14", Purpose::General, |sim| Linux414::new(sim).into());
}

/// The design.
#[derive(Debug)]
pub struct Linux414 {
    sim: Rc<Sim>,
    cpus: Vec<TlbState>,
    calls: Calls,
    last_ctx_id: Cell<u64>,
}

/// A space (`mm_struct`).
#[derive(Debug)]
pub struct Mm {
    ctx_id: u64,
    root: u64,
    tlb_gen: CachePadded<SimWord>,
    cpumask: Rc<CpuMask>,
    /// It is being torn down for good.
    dead: Cell<bool>,
}

/// A CPU's private state (`cpu_tlbstate`).
#[derive(Debug, Default)]
struct TlbState {
    /// `None` for `init_mm`.
    loaded_mm: RefCell<Option<Rc<Mm>>>,
    /// `ctxs[0].tlb_gen`.
    tlb_gen: Cell<u64>,
}

impl Linux414 {
    /// On this machine.
    #[must_use]
    pub fn new(sim: Rc<Sim>) -> Self {
        let cpus = sim.machine().cpu_count();
        Self {
            cpus: (0..cpus).map(|_| TlbState::default()).collect(),
            calls: Calls::new(cpus),
            last_ctx_id: Cell::new(INIT_MM),
            sim,
        }
    }

    fn me(&self) -> &TlbState {
        &self.cpus[self.sim.cpu()]
    }

    fn loaded(&self) -> Option<Rc<Mm>> {
        self.me().loaded_mm.borrow().clone()
    }

    fn switch_mm(&self, next: Option<&Rc<Mm>>) {
        let (me, cpu) = (self.me(), self.sim.cpu());
        let previous = self.loaded();
        if let (Some(mm), Some(next)) = (&previous, next)
            && mm.ctx_id == next.ctx_id
        {
            if next.cpumask.contains(cpu) {
                return; // from thread to thread
            }
            // Back from lazy. Setting the bit is the barrier before the generation is read.
            next.cpumask.insert(cpu);
            let tlb_gen = next.tlb_gen.0.load(Relaxed);
            if me.tlb_gen.replace(tlb_gen) < tlb_gen {
                self.sim.invalidate_tag();
            }
            return;
        }
        if let Some(mm) = &previous
            && mm.cpumask.contains(cpu)
        {
            mm.cpumask.remove(cpu);
        }
        match next {
            Some(mm) => {
                mm.cpumask.insert(cpu);
                me.tlb_gen.set(mm.tlb_gen.0.load(Relaxed));
                me.loaded_mm.replace(Some(Rc::clone(mm)));
                self.sim.load_root(mm.root, 0, TagEntries::Discarded);
            }
            None => {
                me.loaded_mm.replace(None);
                self.sim.load_kernel_root();
            }
        }
    }

    /// `flush_tlb_func_common`: what a CPU does that is told.
    fn flush_func(&self, info: &FlushInfo) {
        let Some(mm) = self.loaded() else { return };
        if mm.dead.get() {
            self.switch_mm(None);
            return;
        }
        // Lazy, or elsewhere since it was told.
        if mm.ctx_id != info.mm || !mm.cpumask.contains(self.sim.cpu()) {
            return;
        }
        let (local, current) = (self.me().tlb_gen.get(), mm.tlb_gen.0.load(Relaxed));
        if local == current {
            return;
        }
        let is_next = info.new_tlb_gen == local + 1 && info.new_tlb_gen == current;
        if is_next {
            info.invalidate(&self.sim);
        } else {
            self.sim.invalidate_tag();
        }
        self.me().tlb_gen.set(current);
    }
}

impl Flush for Linux414 {
    type Space = Rc<Mm>;
    type Pending = ();

    fn policy(&self) -> Policy {
        super::UNBATCHED
    }

    fn space(&self, root: Root) -> Rc<Mm> {
        self.last_ctx_id.set(self.last_ctx_id.get() + 1);
        Rc::new(Mm {
            ctx_id: self.last_ctx_id.get(),
            root: root.0 >> 12,
            tlb_gen: CachePadded(SimWord::with(0)),
            cpumask: Rc::new(CpuMask::new(self.cpus.len())),
            dead: Cell::new(false),
        })
    }

    fn flush(&self, space: &Rc<Mm>, change: &Change) {
        let new_tlb_gen = space.tlb_gen.0.fetch_add(1, Relaxed) + 1;
        let info = Rc::new(FlushInfo::new(space.ctx_id, &space.cpumask, new_tlb_gen, change));
        if self.loaded().is_some_and(|mm| mm.ctx_id == space.ctx_id) {
            self.sim.mask();
            self.flush_func(&info);
            self.sim.unmask();
        }
        let targets = space.cpumask.others(self.sim.cpu());
        if !targets.is_empty() {
            self.calls.call(&self.sim, &targets, &info, || {});
        }
    }

    fn wait(&self, (): ()) -> Horizon {
        Horizon::CLEAR
    }
}

unused!(Linux414: Defer, Batching);

impl Lifetimes for Linux414 {
    fn retire(&self, space: &Rc<Mm>) -> Retired {
        // Linux counts references, and the last CPU that lets go frees the root. Here all that have
        // it loaded are told instead, once: what else is freed is as unsafe as it was.
        space.dead.set(true);
        let loaded = |cpu: &TlbState| {
            cpu.loaded_mm.borrow().as_ref().is_some_and(|mm| mm.ctx_id == space.ctx_id)
        };
        let me = self.sim.cpu();
        let targets: Vec<_> =
            (0..self.cpus.len()).filter(|&cpu| cpu != me && loaded(&self.cpus[cpu])).collect();
        self.sim.mask();
        if loaded(self.me()) {
            self.switch_mm(None);
        }
        self.sim.unmask();
        let change = Change::whole(Freed::Tables);
        let info = Rc::new(FlushInfo::new(space.ctx_id, &space.cpumask, u64::MAX, &change));
        self.calls.call(&self.sim, &targets, &info, || {});
        Retired::Free
    }
}

impl Scheduling for Linux414 {
    unsafe fn switch(&self, space: &Rc<Mm>) {
        self.switch_mm(Some(space));
    }

    fn enter_lazy(&self) {
        let cpu = self.sim.cpu();
        if let Some(mm) = self.loaded()
            && mm.cpumask.contains(cpu)
        {
            mm.cpumask.remove(cpu);
        }
    }

    fn leave_space(&self) {
        self.switch_mm(None);
    }

    fn interrupt(&self) {
        self.calls.serve(&self.sim, |info| self.flush_func(info));
    }
}
