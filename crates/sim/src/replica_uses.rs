//! The use of replicas by spaces and CPUs, which decides the [cause](VainCause) of an interrupt in
//! vain.

use std::collections::{HashMap, HashSet};

use crate::clock::Flushed;
use crate::tlb::{SpaceKey, Tlb};
use crate::vain::VainCause;

/// The interrupt's cause if it is in vain, and the space that it was sent for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) cause: VainCause,
    space: SpaceKey,
}

/// The spaces that have replicas, or that CPUs were interrupted for in vain.
#[derive(Debug, Default)]
pub(crate) struct ReplicaUses(HashMap<SpaceKey, Uses>);

#[derive(Debug, Default)]
struct Uses {
    /// Number of interrupts in vain while there was no replica.
    in_vain: u64,
    has_replicas: bool,
    is_given_up: bool,
    /// The CPUs that have loaded a replica.
    loaded_by: HashSet<usize>,
}

impl ReplicaUses {
    /// Records that a space has a replica. Returns the number of interrupts in vain before its
    /// first one.
    pub(crate) fn add_replica(&mut self, space: SpaceKey) -> u64 {
        let uses = self.0.entry(space).or_default();
        uses.has_replicas = true;
        core::mem::take(&mut uses.in_vain)
    }

    /// Records that a CPU has loaded its replica, or the space's own tables.
    pub(crate) fn note_load(&mut self, cpu: usize, space: SpaceKey, root: SpaceKey) {
        if let Some(uses) = self.0.get_mut(&space)
            && uses.has_replicas
        {
            if root == space {
                uses.is_given_up |= uses.loaded_by.contains(&cpu);
            } else {
                uses.loaded_by.insert(cpu);
            }
        }
    }

    /// Returns the origin of an interrupt for some flushes. `has_read` is `true` if the target has
    /// read the last-level table of one of them.
    pub(crate) fn origin(&self, flushes: &[Flushed], tlb: &Tlb, has_read: bool) -> Origin {
        let first = flushes.first().map_or(SpaceKey::KERNEL, |flushed| flushed.space);
        let loads = |flushed: &&Flushed| flushed.space == tlb.space;
        let space = flushes.iter().find(loads).map_or(first, |flushed| flushed.space);
        let uses = self.0.get(&space);
        let cause = if flushes.is_empty() || flushes.iter().any(|flushed| flushed.frees_tables) {
            VainCause::Tables
        } else if !uses.is_some_and(|uses| uses.has_replicas) {
            VainCause::NoReplicas
        } else if uses.is_some_and(|uses| uses.is_given_up) {
            VainCause::GivenUp
        } else if tlb.space != space {
            VainCause::Absent
        } else if tlb.root == space {
            VainCause::OwnTables
        } else if has_read {
            VainCause::ReadTable
        } else {
            VainCause::UnreadTable
        };
        Origin { cause, space }
    }

    /// Records an interrupt in vain. Returns `true` if its space had no replica when the
    /// interrupt was sent, and has one now.
    pub(crate) fn add_in_vain(&mut self, Origin { cause, space }: Origin) -> bool {
        if cause != VainCause::NoReplicas {
            return false;
        }
        let uses = self.0.entry(space).or_default();
        uses.in_vain += u64::from(!uses.has_replicas);
        uses.has_replicas
    }
}
