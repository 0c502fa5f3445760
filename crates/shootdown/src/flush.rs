//! *Flush*: tells those who could be using what was changed, and leaves it to all others to find
//! out. Who waits for it, and how, is in [`pending`](Pending).

use crate::bell::Rung;
use crate::cpu::{Here, Loaded};
use crate::cpu_set::CpuSet;
use crate::extent::Extent;
use crate::extents::Extents;
use crate::journal::Origin;
use crate::machine::{CpuId, Machine};
use crate::pending::Pending;
use crate::presence::Presence;
use crate::quarantine::Horizon;
use crate::roster::Roster;
use crate::rules::{Rule, fence, publish};
use crate::space::Space;
use crate::tag::Tagging;

impl<'e, M: Machine> Here<'e, M> {
    /// Flushes `extent` of `space`: to be called after its page tables were changed, and before
    /// what they mapped is used for anything else.
    ///
    /// Rings the CPUs that could be using the space and invalidates here, if it is loaded here. All
    /// other CPUs find out by the space's generation when they come back. When the returned
    /// [`Pending`] is done, no CPU can use a translation that the extent covered and that was in
    /// the page tables before the call.
    ///
    /// Not needed where an entry was not valid before, or only gained permissions: a CPU that
    /// holds the old one takes a fault and looks again.
    ///
    /// Where it [frees tables](Extent::freeing_tables), CPUs that have the space loaded lazily are
    /// rung, too; [`flush_gathered`](Self::flush_gathered) has the tables wait instead.
    #[inline]
    pub fn flush(&self, space: &Space<M>, extent: Extent) -> Pending<'e, M> {
        let machine = self.machine();
        let generation = self.begin_flush(space, &[extent]);
        let members = self.other_members(space);
        let pending = if members.is_empty() && !self.has_devices(space) {
            self.counters().flushes_told_nobody.add_alone(1);
            // Nobody who was here lately will want to know what this one covered. Who comes all the
            // same finds no entry, and drops its tag.
            Pending::done(self.engine)
        } else {
            space.journal.log(machine, generation, extent, Origin::Asked);
            let walkers = if extent.frees_tables() { Walkers::Told } else { Walkers::Ignored };
            self.tell_present(space, &[extent], generation, walkers, &members).0
        };
        if !machine.breaks(Rule::FlushLocally) {
            self.flush_here(space, &[extent], generation);
        }
        pending
    }

    /// Flushes `extent` of `space` before an entry of another size is written where the extent was
    /// mapped: call this between *break* and *make*, and wait for it.
    ///
    /// As [`flush`](Self::flush), except where the machine does not
    /// [tolerate both sizes at once](Machine::tolerates_mixed_sizes). There, CPUs that are lazy on
    /// the space, or still hold its tables, are notified as well, as if the extent
    /// [freed tables](Extent::freeing_tables): such a CPU uses no translation of the space, but it
    /// may walk to the new entry while it has the old one cached. It leaves the space, and drops
    /// the tag before it walks the tables again.
    pub fn flush_for_resize(&self, space: &Space<M>, extent: Extent) -> Pending<'e, M> {
        let tolerates_both = self.machine().tolerates_mixed_sizes();
        self.flush(space, if tolerates_both { extent } else { extent.freeing_tables() })
    }

    /// Flushes all that an operation has taken away, in one go.
    ///
    /// As [`flush`](Self::flush), except where tables were freed: CPUs that have the space loaded
    /// lazily are not rung for them. They may go on walking those tables when the [`Pending`] is
    /// done; the [`Horizon`] says which of the space's tables that goes for, and these belong in
    /// [`Quarantine`](crate::Quarantine).
    ///
    /// If nothing was taken away, nothing is flushed.
    #[inline]
    pub fn flush_gathered(&self, space: &Space<M>, extents: &Extents) -> (Pending<'e, M>, Horizon) {
        if extents.is_empty() {
            return (Pending::done(self.engine), Horizon::UNKNOWN);
        }
        let machine = self.machine();
        let extents = extents.up_to(machine.flush_ceiling());
        let generation = self.begin_flush(space, extents);
        let members = self.other_members(space);
        let (pending, cleared) = if members.is_empty() && !self.has_devices(space) {
            self.counters().flushes_told_nobody.add_alone(1);
            (Pending::done(self.engine), generation)
        } else {
            self.log_all(space, extents, generation, Origin::Asked);
            // Also if these are pages only: earlier tables may be free by now, and we look anyway.
            self.tell_present(space, extents, generation, Walkers::HeldBack, &members)
        };
        if !machine.breaks(Rule::FlushLocally) {
            self.flush_here(space, extents, generation);
        }
        (pending, Horizon { flush: generation, cleared })
    }

    /// The first part of a flush of one of several spaces, no tables freed: all but the rings, for
    /// which those who must be told are added to `present`. Returns the generation.
    ///
    /// This CPU does its own part if it uses the space; else it makes up for it when it comes back.
    pub(crate) fn flush_one_of_several(
        &self,
        space: &Space<M>,
        extents: &[Extent],
        present: &mut CpuSet<M>,
    ) -> (u64, Told) {
        let generation = self.begin_flush(space, extents);
        let members = self.other_members(space);
        let is_alone = members.is_empty() && !self.has_devices(space);
        if !is_alone || self.presence() == Presence::Lazy(space.id()) {
            self.log_all(space, extents, generation, Origin::Reclaimed);
        }
        if is_alone {
            self.counters().flushes_told_nobody.add_alone(1);
            return (generation, Told::ByRings);
        }
        let tag = space.global_tag(self.machine());
        let found = self.look_for_present(space, generation, Walkers::Ignored, &members);
        let is_sent = self.broadcasts(space, tag, &found.present, extents, generation);
        if !is_sent {
            self.count_if_nobody(&found.present);
            present.insert_all(&found.present);
        }
        self.note_skipped(space, found.skipped, 0, members.len());
        (generation, if is_sent { Told::ByBroadcast } else { Told::ByRings })
    }

    /// Has every CPU that could still walk unhooked page tables of `space` forget the way to them:
    /// when the returned [`Pending`] is done, all tables can be freed that the [`Horizon`] clears,
    /// which are those of every flush up to now.
    ///
    /// Interrupts CPUs that are lazy on the space, and some that use it: who has not been lazy
    /// since the last flush has not said that it has caught up. For a kernel that has no room left
    /// to hold tables back.
    pub fn expel(&self, space: &Space<M>) -> (Pending<'e, M>, Horizon) {
        let machine = self.machine();
        let generation = space.journal.generation(machine);
        // Pairs with SwitchFence: a CPU that switches in, and has not seen this generation, is seen
        // to do so.
        fence(machine, Rule::ExpelFence);
        let horizon = Horizon { flush: generation, cleared: generation };
        let is_sent = self.broadcasts_whole(space, space.global_tag(machine), generation);
        let mut walkers = CpuSet::new();
        for cpu in self.other_members(space).iter() {
            let state = machine.state(cpu);
            let presence = state.presence(machine);
            if is_sent && presence.is_on(space.id()) {
                continue;
            }
            let is_coming = presence == Presence::Switching(space.id());
            // Also one that is active: it may be on its way back, and not have caught up yet.
            let is_behind = || state.held(machine).is(space) && state.seen(machine) < generation;
            if (is_coming || is_behind()) && !machine.breaks(Rule::ExpelWalkers) {
                walkers.insert(cpu);
            }
        }
        let (mut pending, tally) = self.ring_all(&walkers);
        pending.issuer = is_sent.then_some(self.id);
        space.counters.interrupts_sent.add(tally.interrupts);
        space.counters.rings_coalesced.add(tally.coalesced);
        if core::ptr::eq(self.local().loaded.get().space, space) {
            self.catch_up(space, self.ceiling_at_work());
        }
        (pending, horizon)
    }

    /// Has those who are present told, by whichever way is cheaper.
    #[inline(never)]
    fn tell_present(
        &self,
        space: &Space<M>,
        extents: &[Extent],
        generation: u64,
        walkers: Walkers,
        members: &CpuSet<M>,
    ) -> (Pending<'e, M>, u64) {
        let tag = space.global_tag(self.machine());
        let found = self.look_for_present(space, generation, walkers, members);
        let Found { present, leaving, mut cleared, skipped } = found;
        let is_sent = (!leaving.are_told || self.has_devices(space))
            && self.broadcasts(space, tag, &present, extents, generation);
        let (mut pending, mut tally) = (Pending::done(self.engine), Tally::default());
        if !is_sent || leaving.are_told {
            self.count_if_nobody(&present);
            (pending, tally) = self.ring_present(&present);
            space.counters.interrupts_sent.add(tally.interrupts);
            space.counters.rings_coalesced.add(tally.coalesced);
        }
        if is_sent {
            pending.issuer = Some(self.id);
            if self.told_everyone(space) >= generation {
                cleared = leaving.cleared;
            }
        }
        self.note_skipped(space, skipped, tally.disconnected, members.len());
        (pending, cleared)
    }

    /// Logs what a flush covers, whose last generation this is.
    #[inline]
    fn log_all(&self, space: &Space<M>, extents: &[Extent], generation: u64, origin: Origin) {
        for (&extent, before_last) in extents.iter().zip((0..extents.len() as u64).rev()) {
            space.journal.log(self.machine(), generation - before_last, extent, origin);
        }
    }

    #[inline]
    fn count_if_nobody(&self, present: &CpuSet<M>) {
        if present.is_empty() {
            self.counters().flushes_told_nobody.add_alone(1);
        }
    }

    /// Rings those who are present, and learns what that was worth.
    pub(crate) fn ring_present(&self, present: &CpuSet<M>) -> (Pending<'e, M>, Tally) {
        let (pending, tally) = self.ring_all(present);
        if self.machine().broadcast().is_some() {
            self.local().teller.learn_rings(tally.interrupts, tally.coalesced);
        }
        (pending, tally)
    }

    /// Whether devices translate by the space's page tables.
    #[inline]
    fn has_devices(&self, space: &Space<M>) -> bool {
        self.machine().tagging() == Tagging::Global && space.is_pinned()
    }

    /// To be done when what this CPU has broadcast is complete.
    fn pending_broadcast(&self) -> Pending<'e, M> {
        let mut pending = Pending::done(self.engine);
        pending.issuer = Some(self.id);
        pending
    }

    /// Counts a flush of these extents, and returns the generation of the last of them.
    #[inline]
    fn begin_flush(&self, space: &Space<M>, extents: &[Extent]) -> u64 {
        let machine = self.machine();
        publish(machine, Rule::PublishTables);
        let generation = space.journal.bump(machine, extents.len() as u64);
        if extents[0].is_whole() {
            space.counters.flushes_full.add(1);
        }
        generation
    }

    /// Who may be present on the space, apart from this CPU.
    #[inline]
    fn other_members(&self, space: &Space<M>) -> CpuSet<M> {
        let mut members = space.roster.members(self.machine());
        members.remove(self.id);
        members
    }

    /// Flushes `extent` of the kernel's own translations, global ones included, on every CPU that
    /// is online: idle CPUs run the kernel, too.
    ///
    /// As [`flush`](Self::flush), for the part of the page tables that all spaces share.
    pub fn flush_kernel(&self, extent: Extent) -> Pending<'e, M> {
        let (machine, kernel) = (self.machine(), self.engine.kernel());
        publish(machine, Rule::PublishTables);
        if self.broadcasts_kernel(extent) {
            return self.pending_broadcast();
        }
        let generation = kernel.bump(machine, 1);
        kernel.log(machine, generation, extent, Origin::Asked);
        let mut online = CpuSet::new();
        self.engine.online().read_into(machine, &mut online);
        online.remove(self.id);
        if machine.breaks(Rule::RingOnline) {
            online = CpuSet::new();
        }
        let (pending, _) = self.ring_all(&online);
        self.catch_up_with_kernel();
        pending
    }

    /// Takes out of the space's roster all CPUs that are not present on it; they come back by
    /// themselves. Flushes do so when the roster has cost them too many looks in vain.
    ///
    /// For a kernel that knows better: a process has become single-threaded, or has moved to
    /// another node. Returns `false` if another CPU is at it.
    pub fn trim_roster(&self, space: &Space<M>) -> bool {
        let moved = space.roster.move_on(self.machine(), space);
        if moved {
            space.counters.roster_moves.add(1);
            space.looks_at_move.set(space.counters.skipped_elsewhere.read());
        }
        moved
    }

    /// Who of `members` must be told.
    fn look_for_present(
        &self,
        space: &Space<M>,
        generation: u64,
        walkers: Walkers,
        members: &CpuSet<M>,
    ) -> Found<M> {
        let machine = self.machine();
        members.iter().for_each(|cpu| machine.state(cpu).prefetch(machine));
        let mut present = CpuSet::new();
        let (mut lazy, mut elsewhere) = (0, 0);
        let mut cleared = generation;
        let mut leaving = Leaving { are_told: false, cleared: generation };
        for cpu in members.iter() {
            let presence = machine.state(cpu).presence(machine);
            if presence.uses(machine, space.id()) {
                present.insert(cpu);
                continue;
            }
            let is_lazy = presence == Presence::Lazy(space.id());
            if walkers != Walkers::Ignored {
                match self.look_at_walker(space, cpu, presence, walkers) {
                    Walker::No => {}
                    Walker::MustBeTold => {
                        present.insert(cpu);
                        leaving.are_told |= !is_lazy;
                        continue;
                    }
                    Walker::HasSeen(seen) => {
                        cleared = cleared.min(seen);
                        if !is_lazy {
                            leaving.cleared = leaving.cleared.min(seen);
                        }
                    }
                }
            }
            if is_lazy {
                lazy += 1;
            } else {
                elsewhere += 1;
            }
        }
        Found { present, leaving, cleared, skipped: Skipped { lazy, elsewhere } }
    }

    /// Counts those who were not told.
    fn note_skipped(
        &self,
        space: &Space<M>,
        Skipped { lazy, elsewhere }: Skipped,
        disconnected: u64,
        member_count: usize,
    ) {
        let mine = self.counters();
        let in_vain = elsewhere + disconnected;
        mine.skipped_lazy.add_alone(lazy);
        mine.skipped_elsewhere.add_alone(in_vain);
        space.counters.skipped_lazy.add(lazy);
        if in_vain != 0 {
            self.note_looks_in_vain(space, in_vain, member_count);
        }
    }

    /// Whether a CPU that does not use the space can walk its tables. To be asked after its
    /// presence, for what it held and had seen when that was written is known then.
    fn look_at_walker(
        &self,
        space: &Space<M>,
        cpu: CpuId,
        presence: Presence,
        walkers: Walkers,
    ) -> Walker {
        let machine = self.machine();
        let state = machine.state(cpu);
        let step = match (walkers, presence) {
            (Walkers::HeldBack, _) => Rule::HoldBackTables,
            (_, Presence::Lazy(_)) => Rule::RingLazy,
            _ => Rule::RingLeaving,
        };
        if machine.breaks(step) || !state.held(machine).is(space) {
            Walker::No
        } else if walkers == Walkers::HeldBack {
            let is_lazy = presence == Presence::Lazy(space.id());
            let told = if is_lazy { self.told_everyone(space) } else { 0 };
            Walker::HasSeen(state.seen(machine).max(told))
        } else {
            Walker::MustBeTold
        }
    }

    /// Rings every CPU of a set, and sends interrupts to those whose bell was quiet.
    pub(crate) fn ring_all(&self, cpus: &CpuSet<M>) -> (Pending<'e, M>, Tally) {
        let machine = self.machine();
        let mut pending = Pending::done(self.engine);
        let mut quiet = CpuSet::new();
        let mut tally = Tally::default();
        for cpu in cpus.iter() {
            match machine.state(cpu).bell.ring(machine) {
                Rung::First => {
                    quiet.insert(cpu);
                    tally.interrupts += 1;
                }
                Rung::Coalesced => tally.coalesced += 1,
                Rung::Disconnected => {
                    tally.disconnected += 1;
                    continue;
                }
            }
            if !machine.breaks(Rule::Wait) {
                pending.waiting.insert(cpu);
            }
        }
        if !quiet.is_empty() {
            machine.ring(&quiet);
        }
        self.counters().interrupts_sent.add_alone(tally.interrupts);
        self.counters().rings_coalesced.add_alone(tally.coalesced);
        (pending, tally)
    }

    /// Has the roster move on when it has cost more looks in vain than the move will.
    fn note_looks_in_vain(&self, space: &Space<M>, looks: u64, member_count: usize) {
        let all_looks = space.counters.skipped_elsewhere.add_and_read(looks);
        let since_move = all_looks.saturating_sub(space.looks_at_move.read());
        if Roster::<M>::is_stale(since_move, member_count) {
            self.trim_roster(space);
        }
    }

    /// The flush's own CPU's part.
    #[inline]
    pub(crate) fn flush_here(&self, space: &Space<M>, extents: &[Extent], generation: u64) {
        let (machine, loaded) = (self.machine(), self.local().loaded.get());
        if !core::ptr::eq(loaded.space, space) {
            return;
        }
        // The common case, without a look at the log: this flush is all that we have missed.
        let page_count: usize = extents.iter().map(|extent| extent.page_count()).sum();
        if self.seen_of_loaded(space) + extents.len() as u64 == generation
            && !extents[0].is_whole()
            && page_count <= machine.flush_ceiling()
        {
            for &extent in extents {
                machine.invalidate(loaded.tag, extent);
            }
            self.local().loaded.set(Loaded { generation, ..loaded });
            self.counters().flushes_ranged.add_alone(extents.len() as u64);
            self.counters().pages_invalidated.add_alone(page_count as u64);
        } else {
            self.catch_up(space, self.ceiling_at_work());
        }
    }
}

/// How those who are present are told.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    /// By rings, if there are any, or they are yet to be rung.
    ByRings,
    /// By a broadcast, which this CPU has yet to complete.
    ByBroadcast,
}

/// What a flush does about CPUs that do not use the space, and could walk its tables.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Walkers {
    /// Nothing: no table is freed, and nobody asks.
    Ignored,
    /// They are rung.
    Told,
    /// The tables are held back until they have caught up.
    HeldBack,
}

/// What a look at the CPUs in the roster has found.
struct Found<M: Machine> {
    /// Those who must be told.
    present: CpuSet<M>,
    leaving: Leaving,
    /// Up to which generation nobody can walk unhooked tables any more.
    cleared: u64,
    skipped: Skipped,
}

/// Those who are on their way out of the space, and still walk its tables: no broadcast is sure to
/// reach them, for the number that they have it under may not be its own any more.
struct Leaving {
    /// Some are among those present.
    are_told: bool,
    /// Up to which generation they, of all CPUs, cannot walk unhooked tables any more.
    cleared: u64,
}

/// How many need not be told.
#[derive(Clone, Copy)]
struct Skipped {
    lazy: u64,
    elsewhere: u64,
}

/// What a CPU that does not use the space is to its tables.
enum Walker {
    /// It cannot walk them.
    No,
    /// It can.
    MustBeTold,
    /// It can walk those that were unhooked after this generation.
    HasSeen(u64),
}

/// What became of a round of rings.
#[derive(Default)]
pub(crate) struct Tally {
    interrupts: u64,
    coalesced: u64,
    disconnected: u64,
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use super::*;
    use crate::engine::Shootdown;
    use crate::machine::Root;
    use crate::soft::{Config, Host, Soft};

    type Machine = Soft<Host>;

    /// Four CPUs online.
    fn engine() -> Shootdown<Machine> {
        let engine = Soft::engine(Config { cpus: 4, ..Config::default() });
        (0..4).for_each(|cpu| engine.enter(CpuId(cpu)).here().online());
        engine
    }

    #[test]
    fn who_goes_offline_before_it_is_rung_was_looked_at_in_vain() {
        let engine = engine();
        let space = engine.space(Root(0));
        let machine = engine.machine();
        for cpu in 1..4 {
            space.roster.register(machine, CpuId(cpu));
            let cpu = engine.enter(CpuId(cpu));
            cpu.here().set_presence(Presence::Active(space.id()));
        }
        for cpu in [1, 3] {
            engine.cpu(CpuId(cpu)).bell.disconnect(machine);
        }
        engine.enter(CpuId(2)).here().set_presence(Presence::Out);
        let zero = engine.enter(CpuId(0));
        assert!(zero.here().flush(&space, Extent::page(0)).poll(), "nobody is to be waited for");
        let stats = engine.cpu(CpuId(0)).stats();
        assert_eq!((stats.interrupts_sent, stats.skipped_elsewhere), (0, 3));
        assert_eq!(space.stats(machine).skipped_elsewhere, 3);
    }

    /// It has missed nothing else, and need not look at the log, where nothing is.
    #[test]
    fn who_is_alone_drops_pages_one_by_one_and_logs_nothing() {
        alone_on(Config::default());
        alone_on(Config::default().with_broadcasts(15));
    }

    fn alone_on(config: Config) {
        let engine: Shootdown<Machine> = Soft::engine(config);
        engine.enter(CpuId(0)).here().online();
        let space = engine.space(Root(0));
        let zero = engine.enter(CpuId(0));
        let here = zero.here();
        #[expect(unsafe_code, reason = "the space outlives its CPU's use of it")]
        // SAFETY: see the reason.
        unsafe {
            here.switch(&space);
        }
        let before = engine.cpu(CpuId(0)).stats();
        for page in 1..4 {
            here.flush(&space, Extent::page(page << 12)).wait();
        }
        let after = engine.cpu(CpuId(0)).stats();
        assert_eq!(after.pages_invalidated - before.pages_invalidated, 3);
        assert_eq!(after.flushes_ranged - before.flushes_ranged, 3);
        assert_eq!(after.flushes_told_nobody - before.flushes_told_nobody, 3);
        assert_eq!(after.flushes_full, before.flushes_full);
        let everything = space.journal.missed(engine.machine(), 2, 3, here.ceiling_at_work());
        assert_eq!(everything, crate::journal::Missed::Everything);
        // More than are worth it.
        here.flush(&space, Extent::pages(0, 34, crate::extent::PageSize::SIZE_4K)).wait();
        assert_eq!(engine.cpu(CpuId(0)).stats().flushes_full, before.flushes_full + 1);
    }

    #[test]
    fn a_roster_is_trimmed_when_it_is_asked_for() {
        let engine = engine();
        let space = engine.space(Root(0));
        let machine = engine.machine();
        space.roster.register(machine, CpuId(1));
        let zero = engine.enter(CpuId(0));
        assert!(zero.here().flush(&space, Extent::page(0)).poll());
        assert!(zero.here().trim_roster(&space));
        assert!(space.roster.members(machine).is_empty());
        assert_eq!((space.stats(machine).roster_moves, space.looks_at_move.read()), (1, 1));
    }
}
