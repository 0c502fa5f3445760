//! LATR (Kumar and others, ASPLOS 2018), in the configuration in which it is safe: `munmap` tells
//! nobody, every CPU looks for itself, and nothing is reused before all have looked. In all else it
//! is [`Linux412`], which is Linux 4.10, from which LATR was made.
//!
//! Each CPU has a ring of 64 *states*: a space, a range, and the CPUs that are yet to come to it.
//! `munmap` drops the range from its own TLB and fills a state in. At every tick of its timer, and
//! at every context switch, each CPU looks through the rings of all others, drops what it finds
//! itself in, and strikes itself out (*sweeps*). When the last CPU is out, the pages, the page
//! tables and the addresses can be used again; until then the memory manager keeps them
//! ([`Defer::flush_later`]). If the ring is full, CPUs are interrupted as ever.
//!
//! `mprotect`, `mremap`, `fork`, copies on write, and reclaim are as before: who asked for them
//! must not be surprised by a CPU that has not looked yet. So is `madvise`, which the authors put
//! off, too. But where the addresses stay mapped, one thread writes to a new page there, tells
//! another, and that one reads the old page ([`LatrRule::WaitForAdvice`] leaves that out, and a
//! test shows it).
//!
//! # What differs
//!
//! - As published, pages are freed at once, unless `LAZY_MEM_FREE` is set, and then after two
//!   seconds. Here they are freed when all have looked, and nothing rests on how fast clocks run.
//! - Who idles does not tick. A thread of the kernel interrupts, once a second, CPUs that have not
//!   come to a state for two seconds. Here whoever sweeps interrupts those that have not come to it
//!   for two ticks.
//! - A state takes one cache line, however many CPUs there are, and a ring says how many of its
//!   states are filled in, so that empty ones cost one line each to pass over.

#![expect(unsafe_code, reason = "the seam's `switch` is unsafe")]

use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering::Relaxed;
use std::collections::BTreeSet;
use std::rc::Rc;

use shootdown::{BatchIsFull, Horizon, Root, StaleWrites, Word};
use shootdown_sim::{Sim, SimWord, Time};
use shootdown_vm::{
    Batching, Cause, Change, Defer, Flush, Later, Lifetimes, Policy, Retired, Scheduling,
};

use super::{Linux412, Mm};
use crate::design::{Design, Purpose};
use crate::linux::{CachePadded, FlushInfo, UnmapBatch};

/// The states of a CPU: as in the paper. The source has 256.
pub const RING_STATES: usize = 64;

/// How often a CPU that runs something sweeps: `CONFIG_HZ=1000`.
const TICK_NS: u64 = 1_000_000;

/// A CPU that has not come to a state for so long is interrupted (`TLB_SHOOTDOWN_MAX`, in rounds).
const TICKS_MAX: u64 = 2;

/// What LATR rests on, and can be broken for tests that expect it to be noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LatrRule {
    /// What was unmapped is not reused before all CPUs have swept. As published and configured by
    /// default, it is.
    WaitForSweeps,
    /// `madvise` is not put off.
    WaitForAdvice,
    /// Who sweeps drops what it finds.
    DropWhatIsFound,
    /// States are swept by whoever had the space loaded, even if it idles by now.
    ChaseIdle,
}

impl Design {
    /// Linux with seed 004, and `munmap` notifies no CPU: LATR, in its safe configuration.
    pub const LATR: Self = Self::new("latr", Purpose::Research, |sim| Latr::new(sim).into());
}

/// The design: `latr`.
#[derive(Debug)]
pub struct Latr {
    linux: Linux412,
    sim: Rc<Sim>,
    /// One for each CPU.
    rings: Vec<Ring>,
    broken: Option<LatrRule>,
}

#[derive(Debug)]
struct Ring {
    /// How many states are filled in.
    used: CachePadded<SimWord>,
    states: Vec<State>,
    /// Where to look for a free one first.
    next: Cell<usize>,
}

/// A flush that CPUs come to by themselves.
#[derive(Debug)]
struct State {
    /// How many CPUs are yet to come to it; 0 if it is free. The rest shares its cache line.
    left: CachePadded<SimWord>,
    cpus: RefCell<BTreeSet<usize>>,
    info: RefCell<Option<Rc<FlushInfo>>>,
    filled_in_at: Cell<Time>,
    is_chased: Cell<bool>,
    /// How often it was filled in.
    turn: Cell<u64>,
}

/// Which filling in of a state.
#[derive(Clone, Copy, Debug)]
pub struct Published {
    cpu: usize,
    state: usize,
    turn: u64,
}

impl Latr {
    /// On this machine.
    #[must_use]
    pub fn new(sim: Rc<Sim>) -> Self {
        Self::with_broken_rule(sim, None)
    }

    /// One that breaks a rule.
    #[must_use]
    pub fn with_broken_rule(sim: Rc<Sim>, broken: Option<LatrRule>) -> Self {
        let rings = (0..sim.machine().cpu_count()).map(|_| Ring::new()).collect();
        Self { linux: Linux412::batched(Rc::clone(&sim)), sim, rings, broken }
    }

    fn breaks(&self, rule: LatrRule) -> bool {
        self.broken == Some(rule)
    }

    /// Looks for flushes in which this CPU is, and does them.
    fn sweep(&self) {
        // Interrupts are masked, or a ring would be swept in the middle of itself.
        self.sim.mask();
        for ring in &self.rings {
            ring.used.0.prefetch();
        }
        for ring in &self.rings {
            if ring.used.0.load(Relaxed) != 0 {
                ring.states.iter().for_each(|state| self.sweep_state(ring, state));
            }
        }
        self.sim.unmask();
    }

    fn sweep_state(&self, ring: &Ring, state: &State) {
        // The host knows which are free; of the others, the line is read.
        if state.info.borrow().is_none() {
            return;
        }
        let cpu = self.sim.cpu();
        state.left.0.load(Relaxed);
        let info = state.info.borrow().clone();
        let Some(info) = info.filter(|_| state.cpus.borrow().contains(&cpu)) else {
            return self.chase(state);
        };
        if self.linux.has_loaded(info.mm) && !self.breaks(LatrRule::DropWhatIsFound) {
            info.invalidate(&self.sim);
        }
        // Only now: who finds that nobody is left uses the pages for something else.
        state.cpus.borrow_mut().remove(&cpu);
        if state.left.0.fetch_add(1_u64.wrapping_neg(), Relaxed) == 1 {
            state.info.take();
            ring.used.0.fetch_add(1_u64.wrapping_neg(), Relaxed);
        }
    }

    /// Interrupts CPUs that have not come to a state for long, for they may be idle.
    fn chase(&self, state: &State) {
        let waited = self.sim.now().saturating_sub(state.filled_in_at.get());
        let is_late = waited >= Time::from_ns(TICKS_MAX * TICK_NS);
        if is_late && !state.is_chased.replace(true) && !self.breaks(LatrRule::ChaseIdle) {
            let cpus: Vec<_> = state.cpus.borrow().iter().copied().collect();
            self.sim.send_flush_interrupt(cpus);
        }
    }

    /// Fills in a state of this CPU's ring, if one is free.
    fn publish(&self, info: Rc<FlushInfo>, cpus: &[usize]) -> Option<Published> {
        self.sim.mask();
        let cpu = self.sim.cpu();
        let published = self.rings[cpu].publish(info, cpus, self.sim.now());
        self.sim.unmask();
        published.map(|(state, turn)| Published { cpu, state, turn })
    }

    fn state(&self, published: Published) -> &State {
        &self.rings[published.cpu].states[published.state]
    }
}

impl Ring {
    fn new() -> Self {
        let state = |_| State {
            left: CachePadded(SimWord::with(0)),
            cpus: RefCell::default(),
            info: RefCell::default(),
            filled_in_at: Cell::new(Time::ZERO),
            is_chased: Cell::new(false),
            turn: Cell::new(0),
        };
        let states = (0..RING_STATES).map(state).collect();
        Self { used: CachePadded(SimWord::with(0)), states, next: Cell::new(0) }
    }

    fn publish(&self, info: Rc<FlushInfo>, cpus: &[usize], now: Time) -> Option<(usize, u64)> {
        let all = (0..RING_STATES).map(|step| (self.next.get() + step) % RING_STATES);
        let index = { all }.find(|&index| self.states[index].info.borrow().is_none())?;
        self.next.set((index + 1) % RING_STATES);
        let state = &self.states[index];
        state.filled_in_at.set(now);
        state.is_chased.set(false);
        state.turn.set(state.turn.get() + 1);
        state.cpus.borrow_mut().extend(cpus);
        state.left.0.store(cpus.len() as u64, Relaxed);
        // From here on it is found.
        state.info.replace(Some(info));
        self.used.0.fetch_add(1, Relaxed);
        Some((index, state.turn.get()))
    }
}

impl Flush for Latr {
    type Space = Rc<Mm>;
    type Pending = ();

    fn policy(&self) -> Policy {
        Policy { tick_ns: Some(TICK_NS), ..self.linux.policy() }
    }

    fn space(&self, root: Root) -> Rc<Mm> {
        self.linux.space(root)
    }

    fn flush(&self, space: &Rc<Mm>, change: &Change) {
        if self.breaks(LatrRule::WaitForAdvice) && change.cause == Cause::Advise {
            self.flush_later(space, change);
            return;
        }
        self.linux.flush(space, change);
    }

    fn wait(&self, (): ()) -> Horizon {
        Horizon::CLEAR
    }
}

impl Defer for Latr {
    type Deferred = Published;

    fn flush_later(&self, space: &Rc<Mm>, change: &Change) -> Later<(), Published> {
        let info = self.linux.flush_locally(space, change);
        let others = space.cpumask.others(self.sim.cpu());
        if others.is_empty() {
            return Later::Sent(());
        }
        match self.publish(info, &others) {
            Some(published) if !self.breaks(LatrRule::WaitForSweeps) => {
                return Later::Deferred(published);
            }
            Some(_) => {}
            None => self.linux.flush(space, change),
        }
        Later::Sent(())
    }

    fn is_complete(&self, deferred: &Published) -> bool {
        let state = self.state(*deferred);
        state.turn.get() != deferred.turn || state.left.0.load(Relaxed) == 0
    }

    fn complete(&self, deferred: Published) {
        if self.is_complete(&deferred) {
            return;
        }
        // We may be among them.
        self.sweep();
        let state = self.state(deferred);
        if state.turn.get() == deferred.turn {
            let cpus: Vec<_> = state.cpus.borrow().iter().copied().collect();
            self.sim.send_flush_interrupt(cpus);
        }
        while !self.is_complete(&deferred) {
            self.sim.spin_hint();
        }
    }
}

impl Batching for Latr {
    type Batch = UnmapBatch;

    fn add_space(&self, batch: &mut Self::Batch, space: &Rc<Mm>) -> Result<(), BatchIsFull> {
        self.linux.add_space(batch, space)
    }

    fn unmapped(&self, batch: &mut UnmapBatch, space: &Rc<Mm>, at: u64, stale: StaleWrites) {
        self.linux.unmapped(batch, space, at, stale);
    }

    fn flush_batch(&self, batch: Self::Batch) {
        self.linux.flush_batch(batch);
    }

    fn is_batched(&self, space: &Rc<Mm>) -> bool {
        self.linux.is_batched(space)
    }
}

impl Lifetimes for Latr {
    fn retire(&self, space: &Rc<Mm>) -> Retired {
        self.linux.retire(space)
    }
}

impl Scheduling for Latr {
    unsafe fn switch(&self, space: &Rc<Mm>) {
        // SAFETY: as our caller promises.
        unsafe { self.linux.switch(space) }
        self.sweep();
    }

    fn enter_lazy(&self) {
        self.linux.enter_lazy();
        self.sweep();
    }

    fn leave_space(&self) {
        self.linux.leave_space();
        self.sweep();
    }

    fn interrupt(&self) {
        self.linux.interrupt();
        self.sweep();
    }

    fn tick(&self) {
        self.sweep();
    }
}
