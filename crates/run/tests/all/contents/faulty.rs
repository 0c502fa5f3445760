//! Designs with something left out: the check of contents must find each, without the oracle.

use std::any::Any;
use std::cell::{Cell, RefCell};

use shootdown::{Horizon, StaleWrites};
use shootdown_vm::{
    Cause, Change, DynCoherence, ErasedBatch, ErasedCoherence, Later, Policy, Refault,
};

use crate::contents::hunt::{Case, Design, Room, seeds};

/// What is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// One in three pages that reclaim has taken is forgotten.
    TakenForgotten,
    /// Each batch is flushed when the next one should be.
    BatchesLate,
    /// A copy on write is not flushed.
    CopyUnflushed,
    /// A fork is not flushed.
    ForkUnflushed,
    /// A discard, or an offer, is not flushed.
    AdviceUnflushed,
    /// What is unmapped, or mapped over, is not flushed.
    UnmapUnflushed,
    /// A move is not flushed.
    MoveUnflushed,
    /// Pages that become a large one are not flushed.
    CollapseUnflushed,
    /// A large page that becomes small ones is not flushed.
    SplitUnflushed,
}

impl Fault {
    pub(crate) const ALL: [Self; 9] = [
        Self::TakenForgotten,
        Self::BatchesLate,
        Self::CopyUnflushed,
        Self::ForkUnflushed,
        Self::AdviceUnflushed,
        Self::UnmapUnflushed,
        Self::MoveUnflushed,
        Self::CollapseUnflushed,
        Self::SplitUnflushed,
    ];

    fn skips(self, cause: Cause) -> bool {
        match self {
            Self::CopyUnflushed => cause == Cause::CopyOnWrite,
            Self::ForkUnflushed => cause == Cause::Fork,
            Self::MoveUnflushed => cause == Cause::Move,
            Self::CollapseUnflushed => cause == Cause::Collapse,
            Self::SplitUnflushed => cause == Cause::Split,
            Self::AdviceUnflushed => cause == Cause::Advise,
            Self::UnmapUnflushed => cause == Cause::Unmap,
            Self::TakenForgotten | Self::BatchesLate => false,
        }
    }
}

/// Within so many programs each fault is found. (The slowest takes 61 of them.)
const BUDGET: u64 = 100;

#[test]
fn each_fault_is_found_by_what_memory_holds() {
    let is_seen = |fault: &Fault| *fault != Fault::SplitUnflushed;
    let while_pages_are_taken = Fault::ALL.into_iter().filter(is_seen).map(|it| (it, Room::Short));
    // Where nothing else is taken, those that move are.
    let while_pages_move = [Fault::TakenForgotten, Fault::BatchesLate].map(|it| (it, Room::Nodes));
    for (fault, room) in while_pages_are_taken.chain(while_pages_move) {
        let mut cases = seeds(BUDGET).map(|seed| Case::new(Design::Faulty(fault), seed, room));
        let tried = cases.position(|case| case.is_wrong());
        let tried = tried.unwrap_or_else(|| panic!("{fault:?} was not found"));
        println!("{fault:?}, {room:?}: found by program {} of {BUDGET}", tried + 1);
    }
}

/// Whoever takes away part of a large page that was split has that part flushed, and by any of its
/// addresses a CPU forgets all of a large page. So no word shows that the split was not flushed;
/// but the translation is used in between.
#[test]
fn a_split_that_is_not_flushed_is_found_by_who_looks_at_translations() {
    let fault = Design::Faulty(Fault::SplitUnflushed);
    let mut outcomes = seeds(BUDGET).map(|seed| Case::new(fault, seed, Room::Nodes).run().unwrap());
    assert!(outcomes.any(|outcome| outcome.violations != 0));
}

#[test]
fn what_is_found_is_made_smaller_and_found_again() {
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
    taken: Cell<u64>,
    late: RefCell<ErasedBatch>,
}

/// In place of a flush: none was sent.
struct Skipped;

impl Faulty {
    pub(crate) fn boxed(design: impl Into<ErasedCoherence>, fault: Fault) -> ErasedCoherence {
        let (taken, late) = (Cell::new(0), RefCell::default());
        Box::new(Self { design: design.into(), fault, taken, late })
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

    fn flush_later(&self, space: &dyn Any, change: &Change) -> Later<Box<dyn Any>, Box<dyn Any>> {
        Later::Sent(self.flush(space, change))
    }

    fn wait(&self, pending: Box<dyn Any>) -> Horizon {
        if pending.is::<Skipped>() { Horizon::UNKNOWN } else { self.design.wait(pending) }
    }

    fn unmapped(&self, batch: &mut ErasedBatch, space: &dyn Any, at: u64, stale: StaleWrites) {
        self.taken.set(self.taken.get() + 1);
        if self.fault != Fault::TakenForgotten || !self.taken.get().is_multiple_of(3) {
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

/// A design, and a fault handler that looks whether a page was just unmapped by reclaim.
pub(crate) struct Settling(ErasedCoherence);

impl Settling {
    pub(crate) fn boxed(design: impl Into<ErasedCoherence>) -> ErasedCoherence {
        Box::new(Self(design.into()))
    }
}

impl DynCoherence for Settling {
    fn inner(&self) -> &dyn DynCoherence {
        &*self.0
    }

    fn policy(&self) -> Policy {
        Policy { refault: Refault::Flushed, ..self.0.policy() }
    }
}
