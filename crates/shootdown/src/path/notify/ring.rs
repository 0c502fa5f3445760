//! *Ring*: the interrupts of a flush.

use crate::base::rules::Rule;
use crate::parts::bell::Rung;
use crate::parts::cpu_set::cpus_of_word;
use crate::path::pending::Pending;
use crate::state::machine::Machine;
use crate::state::pinned_cpu::PinnedCpu;

/// The outcome of ringing several CPUs.
#[derive(Default)]
pub(crate) struct Rings {
    interrupts: u64,
    coalesced: u64,
    disconnected: u64,
    away: u64,
}

/// The purpose of ringing a CPU.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RingTo {
    /// The CPU must invalidate. If it is [away](Machine::is_away), it will do so before it runs,
    /// unless it [walks by software](PinnedCpu::begin_walk).
    Invalidate,
    /// The CPU itself must drop a dead space, even if it is away.
    DropSpace,
}

impl<'e, M: Machine> PinnedCpu<'e, M> {
    /// Rings the CPUs that `pending` waits for, and records in the notification policy how many
    /// rings took an interrupt. Returns the number of these CPUs that are offline.
    #[inline(always)]
    pub(crate) fn ring_present(&self, pending: &mut Pending<'e, M>) -> u64 {
        let rings = self.ring_all(pending, RingTo::Invalidate);
        if self.machine().broadcaster().is_some() {
            self.local().policy.record_rings(rings.interrupts, rings.coalesced);
        }
        rings.disconnected
    }

    /// Rings the CPUs that `pending` waits for, whose presence was not read.
    pub(crate) fn ring_online(&self, pending: &mut Pending<'e, M>) {
        if M::PREFETCHES_FOR_WRITE {
            let machine = self.machine();
            let bell = |cpu| &machine.state(cpu).bell;
            pending.waiting.iter().for_each(|cpu| bell(cpu).prefetch_for_ring(machine));
        }
        self.ring_all(pending, RingTo::Invalidate);
    }

    /// Rings the CPUs that `pending` waits for, sends the interrupt to those whose bell was quiet,
    /// and removes those that are offline. Neither rings nor waits for a CPU that is away, if it
    /// must only invalidate, and does not walk by software.
    ///
    /// The interrupts of each word of the set are sent after its 64 bells were rung. So no second
    /// set is necessary.
    #[inline(always)]
    pub(crate) fn ring_all(&self, pending: &mut Pending<'e, M>, purpose: RingTo) -> Rings {
        let machine = self.machine();
        let mut rings = Rings::default();
        for word in pending.waiting.word_indices() {
            let mut awaited = pending.waiting.word(word);
            let mut quiet = 0;
            for cpu in cpus_of_word(word, awaited) {
                let bit = 1 << (cpu.index() % 64);
                // After FlushFence: the CPU empties its TLB after this CPU's page-table writes.
                if purpose == RingTo::Invalidate
                    && !machine.breaks(Rule::SkipAway)
                    && machine.is_away(cpu)
                    && !machine.state(cpu).is_walking(machine)
                {
                    rings.away += 1;
                    awaited &= !bit;
                    continue;
                }
                match machine.state(cpu).bell.ring(machine) {
                    Rung::First => {
                        rings.interrupts += 1;
                        quiet |= bit;
                    }
                    Rung::Coalesced => rings.coalesced += 1,
                    Rung::Disconnected => {
                        rings.disconnected += 1;
                        awaited &= !bit;
                    }
                }
            }
            if quiet != 0 {
                let waiting = &mut pending.waiting;
                waiting.lend_word(word, quiet, |cpus| machine.ring(cpus));
            }
            let waits = !machine.breaks(Rule::Wait);
            pending.waiting.set_word(word, if waits { awaited } else { 0 });
        }
        self.counters().interrupts_sent.add_unshared(rings.interrupts);
        self.counters().rings_coalesced.add_unshared(rings.coalesced);
        if rings.away != 0 {
            self.counters().skipped_away.add_unshared(rings.away);
        }
        rings
    }
}
