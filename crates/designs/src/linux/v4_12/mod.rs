//! Linux 4.12, before seed 000.
//!
//! A CPU that goes lazy stays in the space's mask. The first flush interrupts it, and it then
//! switches to the kernel's own space ("an unnecessary CR3 write and, if the flush was remote, an
//! unnecessary IPI"). No tags: each load of a root forgets everything. The local flush comes first,
//! then the remote ones.
//!
//! # Reclaim
//!
//! Each page that is taken is flushed at once, from `try_to_unmap_one` by way of `ptep_clear_flush`
//! and `flush_tlb_page`: this CPU drops it if it has the space loaded (a lazy one leaves), and all
//! others of `mm_cpumask` are interrupted, for each page anew. That is Linux until 4.2, which is as
//! 4.12 in all that is modelled here: `unmap-4.2`. From 4.3 on, with seed 004, Linux puts that off:
//! [`batched`]. What reclaim does under *this* design is 4.2's.

#![expect(unsafe_code, reason = "the seam's `switch` is unsafe")]

use core::cell::{Cell, RefCell};
use core::convert::Infallible;
use std::rc::Rc;

use shootdown::{Horizon, Root};
use shootdown_sim::{Sim, TagEntries};
use shootdown_vm::{Change, Coherence, ExtraFlushes, Freed, Retired, UnmapLock};

use super::{Calls, CpuMask, FlushInfo, INIT_MM};

pub mod batched;
pub mod latr;

/// The design.
#[derive(Debug)]
pub struct Linux412 {
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
    cpumask: Rc<CpuMask>,
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

    fn has_loaded(&self, ctx_id: u64) -> bool {
        self.me().loaded_mm.borrow().as_ref().is_some_and(|mm| mm.ctx_id == ctx_id)
    }

    fn switch_mm(&self, next: Option<&Rc<Mm>>) {
        let (me, cpu) = (self.me(), self.sim.cpu());
        let previous = me.loaded_mm.borrow().clone();
        let same = previous.as_ref().map(|mm| mm.ctx_id) == next.map(|mm| mm.ctx_id);
        me.is_lazy.set(false);
        if same {
            // Still in the mask: only a flush takes a lazy CPU out, and that loads `init_mm`.
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

    /// The local flush, and what others are to do.
    fn flush_locally(&self, space: &Mm, change: &Change) -> Rc<FlushInfo> {
        let info = Rc::new(FlushInfo::new(space.ctx_id, &space.cpumask, 0, change));
        self.sim.mask();
        self.flush_func(&info);
        self.sim.unmask();
        info
    }

    /// `flush_tlb_func_common`: what a CPU does that is told.
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

impl Coherence for Linux412 {
    type Space = Rc<Mm>;
    type Pending = ();
    type Batch = ();
    type Parked = Infallible;

    const UNMAP_LOCK: UnmapLock = UnmapLock::Exclusive;
    const EXTRA_FLUSHES: ExtraFlushes = ExtraFlushes::AsLinux;

    fn space(&self, root: Root) -> Rc<Mm> {
        self.last_ctx_id.set(self.last_ctx_id.get() + 1);
        let cpumask = Rc::new(CpuMask::new(self.cpus.len()));
        Rc::new(Mm { ctx_id: self.last_ctx_id.get(), root: root.0 >> 12, cpumask })
    }

    fn flush(&self, space: &Rc<Mm>, change: &Change) {
        let info = self.flush_locally(space, change);
        let targets = space.cpumask.others(self.sim.cpu());
        if !targets.is_empty() {
            self.calls.call(&self.sim, &targets, &info, || {});
        }
    }

    fn wait(&self, (): ()) -> Horizon {
        Horizon::CLEAR
    }

    fn retire(&self, space: &Rc<Mm>) -> Retired {
        // An exiting thread has become lazy on its own space, and the flush has all of them leave.
        // One that executes another program is elsewhere by now.
        self.sim.mask();
        if self.has_loaded(space.ctx_id) {
            self.me().is_lazy.set(true);
        }
        self.sim.unmask();
        self.flush(space, &Change::whole(Freed::Tables));
        Retired::Free
    }

    unsafe fn switch(&self, space: &Rc<Mm>) {
        self.switch_mm(Some(space));
    }

    fn enter_lazy(&self) {
        let me = self.me();
        if me.loaded_mm.borrow().is_some() {
            me.is_lazy.set(true);
        }
    }

    fn leave(&self) {
        self.switch_mm(None);
    }

    fn interrupt(&self) {
        self.calls.serve(&self.sim, |info| self.flush_func(info));
    }
}
