//! Designs with a fault. The model of contents must detect each without the oracle.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use shootdown::{Horizon, StaleWrites};
use shootdown_designs::Engine;
use shootdown_sim::Sim;
use shootdown_vm::{
    Cause, Change, DynCoherence, ErasedBatch, ErasedCoherence, Later, Policy, Refault,
};

use crate::memory_model::cases::{Case, Design, Room, replicated, seeds};

/// The fault of a design.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// One in three pages that reclaim unmaps is not added to the batch.
    UnmappedForgotten,
    /// Each batch is flushed when the next one should be.
    BatchesLate,
    /// A copy on write is not flushed.
    CopyUnflushed,
    /// A fork is not flushed.
    ForkUnflushed,
    /// A discard, or an offer, is not flushed.
    AdviceUnflushed,
    /// An unmap, or a mapping over another, is not flushed.
    UnmapUnflushed,
    /// A move is not flushed.
    MoveUnflushed,
    /// The collapse of pages to a large page is not flushed.
    CollapseUnflushed,
    /// The split of a large page to small ones is not flushed.
    SplitUnflushed,
    /// The replicas of other CPUs are not flushed.
    ReplicasUnflushed,
    /// The replica of the CPU that flushes is not flushed.
    OwnReplicaUnflushed,
}

impl Fault {
    pub(crate) const ALL: [Self; 11] = [
        Self::UnmappedForgotten,
        Self::BatchesLate,
        Self::CopyUnflushed,
        Self::ForkUnflushed,
        Self::AdviceUnflushed,
        Self::UnmapUnflushed,
        Self::MoveUnflushed,
        Self::CollapseUnflushed,
        Self::SplitUnflushed,
        Self::ReplicasUnflushed,
        Self::OwnReplicaUnflushed,
    ];

    /// The design that has the fault.
    pub(crate) fn design(self, sim: Rc<Sim>) -> Engine<1> {
        match self {
            Self::ReplicasUnflushed | Self::OwnReplicaUnflushed => replicated(sim),
            _ => Engine::new(sim),
        }
    }

    fn skips(self, cause: Cause) -> bool {
        match self {
            Self::CopyUnflushed => cause == Cause::CopyOnWrite,
            Self::ForkUnflushed => cause == Cause::Fork,
            Self::MoveUnflushed => cause == Cause::Move,
            Self::CollapseUnflushed => cause == Cause::Collapse,
            Self::SplitUnflushed => cause == Cause::Split,
            Self::AdviceUnflushed => cause == Cause::Advise,
            Self::UnmapUnflushed => cause == Cause::Unmap,
            Self::UnmappedForgotten
            | Self::BatchesLate
            | Self::ReplicasUnflushed
            | Self::OwnReplicaUnflushed => false,
        }
    }
}

/// Number of programs within which each fault is detected. (The slowest fault takes 61.)
const BUDGET: u64 = 100;

#[test]
fn model_detects_each_fault() {
    let is_detectable = |fault: &Fault| *fault != Fault::SplitUnflushed;
    let during_reclaim =
        Fault::ALL.into_iter().filter(is_detectable).map(|fault| (fault, Room::Short));
    // Without reclaim, moves between nodes unmap pages in batches.
    let during_moves =
        [Fault::UnmappedForgotten, Fault::BatchesLate].map(|fault| (fault, Room::Nodes));
    for (fault, room) in during_reclaim.chain(during_moves) {
        let mut cases = seeds(BUDGET).map(|seed| Case::new(Design::Faulty(fault), seed, room));
        let tried = cases.position(|case| case.is_wrong());
        let tried = tried.unwrap_or_else(|| panic!("{fault:?} was not detected"));
        println!("{fault:?}, {room:?}: detected by program {} of {BUDGET}", tried + 1);
    }
}

/// A change to part of a split large page is flushed, and a flush of any address of a large page
/// removes its whole translation. No word therefore shows that the split was not flushed. But the
/// translation is used in between.
#[test]
fn oracle_detects_an_unflushed_split() {
    let fault = Design::Faulty(Fault::SplitUnflushed);
    let mut outcomes = seeds(BUDGET).map(|seed| Case::new(fault, seed, Room::Nodes).run().unwrap());
    assert!(outcomes.any(|outcome| outcome.violations != 0));
}

/// A flush of a space covers the translations that CPUs have read from replicas.
#[test]
fn oracle_detects_unflushed_replicas() {
    for fault in [Fault::ReplicasUnflushed, Fault::OwnReplicaUnflushed] {
        let case = |seed| Case::new(Design::Faulty(fault), seed, Room::Nodes);
        let mut outcomes = seeds(BUDGET).map(|seed| case(seed).run().unwrap());
        assert!(outcomes.any(|outcome| outcome.violations != 0), "{fault:?}");
    }
}

#[test]
fn failing_program_is_shrunk() {
    let fault = Design::Faulty(Fault::CopyUnflushed);
    let mut cases = seeds(BUDGET).map(|seed| Case::new(fault, seed, Room::Short));
    let case = cases.find(Case::is_wrong).unwrap();
    let smaller = case.shrunken(Case::is_wrong);
    assert!(smaller.program.kept.len() * 4 < case.program.kept.len(), "{}", smaller.report());
    assert!(smaller.is_wrong() && smaller.report().contains("was found by a read"));
}

/// A design with a fault.
pub(crate) struct Faulty {
    design: ErasedCoherence,
    fault: Fault,
    unmapped: Cell<u64>,
    late: RefCell<ErasedBatch>,
}

/// The pending flush of a fault: no flush was sent.
struct Skipped;

impl Faulty {
    pub(crate) fn boxed(design: impl Into<ErasedCoherence>, fault: Fault) -> ErasedCoherence {
        let (unmapped, late) = (Cell::new(0), RefCell::default());
        Box::new(Self { design: design.into(), fault, unmapped, late })
    }
}

impl DynCoherence for Faulty {
    fn inner(&self) -> &dyn DynCoherence {
        &*self.design
    }

    fn flush(&self, space: &dyn Any, change: &Change) -> Box<dyn Any> {
        if self.fault.skips(change.cause) {
            return Box::new(Skipped);
        }
        self.design.flush(space, change)
    }

    fn flush_replicas(
        &self,
        space: &dyn Any,
        replicas: &[&dyn Any],
        change: &Change,
    ) -> Box<dyn Any> {
        let skips = self.fault == Fault::ReplicasUnflushed;
        self.design.flush_replicas(space, if skips { &[] } else { replicas }, change)
    }

    fn flush_also(&self, pending: &mut Box<dyn Any>, replica: &dyn Any, change: &Change) {
        if self.fault != Fault::OwnReplicaUnflushed {
            self.design.flush_also(pending, replica, change);
        }
    }

    fn is_used_elsewhere(&self, space: &dyn Any) -> bool {
        self.design.is_used_elsewhere(space)
    }

    fn flush_later(&self, space: &dyn Any, change: &Change) -> Later<Box<dyn Any>, Box<dyn Any>> {
        Later::Sent(self.flush(space, change))
    }

    fn wait(&self, pending: Box<dyn Any>) -> Horizon {
        if pending.is::<Skipped>() { Horizon::UNKNOWN } else { self.design.wait(pending) }
    }

    fn unmapped(&self, batch: &mut ErasedBatch, space: &dyn Any, at: u64, stale: StaleWrites) {
        self.unmapped.set(self.unmapped.get() + 1);
        if self.fault != Fault::UnmappedForgotten || !self.unmapped.get().is_multiple_of(3) {
            self.design.unmapped(batch, space, at, stale);
        }
    }

    fn flush_batch(&self, batch: ErasedBatch) {
        if self.fault == Fault::BatchesLate {
            return self.design.flush_batch(self.late.replace(batch));
        }
        self.design.flush_batch(batch);
    }
}

/// A design whose fault handler flushes a page that reclaim has unmapped but not flushed.
pub(crate) struct FlushedRefault(ErasedCoherence);

impl FlushedRefault {
    pub(crate) fn boxed(design: impl Into<ErasedCoherence>) -> ErasedCoherence {
        Box::new(Self(design.into()))
    }
}

impl DynCoherence for FlushedRefault {
    fn inner(&self) -> &dyn DynCoherence {
        &*self.0
    }

    fn policy(&self) -> Policy {
        Policy { refault: Refault::Flushed, ..self.0.policy() }
    }
}
