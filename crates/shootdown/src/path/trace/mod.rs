//! *Trace*: an event for each flush and each wait, with the operation that caused it.
//!
//! A machine that does not [trace](Machine::TRACES) has no code for it: every test of `TRACES` is a
//! test of a constant.

use crate::parts::extent::Extent;
use crate::parts::stats::Counter;
use crate::parts::trace_event::{FlushCause, FlushTrace, TraceScope, WaitTrace};
use crate::path::pending::Pending;
use crate::state::machine::Machine;
use crate::state::pinned_cpu::PinnedCpu;

impl<'e, M: Machine> PinnedCpu<'e, M> {
    /// Names the cause of the next flush on this CPU, for [traces](Machine::TRACES). Does nothing
    /// on a machine that does not trace.
    ///
    /// ```
    /// # use shootdown::{Extent, FlushCause, Machine, PinnedCpu, Space};
    /// # fn unmap<M: Machine>(cpu: &PinnedCpu<'_, M>, space: &Space<M>, extent: Extent) {
    /// cpu.because(FlushCause::Unmap).flush(space, extent).wait();
    /// # }
    /// ```
    #[inline(always)]
    pub fn because(&self, cause: FlushCause) -> &Self {
        if M::TRACES {
            self.local().cause.set(cause);
        }
        self
    }

    /// The time at the beginning of a flush, if the machine traces.
    #[inline(always)]
    pub(crate) fn begin_trace(&self) -> u64 {
        if M::TRACES { self.machine().trace_clock_ns() } else { 0 }
    }

    /// Reports a flush that began at `began_ns`, and was sent. Without a name, its cause is
    /// `default`.
    #[inline(always)]
    pub(crate) fn end_trace(
        &self,
        began_ns: u64,
        default: FlushCause,
        scope: TraceScope,
        pages: Option<u64>,
        pending: &mut Pending<'e, M>,
    ) {
        if M::TRACES {
            let named = self.local().cause.replace(FlushCause::Unnamed);
            let cause = if named == FlushCause::Unnamed { default } else { named };
            pending.set_cause(cause);
            let machine = self.machine();
            machine.trace_flush(&FlushTrace {
                cause,
                scope,
                pages,
                targets: pending.waiting.len() as u64,
                is_broadcast: pending.issuer().is_some(),
                ns: machine.trace_clock_ns().saturating_sub(began_ns),
            });
        }
    }
}

/// Number of pages of several extents; `None` if one of them is a whole space.
#[inline(always)]
pub(crate) fn pages_of<'x, M: Machine>(
    extents: impl IntoIterator<Item = &'x Extent>,
) -> Option<u64> {
    if !M::TRACES {
        return None;
    }
    let count = |extent: &Extent| (!extent.is_unbounded()).then(|| extent.page_count() as u64);
    extents.into_iter().map(count).sum()
}

/// Counters for each cause, which a kernel's [`trace_flush`](Machine::trace_flush) and
/// [`trace_wait`](Machine::trace_wait) fill: one for the machine, or one for each CPU to avoid
/// shared cache lines.
#[derive(Debug)]
pub struct CauseCounters([Counters; FlushCause::ALL.len()]);

#[derive(Debug)]
struct Counters {
    flushes: Counter,
    whole: Counter,
    pages: Counter,
    targets: Counter,
    broadcasts: Counter,
    flush_ns: Counter,
    wait_ns: Counter,
}

/// Statistics of the flushes with one cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CauseStats {
    /// Flushes.
    pub flushes: u64,
    /// Flushes of whole spaces, which are not in `pages`.
    pub whole: u64,
    /// Pages.
    pub pages: u64,
    /// CPUs that were rung.
    pub targets: u64,
    /// Flushes that were broadcast.
    pub broadcasts: u64,
    /// Time of the flushes on their CPUs, without the waits.
    pub flush_ns: u64,
    /// Time of the waits.
    pub wait_ns: u64,
}

impl Counters {
    const fn new() -> Self {
        Self {
            flushes: Counter::new(),
            whole: Counter::new(),
            pages: Counter::new(),
            targets: Counter::new(),
            broadcasts: Counter::new(),
            flush_ns: Counter::new(),
            wait_ns: Counter::new(),
        }
    }
}

impl CauseCounters {
    /// Counters at 0.
    #[must_use]
    pub const fn new() -> Self {
        Self([const { Counters::new() }; FlushCause::ALL.len()])
    }

    /// Counts a flush.
    pub fn record_flush(&self, trace: &FlushTrace) {
        let counters = &self.0[trace.cause as usize];
        counters.flushes.add(1);
        match trace.pages {
            Some(pages) => counters.pages.add(pages),
            None => counters.whole.add(1),
        }
        counters.targets.add(trace.targets);
        counters.broadcasts.add(u64::from(trace.is_broadcast));
        counters.flush_ns.add(trace.ns);
    }

    /// Counts the time of a wait.
    pub fn record_wait(&self, trace: &WaitTrace) {
        self.0[trace.cause as usize].wait_ns.add(trace.ns);
    }

    /// The statistics of one cause.
    #[must_use]
    pub fn stats(&self, cause: FlushCause) -> CauseStats {
        let counters = &self.0[cause as usize];
        CauseStats {
            flushes: counters.flushes.read(),
            whole: counters.whole.read(),
            pages: counters.pages.read(),
            targets: counters.targets.read(),
            broadcasts: counters.broadcasts.read(),
            flush_ns: counters.flush_ns.read(),
            wait_ns: counters.wait_ns.read(),
        }
    }
}

impl Default for CauseCounters {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests;
