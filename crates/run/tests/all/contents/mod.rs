//! Random programs, whose memory must hold what the model of contents says.
//!
//! A program is made from a seed. One that fails is made smaller, by leaving operations out, and
//! printed with the words that bring it back, for example
//!
//! ```text
//! CONTENTS_REPLAY=ours:1234:0-3,17,40 cargo test -p shootdown-run --test contents replay
//! ```
//!
//! which prints its operations and what it finds. (`ours-nodes` has as much memory as it asks for,
//! and `ours-enough` nobody who moves or takes pages, either.) `CONTENTS_PROGRAMS` is how many
//! programs each test tries (48, if it is not set), and `CONTENTS_SEED` the first of their seeds
//! (0).
//!
//! Every other seed's program has large pages made, and small ones of them again; every third reads
//! files ahead, where they are stored; and all move pages between nodes, where those are known.
//!
//! Threads use what other threads unmap and protect at the same time. That is sound here: an access
//! that is refused is survived ([`OnFault::Survived`](shootdown_program::OnFault)), and what is
//! used by its address is mapped, if it was not.

mod faulty;
mod hunt;
mod known;
mod program;

use shootdown_run::Outcome;
use shootdown_vm::Stats;

use hunt::{Case, Design, Room, programs, seeds};

/// Under every design; while pages are taken or moved, under those that look after all of it.
#[test]
fn memory_holds_what_the_model_says_while_there_is_enough() {
    for design in Design::ALL {
        for case in seeds(programs() / 4).map(|seed| Case::new(design, seed, Room::Enough)) {
            case.must_be_right();
        }
    }
}

#[test]
fn memory_holds_what_the_model_says_while_pages_are_taken() {
    for design in [Design::Ours, Design::Naive] {
        let mut seen = Seen::default();
        for case in seeds(programs()).map(|seed| Case::new(design, seed, Room::Short)) {
            seen.add(&case.must_be_right());
        }
        seen.must_be_interesting(design);
        assert!(seen.written_out > 0, "reclaim has taken no page that was written");
        assert!(seen.read_in_again > 0, "no page that was written out was needed again");
    }
}

#[test]
fn memory_holds_what_the_model_says_while_pages_move() {
    for design in [Design::Ours, Design::Naive] {
        let mut seen = Seen::default();
        for case in seeds(programs() / 2).map(|seed| Case::new(design, seed, Room::Nodes)) {
            seen.add(&case.must_be_right());
        }
        seen.must_be_interesting(design);
        assert_eq!(seen.written_out, 0, "pages were not only moved");
    }
}

/// Runs the one program that the environment names, if it names one, and says what it does.
#[test]
fn replay() {
    if let Some(case) = Case::of_environment() {
        println!("{}", case.program);
        case.must_be_right();
    }
}

#[test]
fn the_same_program_twice_is_the_same_run() {
    let [one, other] = [(); 2].map(|()| Case::new(Design::Ours, 7, Room::Short).run());
    let (one, other) = (one.unwrap(), other.unwrap());
    assert_eq!((one.time, one.counts, one.traffic), (other.time, other.counts, other.traffic));
}

/// What all programs of a test came to: none of it may be nothing, or the test shows nothing.
#[derive(Default)]
struct Seen {
    interrupts: u64,
    copied: u64,
    written_out: u64,
    read_in_again: u64,
    refilled: u64,
    memory: Stats,
}

impl Seen {
    fn add(&mut self, outcome: &Outcome) {
        // Where no CPU but one may hold what is flushed, none is interrupted.
        self.interrupts += outcome.counts.interrupts_taken;
        self.copied += outcome.traffic.copied;
        self.written_out += outcome.traffic.written_out;
        self.read_in_again += outcome.traffic.read_in_again;
        self.refilled += outcome.counts.walks;
        self.memory += outcome.memory;
    }

    #[track_caller]
    fn must_be_interesting(&self, design: Design) {
        let Self { interrupts, copied, written_out, read_in_again, refilled, memory } = *self;
        println!(
            "{}: {interrupts} interrupts, {copied} copies, {written_out} pages written out, \
             {read_in_again} read in again, {refilled} walks; {memory:?}",
            design.name()
        );
        assert!(interrupts > 0, "no CPU had to be told of a change");
        assert!(copied > 0, "no page was copied on write");
        assert!(refilled > 0, "no translation was missed");
        let Stats { collapsed, split, migrated, read_ahead, mapped_around, .. } = memory;
        assert!(collapsed > 0, "no page was made large");
        assert!(split > 0, "no large page was split");
        assert!(migrated > 0, "no page was moved to another node");
        assert!(read_ahead > 0, "no page came before it was asked for");
        assert!(mapped_around > 0, "no page was mapped with its neighbour");
    }
}
