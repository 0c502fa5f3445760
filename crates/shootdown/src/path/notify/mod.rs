//! *Notify*: selects the CPUs that a flush must notify, and notifies them.
//!
//! The scan reads the presence of every CPU in the cpumask, and keeps the CPUs that could be using
//! the space, or that could walk tables that are about to be freed. The flush interrupts these
//! CPUs, or notifies them with a broadcast where that costs less.

mod ring;

use crate::base::ids::{CpuId, Tag};
use crate::base::rules::Rule;
use crate::parts::cpu_set::{CpuSet, cpus_of_word};
use crate::parts::cpumask::CpuMask;
use crate::parts::extent::Extent;
use crate::parts::flush_log::Cause;
use crate::parts::presence::{Presence, PresenceWord};
use crate::path::pending::Pending;
use crate::state::broadcaster::Refused;
use crate::state::machine::Machine;
use crate::state::pinned_cpu::PinnedCpu;
use crate::state::space::Space;

pub(crate) use ring::RingTo;

/// A flush of one space, which the generation already counts.
pub(crate) struct Flush<'f> {
    pub(crate) extents: &'f [Extent],
    /// The generation of the last extent.
    pub(crate) generation: u64,
    pub(crate) walkers: WalkerPolicy,
    pub(crate) cause: Cause,
}

/// The treatment of CPUs that do not use the space, and could walk its tables.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WalkerPolicy {
    /// No table is freed, so such CPUs are skipped.
    Ignore,
    /// Such CPUs are interrupted.
    Interrupt,
    /// Such CPUs are skipped, and freed tables wait in quarantine until they have caught up.
    Defer,
}

impl WalkerPolicy {
    /// The policy of a flush without quarantine.
    #[inline]
    pub(crate) const fn of(extent: Extent) -> Self {
        if extent.frees_tables() { Self::Interrupt } else { Self::Ignore }
    }
}

/// The way in which the CPUs were notified that a flush found present.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotifiedBy {
    /// By interrupts. If such CPUs were only collected, the caller must interrupt them.
    Interrupts,
    /// By a broadcast that reaches these CPUs, and maybe no other. This CPU must complete it.
    BroadcastToPresent,
    /// By a broadcast that reaches every CPU, this one included. This CPU must complete it.
    BroadcastToAll,
}

/// The result of notifying the other CPUs of a flush.
pub(crate) struct NotifiedOthers {
    pub(crate) notified: NotifiedBy,
    /// Generation up to which no CPU can walk unhooked tables any more.
    pub(crate) cleared: u64,
}

/// The result of a scan of the CPUs in the cpumask.
#[derive(Default)]
pub(crate) struct Scan {
    /// The space's tag, for broadcasts.
    pub(crate) tag: Tag,
    /// The generation that broadcasts had covered when the scan began. Read once, because other
    /// CPUs' flushes take its line away at any time.
    covered: u64,
    /// Number of CPUs that must be notified.
    present: u64,
    /// Number of CPUs that are skipped because they are lazy on the space.
    lazy: u64,
    /// Number of CPUs that are skipped because they are elsewhere: out, or on another space.
    elsewhere: u64,
    /// `true` if a CPU that must be notified is on its way out of the space.
    notifies_leaving: bool,
    /// Generation up to which no CPU can walk unhooked tables any more.
    cleared: u64,
    /// Generation up to which no CPU that is on its way out can walk unhooked tables any more.
    cleared_by_leaving: u64,
}

impl<'e, M: Machine> PinnedCpu<'e, M> {
    /// Adds all other CPUs of the mask to `others`, which is empty. Returns `true` if devices may
    /// be attached to the space.
    #[inline]
    pub(crate) fn read_others(&self, space: &Space<M>, others: &mut CpuSet<M::CpuBits>) -> bool {
        let has_devices = space.cpumask.read_with_devices(self.machine(), others);
        others.remove(self.id);
        has_devices
    }

    /// The largest number of notifications that a flush of pages of `space` would send: an
    /// interrupt for each other CPU in the cpumask, or one broadcast if the machine has a
    /// broadcaster. 0 if no other CPU has the space loaded now, and `None` if devices use it.
    ///
    /// A CPU that is lazy on the space counts, because it may be in the kernel for a microsecond.
    ///
    /// This is a hint, for the choice between a flush and a way to avoid it: CPUs and devices may
    /// come and go at any time.
    #[must_use]
    pub fn notifications_max(&self, space: &Space<M>) -> Option<usize> {
        let mut others = CpuSet::new();
        if self.read_others(space, &mut others) {
            return None;
        }
        let (machine, id) = (self.machine(), space.id());
        let has_loaded = |cpu| match self.engine.cpu(cpu).presence(machine) {
            Presence::Active(used) | Presence::Switching(used) | Presence::Lazy(used) => used == id,
            Presence::Out => false,
        };
        if !others.iter().any(has_loaded) {
            return Some(0);
        }
        Some(if machine.broadcaster().is_some() { 1 } else { others.len() })
    }

    /// Returns `true` if another CPU is in user mode in `space`, so that a flush would notify it:
    /// for the choice of what is worth its cost to save notifications.
    ///
    /// This is a hint: CPUs may come and go at any time.
    #[must_use]
    pub fn is_used_elsewhere(&self, space: &Space<M>) -> bool {
        let mut others = CpuSet::new();
        self.read_others(space, &mut others);
        let in_use = Presence::Active(space.id());
        others.iter().any(|cpu| self.engine.cpu(cpu).presence(self.machine()) == in_use)
    }

    /// Calls `f` with each CPU that has `space` loaded, lazy ones and this one included: for what a
    /// kernel loads with a space, such as x86's LDT.
    ///
    /// Call this after a full barrier that follows the change. A CPU that is not named loads the
    /// space later, and observes the change after its [`switch`](Self::switch): your barrier pairs
    /// with [`SwitchFence`](Rule::SwitchFence) and [`RegisterFence`](Rule::RegisterFence), as that
    /// of a flush does. A CPU that is named may have left the space by now.
    pub fn for_each_user(&self, space: &Space<M>, f: impl FnMut(CpuId)) {
        let (machine, mut members) = (self.machine(), CpuSet::new());
        space.cpumask.read_into(machine, &mut members);
        let is_user = |cpu: &CpuId| machine.state(*cpu).presence_word(machine).is_on(space.id());
        members.iter().filter(is_user).for_each(f);
    }

    /// Returns `true` if a flush concerns no other CPU, and need not be broadcast for devices.
    #[inline]
    pub(crate) fn is_alone(&self, space: &Space<M>, others: &CpuSet<M::CpuBits>) -> bool {
        others.is_empty() && !self.is_pinned(space)
    }

    /// Notifies those CPUs in `pending` that must be notified, with the cheaper method, and removes
    /// all others from it.
    #[inline(always)]
    pub(crate) fn notify_others(
        &self,
        space: &Space<M>,
        flush: &Flush<'_>,
        pending: &mut Pending<'e, M>,
    ) -> NotifiedOthers {
        let scan = self.scan(space, flush, &mut pending.waiting);
        let Flush { extents, generation, .. } = *flush;
        // A CPU on its way out may have the space loaded under an ASID that a rollover has taken
        // from the space. A broadcast names the new ASID, and does not reach such a CPU.
        let notified = if !scan.notifies_leaving || self.is_pinned(space) {
            self.try_broadcast(space, scan.tag, &pending.waiting, extents, generation)
                .unwrap_or_else(|Refused| {
                    pending.add_devices(self.issue_to_devices(space, extents));
                    NotifiedBy::Interrupts
                })
        } else {
            NotifiedBy::Interrupts
        };
        let is_broadcast = notified != NotifiedBy::Interrupts;
        // A broadcast that reaches every CPU is not logged: no CPU must invalidate for it. (After a
        // gap, a CPU that returns discards its tag: see `GAP_MAX`.) Where all CPUs flush, they
        // would wait for the log's lines longer than for the broadcast. Otherwise, the lines of the
        // bells are on their way, while this CPU waits for those of the log. A CPU that returns
        // before the entry is complete discards its tag.
        if notified != NotifiedBy::BroadcastToAll {
            self.log_all(space, flush);
        }
        let mut cleared = scan.cleared;
        let mut disconnected = 0;
        if is_broadcast && !scan.notifies_leaving {
            pending.waiting.clear();
        } else {
            self.count_if_local(&pending.waiting);
            disconnected = self.ring_present(pending);
        }
        if is_broadcast {
            self.await_broadcast(pending);
            if self.covered_by_broadcasts(space) >= generation {
                cleared = scan.cleared_by_leaving;
            }
        }
        self.note_skipped(space, &scan, disconnected);
        NotifiedOthers { notified, cleared }
    }

    /// Logs the extents of a flush, each under its own generation.
    #[inline]
    pub(crate) fn log_all(&self, space: &Space<M>, flush: &Flush<'_>) {
        let before = flush.generation - flush.extents.len() as u64;
        for (generation, &extent) in (before + 1..).zip(flush.extents) {
            space.log.record(self.machine(), generation, extent, flush.cause);
        }
    }

    /// Reads the presence of each CPU in `cpus`, and removes the CPUs that the flush skips.
    #[inline(always)]
    pub(crate) fn scan(
        &self,
        space: &Space<M>,
        flush: &Flush<'_>,
        cpus: &mut CpuSet<M::CpuBits>,
    ) -> Scan {
        let machine = self.machine();
        let mut scan = Scan {
            tag: self.broadcast_tag(space),
            covered: self.covered_by_broadcasts(space),
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
                let state = machine.state(cpu);
                let presence = state.presence_word(machine);
                if presence.uses(machine, space.id()) {
                    if self.will_probably_ring() {
                        state.bell.prefetch_for_ring(machine);
                    }
                    scan.present += 1;
                    continue;
                }
                let is_notified = flush.walkers != WalkerPolicy::Ignore
                    && self.check_walker(space, cpu, presence, flush.walkers, &mut scan);
                if is_notified {
                    scan.present += 1;
                    continue;
                }
                present &= !(1 << (cpu.index() % 64));
                if presence.is_lazy_on(space.id()) {
                    scan.lazy += 1;
                } else {
                    scan.elsewhere += 1;
                }
            }
            cpus.set_word(word, present);
        }
        scan
    }

    /// Checks whether a CPU that does not use the space can walk its tables. Returns `true` if the
    /// CPU must be notified. If not, lowers the scan's cleared generations to what the CPU has
    /// seen.
    ///
    /// Call this after loading the CPU's presence: that load's acquire makes the CPU's earlier
    /// stores to its hazard pointer and its seen generation visible.
    fn check_walker(
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
        let covered = if is_lazy { scan.covered } else { 0 };
        let seen = state.seen(machine).max(covered);
        scan.cleared = scan.cleared.min(seen);
        if !is_lazy {
            scan.cleared_by_leaving = scan.cleared_by_leaving.min(seen);
        }
        false
    }

    /// Counts a flush as local if no other CPU is present.
    #[inline]
    pub(crate) fn count_if_local(&self, present: &CpuSet<M::CpuBits>) {
        if present.is_empty() {
            self.counters().flushes_local.add_unshared(1);
        }
    }

    /// Counts the CPUs that were not notified. `disconnected` of them were rung and are offline.
    pub(crate) fn note_skipped(&self, space: &Space<M>, scan: &Scan, disconnected: u64) {
        let wasted = scan.elsewhere + disconnected;
        self.counters().skipped_lazy.add_unshared(scan.lazy);
        if wasted != 0 {
            self.counters().skipped_elsewhere.add_unshared(wasted);
            let members = scan.present + scan.lazy + scan.elsewhere;
            self.note_wasted_probes(space, wasted, members);
        }
    }

    /// Counts wasted probes, and trims the cpumask when they have cost more than the trim will.
    fn note_wasted_probes(&self, space: &Space<M>, wasted: u64, member_count: u64) {
        let all = space.counters.skipped_elsewhere.add_and_read(wasted);
        let since_trim = all.saturating_sub(space.wasted_at_trim.read());
        if CpuMask::<M, M::CpuBits>::is_stale(since_trim, member_count) {
            self.trim_cpumask(space);
        }
    }
}
