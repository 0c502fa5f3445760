//! Random programs whose memory must match the model of contents.
//!
//! A seed decides a program. A program that fails is shrunk, by removing operations, and printed
//! with a command that repeats it, for example
//!
//! ```text
//! CONTENTS_REPLAY=ours:1234:0-3,17,40 cargo test -p shootdown-run --test all memory_model::replay
//! ```
//!
//! which prints the program's operations and its errors. With `ours-nodes`, memory suffices. With
//! `ours-enough`, pages are neither moved nor reclaimed. `CONTENTS_PROGRAMS` is the number of
//! programs that each test tries (48 by default), and `CONTENTS_SEED` is the first of their seeds
//! (0 by default).
//!
//! The program of every other seed collapses and splits large pages. The program of every third
//! seed reads files ahead, where they are stored. All programs move pages between nodes, where the
//! memory manager records pages.
//!
//! Threads use pages that other threads unmap and protect at the same time. This is sound here:
//! threads survive accesses that are refused ([`OnFault::Survived`](shootdown_program::OnFault)),
//! and an access to a raw address maps the page if necessary.

mod cases;
mod faulty;
mod known;
pub(crate) mod model;
mod program;

use shootdown_run::Outcome;
use shootdown_vm::Stats;

use crate::heap::{Heap, with_heap};
use cases::{Case, Design, Room, programs, seeds};

/// Tests every design. The tests of reclaim and of moves use only designs that are correct there.
#[test]
fn memory_matches_model_with_enough_memory() {
    for design in Design::ALL {
        for case in seeds(programs() / 4).map(|seed| Case::new(design, seed, Room::Enough)) {
            case.must_be_right();
        }
    }
}

#[test]
fn memory_matches_model_during_reclaim() {
    for design in [Design::Ours, Design::Replicated, Design::Naive] {
        let mut coverage = Coverage::default();
        for case in seeds(programs()).map(|seed| Case::new(design, seed, Room::Short)) {
            coverage.add(&case.must_be_right());
        }
        coverage.must_be_complete(design);
        assert!(coverage.written_out > 0, "reclaim has not reclaimed a dirty page");
        assert!(coverage.read_in_again > 0, "no page was read again after it was written out");
    }
}

#[test]
fn memory_matches_model_while_pages_move() {
    for design in [Design::Ours, Design::Replicated, Design::Naive] {
        let mut coverage = Coverage::default();
        for case in seeds(programs() / 2).map(|seed| Case::new(design, seed, Room::Nodes)) {
            coverage.add(&case.must_be_right());
        }
        coverage.must_be_complete(design);
        assert_eq!(coverage.written_out, 0, "pages were reclaimed");
    }
}

/// Runs the program that the environment names, if any, and prints its operations.
#[test]
fn replay() {
    if let Some(case) = Case::of_environment() {
        println!("{}", case.program);
        case.must_be_right();
    }
}

/// A simulated cache line is one of the host's memory, so a line that stayed in a cache after its
/// memory was freed would make the times depend on the host's allocator.
#[test]
fn freed_memory_is_in_no_cache() {
    for case in cases_of_all_rooms() {
        let (outcome, freed_cached) = with_heap(Heap::Checked, || case.run());
        outcome.unwrap();
        let words = case.words();
        assert_eq!(freed_cached, None, "{words} frees a block of this size that is in a cache");
    }
}

#[test]
fn same_program_gives_same_outcome() {
    for case in cases_of_all_rooms() {
        let [one, other] = [Heap::Usual, Heap::Fresh].map(|heap| {
            let outcome = with_heap(heap, || case.run()).0.unwrap();
            (outcome.time, outcome.counts, outcome.traffic, outcome.memory)
        });
        assert_eq!(one, other, "{}", case.words());
    }
}

/// Returns programs that use all operations, for each design.
fn cases_of_all_rooms() -> impl Iterator<Item = Case> {
    let rooms = [(Room::Short, 5), (Room::Short, 7), (Room::Short, 11), (Room::Nodes, 5)];
    let of = move |design| rooms.map(|(room, seed)| Case::new(design, seed, room));
    Design::ALL.into_iter().flat_map(of)
}

/// Sums over all programs of a test. If one is 0, the test does not show anything about it.
#[derive(Default)]
struct Coverage {
    interrupts: u64,
    copied: u64,
    written_out: u64,
    read_in_again: u64,
    refilled: u64,
    memory: Stats,
}

impl Coverage {
    fn add(&mut self, outcome: &Outcome) {
        // A CPU that no other CPU shares translations with receives no interrupts.
        self.interrupts += outcome.counts.interrupts_taken;
        self.copied += outcome.traffic.copied;
        self.written_out += outcome.traffic.written_out;
        self.read_in_again += outcome.traffic.read_in_again;
        self.refilled += outcome.counts.walks;
        self.memory += outcome.memory;
    }

    #[track_caller]
    fn must_be_complete(&self, design: Design) {
        let Self { interrupts, copied, written_out, read_in_again, refilled, memory } = *self;
        println!(
            "{}: {interrupts} interrupts, {copied} copies, {written_out} pages written out, \
             {read_in_again} read in again, {refilled} walks; {memory:?}",
            design.name()
        );
        assert!(interrupts > 0, "no CPU was interrupted");
        assert!(copied > 0, "no page was copied on write");
        assert!(refilled > 0, "no access missed the TLB");
        let Stats { collapsed, split, migrated, read_ahead, mapped_around, .. } = memory;
        let Stats { replicas, linked, link_faults, .. } = memory;
        let is_replicated = replicas > 0 && linked > 0 && link_faults > 0;
        assert!(design != Design::Replicated || is_replicated, "no replica was used");
        assert!(collapsed > 0, "no large page was made");
        assert!(split > 0, "no large page was split");
        assert!(migrated > 0, "no page was moved to another node");
        assert!(read_ahead > 0, "no page was read ahead");
        assert!(mapped_around > 0, "no page was mapped with its neighbour");
    }
}
