//! The lazy TLB of the `x86-lazy-tlb` study as it was first merged, for Linux 4.14 (which also had
//! tags when it was released).
//!
//! A CPU that goes lazy removes itself from the space's mask, so no flush interrupts it. When it
//! runs the space again it compares generations, and flushes everything if it has missed a flush.
//! There is one tag slot, because tags came later.
//!
//! The model has the original's bug: a lazy CPU is not interrupted for freed page tables either,
//! and its speculation may walk them (fixed by b956575bed91). The oracle counts that as hazards.

#![expect(unsafe_code, reason = "the interface's `switch` is unsafe")]

use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering::Relaxed;
use std::rc::Rc;

use shootdown::{Root, Word};
use shootdown_sim::{LockWaiting, Sim, SimWord, TagEntries};
use shootdown_vm::{Change, Flush, Freed, Lifetimes, Policy, Retired, Scheduling};

use super::{CachePadded, Calls, CpuMask, FlushInfo, INIT_MM};

/// The design `linux-4.14`.
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
    /// The space is being destroyed.
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
    /// Creates the design on this machine.
    #[must_use]
    pub fn new(sim: Rc<Sim>) -> Self {
        sim.set_lock_waiting(LockWaiting::SpinOnWriters);
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
            // The CPU was lazy. Setting the bit is the barrier before the load of the generation.
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

    /// `flush_tlb_func_common`: handles a flush on a CPU that was interrupted.
    fn flush_func(&self, info: &FlushInfo) {
        let Some(mm) = self.loaded() else { return };
        if mm.dead.get() {
            self.switch_mm(None);
            return;
        }
        // The CPU is lazy, or has switched since the interrupt was sent.
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
    synchronous!();

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
            self.sim.masked(|| self.flush_func(&info));
        }
        let targets = space.cpumask.others(self.sim.cpu());
        if !targets.is_empty() {
            self.calls.call(&self.sim, &targets, &info, || {});
        }
    }
}

unused!(Linux414: Defer, Batching);

impl Lifetimes for Linux414 {
    fn retire(&self, space: &Rc<Mm>) -> Retired {
        // In Linux the CPU that drops the last reference frees the root. The model interrupts all
        // CPUs that have the space loaded, once. All other frees are as unsafe as in Linux.
        space.dead.set(true);
        let loaded = |cpu: &TlbState| {
            cpu.loaded_mm.borrow().as_ref().is_some_and(|mm| mm.ctx_id == space.ctx_id)
        };
        let me = self.sim.cpu();
        let targets: Vec<_> =
            (0..self.cpus.len()).filter(|&cpu| cpu != me && loaded(&self.cpus[cpu])).collect();
        self.sim.masked(|| {
            if loaded(self.me()) {
                self.switch_mm(None);
            }
        });
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
        self.calls.handle_calls(&self.sim, |info| self.flush_func(info));
    }
}
