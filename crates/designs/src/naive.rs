//! Interrupt all CPUs and wait: the first design of a young kernel.
//!
//! Every flush interrupts every other CPU, whatever it runs, and only one flush runs at a time.
//! There are no tags and no special treatment of lazy CPUs. A CPU that has the space loaded drops
//! the pages or everything; other CPUs do nothing.

#![expect(unsafe_code, reason = "the interface's `switch` is unsafe")]

use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering::Relaxed;
use std::rc::Rc;

use shootdown::{ExtentSet, Root, Word};
use shootdown_sim::{Cause, Sim, SimWord, SpinLock, TagEntries};
use shootdown_vm::{Change, Flush, Freed, Lifetimes, Policy, Retired, Scheduling, UnmapLock};

use crate::linux::CachePadded;

/// The design `naive`.
#[derive(Debug)]
pub struct Naive {
    sim: Rc<Sim>,
    /// The space that each CPU has loaded.
    loaded: Vec<RefCell<Option<Rc<Space>>>>,
    /// Held during a flush, because `request` has room for only one.
    lock: SpinLock,
    request: RefCell<Option<FlushRequest>>,
    request_line: CachePadded<SimWord>,
    /// Number of CPUs that have not yet handled the request.
    unanswered: CachePadded<SimWord>,
}

/// An address space.
#[derive(Debug)]
pub struct Space {
    root: u64,
    dead: Cell<bool>,
}

#[derive(Clone, Debug)]
struct FlushRequest {
    root: u64,
    extents: ExtentSet,
}

impl Naive {
    /// Creates the design on this machine.
    #[must_use]
    pub fn new(sim: Rc<Sim>) -> Self {
        Self {
            loaded: (0..sim.machine().cpu_count()).map(|_| RefCell::default()).collect(),
            lock: <SpinLock as lock_api::RawMutex>::INIT,
            request: RefCell::new(None),
            request_line: CachePadded(SimWord::with(0)),
            unanswered: CachePadded(SimWord::with(0)),
            sim,
        }
    }

    fn me(&self) -> &RefCell<Option<Rc<Space>>> {
        &self.loaded[self.sim.cpu()]
    }

    fn flush_local(&self, request: &FlushRequest) {
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
    synchronous!();

    fn policy(&self) -> Policy {
        Policy::new(UnmapLock::Exclusive)
    }

    fn space(&self, root: Root) -> Rc<Space> {
        Rc::new(Space { root: root.0 >> 12, dead: Cell::new(false) })
    }

    fn flush(&self, space: &Rc<Space>, change: &Change) {
        let sim = &self.sim;
        let request = FlushRequest { root: space.root, extents: change.extents };
        lock_api::RawMutex::lock(&self.lock);
        self.request.replace(Some(request.clone()));
        self.request_line.0.store(space.root, Relaxed);
        let others = (0..self.loaded.len()).filter(|&cpu| cpu != sim.cpu());
        self.unanswered.0.store(self.loaded.len() as u64 - 1, Relaxed);
        sim.send_flush_interrupt(others);
        sim.flush_sent();
        sim.masked(|| self.flush_local(&request));
        sim.attribute(Cause::FlushWait, || {
            while self.unanswered.0.load(Relaxed) != 0 {
                sim.flush_wait_hint();
            }
        });
        // SAFETY: locked above.
        unsafe { lock_api::RawMutex::unlock(&self.lock) };
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
            self.flush_local(&request);
        }
        self.unanswered.0.fetch_add(u64::MAX, Relaxed);
    }
}
