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
//! A flush that finds no other CPU in the mask ends after the second part. This is the fast path.

use core::slice;

use crate::base::ids::CpuId;
use crate::base::memory::fence;
use crate::base::rules::Rule;
use crate::parts::cpu_set::CpuSet;
use crate::parts::cpumask::Others;
use crate::parts::extent::Extent;
use crate::parts::extent_set::ExtentSet;
use crate::parts::flush_log::Cause;
use crate::parts::trace_event::{FlushCause, TraceScope};
use crate::path::notify::{Flush, RingTo, WalkerPolicy};
use crate::path::pending::Pending;
use crate::path::quarantine::Horizon;
use crate::path::trace::pages_of;
use crate::state::cpu_state::CpuState;
use crate::state::engine::Shootdown;
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
    /// If devices are [attached](crate::Shootdown::attach_device) to the space, they have
    /// invalidated when this returns.
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
    /// Put newer tables into [`Quarantine`](crate::Quarantine).
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
    /// more.
    #[inline]
    fn flush_extent(
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
    #[inline]
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
            return self.flush_alone(space, extent, generation);
        }
        let flush = Flush { extents: &[extent], generation, walkers, cause: Cause::Explicit };
        let cleared = self.notify_others(space, &flush, pending);
        self.flush_here(space, extent, generation);
        cleared
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
            self.flush_alone(space, extent, generation)
        } else {
            self.flush_among_others(space, extent, generation, walkers, pending)
        };
        // The CPUs that were interrupted invalidate at the same time.
        self.flush_devices(space, &[extent]);
        cleared
    }

    /// Flushes several extents. `pending` must have nothing to wait for yet.
    #[inline(never)]
    fn flush_several(&self, space: &Space<M>, extents: &ExtentSet, pending: &mut Pending<'e, M>) {
        let all = extents.as_slice();
        let extents = extents.up_to(self.machine().flush_ceiling());
        let count = extents.len() as u64;
        let generation = self.begin_flush(space, extents[0].is_unbounded(), count);
        let flush =
            Flush { extents, generation, walkers: WalkerPolicy::Defer, cause: Cause::Explicit };
        let has_devices = self.read_others(space, &mut pending.waiting);
        let is_alone = self.is_alone(space, &pending.waiting);
        let mut cleared = generation;
        if is_alone {
            self.counters().flushes_local.add_unshared(1);
        } else {
            cleared = self.notify_others(space, &flush, pending);
        }
        self.flush_all_here(space, extents, generation);
        if is_alone && self.machine().tagging() == Tagging::Global {
            self.note_flushed_alone(space, generation - count, generation);
        }
        if has_devices {
            // All extents, because the ceiling is that of CPUs.
            self.flush_devices(space, all);
        }
        pending.horizon = Horizon::of(space.id(), generation, cleared);
    }

    /// Does all parts of the flush of one of several spaces, except the interrupts. No tables may
    /// be freed. Adds the CPUs that must be interrupted to `present`. Returns the generation, and
    /// the method with which CPUs are notified.
    ///
    /// This function does not invalidate on this CPU: the caller does so later if the CPU uses the
    /// space. Otherwise the CPU catches up when it returns to the space.
    pub(crate) fn flush_one_of_several(
        &self,
        space: &Space<M>,
        extents: &[Extent],
        present: &mut CpuSet<M::CpuBits>,
    ) -> (u64, Notified) {
        let generation = self.begin_flush(space, extents[0].is_unbounded(), extents.len() as u64);
        let mut others = CpuSet::new();
        if self.read_others(space, &mut others) {
            self.flush_devices(space, extents);
        }
        let is_alone = self.is_alone(space, &others);
        let (walkers, cause) = (WalkerPolicy::Ignore, Cause::Reclaim);
        let flush = Flush { extents, generation, walkers, cause };
        if !is_alone || self.presence_word().is_lazy_on(space.id()) {
            self.log_all(space, &flush);
        }
        if is_alone {
            self.counters().flushes_local.add_unshared(1);
            return (generation, Notified::ByInterrupts);
        }
        let scan = self.scan(space, &flush, &mut others);
        let is_broadcast = self.try_broadcast(space, scan.tag, &others, extents, generation);
        if !is_broadcast {
            self.count_if_local(&others);
            present.insert_all(&others);
        }
        self.note_skipped(space, &scan, 0);
        let notified = if is_broadcast { Notified::ByBroadcast } else { Notified::ByInterrupts };
        (generation, notified)
    }

    /// Notifies every CPU that could still walk unhooked page tables of `space`. When the returned
    /// [`Pending`] is done, its [`Horizon`] clears the tables of every flush before this call: they
    /// can be freed.
    ///
    /// For a kernel that has no room left in [`Quarantine`](crate::Quarantine). Interrupts CPUs
    /// that are lazy on the space, and some that use it: a CPU that has not been lazy since the
    /// last flush has not published that it has caught up.
    ///
    /// # Panics
    ///
    /// If the space is another engine's.
    pub fn flush_walkers(&self, space: &Space<M>) -> Pending<'e, M> {
        let _operation = self.begin();
        assert!(self.engine.owns(space), "the space is another engine's");
        let (machine, began_ns) = (self.machine(), self.begin_trace());
        let generation = space.log.generation(machine);
        // Pairs with SwitchFence: this CPU observes the presence of a CPU that switches in and has
        // not read this generation. Without: that CPU walks unhooked tables, and is not rung.
        fence(machine, Rule::FlushWalkersFence);
        let is_broadcast = self.try_broadcast_whole(space, space.global_tag(machine), generation);
        let mut pending = Pending::done(self.engine);
        pending.horizon = Horizon::of(space.id(), generation, generation);
        self.read_others(space, &mut pending.waiting);
        pending.waiting.retain(|cpu| {
            let state = machine.state(cpu);
            let presence = state.presence_word(machine);
            if is_broadcast && presence.is_on(space.id()) {
                return false;
            }
            let is_coming = presence.is_switching_to(space.id());
            // Includes active CPUs: such a CPU may be returning, and not have caught up yet.
            let is_behind = || state.hazard(machine).is(space) && state.seen(machine) < generation;
            (is_coming || is_behind()) && !machine.breaks(Rule::InterruptWalkers)
        });
        self.ring_all(&mut pending, RingTo::Invalidate);
        if is_broadcast {
            self.await_broadcast(&mut pending);
        }
        if self.has_loaded(space) {
            self.catch_up(space);
        }
        let scope = TraceScope::Space(space.id());
        self.end_trace(began_ns, FlushCause::Walkers, scope, Some(0), &mut pending);
        pending
    }

    /// Flushes `extent` of the kernel's own translations, global ones included, on every CPU that
    /// is online, because idle CPUs also run the kernel.
    ///
    /// As [`flush`](Self::flush), for the part of the page tables that all spaces share.
    pub fn flush_kernel(&self, extent: Extent) -> Pending<'e, M> {
        self.flush_kernel_all(if extent.is_empty() { &[] } else { slice::from_ref(&extent) })
    }

    /// Flushes several extents of the kernel's own translations in one flush, which interrupts each
    /// CPU once. Flushes nothing if there is no extent.
    ///
    /// For a kernel that collects the ranges that it unmaps, and flushes when it has many. (Linux:
    /// `vunmap` with lazy purging.)
    pub fn flush_kernel_gathered(&self, extents: &ExtentSet) -> Pending<'e, M> {
        self.flush_kernel_all(extents.up_to(self.machine().flush_ceiling()))
    }

    fn flush_kernel_all(&self, extents: &[Extent]) -> Pending<'e, M> {
        let (_operation, began_ns) = (self.begin(), self.begin_trace());
        let mut pending = Pending::done(self.engine);
        if !extents.is_empty() {
            self.flush_kernel_extents(extents, &mut pending);
            let (cause, pages) = (FlushCause::Kernel, pages_of::<M>(extents));
            self.end_trace(began_ns, cause, TraceScope::Kernel, pages, &mut pending);
        }
        pending
    }

    fn flush_kernel_extents(&self, extents: &[Extent], pending: &mut Pending<'e, M>) {
        let (machine, kernel) = (self.machine(), self.engine.kernel());
        self.publish_tables();
        // A machine broadcasts all extents or none. If one is refused, all CPUs are rung for all.
        if extents.iter().all(|&extent| self.try_broadcast_kernel(extent)) {
            self.await_broadcast(pending);
            return;
        }
        let last = kernel.bump(machine, extents.len() as u64);
        for (generation, &extent) in (last + 1 - extents.len() as u64..).zip(extents) {
            kernel.record(machine, generation, extent, Cause::Explicit);
        }
        if !machine.breaks(Rule::RingOnline) {
            self.engine.online().read_into(machine, &mut pending.waiting);
            pending.waiting.remove(self.id);
        }
        self.ring_online(pending);
        self.catch_up_with_kernel();
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
    fn begin_flush(&self, space: &Space<M>, is_whole: bool, extents: u64) -> u64 {
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
    fn publish_tables(&self) {
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

    /// Invalidates on this CPU, for a flush of one extent.
    #[inline]
    fn flush_here(&self, space: &Space<M>, extent: Extent, generation: u64) {
        if !self.has_loaded(space) || self.machine().breaks(Rule::FlushLocally) {
            return;
        }
        let (machine, slot) = (self.machine(), self.loaded_slot());
        // The common case, without reading the log: this CPU has missed no other flush.
        if self.seen_of_loaded(space) + 1 == generation
            && extent.page_count_within(machine.flush_ceiling())
        {
            machine.invalidate(slot.tag(), extent);
            slot.set_generation(generation);
            self.counters().flushes_ranged.add_unshared(1);
            self.counters().pages_invalidated.add_unshared(extent.weight() as u64);
        } else {
            Self::catch_up_after_flush(self.engine, self.cpu, self.id, space);
        }
    }

    /// Invalidates on this CPU, for a flush of several extents.
    pub(crate) fn flush_all_here(&self, space: &Space<M>, extents: &[Extent], generation: u64) {
        if !self.has_loaded(space) || self.machine().breaks(Rule::FlushLocally) {
            return;
        }
        let (machine, slot) = (self.machine(), self.loaded_slot());
        let weight: usize = extents.iter().map(|extent| extent.weight()).sum();
        if self.seen_of_loaded(space) + extents.len() as u64 == generation
            && !extents[0].is_unbounded()
            && weight <= machine.flush_ceiling()
        {
            for &extent in extents {
                machine.invalidate(slot.tag(), extent);
            }
            slot.set_generation(generation);
            self.counters().flushes_ranged.add_unshared(extents.len() as u64);
            self.counters().pages_invalidated.add_unshared(weight as u64);
        } else {
            Self::catch_up_after_flush(self.engine, self.cpu, self.id, space);
        }
    }

    #[cold]
    #[inline(never)]
    fn catch_up_after_flush(
        engine: &'e Shootdown<M>,
        cpu: &'e CpuState<M>,
        id: CpuId,
        space: &Space<M>,
    ) {
        Self::of(engine, cpu, id).catch_up(space);
    }
}

/// The method with which the CPUs that are present are notified.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notified {
    /// By interrupts, which the caller must send if there is such a CPU.
    ByInterrupts,
    /// By a broadcast, which this CPU must complete.
    ByBroadcast,
}

#[cfg(all(test, feature = "soft"))]
mod tests;
