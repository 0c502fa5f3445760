//! *Flush*: notifies the CPUs that could be using a changed translation. All other CPUs catch up
//! later. [`Pending`] waits for the end of a flush.
//!
//! Every flush has the same four parts:
//!
//! 1. it increments the generation, so that a CPU that comes later catches up;
//! 2. it reads the CPU mask, which names the CPUs to scan;
//! 3. it scans these CPUs for those that must be notified;
//! 4. it interrupts these, or notifies them with a broadcast.
//!
//! A flush that finds no other CPU in the mask ends after the second part. This is the fast path. A
//! flush that is broadcast to every CPU may leave out the first ([`super::broadcast`]).

mod here;
mod kernel;
mod several;
mod walkers;

use core::slice;

use crate::base::rules::Rule;
use crate::parts::cpu_set::CpuSet;
use crate::parts::cpumask::Others;
use crate::parts::extent::Extent;
use crate::parts::extent_set::ExtentSet;
use crate::parts::flush_log::Cause;
use crate::parts::trace_event::{FlushCause, TraceScope};
use crate::path::notify::{Flush, NotifiedBy, WalkerPolicy};
use crate::path::pending::Pending;
use crate::path::quarantine::Horizon;
use crate::path::trace::pages_of;
use crate::state::machine::{Machine, Tagging};
use crate::state::pinned_cpu::PinnedCpu;
use crate::state::space::Space;

impl<'e, M: Machine> PinnedCpu<'e, M> {
    /// Flushes `extent` of `space`. Call this after you change the page tables, and before the
    /// pages that they mapped are used for anything else.
    ///
    /// Interrupts the CPUs that could be using the space, and invalidates on this CPU if it has the
    /// space loaded. All other CPUs catch up when they return to the space. When the returned
    /// [`Pending`] is done, no CPU can use a translation that the extent covers and that was in the
    /// page tables before the call.
    ///
    /// If devices are [attached](crate::Shootdown::attach_device) to the space, they have the
    /// command to invalidate when this returns, and have done so when the [`Pending`] is done.
    ///
    /// Do not flush for an entry that was not valid before, or that only gained permissions: a CPU
    /// that has cached the old entry takes a page fault, whose handler drops it ([step 4](crate)).
    ///
    /// If the extent [frees tables](Extent::freeing_tables), CPUs that have the space loaded lazily
    /// are interrupted as well. [`flush_gathered`](Self::flush_gathered) does not interrupt them,
    /// and keeps the tables in quarantine instead.
    ///
    /// # Panics
    ///
    /// If the space is another engine's.
    #[inline]
    pub fn flush(&self, space: &Space<M>, extent: Extent) -> Pending<'e, M> {
        let _operation = self.begin();
        let (walkers, began_ns) = (WalkerPolicy::of(extent), self.begin_trace());
        let mut pending = Pending::done(self.engine);
        if !extent.is_empty() {
            let (flush, cleared) = self.flush_extent(space, extent, walkers, &mut pending);
            if walkers == WalkerPolicy::Interrupt {
                pending.horizon = Horizon::of(space.id(), flush, cleared);
            }
            self.trace_space(began_ns, space, slice::from_ref(&extent), &mut pending);
        }
        pending
    }

    /// Flushes `extent` of `space` before an entry of another size replaces its entries. This is
    /// the flush of Arm's *break-before-make*: call it between *break* and *make*, and wait for it.
    ///
    /// As [`flush`](Self::flush), except where the machine does not [tolerate mixed
    /// sizes](Machine::tolerates_mixed_sizes). There, it also notifies CPUs that are lazy on the
    /// space or can still walk its tables, as if the extent [freed tables](Extent::freeing_tables).
    /// Such a CPU uses no translation of the space, but it may walk to the new entry while it has
    /// the old one cached. When notified, it leaves the space, and it drops the tag before it walks
    /// the tables again.
    ///
    /// # Panics
    ///
    /// If the space is another engine's.
    pub fn flush_for_resize(&self, space: &Space<M>, extent: Extent) -> Pending<'e, M> {
        let is_flush = extent.is_empty() || self.machine().tolerates_mixed_sizes();
        self.flush(space, if is_flush { extent } else { extent.freeing_tables() })
    }

    /// Flushes all extents that an operation has unmapped, in one flush. Flushes nothing if there
    /// is no extent.
    ///
    /// As [`flush`](Self::flush), except where the operation freed page tables: CPUs that have the
    /// space loaded lazily are not interrupted. They may still walk those tables when the
    /// [`Pending`] is done. Its [`Horizon`] states up to which flush tables are free of walkers.
    /// Put newer tables into [`Quarantine`](crate::Quarantine). If no table was freed, the horizon
    /// may be [unknown](Horizon::UNKNOWN).
    ///
    /// # Panics
    ///
    /// If the space is another engine's.
    #[inline]
    pub fn flush_gathered(&self, space: &Space<M>, extents: &ExtentSet) -> Pending<'e, M> {
        let _operation = self.begin();
        let began_ns = self.begin_trace();
        let mut pending = Pending::done(self.engine);
        match *extents.as_slice() {
            [] => {}
            [extent] => {
                let (flush, cleared) =
                    self.flush_extent(space, extent, WalkerPolicy::Defer, &mut pending);
                pending.horizon = Horizon::of(space.id(), flush, cleared);
            }
            _ => self.flush_several(space, extents, &mut pending),
        }
        if !extents.is_empty() {
            self.trace_space(began_ns, space, extents.as_slice(), &mut pending);
        }
        pending
    }

    /// Flushes one extent that is not empty. `pending` must have nothing to wait for yet. Returns
    /// the flush's generation, and the generation up to which no CPU can walk unhooked tables any
    /// more: both 0 if the flush was not counted.
    #[inline]
    fn flush_extent(
        &self,
        space: &Space<M>,
        extent: Extent,
        walkers: WalkerPolicy,
        pending: &mut Pending<'e, M>,
    ) -> (u64, u64) {
        if self.expects_broadcast(space) {
            self.flush_extent_by_broadcast(space, extent, walkers, pending)
        } else {
            self.flush_extent_counted(space, extent, walkers, pending)
        }
    }

    /// [`flush_extent`](Self::flush_extent) where a broadcast is likely. It also does the rest if
    /// there is none after all, so that callers need not keep anything across it: 4 instructions
    /// of each flush, on machines that may broadcast and do not.
    #[inline(never)]
    pub(crate) fn flush_extent_by_broadcast(
        &self,
        space: &Space<M>,
        extent: Extent,
        walkers: WalkerPolicy,
        pending: &mut Pending<'e, M>,
    ) -> (u64, u64) {
        if self.broadcast_uncounted(space, &[extent], pending) {
            (0, 0)
        } else {
            self.flush_extent_counted(space, extent, walkers, pending)
        }
    }

    #[inline]
    fn flush_extent_counted(
        &self,
        space: &Space<M>,
        extent: Extent,
        walkers: WalkerPolicy,
        pending: &mut Pending<'e, M>,
    ) -> (u64, u64) {
        let (generation, others) = self.begin_flush_of_one(space, extent);
        let cleared = match others {
            Others::None => self.flush_alone(space, extent, generation),
            _ => self.flush_others(space, extent, generation, others, walkers, pending),
        };
        (generation, cleared)
    }

    /// Counts a flush of one extent, which is not empty. Returns its generation, and the others
    /// that it concerns.
    #[inline]
    pub(crate) fn begin_flush_of_one(&self, space: &Space<M>, extent: Extent) -> (u64, Others) {
        let generation = self.begin_flush(space, extent.is_unbounded(), 1);
        match space.cpumask.others(self.machine(), self.id) {
            // Devices that a broadcast reaches.
            Others::None if self.is_pinned(space) => (generation, Others::PerhapsCpus),
            others => (generation, others),
        }
    }

    /// The rest of the flush of one extent, if others may be concerned. Returns the generation up
    /// to which no CPU can walk unhooked tables any more.
    #[inline]
    pub(crate) fn flush_others(
        &self,
        space: &Space<M>,
        extent: Extent,
        generation: u64,
        others: Others,
        walkers: WalkerPolicy,
        pending: &mut Pending<'e, M>,
    ) -> u64 {
        if others == Others::PerhapsDevices {
            self.flush_with_devices(space, extent, generation, walkers, pending)
        } else {
            self.flush_among_others(space, extent, generation, walkers, pending)
        }
    }

    /// Completes the flush of one extent that no other CPU must be notified of. Returns the
    /// generation up to which no CPU can walk unhooked tables any more.
    #[inline(always)]
    pub(crate) fn flush_alone(&self, space: &Space<M>, extent: Extent, generation: u64) -> u64 {
        // Not logged, because no other CPU has used the space lately and could catch up with it. A
        // CPU that comes nevertheless finds no log entry, and discards its tag.
        self.counters().flushes_local.add_unshared(1);
        self.flush_here(space, extent, generation);
        if self.machine().tagging() == Tagging::Global {
            self.note_flushed_alone(space, generation - 1, generation);
        }
        generation
    }

    /// As [`flush_alone`](Self::flush_alone), where a CPU mask was read in vain.
    #[cold]
    #[inline(never)]
    fn flush_alone_after_scan(&self, space: &Space<M>, extent: Extent, generation: u64) -> u64 {
        self.flush_alone(space, extent, generation)
    }

    /// The rest of the flush of one extent, if other CPUs may be present. Returns the generation up
    /// to which no CPU can walk unhooked tables any more.
    #[inline(never)]
    fn flush_among_others(
        &self,
        space: &Space<M>,
        extent: Extent,
        generation: u64,
        walkers: WalkerPolicy,
        pending: &mut Pending<'e, M>,
    ) -> u64 {
        space.cpumask.read_into(self.machine(), &mut pending.waiting);
        pending.waiting.remove(self.id);
        // A mask of one word was read by the caller, and has other CPUs or is being trimmed. A
        // wider mask may only name words that have no CPU any more.
        if !CpuSet::<M::CpuBits>::ONE_WORD && self.is_alone(space, &pending.waiting) {
            return self.flush_alone_after_scan(space, extent, generation);
        }
        let flush = Flush { extents: &[extent], generation, walkers, cause: Cause::Explicit };
        let others = self.notify_others(space, &flush, pending);
        match others.notified {
            NotifiedBy::Interrupts => self.flush_here(space, extent, generation),
            NotifiedBy::BroadcastToAll => {}
            NotifiedBy::BroadcastToPresent => {
                self.flush_all_here(space, flush.extents, generation, others.notified);
            }
        }
        others.cleared
    }

    /// The rest of the flush of one extent, if devices may use the space. Returns the generation up
    /// to which no CPU can walk unhooked tables any more.
    #[cold]
    #[inline(never)]
    fn flush_with_devices(
        &self,
        space: &Space<M>,
        extent: Extent,
        generation: u64,
        walkers: WalkerPolicy,
        pending: &mut Pending<'e, M>,
    ) -> u64 {
        let mut others = CpuSet::new();
        self.read_others(space, &mut others);
        let cleared = if self.is_alone(space, &others) {
            self.flush_alone_after_scan(space, extent, generation)
        } else {
            self.flush_among_others(space, extent, generation, walkers, pending)
        };
        // The CPUs that were interrupted invalidate at the same time.
        pending.add_devices(self.flush_devices(space, &[extent]));
        cleared
    }

    /// Removes from the space's cpumask all CPUs that are not present on the space. Such a CPU
    /// registers again when it next switches to the space. Returns `false` if another CPU is
    /// trimming the mask.
    ///
    /// Flushes trim the mask by themselves, when it has cost them too many wasted probes. Call this
    /// if your kernel detects earlier that the mask is stale: a process has become
    /// single-threaded, or has moved to another node.
    pub fn trim_cpumask(&self, space: &Space<M>) -> bool {
        let machine = self.machine();
        let trimmed = space.cpumask.trim(machine, |cpu| {
            let state = machine.state(cpu);
            let is_present = state.presence_word(machine).is_on(space.id())
                && !machine.breaks(Rule::KeepPresent);
            // A CPU on its way out walks the tables until another root is loaded.
            let can_walk = || state.hazard(machine).is(space) && !machine.breaks(Rule::KeepHazards);
            is_present || can_walk()
        });
        if trimmed {
            space.counters.cpumask_trims.add(1);
            space.wasted_at_trim.set(space.counters.skipped_elsewhere.read());
        }
        trimmed
    }

    /// Traces a flush of one space.
    #[inline(always)]
    fn trace_space(
        &self,
        began_ns: u64,
        space: &Space<M>,
        extents: &[Extent],
        pending: &mut Pending<'e, M>,
    ) {
        let (scope, pages) = (TraceScope::Space(space.id()), pages_of::<M>(extents));
        self.end_trace(began_ns, FlushCause::Unnamed, scope, pages, pending);
    }

    /// Publishes the page tables and counts a flush. Returns the generation of its last extent.
    #[inline]
    pub(crate) fn begin_flush(&self, space: &Space<M>, is_whole: bool, extents: u64) -> u64 {
        assert!(self.engine.owns(space), "the space is another engine's");
        self.publish_tables();
        if is_whole {
            space.counters.flushes_full.add(1);
        }
        space.log.bump(self.machine(), extents)
    }

    /// Publishes this CPU's page-table writes. Call this before a flush is counted, and before
    /// anything is invalidated.
    #[inline]
    pub(crate) fn publish_tables(&self) {
        if !self.machine().breaks(Rule::PublishTables) {
            self.machine().publish();
        }
    }

    /// Returns `true` if the space is [pinned](Self::pin_tag), so that each flush must be broadcast
    /// for devices.
    #[inline]
    pub(crate) fn is_pinned(&self, space: &Space<M>) -> bool {
        self.machine().tagging() == Tagging::Global && space.is_pinned(self.machine())
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests;
