//! Random programs, whose memory must hold what the model of contents says.
//!
//! A program is made from a seed. One that fails is made smaller, by leaving operations out, and
//! printed with the words that bring it back, for example
//!
//! ```text
//! CONTENTS_REPLAY=ours:1234:0-3,17,40 cargo test -p shootdown-workload --test contents replay
//! ```
//!
//! which prints its operations and what it finds. `CONTENTS_PROGRAMS` is how many programs each
//! test tries (48, if it is not set), and `CONTENTS_SEED` the first of their seeds (0).
//!
//! Threads use what other threads unmap and protect at the same time. That is sound here: an access
//! that is refused is survived ([`Refusals::Survived`](shootdown_workload::Refusals)), and what is
//! used by its address is mapped, if it was not.

mod faulty;
mod hunt;
mod known;
mod program;

use shootdown_workload::{Memory, Outcome};

use hunt::{Case, Design, programs, seeds};

/// Under a design that looks after all that it takes away, and in every design while nothing is
/// taken.
#[test]
fn memory_holds_what_the_model_says_while_there_is_enough() {
    for design in Design::ALL {
        for case in seeds(programs() / 4).map(|seed| Case::new(design, seed, Memory::Enough)) {
            case.must_be_right();
        }
    }
}

#[test]
fn memory_holds_what_the_model_says_while_pages_are_taken() {
    for design in [Design::Ours, Design::Naive] {
        let mut seen = Seen::default();
        for case in seeds(programs()).map(|seed| Case::new(design, seed, Memory::Reclaimed)) {
            seen.add(&case.must_be_right());
        }
        seen.must_be_interesting(design);
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
    let [one, other] = [(); 2].map(|()| Case::new(Design::Ours, 7, Memory::Reclaimed).run());
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
}

impl Seen {
    fn add(&mut self, outcome: &Outcome) {
        // Where no CPU but one may hold what is flushed, none is interrupted.
        self.interrupts += outcome.counts.interrupts_taken;
        self.copied += outcome.traffic.copied;
        self.written_out += outcome.traffic.written_out;
        self.read_in_again += outcome.traffic.read_in_again;
        self.refilled += outcome.counts.walks;
    }

    #[track_caller]
    fn must_be_interesting(&self, design: Design) {
        let Self { interrupts, copied, written_out, read_in_again, refilled } = *self;
        println!(
            "{}: {interrupts} interrupts, {copied} copies, {written_out} pages written out, \
             {read_in_again} read in again, {refilled} walks",
            design.name()
        );
        assert!(interrupts > 0, "no CPU had to be told of a change");
        assert!(copied > 0, "no page was copied on write");
        assert!(written_out > 0, "reclaim has taken no page that was written");
        assert!(read_in_again > 0, "no page that was written out was needed again");
        assert!(refilled > 0, "no translation was missed");
    }
}
