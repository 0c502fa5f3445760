//! Deferred flushes, and operations that rely on what they find in the meantime.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use shootdown::Word;

use super::{Stage, programs, use_the_space};
use crate::hardware::Entry;
use crate::machine::{fence, with_machine};

const USER: usize = 0;

programs! {
    "munmap-finds-what-reclaim-took": use_the_space, unmap_and_flush_later, unmap_again;
    "pending-flag-of-two-is-cleared-by-one":
        use_the_space, unmap_with_a_flag, unmap_another_and_rely_on_the_flag;
    "clear-entry-taken-for-a-finished-flush": use_the_space, clear_and_flush, copy_a_clear_page;
    "written-out-before-the-flush": use_the_space, write_out_a_dirty_page;
    "clean-page-dropped-where-marks-are-not-looked-for": use_the_space, drop_a_clean_page;
    "tested-for-zeros-before-the-flush": use_the_space, free_a_page_of_zeros;
    "freed-by-a-clear-dirty-mark": mark_dirty_and_use, clear_mark_and_free;
    "moved-and-flushed-after-the-lock": use_the_space, move_and_flush, unmap_the_new_place;
    "area-unlinked-before-the-flush": use_the_space, unlink_and_flush, free_unmapped_pages;
}

fn unmap_and_flush_later(stage: &Stage) {
    stage.word("batched").fetch_add(1, AcqRel);
    stage.unmap(0, 0);
    stage.signal("unmapped");
    stage.interrupt_and_wait(USER);
    stage.word("batched").fetch_add(1_u64.wrapping_neg(), AcqRel);
}

fn unmap_again(stage: &Stage) {
    stage.wait_for("unmapped");
    let found = stage.space(0).swap(0, Entry::EMPTY);
    let is_batched = stage.is_fixed() && stage.word("batched").load(Acquire) != 0;
    if found.is_present() || is_batched {
        stage.interrupt_and_wait(USER);
    }
    stage.claim_flushed(0, 0);
}

fn unmap_with_a_flag(stage: &Stage) {
    change_pending(stage, 1);
    stage.unmap(0, 0);
    stage.signal("unmapped");
    stage.interrupt_and_wait(USER);
    change_pending(stage, -1);
}

fn unmap_another_and_rely_on_the_flag(stage: &Stage) {
    stage.wait_for("unmapped");
    change_pending(stage, 1);
    // This CPU finds no page of its own to flush.
    change_pending(stage, -1);
    if stage.word("pending").load(Acquire) == 0 {
        stage.claim_flushed(0, 0);
    }
}

/// Adds `change`, 1 or -1, to the number of pending flushes. In the faulty variant, a flag stands
/// for the number.
fn change_pending(stage: &Stage, change: i64) {
    let pending = stage.word("pending");
    if stage.is_fixed() {
        pending.fetch_add(change.cast_unsigned(), AcqRel);
    } else {
        pending.store(u64::from(change == 1), Release);
        fence();
    }
}

fn clear_and_flush(stage: &Stage) {
    stage.unmap(0, 0);
    stage.interrupt_and_wait(USER);
    stage.signal("flushed");
}

fn copy_a_clear_page(stage: &Stage) {
    if !stage.space(0).entry(0).is_present() {
        if stage.is_fixed() {
            stage.wait_for("flushed");
        }
        stage.claim_flushed(0, 0);
    }
}

fn write_out_a_dirty_page(stage: &Stage) {
    let frame = stage.unmap(0, 0);
    let write_out = || with_machine(|machine| machine.write_out(frame, true));
    stage.in_fixed_order(|| stage.interrupt_and_wait(USER), write_out);
}

fn drop_a_clean_page(stage: &Stage) {
    let frame = stage.unmap(0, 0);
    if stage.is_fixed() {
        stage.interrupt_and_wait(USER);
    }
    with_machine(|machine| machine.write_out(frame, false));
}

fn free_a_page_of_zeros(stage: &Stage) {
    let frame = stage.unmap(0, 0);
    // The test reads the frame, as writing it out does: the contents must be final.
    let test = || with_machine(|machine| machine.write_out(frame, true));
    stage.in_fixed_order(|| stage.interrupt_and_wait(USER), test);
    stage.reuse(frame);
}

/// Sets the dirty mark before it caches the translation as dirty.
fn mark_dirty_and_use(stage: &Stage) {
    stage.word("dirty").store(1, Release);
    fence();
    use_the_space(stage);
}

fn clear_mark_and_free(stage: &Stage) {
    stage.word("dirty").store(0, Release);
    fence();
    let frame = stage.unmap(0, 0);
    let is_marked = stage.word("dirty").load(Acquire) != 0;
    if stage.is_fixed() || is_marked {
        stage.interrupt_and_wait(USER);
    }
    with_machine(|machine| machine.write_out(frame, true));
}

fn move_and_flush(stage: &Stage) {
    let entry = stage.space(0).swap(0, Entry::EMPTY);
    stage.space(0).swap(2, entry);
    fence();
    stage.in_fixed_order(|| stage.interrupt_and_wait(USER), || stage.signal("moved"));
}

fn unmap_the_new_place(stage: &Stage) {
    stage.wait_for("moved");
    let frame = stage.unmap(0, 2);
    // Flush the new place only.
    stage.broadcast(2);
    stage.reuse(frame);
}

fn unlink_and_flush(stage: &Stage) {
    stage.unmap(0, 0);
    stage.in_fixed_order(|| stage.interrupt_and_wait(USER), || stage.signal("unlinked"));
}

fn free_unmapped_pages(stage: &Stage) {
    stage.wait_for("unlinked");
    stage.reuse(0);
}
