//! Replicas: upper page tables of a CPU's own, so that a flush knows which CPUs it concerns.
//!
//! If all CPUs that run a space load the same tables, any of them may cache any translation, and a
//! flush must notify all of them. Here, each CPU loads a *replica*: a root and upper tables of its
//! own, with links to the tables of the last level, which are shared. A table of the last level
//! records its *sharers*: the CPUs whose replicas link to it. Only they can have cached an entry of
//! the table, or a path to it, by way of a replica.
//!
//! ```text
//! space ─── canonical tree: software walks it; a CPU without a replica loads it
//!    │           │
//!    │           ▼
//!    │     table of the last level, with its sharers
//!    │           ▲
//!    └──── replica of CPU c: root and upper tables, and links that CPU c's faults make
//! ```
//!
//! To the [coherence](crate::Coherence), a replica is a space of its own, which one CPU uses. So a
//! flush of the space becomes a flush of the replicas of the sharers, and of the space itself for
//! CPUs without a replica. A CPU that uses no changed table misses nothing, and has nothing to
//! catch up with.
//!
//! # Order
//!
//! ```text
//!   link, on CPU c                              flush
//!   ──────────────                              ─────
//!   add c to the sharers of the table           clear entries of the table
//!   full barrier   (`add_sharer`)               full barrier                    (UsedFence)
//!   link the table into the replica             any replica? read the sharers
//! ```
//!
//! Either the flush finds the sharer, or everything that the CPU can walk by its new link is as new
//! as the cleared entries. The same holds if the space has no replica when the entries are cleared,
//! because the first replica is added before its first link is made. A link is made under the lock
//! of the area, and a table is unhooked when no area needs it, so the table stays in the canonical
//! tree until the link is made. The operation that unhooks a table removes the links to it, and
//! flushes the replicas that had them before the table is freed.
//!
//! A space has replicas if they are [worth](crate::worth) their cost, and no large pages, because a
//! replica has no links to them. The CPUs of a space that gives its replicas up load the canonical
//! tree when they next return to user mode, and the replicas are kept until the space ends.

mod replica;

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;

use lock_api::RwLock;

use crate::coherence::{Change, Flush, Replication};
use crate::flushing::Flushing;
use crate::rules::{Rule, fence, order};
use crate::sharers::Sharers;
use crate::sync::AtomicU64;
use crate::system::{Coherent, IndexLock, System};
use crate::worth::{Tally, Worth};
pub(crate) use replica::Replica;

/// Number of other CPUs that are looked at before a judgement. To read the state of a CPU costs up
/// to 0.1 µs, so four of them cost 13 ns for each flush.
const PROBES: usize = 4;

/// The replicas of a space.
pub(crate) struct Replicas<S: System> {
    by_cpu: RwLock<IndexLock<S>, BTreeMap<usize, Arc<Replica<S>>>>,
    /// Number of replicas that may be in use.
    in_use: AtomicU64,
    /// `false` if the space never has replicas.
    are_possible: bool,
    worth: Worth,
}

impl<S: System> Replicas<S> {
    pub(crate) fn new(replication: Replication) -> Self {
        Self {
            by_cpu: RwLock::new(BTreeMap::new()),
            in_use: AtomicU64::new(0),
            are_possible: replication != Replication::Never,
            worth: Worth::new(replication),
        }
    }

    /// Returns `true` if replicas may be in use. A call that has changed entries of tables to which
    /// a CPU may be making links asks [`are_used_after_change`](Self::are_used_after_change).
    #[inline]
    pub(crate) fn are_used(&self) -> bool {
        self.in_use.load(order(Rule::AbandonAcquire)) != 0
    }

    /// Returns `true` if a CPU may have cached, by way of a replica, an entry that the caller has
    /// changed. If a CPU adds the first replica at the same time, either this finds the replica, or
    /// the CPU's walks find the changed entry: the barrier here pairs with that of
    /// [`Platform::add_sharer`].
    #[inline]
    #[cfg_attr(test, track_caller)]
    pub(crate) fn are_used_after_change(&self, platform: &S::Platform) -> bool {
        if !self.are_possible {
            return false;
        }
        fence(platform, Rule::UsedFence);
        self.are_used()
    }

    /// Number of replicas that may be in use.
    pub(crate) fn in_use(&self) -> usize {
        // Relaxed: only a hint.
        self.in_use.load(Relaxed) as usize
    }

    /// Returns `true` if CPUs should load replicas.
    pub(crate) fn are_wanted(&self) -> bool {
        self.worth.is_wanted()
    }

    /// Returns the replica of a CPU.
    pub(crate) fn of(&self, cpu: usize) -> Option<Arc<Replica<S>>> {
        if self.are_used() { self.by_cpu.read().get(&cpu).cloned() } else { None }
    }

    /// Returns the replica that a CPU should load.
    pub(crate) fn to_load(&self, cpu: usize) -> Option<Arc<Replica<S>>> {
        if self.are_wanted() { self.of(cpu) } else { None }
    }

    /// Makes CPUs load the canonical tree from now on.
    pub(crate) fn give_up(&self) {
        self.worth.give_up();
    }

    /// Gives up, unless the space has replicas always: a batch of reclaim has no room for those of
    /// a page, so that each page is flushed more than once.
    #[cold]
    pub(crate) fn give_up_if_crowded(&self) {
        self.worth.give_up_if_possible();
    }

    /// Returns `true` if CPUs should load replicas, now that `cpu` changes the space. Decides it
    /// at the first change by a second CPU, while another CPU uses the space.
    pub(crate) fn are_wanted_by(
        &self,
        cpu: usize,
        is_used_elsewhere: impl FnOnce() -> bool,
    ) -> bool {
        self.worth.is_wanted_by(cpu, is_used_elsewhere)
    }

    /// Adds a replica. Returns `false` if the CPU has one already.
    pub(crate) fn add(&self, replica: Replica<S>) -> bool {
        let mut by_cpu = self.by_cpu.write();
        if by_cpu.contains_key(&replica.cpu) {
            return false;
        }
        by_cpu.insert(replica.cpu, Arc::new(replica));
        // Relaxed: the barrier of `add_sharer` follows, before the first link.
        self.in_use.fetch_add(1, Relaxed);
        true
    }

    /// Returns all replicas, used or not.
    pub(crate) fn all(&self) -> Vec<Arc<Replica<S>>> {
        self.by_cpu.read().values().cloned().collect()
    }

    /// Records that the CPU of a replica has loaded the canonical tree, and will not load the
    /// replica again. Does nothing while the replica's links are being [cut](Replica::cut); the CPU
    /// then calls this again when it next loads the canonical tree.
    pub(crate) fn abandon(&self, replica: &Replica<S>) {
        if replica.abandon() {
            self.in_use.fetch_sub(1, order(Rule::UncountRelease));
        }
    }

    /// Returns the replicas of the sharers that may still be in use.
    pub(crate) fn of_sharers(&self, sharers: &Sharers) -> Vec<Arc<Replica<S>>> {
        let by_cpu = self.by_cpu.read();
        let in_use = |replica: &&Arc<Replica<S>>| !replica.is_abandoned();
        match sharers.cpus() {
            None => by_cpu.values().filter(in_use).cloned().collect(),
            Some(cpus) => cpus.filter_map(|cpu| by_cpu.get(&cpu)).filter(in_use).cloned().collect(),
        }
    }

    /// Starts a flush of the space and of the replicas of the sharers. The replica of the calling
    /// CPU is flushed by the wait, so that locks can be unlocked before.
    pub(crate) fn flush(
        &self,
        coherence: &S::Coherence,
        coherent: &Coherent<S>,
        cpu: usize,
        sharers: &Sharers,
        change: &Change,
    ) -> Flushing<S> {
        let mut covered = self.of_sharers(sharers);
        let own = covered.iter().position(|replica| replica.cpu == cpu);
        let own = own.map(|index| covered.swap_remove(index));
        for other in &covered {
            other.count_flush();
        }
        let others: Vec<&Coherent<S>> = covered.iter().map(|replica| &replica.coherent).collect();
        let pending = coherence.flush_replicas(coherent, &others, change);
        // Relaxed: only a hint.
        let left_out = (self.in_use.load(Relaxed) as usize).saturating_sub(others.len() + 1);
        self.note(coherence, cpu, |tally| tally.note_flush(others.len(), left_out));
        Flushing::with_own(pending, own.map(|own| (own, change.clone())))
    }

    /// Records a fault of a CPU that did nothing but make a link.
    pub(crate) fn note_link_fault(&self, coherence: &S::Coherence, cpu: usize) {
        self.note(coherence, cpu, Tally::note_link_fault);
    }

    /// Records something in the tally of a CPU's replica. From time to time, compares all tallies,
    /// and gives up the replicas if they cost more than they save.
    fn note(&self, coherence: &S::Coherence, cpu: usize, note: impl FnOnce(&Tally) -> bool) {
        let Some(replica) = self.of(cpu) else { return };
        if note(&replica.tally) && self.are_wanted() {
            for other in self.others_of(&replica) {
                replica.tally.note_probe(coherence.is_used_elsewhere(&other.coherent));
            }
            let by_cpu = self.by_cpu.read();
            self.worth.judge(by_cpu.values().map(|replica| &replica.tally));
        }
    }

    /// Returns some replicas of other CPUs to look at: others each time.
    fn others_of(&self, replica: &Replica<S>) -> Vec<Arc<Replica<S>>> {
        let by_cpu = self.by_cpu.read();
        let count = by_cpu.len() - 1;
        let first = (replica.cpu + replica.tally.probes()) % count.max(1);
        let others = by_cpu.values().filter(|other| other.cpu != replica.cpu);
        others.cycle().skip(first).take(count.min(PROBES)).cloned().collect()
    }
}
