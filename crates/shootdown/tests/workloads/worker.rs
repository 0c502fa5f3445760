//! A thread that runs a stress workload as one CPU.

use std::ops::AddAssign;
use std::sync::atomic::Ordering::{Acquire, Release};

use shootdown::soft::{OnCpu, Platform, Soft, Touch};
use shootdown::{CpuId, Pending, Shootdown, Word};

/// Results of a stress workload on one CPU, or their sum over several CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StressReport {
    /// Number of uses of mapped pages.
    pub(crate) touches: u64,
    /// Number of uses of pages that had been freed.
    pub(crate) stale: u64,
    /// Number of flushes that [`Churn`](super::Churn) waited for.
    pub(crate) flushes: u64,
    /// Number of spaces that [`Lifecycles`](super::Lifecycles) created.
    pub(crate) created: u64,
    /// Number of spaces that [`Lifecycles`](super::Lifecycles) freed.
    pub(crate) freed: u64,
    /// Number of times that [`Lifecycles`](super::Lifecycles) deferred the freeing of tables.
    pub(crate) deferred: u64,
    /// Number of times that a later flush cleared such tables without an interrupt.
    pub(crate) cleared: u64,
}

impl StressReport {
    pub(super) fn count(&mut self, touch: Touch) {
        match touch {
            Touch::Ok => self.touches += 1,
            Touch::Stale => self.stale += 1,
            Touch::Fault => {}
        }
    }
}

impl AddAssign for StressReport {
    fn add_assign(&mut self, other: Self) {
        self.touches += other.touches;
        self.stale += other.stale;
        self.flushes += other.flushes;
        self.created += other.created;
        self.freed += other.freed;
        self.deferred += other.deferred;
        self.cleared += other.cleared;
    }
}

/// A CPU that is online, with its random numbers and its report.
pub(super) struct Worker<'e, P: Platform, const WORDS: usize> {
    engine: &'e Shootdown<Soft<P, WORDS>>,
    pub(super) cpu: OnCpu<'e, P, WORDS>,
    pub(super) random: Random,
    pub(super) report: StressReport,
}

impl<'e, P: Platform, const WORDS: usize> Worker<'e, P, WORDS> {
    /// Makes this thread CPU `cpu`, and brings it online.
    pub(super) fn new(engine: &'e Shootdown<Soft<P, WORDS>>, cpu: CpuId, seed: u64) -> Self {
        let random = Random::new(seed, cpu);
        let cpu = engine.enter(cpu);
        cpu.pin().online();
        Self { engine, cpu, random, report: StressReport::default() }
    }

    pub(super) const fn engine(&self) -> &'e Shootdown<Soft<P, WORDS>> {
        self.engine
    }

    pub(super) fn machine(&self) -> &'e Soft<P, WORDS> {
        self.engine.machine()
    }

    pub(super) fn lock(&self, lock: &P::Word) {
        spin_until(&self.cpu, || lock.swap(1, Acquire) == 0);
    }

    /// Waits for a flush, at random with the interrupt masked or while taking it.
    pub(super) fn wait(&mut self, mut pending: Pending<'_, Soft<P, WORDS>>) {
        if self.random.below(2) == 0 {
            return pending.wait();
        }
        spin_until(&self.cpu, || pending.poll());
    }
}

/// Takes interrupts until `is_done` returns `true`.
pub(super) fn spin_until<P: Platform, const WORDS: usize>(
    cpu: &OnCpu<'_, P, WORDS>,
    mut is_done: impl FnMut() -> bool,
) {
    while !is_done() {
        cpu.interrupt_point();
        P::spin_hint();
    }
}

pub(super) fn unlock<W: Word>(lock: &W) {
    lock.store(0, Release);
}

/// A xorshift64* generator: the same seed gives the same numbers on every host.
pub(super) struct Random(u64);

impl Random {
    /// A generator that differs for each CPU and seed.
    pub(super) fn new(seed: u64, cpu: CpuId) -> Self {
        Self(seed ^ (u64::from(cpu.0) << 32) ^ 0x9e37_79b9_7f4a_7c15)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) * bound) >> 32
    }

    pub(super) fn index(&mut self, bound: usize) -> usize {
        self.below(bound as u64) as usize
    }
}
