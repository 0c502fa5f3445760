//! Designs with something left out: the check of contents must find each, without the oracle.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;

use shootdown::{BatchIsFull, Horizon, Root, StaleWrites};
use shootdown_vm::{
    Cause, Change, Coherence, EmptyTables, ExtraFlushes, FirstRead, Retired, Taking, UnmapLock,
};

use crate::hunt::{Case, Design, Room, seeds};

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

/// A design with a fault; or with none, and a fault handler that looks whether a page was just
/// taken, whatever the design has it do (`SETTLES`).
#[derive(Debug)]
pub(crate) struct Faulty<C: Coherence, const SETTLES: bool = false> {
    design: C,
    fault: Option<Fault>,
    taken: Cell<u64>,
    late: RefCell<C::Batch>,
}

impl<C: Coherence> Faulty<C> {
    pub(crate) fn new(design: C, fault: Fault) -> Self {
        Self { design, fault: Some(fault), taken: Cell::new(0), late: RefCell::default() }
    }
}

impl<C: Coherence> Faulty<C, true> {
    pub(crate) fn settling(design: C) -> Self {
        Self { design, fault: None, taken: Cell::new(0), late: RefCell::default() }
    }
}

impl<C: Coherence, const SETTLES: bool> Coherence for Faulty<C, SETTLES> {
    type Space = C::Space;
    /// Nothing, if nothing was sent.
    type Pending = Option<C::Pending>;
    type Batch = C::Batch;
    type Parked = Infallible;

    const UNMAP_LOCK: UnmapLock = C::UNMAP_LOCK;
    const EMPTY_TABLES: EmptyTables = C::EMPTY_TABLES;
    const FIRST_READ: FirstRead = C::FIRST_READ;
    const TAKING: Taking = C::TAKING;
    const EXTRA_FLUSHES: ExtraFlushes = if SETTLES { ExtraFlushes::None } else { C::EXTRA_FLUSHES };

    fn online(&self) {
        self.design.online();
    }
    fn space(&self, root: Root) -> Self::Space {
        self.design.space(root)
    }
    fn flush(&self, space: &Self::Space, change: &Change) -> Self::Pending {
        if self.fault.is_some_and(|fault| fault.skips(change.cause)) {
            return None;
        }
        Some(self.design.flush(space, change))
    }
    fn wait(&self, pending: Self::Pending) -> Horizon {
        pending.map_or(Horizon::UNKNOWN, |pending| self.design.wait(pending))
    }
    fn expel(&self, space: &Self::Space) -> Horizon {
        self.design.expel(space)
    }
    fn hold_back(&self, batch: &mut Self::Batch, space: &Self::Space) -> Result<(), BatchIsFull> {
        self.design.hold_back(batch, space)
    }
    fn taken(
        &self,
        batch: &mut Self::Batch,
        space: &Self::Space,
        address: u64,
        stale_writes: StaleWrites,
    ) {
        self.taken.set(self.taken.get() + 1);
        if self.fault != Some(Fault::TakenForgotten) || !self.taken.get().is_multiple_of(3) {
            self.design.taken(batch, space, address, stale_writes);
        }
    }
    fn flush_batch(&self, batch: Self::Batch) {
        if self.fault == Some(Fault::BatchesLate) {
            let before = self.late.replace(batch);
            return self.design.flush_batch(before);
        }
        self.design.flush_batch(batch);
    }
    fn is_held_back(&self, space: &Self::Space) -> bool {
        self.design.is_held_back(space)
    }
    fn retire(&self, space: &Self::Space) -> Retired {
        self.design.retire(space)
    }
    fn take_dead(&self) -> Option<Root> {
        self.design.take_dead()
    }
    fn reap(&self) {
        self.design.reap();
    }
    #[expect(unsafe_code, reason = "handed on")]
    unsafe fn switch(&self, space: &Self::Space) {
        // SAFETY: as our caller promises.
        unsafe { self.design.switch(space) }
    }
    fn enter_kernel(&self) {
        self.design.enter_kernel();
    }
    #[expect(unsafe_code, reason = "handed on")]
    unsafe fn return_to_user(&self, space: &Self::Space) {
        // SAFETY: as our caller promises.
        unsafe { self.design.return_to_user(space) }
    }
    fn enter_lazy(&self) {
        self.design.enter_lazy();
    }
    fn leave(&self) {
        self.design.leave();
    }
    fn interrupt(&self) {
        self.design.interrupt();
    }
}
