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

use core::cell::Cell;
use core::sync::atomic::Ordering::Relaxed;

use crate::bell::Rung;
use crate::cpu::Here;
use crate::cpu_set::CpuSet;
use crate::engine::Shootdown;
use crate::extent::Extent;
use crate::machine::{CpuId, Machine, Tag, Word};
use crate::pending::Pending;
use crate::rules::Rule;
use crate::space::Space;
use crate::tag::Tagging;

/// What broadcasts can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broadcast {
    /// Whom they reach.
    pub reach: Reach,
    /// How many pages one operation can name: 1 for `TLBI VAE1IS`, more with `FEAT_TLBIRANGE` or
    /// `INVLPGB`.
    pub pages_per_operation: usize,
    /// Above how many operations the whole tag is dropped instead.
    pub operation_ceiling: usize,
}

/// Whom a broadcast reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Every CPU, whatever it runs, and devices that share page tables (Arm, AMD).
    Everyone,
    /// The CPUs that are named (RISC-V: SBI's remote fence).
    Targets,
}

/// What it costs to tell other CPUs, as far as the choice between two ways depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TellingCosts {
    /// To interrupt any CPUs at all: sending, and waiting for the first answer.
    pub interrupt_ns: u64,
    /// For each CPU that is interrupted, over and above: what the sender waits longer, and what the
    /// target loses.
    pub interrupt_each_ns: u64,
    /// To issue and complete a broadcast of one operation while nobody else does.
    pub broadcast_ns: u64,
    /// For each CPU that it has to be sent to, where it is sent to some.
    pub broadcast_each_ns: u64,
    /// For each operation after the first.
    pub operation_ns: u64,
}

/// How to tell those who are present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Telling {
    Interrupt,
    Broadcast,
}

/// What a CPU knows of what telling costs, and what it has yet to complete.
#[derive(Debug)]
pub(crate) struct Teller {
    /// By how much broadcasts have lately taken longer than the machine says: others' were before
    /// them.
    queueing_ns: Cell<u32>,
    /// Of 128 rings, how many have lately taken an interrupt: the others found one on its way, or
    /// a CPU that looks at its bell by itself.
    interrupts_of_128: Cell<u8>,
    last: Cell<Option<Telling>>,
    /// What could have been saved since others were last interrupted: see [`TRIAL_SHIFT`].
    untried_ns: Cell<u32>,
    /// How many operations were issued here and not completed.
    outstanding: Cell<u16>,
}

/// A newly measured wait counts for an eighth of what is known.
const MEASURED_SHIFT: u32 = 3;
/// What is known is forgotten by a 64th with each flush that does not broadcast, so that it will be
/// tried again: a queue of 100 µs is forgotten, for all purposes, after some 300 flushes.
const FORGOTTEN_SHIFT: u32 = 6;
/// A newly measured share of rings that took an interrupt counts for a quarter.
const SHARE_SHIFT: u32 = 2;
/// That no ring takes an interrupt is not believed: there is still an answer to wait for.
const SHARE_MIN: u64 = 16;
/// The other way is taken when it costs less than seven eighths: the costs are estimates, and
/// a CPU that goes back and forth learns about both too late.
const WORTH_A_CHANGE: (u64, u64) = (7, 8);
/// Who only broadcasts never learns what interrupts would cost; nor do those who are told learn
/// that they had better say when they enter the kernel, for nothing disturbs them there. So now and
/// then it interrupts instead, when that costs no more than an eighth of what it might save: what
/// broadcasts have cost since for each CPU that was present, and by waiting for others'.
const TRIAL_SHIFT: u32 = 3;

/// After so many flushes in which a CPU may have missed one, a broadcast drops the whole tag.
///
/// One flush that was not broadcast, or one that was overtaken by a later one, leaves a gap: from
/// then on no CPU can conclude from broadcasts that it has missed nothing, and each drops the tag
/// when it comes back. To drop it everywhere once costs each some 2 µs of refilling, and 64
/// broadcasts take ten times as long.
const GAP_MAX: u64 = 64;

impl Teller {
    pub(crate) const fn new() -> Self {
        Self {
            queueing_ns: Cell::new(0),
            interrupts_of_128: Cell::new(128),
            last: Cell::new(None),
            untried_ns: Cell::new(0),
            outstanding: Cell::new(0),
        }
    }

    /// The cheaper way to tell so many CPUs; or, for once, the other.
    fn choose(&self, costs: &TellingCosts, cpus: u64, operations: u64) -> Telling {
        let interrupt =
            costs.interrupt_ns.saturating_add(costs.interrupt_each_ns.saturating_mul(cpus));
        let by_target = costs.broadcast_each_ns.saturating_mul(cpus);
        let queueing = u64::from(self.queueing_ns.get());
        let broadcast = costs
            .broadcast_ns
            .saturating_add(costs.operation_ns.saturating_mul(operations - 1))
            .saturating_add(by_target)
            .saturating_add(queueing);
        if self.last.get().is_none() && costs.broadcast_each_ns != 0 {
            // Where each CPU costs, there is the most to save, and it is tried first.
            self.untried_ns.set(u32::MAX);
        }
        let chosen = self.cheaper(self.as_learnt(interrupt), broadcast);
        self.last.set(Some(chosen));
        if chosen == Telling::Interrupt {
            let known = self.queueing_ns.get();
            self.queueing_ns.set(known - known.div_ceil(1 << FORGOTTEN_SHIFT));
        } else {
            // One broadcast before ours is what chance does.
            let for_others = by_target.saturating_add(queueing.saturating_sub(costs.broadcast_ns));
            if self.is_trial_due(for_others, interrupt.saturating_sub(broadcast)) {
                return Telling::Interrupt;
            }
        }
        chosen
    }

    fn cheaper(&self, interrupt: u64, broadcast: u64) -> Telling {
        let (worth, of) = WORTH_A_CHANGE;
        let is_worth = |new: u64, old: u64| new.saturating_mul(of) < old.saturating_mul(worth);
        match self.last.get() {
            None if broadcast < interrupt => Telling::Broadcast,
            None => Telling::Interrupt,
            Some(Telling::Interrupt) if is_worth(broadcast, interrupt) => Telling::Broadcast,
            Some(Telling::Broadcast) if is_worth(interrupt, broadcast) => Telling::Interrupt,
            Some(as_before) => as_before,
        }
    }

    /// What it costs to ring CPUs of which only some must be interrupted.
    fn as_learnt(&self, interrupt: u64) -> u64 {
        match u64::from(self.interrupts_of_128.get()).max(SHARE_MIN) {
            128.. => interrupt,
            share => (interrupt / 128).saturating_mul(share),
        }
    }

    /// Whether to interrupt for once, which costs so much more; a broadcast costs so much for
    /// others' sake.
    fn is_trial_due(&self, for_others: u64, price: u64) -> bool {
        if for_others == 0 {
            return false;
        }
        let for_others = u32::try_from(for_others).unwrap_or(u32::MAX);
        let untried = self.untried_ns.get().saturating_add(for_others);
        let is_due = u64::from(untried >> TRIAL_SHIFT) > price;
        self.untried_ns.set(if is_due { 0 } else { untried });
        is_due
    }

    /// So many rings took an interrupt, and so many did not.
    pub(crate) fn learn_rings(&self, interrupts: u64, coalesced: u64) {
        let Some(share) = (interrupts << 7).checked_div(interrupts + coalesced) else { return };
        let known = self.interrupts_of_128.get();
        let learnt = known - (known >> SHARE_SHIFT) + (share as u8 >> SHARE_SHIFT);
        self.interrupts_of_128.set(learnt);
    }

    /// What was outstanding took so long.
    fn learn(&self, costs: &TellingCosts, took_ns: u64) {
        let after_first = u64::from(self.outstanding.replace(0).saturating_sub(1));
        let unqueued_ns =
            costs.broadcast_ns.saturating_add(costs.operation_ns.saturating_mul(after_first));
        let queued = i64::try_from(took_ns.saturating_sub(unqueued_ns)).unwrap_or(i64::MAX);
        let known = i64::from(self.queueing_ns.get());
        let learnt = known + ((queued - known) >> MEASURED_SHIFT);
        self.queueing_ns.set(u32::try_from(learnt).unwrap_or(u32::MAX));
    }
}

impl<M: Machine> Shootdown<M> {
    /// Whether hardware can tell every CPU what to drop of any space.
    #[inline]
    pub(crate) fn reaches_everyone(&self) -> bool {
        self.broadcast().is_some_and(|broadcast| broadcast.reach == Reach::Everyone)
    }

    /// What broadcasts can do, if every space has a number that all CPUs know it by.
    #[inline]
    fn broadcast(&self) -> Option<Broadcast> {
        let broadcast = self.machine.broadcast()?;
        let is_named =
            self.machine.tagging() == Tagging::Global && self.tags().suffice(&self.machine);
        is_named.then_some(broadcast)
    }
}

impl<M: Machine> Here<'_, M> {
    /// Whether those of `present` should be told of this flush by a broadcast, and it was issued.
    ///
    /// `tag` is the space's, read after [`Rule::FlushFence`]. If it was, they need not be rung.
    #[inline]
    pub(crate) fn broadcasts(
        &self,
        space: &Space<M>,
        tag: Tag,
        present: &CpuSet<M>,
        extents: &[Extent],
        generation: u64,
    ) -> bool {
        let Some(broadcast) = self.engine.broadcast() else { return false };
        self.broadcasts_by(broadcast, space, tag, present, extents, generation)
    }

    #[inline(never)]
    fn broadcasts_by(
        &self,
        broadcast: Broadcast,
        space: &Space<M>,
        tag: Tag,
        present: &CpuSet<M>,
        extents: &[Extent],
        generation: u64,
    ) -> bool {
        let machine = self.machine();
        let devices = space.is_pinned() && !machine.breaks(Rule::TellDevices);
        if present.is_empty() && !devices {
            return false;
        }
        let operations = broadcast.operations(extents);
        let costs = machine.telling_costs();
        let count = operations.unwrap_or(1) as u64;
        let chosen = self.local().teller.choose(&costs, present.len() as u64, count);
        if chosen == Telling::Interrupt && !devices {
            return false;
        }
        let has_old_gap = generation.saturating_sub(space.clean_everywhere()) > GAP_MAX;
        let is_whole = operations.is_none() || has_old_gap && broadcast.reach == Reach::Everyone;
        if is_whole {
            machine.issue_broadcast(present, tag, Extent::whole());
        } else {
            for &extent in extents {
                machine.issue_broadcast(present, tag, extent);
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
        if !self.engine.reaches_everyone() {
            return false;
        }
        self.machine().issue_broadcast(&CpuSet::new(), tag, Extent::whole());
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
        if !self.engine.reaches_everyone() {
            return false;
        }
        self.machine().issue_kernel_broadcast(extent);
        self.note_issued(1);
        true
    }

    fn note_issued(&self, operations: u64) {
        let outstanding = &self.local().teller.outstanding;
        outstanding.set(outstanding.get().saturating_add(operations as u16));
        self.counters().broadcasts_sent.add_alone(1);
    }

    /// Waits for what this CPU has issued.
    #[inline]
    pub(crate) fn complete_broadcasts(&self) {
        let teller = &self.local().teller;
        if teller.outstanding.get() != 0 {
            let machine = self.machine();
            let took_ns = machine.complete_broadcasts();
            teller.learn(&machine.telling_costs(), took_ns);
        }
    }
}

/// What broadcasts have made up for.
impl<M: Machine> Here<'_, M> {
    /// Up to which generation everyone was told of the space's flushes.
    #[inline]
    pub(crate) fn told_everyone(&self, space: &Space<M>) -> u64 {
        if self.machine().tagging() == Tagging::Global { space.clean_everywhere() } else { 0 }
    }

    /// Up to which generation this CPU's TLB is clean of the space, which is loaded here.
    #[inline]
    pub(crate) fn seen_of_loaded(&self, space: &Space<M>) -> u64 {
        self.local().loaded.get().generation.max(self.told_everyone(space))
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
        if issuer != machine.cpu() {
            self.ring_issuer(issuer);
        } else if machine.interrupts_masked() {
            self.here().complete_broadcasts();
        } else {
            machine.complete_broadcasts();
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
    use crate::machine::Root;
    use crate::soft::{Config, Host, Soft};
    use Telling::{Broadcast as ByBroadcast, Interrupt as ByInterrupt};
    use proptest::prelude::*;

    const COSTS: TellingCosts = TellingCosts {
        interrupt_ns: 2000,
        interrupt_each_ns: 500,
        broadcast_ns: 1000,
        broadcast_each_ns: 0,
        operation_ns: 100,
    };

    #[test]
    fn more_cpus_speak_for_broadcasts_and_more_operations_for_interrupts() {
        let teller = Teller::new();
        assert_eq!(teller.choose(&COSTS, 1, 1), ByBroadcast);
        // 2500 ns to 1000 and 100 for each but the first.
        assert_eq!(teller.choose(&COSTS, 1, 60), ByInterrupt);
        assert_eq!(teller.choose(&COSTS, 60, 60), ByBroadcast);
    }

    #[test]
    fn what_costs_the_same_changes_nothing() {
        assert_eq!(Teller::new().choose(&TellingCosts::default(), 3, 1), ByInterrupt);
        for first in [ByInterrupt, ByBroadcast] {
            let teller = Teller::new();
            teller.last.set(Some(first));
            for (interrupt_ns, broadcast_ns) in [(100, 100), (100, 90), (90, 100), (0, 0)] {
                let costs = TellingCosts { interrupt_ns, broadcast_ns, ..TellingCosts::default() };
                assert_eq!(teller.choose(&costs, 3, 1), first);
            }
        }
    }

    #[test]
    fn costs_that_cannot_be_added_are_too_high() {
        let teller = Teller::new();
        let dear = TellingCosts { interrupt_each_ns: u64::MAX, interrupt_ns: 9, ..COSTS };
        assert_eq!(teller.choose(&dear, 4, 1), ByBroadcast);
        let dear = TellingCosts { broadcast_ns: u64::MAX, operation_ns: 7, ..COSTS };
        assert_eq!(teller.choose(&dear, 4, 9), ByInterrupt);
        teller.learn(&COSTS, u64::MAX);
        assert_eq!(teller.choose(&COSTS, 4, 1), ByInterrupt);
    }

    /// A queue is learnt of within a few broadcasts, avoided for a while, and then tried again.
    #[test]
    fn queueing_is_learnt_and_forgotten() {
        let teller = Teller::new();
        let is_chosen = |chosen| teller.choose(&COSTS, 1, 1) == chosen;
        let broadcasts = (0..9).take_while(|_| is_chosen(ByBroadcast));
        let broadcasts = broadcasts.inspect(|_| teller.learn(&COSTS, 100_000)).count();
        assert!((1..=4).contains(&broadcasts), "{broadcasts}");
        let interrupts = 1 + (0..999).take_while(|_| is_chosen(ByInterrupt)).count();
        assert!((50..=400).contains(&interrupts), "{interrupts}");
    }

    /// Where everyone flushes, most look at their bells anyway: then interrupts cost less than the
    /// machine says.
    #[test]
    fn rings_that_take_no_interrupt_make_interrupts_cheaper() {
        let teller = Teller::new();
        let costs = TellingCosts { broadcast_ns: 2000, ..COSTS };
        assert_eq!(teller.choose(&costs, 4, 1), ByBroadcast);
        teller.learn_rings(0, 0);
        assert_eq!(teller.choose(&costs, 4, 1), ByBroadcast);
        (0..8).for_each(|_| teller.learn_rings(1, 3));
        assert_eq!(teller.choose(&costs, 4, 1), ByInterrupt);
        (0..16).for_each(|_| teller.learn_rings(4, 0));
        assert_eq!(teller.choose(&costs, 4, 1), ByBroadcast);
        teller.interrupts_of_128.set(64);
        assert_eq!(teller.as_learnt(12_800), 6400);
    }

    /// Interrupts are tried at once where each CPU costs, and then as often as is worth it; never
    /// where broadcasts cost the same whoever is present, nor where interrupts are out of question.
    #[test]
    fn what_is_not_chosen_is_tried_now_and_then() {
        let trials = |costs: TellingCosts| {
            let teller = Teller::new();
            let tries = |count: u64| {
                (0..count).filter(|_| teller.choose(&costs, 2, 1) == ByInterrupt).count()
            };
            (tries(1), tries(1600))
        };
        assert_eq!(trials(COSTS), (0, 0));
        // 3000 ns to 1200: a trial for each 8 x 1800 ns of 200.
        let by_target = TellingCosts { broadcast_each_ns: 100, ..COSTS };
        assert_eq!(trials(by_target), (1, 1600 / 73));
        let alone = TellingCosts { interrupt_ns: u64::MAX, ..by_target };
        assert_eq!(trials(alone), (0, 0));
    }

    #[test]
    fn many_operations_are_no_queue() {
        let teller = Teller::new();
        (0..100).for_each(|_| teller.learn(&COSTS, COSTS.broadcast_ns + 8000));
        assert!((7990..=8000).contains(&teller.queueing_ns.get()), "that is one");
        for _ in 0..100 {
            teller.outstanding.set(50);
            teller.learn(&COSTS, COSTS.broadcast_ns + 49 * COSTS.operation_ns);
        }
        assert_eq!(teller.queueing_ns.get(), 0);
    }

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
        /// However costs vary by an eighth, the way stays what it was; and if one costs half as
        /// much as the other, that is the way.
        #[test]
        fn the_cheaper_way_is_taken_and_kept(
            interrupt in 1000u64..100_000, broadcast in 1000u64..100_000,
            shakes in prop::collection::vec((0u64..=125, 0u64..=125), 1..20)
        ) {
            let teller = Teller::new();
            let costs = |shake: (u64, u64)| TellingCosts {
                interrupt_ns: interrupt + interrupt * shake.0 / 1000,
                broadcast_ns: broadcast + broadcast * shake.1 / 1000,
                ..TellingCosts::default()
            };
            let first = teller.choose(&costs((0, 0)), 5, 1);
            if interrupt * 2 < broadcast {
                prop_assert_eq!(first, ByInterrupt);
            }
            if broadcast * 2 < interrupt {
                prop_assert_eq!(first, ByBroadcast);
            }
            let mut last = first;
            let mut changes = 0;
            for shake in shakes {
                let chosen = teller.choose(&costs(shake), 5, 1);
                changes += u32::from(chosen != last);
                last = chosen;
            }
            prop_assert!(changes <= 1, "it came back");
        }

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
