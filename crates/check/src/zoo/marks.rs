//! Marks in entries, and records of sharers, that were taken as proof that no CPU has a
//! translation.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use shootdown::Word;

use super::{Stage, programs, unmap_interrupt_if_set_and_reuse, use_the_space};
use crate::machine::fence;

programs! {
    "old-entry-taken-for-uncached": use_the_space, |stage| stage.signal("old"), unmap_unless_young;
    "accessed-flag-read-before-the-swap": mark_and_use, unmap_if_not_accessed;
    "cached-before-the-accessed-flag-is-set":
        mark_and_use_in_any_order,
        // The swap returns the flag. Read after it, the flag can only be newer.
        |stage| unmap_interrupt_if_set_and_reuse(stage, "accessed");
    "linked-before-it-is-a-sharer":
        link_and_use, |stage| unmap_interrupt_if_set_and_reuse(stage, "sharers");
}

fn unmap_unless_young(stage: &Stage) {
    let is_old = stage.word("old").load(Acquire) != 0;
    let frame = stage.unmap(0, 0);
    if stage.is_fixed() || !is_old {
        stage.interrupt_and_wait(0);
    }
    stage.reuse(frame);
}

/// Sets the accessed flag before it caches the translation, as the walk of Intel's MMUs does.
fn mark_and_use(stage: &Stage) {
    mark(stage);
    use_the_space(stage);
}

fn mark(stage: &Stage) {
    stage.word("accessed").store(1, Release);
    fence();
}

/// Caches the translation first in the faulty variant, as an MMU may that does not promise the
/// order.
fn mark_and_use_in_any_order(stage: &Stage) {
    stage.in_fixed_order(|| mark(stage), || stage.load(0));
    stage.user_mode();
}

fn unmap_if_not_accessed(stage: &Stage) {
    let is_accessed = || stage.word("accessed").load(Acquire) != 0;
    let accessed_before = is_accessed();
    let frame = stage.unmap(0, 0);
    // Nothing lies between the two in the fixed variant: the swap returns the flag.
    let is_accessed = if stage.is_fixed() { is_accessed() } else { accessed_before };
    if is_accessed {
        stage.interrupt_and_wait(0);
    }
    stage.reuse(frame);
}

fn link_and_use(stage: &Stage) {
    let enter = || {
        stage.word("sharers").fetch_or(1, AcqRel);
        fence();
    };
    stage.in_fixed_order(enter, || stage.load(0));
    stage.user_mode();
}
