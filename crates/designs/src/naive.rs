//! Interrupt everyone, and wait: what a young kernel does first.
//!
//! Every CPU is told of every flush, whatever it runs, one flush at a time; no tags, no lazy mode
//! to speak of. A CPU that runs the space drops the pages, or everything; others do nothing.

#![expect(unsafe_code, reason = "the seam's `switch` is unsafe")]

use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering::Relaxed;
use std::rc::Rc;

use shootdown::{ExtentSet, Horizon, Root, Word};
use shootdown_sim::{Sim, SimWord, SpinLock, TagEntries};
use shootdown_vm::{Change, Flush, Freed, Lifetimes, Policy, Retired, Scheduling, UnmapLock};

use crate::design::{Design, Purpose};
use crate::linux::CachePadded;

impl Design {
    /// Interrupt everyone and wait.
    pub const NAIVE: Self = Self::new("naive", Purpose::General, |sim| Naive::new(sim).into());
}

/// The design.
#[derive(Debug)]
pub struct Naive {
    sim: Rc<Sim>,
    cpus: Vec<Loaded>,
    /// One flush at a time: there is one place for what it asks for.
    lock: SpinLock,
    request: RefCell<Option<Request>>,
    request_line: CachePadded<SimWord>,
    /// How many CPUs have not answered.
    unanswered: CachePadded<SimWord>,
}

/// A space.
#[derive(Debug)]
pub struct Space {
    root: u64,
    dead: Cell<bool>,
}

#[derive(Debug, Default)]
struct Loaded(RefCell<Option<Rc<Space>>>);

#[derive(Clone, Debug)]
struct Request {
    root: u64,
    extents: ExtentSet,
}

impl Naive {
    /// On this machine.
    #[must_use]
    pub fn new(sim: Rc<Sim>) -> Self {
        Self {
            cpus: (0..sim.machine().cpu_count()).map(|_| Loaded::default()).collect(),
            lock: <SpinLock as lock_api::RawMutex>::INIT,
            request: RefCell::new(None),
            request_line: CachePadded(SimWord::with(0)),
            unanswered: CachePadded(SimWord::with(0)),
            sim,
        }
    }

    fn me(&self) -> &RefCell<Option<Rc<Space>>> {
        &self.cpus[self.sim.cpu()].0
    }

    fn flush_here(&self, request: &Request) {
        let Some(space) = self.me().borrow().clone() else { return };
        if space.root != request.root {
            return;
        }
        if space.dead.get() {
            self.leave_space();
        } else if request.extents.is_whole() {
            self.sim.invalidate_tag();
        } else {
            let extents = request.extents.as_slice().iter();
            self.sim.invalidate(extents.flat_map(|extent| extent.addresses()));
        }
    }
}

impl Flush for Naive {
    type Space = Rc<Space>;
    type Pending = ();

    fn policy(&self) -> Policy {
        Policy::new(UnmapLock::Exclusive)
    }

    fn space(&self, root: Root) -> Rc<Space> {
        Rc::new(Space { root: root.0 >> 12, dead: Cell::new(false) })
    }

    fn flush(&self, space: &Rc<Space>, change: &Change) {
        let sim = &self.sim;
        let request = Request { root: space.root, extents: change.extents };
        lock_api::RawMutex::lock(&self.lock);
        self.request.replace(Some(request.clone()));
        self.request_line.0.store(space.root, Relaxed);
        let others = (0..self.cpus.len()).filter(|&cpu| cpu != sim.cpu());
        self.unanswered.0.store(self.cpus.len() as u64 - 1, Relaxed);
        sim.send_flush_interrupt(others);
        sim.flush_sent();
        sim.mask();
        self.flush_here(&request);
        sim.unmask();
        while self.unanswered.0.load(Relaxed) != 0 {
            sim.spin_hint();
        }
        // SAFETY: locked above.
        unsafe { lock_api::RawMutex::unlock(&self.lock) };
    }

    fn wait(&self, (): ()) -> Horizon {
        Horizon::CLEAR
    }
}

unused!(Naive: Defer, Batching);

impl Lifetimes for Naive {
    fn retire(&self, space: &Rc<Space>) -> Retired {
        space.dead.set(true);
        self.flush(space, &Change::whole(Freed::Tables));
        Retired::Free
    }
}

impl Scheduling for Naive {
    unsafe fn switch(&self, space: &Rc<Space>) {
        let is_loaded = self.me().borrow().as_ref().is_some_and(|s| s.root == space.root);
        if !is_loaded {
            self.me().replace(Some(Rc::clone(space)));
            self.sim.load_root(space.root, 0, TagEntries::Discarded);
        }
    }

    fn enter_lazy(&self) {}

    fn leave_space(&self) {
        if self.me().replace(None).is_some() {
            self.sim.load_kernel_root();
        }
    }

    fn interrupt(&self) {
        self.request_line.0.load(Relaxed);
        let request = self.request.borrow().clone();
        if let Some(request) = request {
            self.flush_here(&request);
        }
        self.unanswered.0.fetch_add(u64::MAX, Relaxed);
    }
}
