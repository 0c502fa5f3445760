//! LATR (Kumar and others, ASPLOS 2018), in its safe configuration: `munmap` interrupts no CPU,
//! every CPU sweeps by itself, and nothing is reused before all CPUs have swept. Everything else is
//! [`Linux412`], which is Linux 4.10, the base of LATR.
//!
//! Each CPU has a ring of 64 *states*: a space, a range, and the CPUs that have not yet invalidated
//! it. `munmap` drops the range from its own TLB and publishes a state. At every timer tick and
//! every context switch, each CPU reads the rings of all CPUs, drops the ranges of the states that
//! list it, and removes itself from them (it *sweeps*). When the last CPU is removed, the pages,
//! the page tables and the addresses can be reused. Until then the memory manager keeps them
//! ([`Defer::flush_later`]). If the ring is full, CPUs are interrupted as in Linux.
//!
//! `mprotect`, `mremap`, `fork`, copies on write, and reclaim are as in Linux, because their
//! callers rely on every CPU's flush. So is `madvise`, which the authors also defer. But its
//! addresses stay mapped: one thread writes to a new page there and notifies another thread, which
//! then reads the old page ([`LatrRule::WaitForAdvice`] removes that wait, and a test shows the
//! violation).
//!
//! # Differences from the publication
//!
//! - As published, pages are freed immediately, or after two seconds if `LAZY_MEM_FREE` is set. The
//!   model frees them when all CPUs have swept, so correctness does not depend on clocks.
//! - Idle CPUs do not tick. As published, a kernel thread interrupts, once a second, CPUs that have
//!   not swept a state for two seconds. In the model, a CPU that sweeps interrupts CPUs that have
//!   not swept for two ticks.
//! - A state occupies one cache line for any number of CPUs. A ring counts its published states, so
//!   that reading an empty ring costs one line.

#![expect(unsafe_code, reason = "the interface's `switch` is unsafe")]

use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering::Relaxed;
use std::collections::BTreeSet;
use std::rc::Rc;

use shootdown::{BatchIsFull, Root, StaleWrites, Word};
use shootdown_sim::{Sim, SimWord, Time};
use shootdown_vm::{
    Batching, Cause, Change, Defer, ExtraFlushes, Flush, Later, Lifetimes, Policy, Retired,
    Scheduling,
};

use super::{Linux412, Mm};
use crate::linux::{CachePadded, FlushInfo, UnmapBatch};

/// Number of states of a CPU, as in the paper. The source has 256.
pub const RING_STATES: usize = 64;

/// Interval at which a busy CPU sweeps: `CONFIG_HZ=1000`.
const TICK_NS: u64 = 1_000_000;

/// Number of ticks after which a CPU that has not swept a state is interrupted
/// (`TLB_SHOOTDOWN_MAX`, in rounds).
const TICKS_MAX: u64 = 2;

/// A rule on which LATR depends. Tests break each of them, and expect the oracle to detect that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LatrRule {
    /// Unmapped memory is not reused before all CPUs have swept. LATR as published and configured
    /// by default breaks this rule.
    WaitForSweeps,
    /// `madvise` is not deferred.
    WaitForAdvice,
    /// A CPU that sweeps drops the ranges that it finds.
    InvalidateOnSweep,
    /// Idle CPUs are interrupted after two ticks, so that they also sweep.
    InterruptIdle,
}

/// The design `latr`.
#[derive(Debug)]
#[must_use]
pub struct Latr {
    linux: Linux412,
    sim: Rc<Sim>,
    /// The ring of each CPU.
    rings: Vec<Ring>,
    broken: Option<LatrRule>,
}

#[derive(Debug)]
struct Ring {
    /// Number of published states.
    used: CachePadded<SimWord>,
    states: Vec<State>,
    /// Index at which the search for a free state starts.
    next: Cell<usize>,
}

/// A flush that CPUs do when they sweep.
#[derive(Debug)]
struct State {
    /// Number of CPUs that have not yet swept it; 0 if it is free. The other fields share its cache
    /// line.
    remaining: CachePadded<SimWord>,
    cpus: RefCell<BTreeSet<usize>>,
    info: RefCell<Option<Rc<FlushInfo>>>,
    published_at: Cell<Time>,
    /// The CPUs that have not swept it were interrupted.
    is_interrupted: Cell<bool>,
    /// Number of times that it was published.
    sequence: Cell<u64>,
}

/// One publication of a state.
#[derive(Clone, Copy, Debug)]
pub struct Published {
    cpu: usize,
    state: usize,
    sequence: u64,
}

impl Latr {
    /// Creates the design on this machine.
    pub fn new(sim: Rc<Sim>) -> Self {
        Self::with_broken_rule(sim, None)
    }

    /// Creates a design that breaks a rule, for tests that expect the oracle to detect it.
    pub fn with_broken_rule(sim: Rc<Sim>, broken: Option<LatrRule>) -> Self {
        let rings = (0..sim.machine().cpu_count()).map(|_| Ring::new()).collect();
        Self { linux: Linux412::batched(Rc::clone(&sim)), sim, rings, broken }
    }

    fn breaks(&self, rule: LatrRule) -> bool {
        self.broken == Some(rule)
    }

    /// Invalidates the ranges of all states that list this CPU.
    fn sweep(&self) {
        // An interrupt in the middle would sweep the same ring again.
        self.sim.masked(|| {
            for ring in &self.rings {
                ring.used.0.prefetch();
            }
            for ring in &self.rings {
                if ring.used.0.load(Relaxed) != 0 {
                    ring.states.iter().for_each(|state| self.sweep_state(ring, state));
                }
            }
        });
    }

    fn sweep_state(&self, ring: &Ring, state: &State) {
        // The host knows which states are free. For other states, the line is read.
        if state.info.borrow().is_none() {
            return;
        }
        let cpu = self.sim.cpu();
        state.remaining.0.load(Relaxed);
        let info = state.info.borrow().clone();
        let Some(info) = info.filter(|_| state.cpus.borrow().contains(&cpu)) else {
            return self.interrupt_late(state);
        };
        if self.linux.has_loaded(info.mm) && !self.breaks(LatrRule::InvalidateOnSweep) {
            info.invalidate(&self.sim);
        }
        // This must follow the invalidation: memory is reused when no CPU remains.
        state.cpus.borrow_mut().remove(&cpu);
        if state.remaining.0.fetch_add(1_u64.wrapping_neg(), Relaxed) == 1 {
            state.info.take();
            ring.used.0.fetch_add(1_u64.wrapping_neg(), Relaxed);
        }
    }

    /// Interrupts the CPUs that have not swept a state for a long time, because they may be idle.
    fn interrupt_late(&self, state: &State) {
        let waited = self.sim.now().saturating_sub(state.published_at.get());
        let is_late = waited >= Time::from_ns(TICKS_MAX * TICK_NS);
        if is_late && !state.is_interrupted.replace(true) && !self.breaks(LatrRule::InterruptIdle) {
            let cpus: Vec<_> = state.cpus.borrow().iter().copied().collect();
            self.sim.send_flush_interrupt(cpus);
        }
    }

    /// Publishes a state in this CPU's ring; `None` if the ring is full.
    fn publish(&self, info: Rc<FlushInfo>, cpus: &[usize]) -> Option<Published> {
        let cpu = self.sim.cpu();
        let published = self.sim.masked(|| self.rings[cpu].publish(info, cpus, self.sim.now()));
        published.map(|(state, sequence)| Published { cpu, state, sequence })
    }

    fn state(&self, published: Published) -> &State {
        &self.rings[published.cpu].states[published.state]
    }
}

impl Ring {
    fn new() -> Self {
        let state = |_| State {
            remaining: CachePadded(SimWord::with(0)),
            cpus: RefCell::default(),
            info: RefCell::default(),
            published_at: Cell::new(Time::ZERO),
            is_interrupted: Cell::new(false),
            sequence: Cell::new(0),
        };
        let states = (0..RING_STATES).map(state).collect();
        Self { used: CachePadded(SimWord::with(0)), states, next: Cell::new(0) }
    }

    fn publish(&self, info: Rc<FlushInfo>, cpus: &[usize], now: Time) -> Option<(usize, u64)> {
        let all = (0..RING_STATES).map(|step| (self.next.get() + step) % RING_STATES);
        let index = { all }.find(|&index| self.states[index].info.borrow().is_none())?;
        self.next.set((index + 1) % RING_STATES);
        let state = &self.states[index];
        state.published_at.set(now);
        state.is_interrupted.set(false);
        state.sequence.set(state.sequence.get() + 1);
        state.cpus.borrow_mut().extend(cpus);
        state.remaining.0.store(cpus.len() as u64, Relaxed);
        // From now on, sweeping CPUs find it.
        state.info.replace(Some(info));
        self.used.0.fetch_add(1, Relaxed);
        Some((index, state.sequence.get()))
    }
}

impl Flush for Latr {
    type Space = Rc<Mm>;
    synchronous!();

    fn policy(&self) -> Policy {
        // `munmap` defers the flush of all pages, also of shared ones that were written.
        let linux = self.linux.policy();
        let extra_flushes = linux.extra_flushes.difference(ExtraFlushes::WRITTEN_SHARED_PAGES);
        Policy { tick_ns: Some(TICK_NS), extra_flushes, ..linux }
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
        state.sequence.get() != deferred.sequence || state.remaining.0.load(Relaxed) == 0
    }

    fn complete(&self, deferred: Published) {
        if self.is_complete(&deferred) {
            return;
        }
        // This CPU may be one of those that remain.
        self.sweep();
        let state = self.state(deferred);
        if state.sequence.get() == deferred.sequence {
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
        // SAFETY: the caller guarantees the same contract.
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
