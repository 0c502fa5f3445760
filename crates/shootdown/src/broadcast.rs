//! *Broadcast*: hardware that has other CPUs drop translations without interrupting them; and the
//! choice between the two ways to tell.
//!
//! Arm's `TLBI … IS` and AMD's `INVLPGB` reach every CPU; RISC-V's firmware reaches those that it
//! is told of. It sounds like an end to shootdowns, and is not: every CPU must be asked before a
//! broadcast is complete, whoever uses the space, and all CPUs' broadcasts queue for one
//! interconnect. On 32 CPUs of which each flushes for itself alone, that is a factor of fifteen
//! (seed 003). So a flush that finds nobody else present tells nobody: it drops the translations
//! here, and everyone else's are stale, which the generation says; they drop them when they next
//! run the space. Where others are present, the cheaper way is taken.
//!
//! A broadcast is complete when the CPU that *issued* it has waited for it. A [`Pending`] therefore
//! remembers who that was, and if it is waited for elsewhere, rings that CPU.

use core::sync::atomic::Ordering::Relaxed;

use crate::bell::Rung;
use crate::broadcaster::{Broadcast, Broadcaster, Reach};
use crate::cpu_set::CpuSet;
use crate::engine::Shootdown;
use crate::extent::Extent;
use crate::ids::{CpuId, Tag};
use crate::machine::{Machine, Tagging};
use crate::memory::Word;
use crate::method::NotifyMethod;
use crate::pending::Pending;
use crate::phase::Phase;
use crate::pinned_cpu::PinnedCpu;
use crate::rules::Rule;
use crate::space::Space;

/// After so many flushes in which a CPU may have missed one, a broadcast drops the whole tag.
///
/// One flush that was not broadcast, or one that was overtaken by a later one, leaves a gap: from
/// then on no CPU can conclude from broadcasts that it has missed nothing, and each drops the tag
/// when it comes back. To drop it everywhere once costs each some 2 µs of refilling, and 64
/// broadcasts take ten times as long.
const GAP_MAX: u64 = 64;

impl<M: Machine> Shootdown<M> {
    /// The broadcaster, if it can name every space: each has a tag that is the same on all CPUs.
    #[inline]
    pub(crate) fn broadcaster(&self) -> Option<&M::Broadcaster> {
        let broadcaster = self.machine.broadcaster()?;
        let names_spaces =
            self.machine.tagging() == Tagging::Global && self.tags().covers_all_cpus(&self.machine);
        names_spaces.then_some(broadcaster)
    }

    /// The broadcaster, if it can name every space, and reaches every CPU.
    #[inline]
    pub(crate) fn broadcaster_to_all(&self) -> Option<&M::Broadcaster> {
        let reaches_all =
            |broadcaster: &&M::Broadcaster| broadcaster.capabilities().reach == Reach::Everyone;
        self.broadcaster().filter(reaches_all)
    }
}

impl<'e, M: Machine> PinnedCpu<'e, M> {
    /// The tag by which a broadcast is to name `space`; any, if there is none.
    ///
    /// Call this after [`Rule::FlushFence`], and before the look at who is present: see
    /// [`Space::global_tag`].
    #[inline]
    pub(crate) fn broadcast_tag(&self, space: &Space<M>) -> Tag {
        match self.engine.broadcaster() {
            Some(_) => space.global_tag(self.machine()),
            None => Tag::KERNEL,
        }
    }

    /// Makes `pending` wait for what this CPU has broadcast.
    ///
    /// Nobody can have a CPU that is not online complete its broadcasts: it does so at once.
    pub(crate) fn await_broadcast(&self, pending: &mut Pending<'e, M>) {
        if self.local().online.get() {
            pending.issuer = Some(self.id);
        } else {
            self.complete_broadcasts();
        }
    }

    /// Whether those of `present` should be told of this flush by a broadcast, and it was issued.
    ///
    /// `tag` is the space's, read after [`Rule::FlushFence`]. If it was, they need not be rung.
    #[inline]
    pub(crate) fn broadcasts(
        &self,
        space: &Space<M>,
        tag: Tag,
        present: &CpuSet<M::CpuBits>,
        extents: &[Extent],
        generation: u64,
    ) -> bool {
        let Some(broadcaster) = self.engine.broadcaster() else { return false };
        self.broadcasts_by(broadcaster, space, tag, present, extents, generation)
    }

    #[inline(never)]
    fn broadcasts_by(
        &self,
        broadcaster: &M::Broadcaster,
        space: &Space<M>,
        tag: Tag,
        present: &CpuSet<M::CpuBits>,
        extents: &[Extent],
        generation: u64,
    ) -> bool {
        let machine = self.machine();
        let devices = space.is_pinned() && !machine.breaks(Rule::BroadcastForDevices);
        if present.is_empty() && !devices {
            return false;
        }
        let broadcast = broadcaster.capabilities();
        let operations = broadcast.operations(extents);
        let costs = broadcaster.costs();
        let count = operations.unwrap_or(1) as u64;
        let chosen = self.local().policy.choose(&costs, present.len() as u64, count);
        if chosen == NotifyMethod::Interrupt && !devices {
            return false;
        }
        let has_old_gap = generation.saturating_sub(space.clean_everywhere()) > GAP_MAX;
        let is_whole = operations.is_none() || has_old_gap && broadcast.reach == Reach::Everyone;
        if is_whole {
            broadcaster.broadcast(present, tag, Extent::whole());
        } else {
            for &extent in extents {
                broadcaster.broadcast(present, tag, extent);
            }
        }
        self.note_issued(if is_whole { 1 } else { count });
        if broadcast.reach == Reach::Everyone {
            let before = generation - extents.len() as u64;
            if is_whole {
                self.note_whole(space, before, generation);
            } else {
                space.note_clean_everywhere(machine, before, generation);
            }
        }
        true
    }

    /// Drops all of a space's translations everywhere, if hardware can. Returns whether it does.
    pub(crate) fn broadcasts_whole(&self, space: &Space<M>, tag: Tag, generation: u64) -> bool {
        let Some(broadcaster) = self.engine.broadcaster_to_all() else { return false };
        broadcaster.broadcast(&CpuSet::<M::CpuBits>::new(), tag, Extent::whole());
        self.note_issued(1);
        self.note_whole(space, generation, generation);
        true
    }

    /// A broadcast of the whole tag covers flushes up to `generation`, also those up to `before`
    /// that were not broadcast.
    ///
    /// Whoever waits for these does not wait for it, and others conclude from it which page tables
    /// nobody walks any more, and free them. So if it covers any such, it is completed here.
    fn note_whole(&self, space: &Space<M>, before: u64, generation: u64) {
        if space.clean_everywhere() < before {
            self.complete_broadcasts();
        }
        space.note_clean_everywhere(self.machine(), 0, generation);
    }

    /// Drops the kernel's pages of an extent everywhere, if hardware can. Returns whether it does.
    pub(crate) fn broadcasts_kernel(&self, extent: Extent) -> bool {
        let Some(broadcaster) = self.engine.broadcaster_to_all() else { return false };
        broadcaster.broadcast_kernel(extent);
        self.note_issued(1);
        true
    }

    /// Learns what it took to wait for the answers of so many CPUs that were interrupted.
    pub(crate) fn learn_answered(&self, cpus: u64, took_ns: u64) {
        if let Some(broadcaster) = self.machine().broadcaster().filter(|_| cpus != 0) {
            self.local().policy.learn_answers(&broadcaster.costs(), cpus, took_ns);
        }
    }

    /// A flush from `since` to `generation` found nobody else in the cpumask, and was done here.
    ///
    /// As long as the cpumask has never moved, every CPU that has ever run the space is in it. If
    /// that is this CPU alone, no other has cached anything of the space, and the flush is no gap.
    /// (A CPU that registers after the cpumask was read reads a generation at least as new, and
    /// walks page tables as new as that.)
    pub(crate) fn note_flushed_alone(&self, space: &Space<M>, since: u64, generation: u64) {
        if space.cpumask.phase(self.machine()) == Phase::FIRST
            && self.has_loaded(space)
            && self.loaded_slot().generation() >= generation
        {
            space.note_clean_everywhere(self.machine(), since, generation);
        }
    }

    fn note_issued(&self, operations: u64) {
        let outstanding = &self.local().policy.outstanding;
        outstanding.set(outstanding.get().saturating_add(operations as u16));
        self.counters().broadcasts_sent.add_alone(1);
    }

    /// Waits for what this CPU has issued.
    #[inline]
    pub(crate) fn complete_broadcasts(&self) {
        let policy = &self.local().policy;
        if policy.outstanding.get() != 0
            && let Some(broadcaster) = self.machine().broadcaster()
        {
            let took_ns = broadcaster.complete();
            policy.learn(&broadcaster.costs(), took_ns);
        }
    }
}

/// What broadcasts have made up for.
impl<M: Machine> PinnedCpu<'_, M> {
    /// Up to which generation everyone was told of the space's flushes.
    #[inline]
    pub(crate) fn told_everyone(&self, space: &Space<M>) -> u64 {
        if self.machine().tagging() == Tagging::Global { space.clean_everywhere() } else { 0 }
    }

    /// Up to which generation this CPU's TLB is clean of the space, which is loaded here.
    #[inline]
    pub(crate) fn seen_of_loaded(&self, space: &Space<M>) -> u64 {
        self.loaded_slot().generation().max(self.told_everyone(space))
    }
}

impl Broadcast {
    /// How many operations it takes; `None` if the whole tag is better.
    fn operations(&self, extents: &[Extent]) -> Option<usize> {
        let count = |extent: &Extent| extent.page_count().div_ceil(self.pages_per_operation.max(1));
        let operations = extents.iter().map(count).sum();
        let is_whole = extents.iter().any(|extent| extent.is_whole());
        (!is_whole && operations <= self.operation_ceiling).then_some(operations)
    }
}

impl<M: Machine> Space<M> {
    /// Up to which generation nobody has anything to make up for.
    ///
    /// Not ordered with anything. A CPU that takes itself to be clean by it may still use what a
    /// broadcast has yet to take away: that is what the broadcast's issuer waits for.
    #[inline]
    pub(crate) fn clean_everywhere(&self) -> u64 {
        // Relaxed: see above; the issuer of each broadcast waits for it.
        self.clean_everywhere.load(Relaxed)
    }

    /// A broadcast covers what flushes after `since` covered, up to `generation`. That helps only
    /// if no earlier one is missing.
    fn note_clean_everywhere(&self, machine: &M, since: u64, generation: u64) {
        let mut clean = self.clean_everywhere();
        while (clean >= since || machine.breaks(Rule::KeepGaps)) && clean < generation {
            // Relaxed: only the number itself is passed on.
            match self.clean_everywhere.compare_exchange(clean, generation, Relaxed, Relaxed) {
                Ok(_) => return,
                Err(now) => clean = now,
            }
        }
    }
}

impl<M: Machine> Pending<'_, M> {
    /// Completes the broadcast that this one waits for, if we are on the CPU that issued it; else
    /// has that CPU do it, and waits for its answer.
    pub(crate) fn complete_broadcast(&mut self) {
        let Some(issuer) = self.issuer.take() else { return };
        let machine = &self.engine.machine;
        if machine.breaks(Rule::CompleteBroadcasts) {
            return;
        }
        // Where the interrupt is not masked, this thread may be moved at any moment, and complete
        // the broadcasts of a CPU that has issued none.
        if machine.interrupts_masked() && issuer == machine.cpu() {
            self.pin().complete_broadcasts();
        } else {
            self.ring_issuer(issuer);
        }
    }

    fn ring_issuer(&mut self, issuer: CpuId) {
        let machine = &self.engine.machine;
        match machine.state(issuer).bell.ring(machine) {
            Rung::First => {
                let mut cpus = CpuSet::new();
                cpus.insert(issuer);
                machine.ring(&cpus);
            }
            Rung::Coalesced => {}
            // It completed them when it went offline.
            Rung::Disconnected => return,
        }
        self.wait_for(issuer);
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use super::*;
    use crate::ids::Root;
    use crate::soft::{Config, Host, Soft};
    use proptest::prelude::*;

    #[test]
    fn operations_are_as_many_as_pages_need_up_to_the_ceiling() {
        let pages = |count| Extent::pages(0, count, crate::extent::PageSize::SIZE_4K);
        let by = |pages_per_operation| Broadcast {
            reach: Reach::Everyone,
            pages_per_operation,
            operation_ceiling: 10,
        };
        assert_eq!(by(1).operations(&[pages(4), pages(6)]), Some(10));
        assert_eq!(by(1).operations(&[pages(4), pages(7)]), None);
        assert_eq!(by(4).operations(&[pages(4), pages(7)]), Some(3));
        assert_eq!(by(0).operations(&[pages(4)]), Some(4), "none at all is one");
        assert_eq!(by(64).operations(&[pages(1), Extent::whole()]), None);
    }

    proptest! {
        /// Only what follows without a gap counts, or covers all; and it never goes back.
        #[test]
        fn everyone_is_clean_up_to_the_first_gap(
            broadcasts in prop::collection::vec((0u64..20, 1u64..4, any::<bool>()), 1..40)
        ) {
            let engine = Soft::<Host>::engine(Config::default());
            let space = engine.space(Root(0));
            let mut covered = std::collections::BTreeSet::new();
            for (since, count, is_whole) in broadcasts {
                let generation = since + count;
                let clean = space.clean_everywhere();
                let before = if is_whole { 0 } else { since };
                space.note_clean_everywhere(engine.machine(), before, generation);
                covered.extend(before + 1..=generation);
                prop_assert!(space.clean_everywhere() >= clean);
                prop_assert!((1..=space.clean_everywhere()).all(|flush| covered.contains(&flush)));
                if clean >= before {
                    prop_assert!(space.clean_everywhere() >= generation);
                }
            }
        }
    }
}
