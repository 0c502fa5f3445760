//! *Pending*: a flush in two steps, send and wait.
//!
//! Between the two the caller may drop its locks, send other flushes, and join them. The CPUs that
//! were rung invalidate meanwhile, as this one does.

use core::fmt;

use crate::bell::{Rung, Ticket};
use crate::cpu::{Here, Loaded};
use crate::cpu_set::CpuSet;
use crate::engine::Shootdown;
use crate::extent::Extent;
use crate::machine::{CpuId, Machine};
use crate::presence::Presence;
use crate::roster::{Roster, must_ring};
use crate::rules::Rule;
use crate::space::Space;

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
    #[inline]
    pub fn flush(&self, space: &Space<M>, extent: Extent) -> Pending<'e, M> {
        let machine = self.machine();
        machine.publish();
        let generation = space.journal.bump(machine, 1);
        if extent.is_whole() {
            space.counters.flushes_full.add(1);
        }

        let mut members = space.roster.members(machine);
        members.remove(self.id);
        let pending = if members.is_empty() {
            // Nobody who was here lately will want to know what this one covered. Who comes all the
            // same finds no entry, and drops its tag.
            Pending::done(self.engine)
        } else {
            space.journal.log(machine, generation, extent);
            self.ring_present(space, extent, &members)
        };
        if !machine.breaks(Rule::FlushLocally) {
            self.flush_here(space, extent, generation);
        }
        pending
    }

    /// Flushes `extent` of the kernel's own translations, global ones included, on every CPU that
    /// is online: idle CPUs run the kernel, too.
    ///
    /// As [`flush`](Self::flush), for the part of the page tables that all spaces share.
    pub fn flush_kernel(&self, extent: Extent) -> Pending<'e, M> {
        let (machine, kernel) = (self.machine(), self.engine.kernel());
        machine.publish();
        let generation = kernel.bump(machine, 1);
        kernel.log(machine, generation, extent);
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
        let moved = space.roster.move_on(self.machine(), space.id());
        if moved {
            space.counters.roster_moves.add(1);
            space.looks_at_move.set(space.counters.skipped_elsewhere.read());
        }
        moved
    }

    /// Rings those of `members` whose presence asks for it.
    #[inline(never)]
    fn ring_present(
        &self,
        space: &Space<M>,
        extent: Extent,
        members: &CpuSet<M>,
    ) -> Pending<'e, M> {
        let machine = self.machine();
        members.iter().for_each(|cpu| machine.state(cpu).prefetch(machine));
        let mut present = CpuSet::new();
        let (mut lazy, mut elsewhere) = (0, 0);
        for cpu in members.iter() {
            let presence = machine.state(cpu).presence(machine);
            if must_ring(machine, presence, space.id(), extent.frees_tables()) {
                present.insert(cpu);
            } else if presence == Presence::Lazy(space.id()) {
                lazy += 1;
            } else {
                elsewhere += 1;
            }
        }
        let (pending, tally) = self.ring_all(&present);

        let (mine, its) = (self.counters(), &space.counters);
        mine.skipped_lazy.add_alone(lazy);
        mine.skipped_elsewhere.add_alone(elsewhere + tally.disconnected);
        its.skipped_lazy.add(lazy);
        its.interrupts_sent.add(tally.interrupts);
        its.rings_coalesced.add(tally.coalesced);
        let in_vain = elsewhere + tally.disconnected;
        if in_vain != 0 {
            self.note_looks_in_vain(space, in_vain, members.len());
        }
        pending
    }

    /// Rings every CPU of a set, and sends interrupts to those whose bell was quiet.
    fn ring_all(&self, cpus: &CpuSet<M>) -> (Pending<'e, M>, Tally) {
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
    fn flush_here(&self, space: &Space<M>, extent: Extent, generation: u64) {
        let loaded = self.local().loaded.get();
        if !core::ptr::eq(loaded.space, space) {
            return;
        }
        // The common case, without a look at the log: this flush is all that we have missed.
        if loaded.generation + 1 == generation
            && !extent.is_whole()
            && extent.page_count() <= self.machine().flush_ceiling()
        {
            self.machine().invalidate(loaded.tag, extent);
            self.local().loaded.set(Loaded { generation, ..loaded });
            self.counters().flushes_ranged.add_alone(1);
            self.counters().pages_invalidated.add_alone(extent.page_count() as u64);
        } else {
            self.catch_up(space, self.machine().flush_ceiling());
        }
    }
}

/// What became of a round of rings.
#[derive(Default)]
struct Tally {
    interrupts: u64,
    coalesced: u64,
    disconnected: u64,
}

/// A flush that was sent and may not yet be done.
///
/// What the flush covered must not be reused before [`wait`](Self::wait) returns or
/// [`poll`](Self::poll) says so. Dropping it waits. It holds four words and a bit per CPU: 40 bytes
/// up to 64 CPUs, 544 at 4096.
#[must_use = "nothing that the flush covered may be reused before this is done"]
pub struct Pending<'e, M: Machine> {
    engine: &'e Shootdown<M>,
    /// The CPUs that were rung and have not been seen to answer.
    waiting: CpuSet<M>,
    /// What the first of them must have served; taken when its turn comes.
    ticket: Option<Ticket>,
}

impl<'e, M: Machine> Pending<'e, M> {
    /// A flush that has nobody to wait for: a start for [`join`](Self::join).
    #[inline]
    pub const fn done(engine: &'e Shootdown<M>) -> Self {
        Self { engine, waiting: CpuSet::new(), ticket: None }
    }

    /// Returns when every CPU that was rung has answered.
    ///
    /// May be called with the flush interrupt masked or not, on any CPU. Where it is masked, this
    /// CPU's own bell is answered meanwhile, so that two CPUs may wait for each other; and since it
    /// says so, nobody sends it the interrupt: where many flush at once, that is the better way to
    /// wait, if other interrupts can bear to. The caller
    /// must hold no lock that another CPU may spin on with the interrupt masked, unless that CPU
    /// calls [`Here::answer`] as it spins.
    ///
    /// Not to be called, nor a `Pending` dropped, from a handler that may have interrupted the
    /// holder of a [`Here`]: see [`Shootdown::here`].
    ///
    /// Waits as long as it takes: a virtual CPU may rightly be away for seconds, and to go on
    /// without its answer would be the bug that this crate exists to prevent.
    #[inline]
    pub fn wait(self) {
        // If the machine's `relax` unwinds, which it must not, the wait is not begun again.
        let mut this = core::mem::ManuallyDrop::new(self);
        if !this.waiting.is_empty() {
            this.wait_here();
        }
    }

    /// Whether the flush is done, without waiting. Answers nobody.
    #[inline]
    pub fn poll(&mut self) -> bool {
        while let Some(cpu) = self.waiting.first() {
            if !self.has_answered(cpu) {
                return false;
            }
            self.waiting.remove(cpu);
            self.ticket = None;
        }
        true
    }

    /// Makes this one wait for the other, too.
    pub fn join(&mut self, mut other: Self) {
        self.waiting.insert_all(&other.waiting);
        // The first CPU may now be another one; a later ticket is as good.
        self.ticket = None;
        other.waiting = CpuSet::new();
    }

    /// The CPUs that have not yet been seen to answer.
    pub const fn waiting(&self) -> &CpuSet<M> {
        &self.waiting
    }

    #[inline(never)]
    fn wait_here(&mut self) {
        let engine = self.engine;
        let machine = &engine.machine;
        self.waiting.iter().for_each(|cpu| machine.state(cpu).bell.prefetch(machine));
        let attends = machine.interrupts_masked() && !machine.breaks(Rule::ServeWhileWaiting);
        // SAFETY: only called where the flush interrupt is masked, so that this thread stays on its
        // CPU. No holder of a token here can be in the middle of something: it would have called
        // us, which nothing in this crate does, or have been interrupted by us, which it promised
        // to prevent. Whoever interrupts us, in `relax` or because its interrupt is not masked,
        // finds no token in use: each of ours is gone when its method returns, and its promise is
        // that of `here`.
        #[expect(unsafe_code, reason = "the token for the CPU that we wait on")]
        let here = || unsafe { engine.here() };
        if attends {
            here().attend();
        }
        while !self.poll() {
            if attends {
                here().answer_attended();
            }
            machine.relax(&self.waiting);
        }
        if attends {
            here().cease_to_attend();
        }
    }

    /// Whether `cpu`, the first that we wait for, has answered.
    ///
    /// The ticket is taken once. To take a new one at each look might never end: others may keep
    /// on ringing.
    fn has_answered(&mut self, cpu: CpuId) -> bool {
        let machine = &self.engine.machine;
        let bell = &machine.state(cpu).bell;
        if self.ticket.is_none() {
            self.ticket = bell.ticket(machine);
        }
        self.ticket.is_none_or(|ticket| bell.has_answered(machine, ticket))
    }
}

impl<M: Machine> Drop for Pending<'_, M> {
    #[inline]
    fn drop(&mut self) {
        if !self.waiting.is_empty() {
            self.wait_here();
        }
    }
}

impl<M: Machine> fmt::Debug for Pending<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pending").field(&self.waiting).finish()
    }
}
