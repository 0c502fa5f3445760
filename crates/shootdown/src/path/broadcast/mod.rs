//! *Broadcast*: hardware that makes other CPUs drop translations without interrupting them.
//!
//! Arm's `TLBI … IS` and AMD's `INVLPGB` reach every CPU. RISC-V's firmware reaches the CPUs that
//! the call names. With TLBI domains, Arm's operation on a whole tag reaches the domains of the
//! CPUs that the flush found present, if that costs less. Broadcasts do not make shootdowns cheap:
//! every CPU must reply before a broadcast is complete, even if it does not use the space, and the
//! broadcasts of all CPUs queue for one interconnect. On 32 CPUs, each of which flushes
//! translations that only it uses, broadcasts cost a factor of fifteen (the study
//! `arm64-skip-broadcast`).
//!
//! So a flush that finds no other CPU present does not broadcast: it invalidates on its own CPU.
//! The generation marks the translations of all other CPUs as stale, and each of them catches up
//! when it next runs the space. If other CPUs are present, the flush uses the cheaper method. A
//! broadcast of pages to every CPU leaves nothing to catch up with, and is not counted
//! (`uncounted.rs`).
//!
//! A broadcast is complete when the CPU that *issued* it has waited for it. A [`Pending`] therefore
//! records the issuer, and a wait on another CPU rings the issuer. Firmware completes a broadcast
//! before its call returns; then there is no issuer to wait for.
//!
//! Firmware or a hypervisor may refuse a broadcast. The flush then interrupts the CPUs that are
//! present, as it would without a broadcaster.

mod completion;
mod domains;
mod uncounted;

use core::sync::atomic::Ordering::Relaxed;

use crate::base::ids::{DeviceTicket, Tag};
use crate::base::memory::Word;
use crate::base::rules::Rule;
use crate::parts::cpu_set::CpuSet;
use crate::parts::extent::Extent;
use crate::parts::method::NotifyMethod;
use crate::parts::phase::Phase;
use crate::path::notify::NotifiedBy;
use crate::path::pending::Pending;
use crate::state::broadcaster::{Broadcast, Broadcaster, Reach, Refused};
use crate::state::engine::Shootdown;
use crate::state::machine::{Machine, Tagging};
use crate::state::pinned_cpu::PinnedCpu;
use crate::state::space::Space;

/// Number of flushes since a gap after which a broadcast drops the whole tag.
///
/// A flush that was not broadcast, or that was overtaken by a later one, leaves a gap. From then
/// on, no CPU can conclude from broadcasts that it has missed nothing, and each CPU drops the tag
/// when it returns to the space. To drop the tag on all CPUs once closes the gap. It costs each CPU
/// about 2 µs of refilling, a tenth of the time that 64 broadcasts take.
const GAP_MAX: u64 = 64;

impl<M: Machine> Shootdown<M> {
    /// The broadcaster, if it can name every space: each space has one tag on all CPUs.
    #[inline]
    pub(crate) fn broadcaster(&self) -> Option<&M::Broadcaster> {
        let broadcaster = self.machine.broadcaster()?;
        let names_spaces =
            self.machine.tagging() == Tagging::Global && self.tags().covers_all_cpus(&self.machine);
        names_spaces.then_some(broadcaster)
    }

    /// The broadcaster, if it can name every space and reaches every CPU.
    #[inline]
    pub(crate) fn broadcaster_to_all(&self) -> Option<&M::Broadcaster> {
        let reaches_all =
            |broadcaster: &&M::Broadcaster| broadcaster.capabilities().reach != Reach::Targets;
        self.broadcaster().filter(reaches_all)
    }
}

impl<'e, M: Machine> PinnedCpu<'e, M> {
    /// The tag with which a broadcast names `space`. Meaningless if there is no broadcaster.
    ///
    /// Call this after [`Rule::FlushFence`], and before reading the presence of other CPUs: see
    /// [`Space::global_tag`].
    #[inline]
    pub(crate) fn broadcast_tag(&self, space: &Space<M>) -> Tag {
        match self.engine.broadcaster() {
            Some(_) => space.global_tag(self.machine()),
            None => Tag::KERNEL,
        }
    }

    /// Makes `pending` wait for the broadcasts that this CPU has issued.
    ///
    /// Completes them here if they complete at issue, because a wait elsewhere would interrupt this
    /// CPU for nothing. So does a CPU that is not online, because other CPUs cannot ring it.
    pub(crate) fn await_broadcast(&self, pending: &mut Pending<'e, M>) {
        let is_later = |it: &M::Broadcaster| !it.capabilities().completes_at_issue;
        if self.local().online.get() && self.machine().broadcaster().is_some_and(is_later) {
            pending.set_issuer(self.id);
        } else if !self.machine().breaks(Rule::CompleteBroadcasts) {
            self.complete_broadcasts();
        }
    }

    /// Returns `true` if the next flush will probably ring bells, because the last one did. Where
    /// all CPUs broadcast, to prefetch the bells would take each CPU's bell away from all others,
    /// for nothing.
    #[inline]
    pub(crate) fn will_probably_ring(&self) -> bool {
        // The first lets the compiler remove the second on a machine without a broadcaster.
        self.machine().broadcaster().is_none() || !self.local().policy.has_chosen_broadcast()
    }

    /// Issues a broadcast of this flush if that is the cheaper method to notify the CPUs of
    /// `present`. If it was issued, and not refused, these CPUs must not be rung.
    ///
    /// `tag` is the space's tag, read after [`Rule::FlushFence`].
    ///
    /// # Errors
    ///
    /// [`Refused`] if the broadcast was refused, and devices would have observed it: then
    /// [`notify_refused`](Self::notify_refused).
    #[inline]
    pub(crate) fn try_broadcast(
        &self,
        space: &Space<M>,
        tag: Tag,
        present: &CpuSet<M::CpuBits>,
        extents: &[Extent],
        generation: u64,
    ) -> Result<NotifiedBy, Refused> {
        let Some(broadcaster) = self.engine.broadcaster() else {
            return Ok(NotifiedBy::Interrupts);
        };
        self.try_broadcast_by(broadcaster, space, tag, present, extents, generation)
    }

    /// Sends commands to the devices that a refused broadcast did not reach, and raises `devices`
    /// to their ticket.
    #[cold]
    pub(crate) fn notify_refused(
        &self,
        space: &Space<M>,
        extents: &[Extent],
        devices: &mut DeviceTicket,
    ) -> NotifiedBy {
        *devices = self.issue_to_devices(space, extents).max(*devices);
        NotifiedBy::Interrupts
    }

    #[inline(never)]
    fn try_broadcast_by(
        &self,
        broadcaster: &M::Broadcaster,
        space: &Space<M>,
        tag: Tag,
        present: &CpuSet<M::CpuBits>,
        extents: &[Extent],
        generation: u64,
    ) -> Result<NotifiedBy, Refused> {
        let machine = self.machine();
        // Devices are in no domain.
        let devices = space.is_pinned(machine) && !machine.breaks(Rule::BroadcastForDevices);
        if present.is_empty() && !devices {
            return Ok(NotifiedBy::Interrupts);
        }
        let broadcast = broadcaster.capabilities();
        let operations = broadcast.operations(extents);
        let before = generation - extents.len() as u64;
        let has_old_gap = || closes_old_gap(space.clean_everywhere(), before, generation);
        let mut costs = broadcaster.costs();
        let mut narrow = None;
        if broadcast.reach == Reach::Domains && !devices && !has_old_gap() {
            narrow = domains::narrower(broadcaster, &costs, present, operations);
            costs = narrow.unwrap_or(costs);
        }
        let is_narrow = narrow.is_some();
        let count = if is_narrow { 1 } else { operations.unwrap_or(1) as u64 };
        let chosen = self.local().policy.choose(&costs, present.len() as u64, count);
        if chosen == NotifyMethod::Interrupt && !devices {
            return Ok(NotifiedBy::Interrupts);
        }
        let reaches_all = broadcast.reach != Reach::Targets && !is_narrow;
        let is_whole = operations.is_none() || reaches_all && has_old_gap();
        let issued = if is_narrow {
            broadcaster.broadcast_in_domains(present, tag)
        } else if is_whole {
            broadcaster.broadcast(present, tag, Extent::whole())
        } else {
            extents.iter().try_for_each(|&extent| broadcaster.broadcast(present, tag, extent))
        };
        if !self.note_issued(if is_whole { 1 } else { count }, issued) {
            return if devices { Err(Refused) } else { Ok(NotifiedBy::Interrupts) };
        }
        self.local().expects_broadcast.set(broadcast.reach == Reach::Everyone);
        // A CPU that was not reached finds a later generation than it has seen, and catches up.
        if reaches_all || machine.breaks(Rule::CatchUpUnreached) {
            if is_whole && reaches_all {
                self.note_whole(space, before, generation);
            } else {
                space.note_clean_everywhere(machine, before, generation);
            }
        }
        Ok(if reaches_all { NotifiedBy::BroadcastToAll } else { NotifiedBy::BroadcastToPresent })
    }

    /// Issues a broadcast that drops all translations of a space on all CPUs, if the hardware can.
    /// Returns `true` if it was issued, and not refused.
    pub(crate) fn try_broadcast_whole(&self, space: &Space<M>, tag: Tag, generation: u64) -> bool {
        let Some(broadcaster) = self.engine.broadcaster_to_all() else { return false };
        let issued = broadcaster.broadcast(&CpuSet::<M::CpuBits>::new(), tag, Extent::whole());
        let is_issued = self.note_issued(1, issued);
        if is_issued {
            self.note_whole(space, generation, generation);
        }
        is_issued
    }

    /// Records a broadcast of the whole tag, which covers every flush up to `generation`, including
    /// flushes up to `before` that were not broadcast.
    ///
    /// The waiters of those earlier flushes do not wait for this broadcast, and other CPUs conclude
    /// from it which page tables can be freed. So if it covers such a flush, it is completed here.
    fn note_whole(&self, space: &Space<M>, before: u64, generation: u64) {
        if space.clean_everywhere() < before {
            self.complete_broadcasts();
        }
        space.note_clean_everywhere(self.machine(), 0, generation);
    }

    /// Issues a broadcast that drops the kernel's pages of an extent on all CPUs, if the hardware
    /// can. Returns `true` if it was issued, and not refused.
    pub(crate) fn try_broadcast_kernel(&self, extent: Extent) -> bool {
        let Some(broadcaster) = self.engine.broadcaster_to_all() else { return false };
        self.note_issued(1, broadcaster.broadcast_kernel(extent))
    }

    /// Records the time that a wait for the answers of `cpus` interrupted CPUs took.
    pub(crate) fn record_answers(&self, cpus: u64, took_ns: u64) {
        if let Some(broadcaster) = self.machine().broadcaster().filter(|_| cpus != 0) {
            self.local().policy.record_answers(&broadcaster.costs(), cpus, took_ns);
        }
    }

    /// Records that a flush of the generations after `since` up to `generation` found no other CPU
    /// in the cpumask, and was done on this CPU.
    ///
    /// As long as the cpumask was never trimmed, every CPU that has ever run the space is in it. If
    /// this CPU is the only one, no other CPU has cached translations of the space, and the flush
    /// leaves no gap. (A CPU that registers after this CPU has read the cpumask reads a generation
    /// at least as new, and walks page tables at least as new.)
    pub(crate) fn note_flushed_alone(&self, space: &Space<M>, since: u64, generation: u64) {
        if space.cpumask.phase(self.machine()) == Phase::FIRST
            && self.has_loaded(space)
            && self.loaded_slot().generation() >= generation
        {
            space.note_clean_everywhere(self.machine(), since, generation);
        }
    }

    /// Records a broadcast, which was refused if `issued` is an error. Returns `true` if it was
    /// not.
    ///
    /// Parts of a broadcast that is refused may have been issued. Nothing waits for them, and they
    /// are completed with the next broadcast.
    fn note_issued(&self, operations: u64, issued: Result<(), Refused>) -> bool {
        let outstanding = &self.local().policy.outstanding;
        outstanding.set(outstanding.get().saturating_add(operations as u16));
        if issued.is_err() && !self.machine().breaks(Rule::RingIfRefused) {
            return false;
        }
        self.counters().broadcasts_sent.add_unshared(1);
        true
    }

    /// Waits for the broadcasts that this CPU has issued and not yet completed.
    #[inline]
    pub(crate) fn complete_broadcasts(&self) {
        let policy = &self.local().policy;
        if policy.outstanding.get() != 0 {
            if let Some(broadcaster) = self.machine().broadcaster() {
                let took_ns = broadcaster.complete();
                policy.record_completion(&broadcaster.costs(), took_ns);
            }
        }
    }
}

impl<M: Machine> PinnedCpu<'_, M> {
    /// The generation up to which broadcasts have covered the space's flushes on all CPUs; 0 if
    /// tags are not global.
    #[inline]
    pub(crate) fn covered_by_broadcasts(&self, space: &Space<M>) -> u64 {
        if self.machine().tagging() == Tagging::Global { space.clean_everywhere() } else { 0 }
    }

    /// The generation up to which this CPU has caught up with `space`, which must be loaded.
    #[inline]
    pub(crate) fn seen_of_loaded(&self, space: &Space<M>) -> u64 {
        self.loaded_slot().generation().max(self.covered_by_broadcasts(space))
    }
}

/// Returns `true` if a flush of the generations after `before` up to `generation` drops the whole
/// tag, because of a gap after the generation `clean`: one of [`GAP_MAX`] flushes, as long as none
/// has closed the gap. If all that are in flight did, their CPUs would refill their TLBs all the
/// time.
const fn closes_old_gap(clean: u64, before: u64, generation: u64) -> bool {
    let since = clean + 1;
    generation.saturating_sub(since) / GAP_MAX > before.saturating_sub(since) / GAP_MAX
}

impl Broadcast {
    /// Number of operations that a broadcast of `extents` takes; `None` if it should drop the whole
    /// tag instead.
    fn operations(&self, extents: &[Extent]) -> Option<usize> {
        let count = |extent: &Extent| extent.weight().div_ceil(self.pages_per_operation.max(1));
        let operations = extents.iter().map(count).sum();
        let is_whole = extents.iter().any(|extent| extent.is_whole());
        (!is_whole && operations <= self.operation_ceiling).then_some(operations)
    }
}

impl<M: Machine> Space<M> {
    /// The generation up to which no CPU has to catch up.
    ///
    /// The load is not ordered. A CPU that concludes from it that its TLB is clean may still use a
    /// translation that a broadcast is about to drop. The broadcast's issuer waits for that.
    #[inline]
    pub(crate) fn clean_everywhere(&self) -> u64 {
        // Relaxed: as explained above, the issuer of each broadcast waits for it.
        self.clean_everywhere.load(Relaxed)
    }

    /// Records that a broadcast covers the flushes after `since` up to `generation`. That has an
    /// effect only if no flush up to `since` is missing.
    fn note_clean_everywhere(&self, machine: &M, since: u64, generation: u64) {
        let mut clean = self.clean_everywhere();
        while (clean >= since || machine.breaks(Rule::KeepGaps)) && clean < generation {
            // Relaxed: the word publishes no data but its own value.
            match self.clean_everywhere.compare_exchange(clean, generation, Relaxed, Relaxed) {
                Ok(_) => return,
                Err(now) => clean = now,
            }
        }
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests;
