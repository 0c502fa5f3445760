//! Flushes that wait until a frame is reused.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use shootdown::Word;

use super::{Bug, Stage, use_the_space, uses_stale};
use crate::hardware::Entry;
use crate::machine::fence;

const USER: usize = 0;

const DEFAULT: Bug = Bug { finds: uses_stale, ..Bug::DEFAULT };

pub(super) const BUGS: &[Bug] = &[
    Bug {
        name: "first-word-of-a-page-unmapped-twice",
        source: "a pitfall of flush at reuse, and of FPR (2024)",
        story: "A frame records the generation at which it was unmapped. It is mapped again at the \
                same address, and unmapped again, and keeps its first record. A CPU has caught up \
                with the first, and uses the second translation when the frame is reused.",
        words: &["the generation", "seen"],
        cpus: &[use_and_catch_up, unmap_twice_and_reuse],
        ..DEFAULT
    },
    Bug {
        name: "zeroed-before-the-deferred-flush",
        source: "a pitfall of flush at reuse, and of LUF (posted for Linux since 2024)",
        story: "A clean page is unmapped, and its flush is left to the allocation of its frame. A \
                thread that zeroes free frames in advance takes the frame from the free list. A \
                CPU reads zeros by the old translation.",
        words: &["unflushed"],
        cpus: &[use_the_space, unmap_and_leave_the_flush, zero_free_frames],
        ..DEFAULT
    },
    Bug {
        name: "pinned-before-the-deferred-flush",
        source: "a pitfall of flush at reuse, and of walks that rely on the flush interrupt",
        story: "A walk with interrupts masked finds the entry, and pins the page, while the page \
                is unmapped and found without pins. The flush would have waited for the walk, but \
                comes when the frame is reused, and the pins are not looked at again.",
        spaces: 2,
        words: &["pins"],
        cpus: &[pin_and_use, look_for_pins_and_reuse],
        ..DEFAULT
    },
];

/// Catches up with the space as at a switch, and continues to use it.
fn use_and_catch_up(stage: &Stage) {
    use_the_space(stage);
    stage.masked(|| {
        let generation = stage.word("the generation").load(Acquire);
        stage.invalidate_all();
        stage.word("seen").store(generation, Release);
    });
    stage.user_mode();
}

/// Unmaps the page, and returns its frame and the generation that covers this.
fn unmap_and_count(stage: &Stage) -> (usize, u64) {
    let frame = stage.unmap(0, 0);
    (frame, stage.word("the generation").fetch_add(1, AcqRel) + 1)
}

fn unmap_twice_and_reuse(stage: &Stage) {
    let (frame, first) = unmap_and_count(stage);
    // The page is used again before its frame is.
    stage.space(0).swap(0, Entry::to(frame));
    let (_, second) = unmap_and_count(stage);
    let record = if stage.is_fixed() { second } else { first };
    if stage.word("seen").load(Acquire) < record {
        stage.interrupt_and_wait(USER);
    }
    stage.reuse(frame);
}

fn unmap_and_leave_the_flush(stage: &Stage) {
    let frame = stage.unmap(0, 0);
    stage.word("unflushed").store(frame as u64 + 1, Release);
    fence();
}

fn zero_free_frames(stage: &Stage) {
    stage.wait_for("unflushed");
    let frame = stage.word("unflushed").load(Acquire) as usize - 1;
    if stage.is_fixed() {
        stage.interrupt_and_wait(USER);
    }
    stage.reuse(frame);
}

/// Pins the page that a walk finds, and uses it by a mapping of its own.
fn pin_and_use(stage: &Stage) {
    let pinned = stage.masked(|| {
        let entry = stage.space(0).entry(0);
        if entry.is_present() {
            stage.word("pins").fetch_add(1, AcqRel);
        }
        entry
    });
    if pinned.is_present() {
        stage.space(1).swap(0, pinned);
        stage.load(1);
        stage.user_mode();
    }
}

fn look_for_pins_and_reuse(stage: &Stage) {
    let frame = stage.unmap(0, 0);
    let mut is_pinned = false;
    let look = || is_pinned = stage.word("pins").load(Acquire) != 0;
    stage.in_fixed_order(|| stage.interrupt_and_wait(USER), look);
    if !is_pinned {
        stage.reuse(frame);
    }
}
