//! Flushes that wait until a frame is reused.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use shootdown::Word;

use super::{Stage, programs, use_the_space};
use crate::hardware::Entry;
use crate::machine::fence;

const USER: usize = 0;

programs! {
    "first-word-of-a-page-unmapped-twice": use_and_catch_up, unmap_twice_and_reuse;
    "zeroed-before-the-deferred-flush": use_the_space, unmap_and_leave_the_flush, zero_free_frames;
    "pinned-before-the-deferred-flush": pin_and_use, look_for_pins_and_reuse;
}

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
