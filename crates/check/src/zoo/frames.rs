//! Frames that are freed, and what a CPU remembers of them: generations, tags, acknowledgements.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use shootdown::Word;

use super::{Stage, programs, use_the_space};
use crate::hardware::{Entry, OnLoad};
use crate::machine::{HostileMachine, fence, with_machine};

programs! {
    "frame-freed-before-the-flush": use_the_space, free_and_flush;
    "late-answer-counts-for-the-next-round":
        use_the_space, flush_twice_and_wait_once => invalidate_and_count;
    "partial-flush-overtakes-a-full-one": miss_a_full_flush, flush_all_and_then_a_page;
    "interrupt-before-the-local-flush": mark_and_flush_later;
    "tag-given-on-with-what-is-under-it": reuse_a_tag;
    "put-off-and-freed-at-once": use_and_sweep, unmap_and_defer;
    "copy-in-use-beside-the-original": use_the_space, copy_on_write;
}

/// From the moment at which the copy is mapped, no CPU may use the original.
fn copy_on_write(stage: &Stage) {
    let copy = Entry::to(with_machine(HostileMachine::add_frame)).writable();
    if stage.is_fixed() {
        stage.unmap(0, 0);
        stage.interrupt_and_wait(0);
    }
    stage.space(0).swap(0, copy);
    stage.claim_flushed(0, 0);
    if !stage.is_fixed() {
        stage.interrupt_and_wait(0);
    }
}

fn free_and_flush(stage: &Stage) {
    let frame = stage.unmap(0, 0);
    stage.in_fixed_order(|| stage.interrupt_and_wait(0), || stage.reuse(frame));
}

fn flush_twice_and_wait_once(stage: &Stage) {
    let acknowledgements = stage.word("acknowledgements");
    let interrupt = || {
        let before = acknowledgements.load(Acquire);
        let ticket = stage.interrupt(0);
        (before, ticket)
    };
    stage.unmap(0, 0);
    // No CPU waits for this interrupt.
    interrupt();
    let frame = stage.unmap(0, 1);
    let (before, ticket) = interrupt();
    if stage.is_fixed() {
        stage.wait_until(|| stage.handled[0].load(Acquire) >= ticket);
    } else {
        stage.wait_until(|| acknowledgements.load(Acquire) > before);
    }
    stage.reuse(frame);
}

fn invalidate_and_count(stage: &Stage) {
    stage.invalidate_all();
    stage.word("acknowledgements").fetch_add(1, AcqRel);
}

fn miss_a_full_flush(stage: &Stage) {
    let (generation, absent) = (stage.word("the generation"), stage.word("absent"));
    let seen = generation.load(Acquire);
    use_the_space(stage);
    absent.store(1, Release);
    fence();
    stage.masked(|| {
        absent.store(0, Release);
        fence();
        let now = generation.load(Acquire);
        match now - seen {
            0 => {}
            // The last flush was of page 1 only.
            1 if now == 2 => stage.invalidate_page(1),
            _ if !stage.is_fixed() && now == 2 => stage.invalidate_page(1),
            _ => stage.invalidate_all(),
        }
    });
    stage.user_mode();
}

fn flush_all_and_then_a_page(stage: &Stage) {
    for page in [0, 1] {
        let frame = stage.unmap(0, page);
        stage.word("the generation").fetch_add(1, AcqRel);
        if stage.word("absent").load(Acquire) == 0 {
            stage.interrupt_and_wait(0);
        }
        stage.reuse(frame);
    }
}

fn mark_and_flush_later(stage: &Stage) {
    let clean = stage.word("clean");
    stage.load(0);
    let frame = stage.unmap(0, 0);
    if stage.is_fixed() {
        stage.invalidate_page(0);
    }
    clean.store(1, Release);
    // The thread is preempted here: another space runs, and then this one again, according to the
    // mark.
    stage.load(1);
    let on_load = if clean.load(Acquire) == 1 { OnLoad::Keep } else { OnLoad::Flush };
    stage.reuse(frame);
    stage.load_under(0, 1, on_load);
    stage.user_mode();
    stage.invalidate_page(0);
}

fn reuse_a_tag(stage: &Stage) {
    use_the_space(stage);
    let on_load = if stage.is_fixed() { OnLoad::Flush } else { OnLoad::Keep };
    stage.load_under(1, 1, on_load);
    stage.user_mode();
}

fn use_and_sweep(stage: &Stage) {
    use_the_space(stage);
    // The timer tick.
    if stage.word("state").load(Acquire) != 0 {
        stage.invalidate_page(0);
    }
    stage.signal("swept");
    stage.user_mode();
}

fn unmap_and_defer(stage: &Stage) {
    let frame = stage.unmap(0, 0);
    stage.signal("state");
    if stage.is_fixed() {
        // CPU 0 may have swept too early to see the unmap. This CPU cannot tell, so it interrupts.
        stage.wait_for("swept");
        stage.interrupt_and_wait(0);
    }
    stage.reuse(frame);
}
