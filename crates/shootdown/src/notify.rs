//! *Notify*: which CPUs a flush must notify, and how it does so.
//!
//! The scan looks at every CPU of the cpumask, and keeps those that could be using the space, or
//! walk tables that are about to be freed. These are interrupted, or notified by a broadcast where
//! that costs less.

use crate::bell::Rung;
use crate::cpu_set::{CpuSet, cpus_of_word};
use crate::cpumask::CpuMask;
use crate::extent::Extent;
use crate::flush_log::Cause;
use crate::ids::{CpuId, Tag};
use crate::machine::Machine;
use crate::pending::Pending;
use crate::pinned_cpu::PinnedCpu;
use crate::presence::PresenceWord;
use crate::rules::Rule;
use crate::space::Space;

/// A flush of one space, which has been counted.
pub(crate) struct Flush<'f> {
    pub(crate) extents: &'f [Extent],
    /// The generation of the last of them.
    pub(crate) generation: u64,
    pub(crate) walkers: WalkerPolicy,
    pub(crate) cause: Cause,
}

/// What a flush does about CPUs that do not use the space, and could walk its tables.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WalkerPolicy {
    /// Nothing: no table is freed.
    Ignore,
    /// They are interrupted.
    Interrupt,
    /// The tables are held back until they have caught up.
    Defer,
}

/// What a look at the CPUs in the cpumask has found.
#[derive(Default)]
pub(crate) struct Scan {
    /// The space's tag, if broadcasts are to name it.
    pub(crate) tag: Tag,
    /// How many must be notified.
    present: u64,
    /// How many need not be, for they are lazy on the space.
    lazy: u64,
    /// How many need not be, for they are elsewhere.
    elsewhere: u64,
    /// Whether some of those that must be notified are on their way out of the space.
    notifies_leaving: bool,
    /// Up to which generation no CPU can walk unhooked tables any more.
    cleared: u64,
    /// Up to which generation no CPU that is on its way out can.
    cleared_by_leaving: u64,
}

/// The outcome of ringing several CPUs.
#[derive(Default)]
pub(crate) struct Rings {
    interrupts: u64,
    coalesced: u64,
    disconnected: u64,
}

impl<'e, M: Machine> PinnedCpu<'e, M> {
    /// Notifies those CPUs of the mask that must be, by the cheaper method, and makes `pending`
    /// wait for them. Returns the generation up to which no CPU can walk unhooked tables any more.
    pub(crate) fn notify_others(
        &self,
        space: &Space<M>,
        flush: &Flush<'_>,
        pending: &mut Pending<'e, M>,
    ) -> u64 {
        space.cpumask.read_into(self.machine(), &mut pending.waiting);
        pending.waiting.remove(self.id);
        self.log_all(space, flush);
        let scan = self.scan(space, flush, &mut pending.waiting);
        let Flush { extents, generation, .. } = *flush;
        // A CPU that is leaving may have the space under a number that is not its own any more: no
        // broadcast is sure to reach it.
        let is_broadcast = (!scan.notifies_leaving || self.has_devices(space))
            && self.broadcasts(space, scan.tag, &pending.waiting, extents, generation);
        let mut cleared = scan.cleared;
        let mut disconnected = 0;
        if is_broadcast && !scan.notifies_leaving {
            pending.waiting.clear();
        } else {
            self.count_if_nobody(&pending.waiting);
            disconnected = self.ring_present(pending);
        }
        if is_broadcast {
            self.await_broadcast(pending);
            if self.told_everyone(space) >= generation {
                cleared = scan.cleared_by_leaving;
            }
        }
        self.note_skipped(space, &scan, disconnected);
        cleared
    }

    /// Logs the extents of a flush.
    #[inline]
    pub(crate) fn log_all(&self, space: &Space<M>, flush: &Flush<'_>) {
        let before = flush.generation - flush.extents.len() as u64;
        for (generation, &extent) in (before + 1..).zip(flush.extents) {
            space.log.record(self.machine(), generation, extent, flush.cause);
        }
    }

    /// Looks at the CPUs of a set, and leaves those in it that must be notified.
    #[inline]
    pub(crate) fn scan(
        &self,
        space: &Space<M>,
        flush: &Flush<'_>,
        cpus: &mut CpuSet<M::CpuBits>,
    ) -> Scan {
        let machine = self.machine();
        let mut scan = Scan {
            tag: self.broadcast_tag(space),
            cleared: flush.generation,
            cleared_by_leaving: flush.generation,
            ..Scan::default()
        };
        if M::PREFETCHES {
            cpus.iter().for_each(|cpu| machine.state(cpu).prefetch(machine));
        }
        for word in cpus.word_indices() {
            let members = cpus.word(word);
            let mut present = members;
            for cpu in cpus_of_word(word, members) {
                let presence = machine.state(cpu).presence_word(machine);
                if presence.uses(machine, space.id()) {
                    continue;
                }
                let is_notified = flush.walkers != WalkerPolicy::Ignore
                    && self.look_at_walker(space, cpu, presence, flush.walkers, &mut scan);
                if is_notified {
                    continue;
                }
                present &= !(1 << (cpu.index() % 64));
                if presence.is_lazy_on(space.id()) {
                    scan.lazy += 1;
                } else {
                    scan.elsewhere += 1;
                }
            }
            scan.present += u64::from(present.count_ones());
            cpus.set_word(word, present);
        }
        scan
    }

    /// Looks whether a CPU that does not use the space can walk its tables. Call this after its
    /// presence was read: what it held, and had seen, when that was written is known then.
    ///
    /// Returns whether it must be notified; if not, notes which tables it can walk.
    fn look_at_walker(
        &self,
        space: &Space<M>,
        cpu: CpuId,
        presence: PresenceWord,
        walkers: WalkerPolicy,
        scan: &mut Scan,
    ) -> bool {
        let machine = self.machine();
        let state = machine.state(cpu);
        let is_lazy = presence.is_lazy_on(space.id());
        let step = match walkers {
            WalkerPolicy::Defer => Rule::QuarantineTables,
            _ if is_lazy => Rule::RingLazy,
            _ => Rule::RingLeaving,
        };
        if machine.breaks(step) || !state.hazard(machine).is(space) {
            return false;
        }
        if walkers == WalkerPolicy::Interrupt {
            scan.notifies_leaving |= !is_lazy;
            return true;
        }
        let told = if is_lazy { self.told_everyone(space) } else { 0 };
        let seen = state.seen(machine).max(told);
        scan.cleared = scan.cleared.min(seen);
        if !is_lazy {
            scan.cleared_by_leaving = scan.cleared_by_leaving.min(seen);
        }
        false
    }

    #[inline]
    pub(crate) fn count_if_nobody(&self, present: &CpuSet<M::CpuBits>) {
        if present.is_empty() {
            self.counters().flushes_local.add_alone(1);
        }
    }

    /// Counts the CPUs that were not notified.
    pub(crate) fn note_skipped(&self, space: &Space<M>, scan: &Scan, disconnected: u64) {
        let wasted = scan.elsewhere + disconnected;
        self.counters().skipped_lazy.add_alone(scan.lazy);
        if wasted != 0 {
            self.counters().skipped_elsewhere.add_alone(wasted);
            let members = scan.present + scan.lazy + scan.elsewhere;
            self.note_wasted_probes(space, wasted, members);
        }
    }

    /// Moves the cpumask when it has cost more wasted probes than the move will.
    fn note_wasted_probes(&self, space: &Space<M>, wasted: u64, member_count: u64) {
        let all = space.counters.skipped_elsewhere.add_and_read(wasted);
        let since_move = all.saturating_sub(space.looks_at_move.read());
        if CpuMask::<M, M::CpuBits>::is_stale(since_move, member_count) {
            self.trim_cpumask(space);
        }
    }

    /// Rings the CPUs that `pending` waits for, and learns what that was worth. Returns how many of
    /// them are offline.
    pub(crate) fn ring_present(&self, pending: &mut Pending<'e, M>) -> u64 {
        let rings = self.ring_all(pending);
        if self.machine().broadcaster().is_some() {
            self.local().policy.learn_rings(rings.interrupts, rings.coalesced);
        }
        rings.disconnected
    }

    /// Rings the CPUs that `pending` waits for, sends interrupts to those whose bell was quiet, and
    /// makes it wait no more for those that are offline.
    ///
    /// Interrupts go out word by word, as soon as its 64 bells are rung: no second set is needed.
    pub(crate) fn ring_all(&self, pending: &mut Pending<'e, M>) -> Rings {
        let machine = self.machine();
        let mut rings = Rings::default();
        for word in pending.waiting.word_indices() {
            let mut awaited = pending.waiting.word(word);
            let mut quiet = 0;
            for cpu in cpus_of_word(word, awaited) {
                let bit = 1 << (cpu.index() % 64);
                match machine.state(cpu).bell.ring(machine) {
                    Rung::First => quiet |= bit,
                    Rung::Coalesced => rings.coalesced += 1,
                    Rung::Disconnected => {
                        rings.disconnected += 1;
                        awaited &= !bit;
                    }
                }
            }
            if quiet != 0 {
                rings.interrupts += u64::from(quiet.count_ones());
                let waiting = &mut pending.waiting;
                waiting.lend_word(word, quiet, |cpus| machine.ring(cpus));
            }
            let waits = !machine.breaks(Rule::Wait);
            pending.waiting.set_word(word, if waits { awaited } else { 0 });
        }
        self.counters().interrupts_sent.add_alone(rings.interrupts);
        self.counters().rings_coalesced.add_alone(rings.coalesced);
        rings
    }
}
