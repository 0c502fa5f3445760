//! Guarantees that kernels assumed and hardware does not give.

use std::sync::atomic::Ordering::{AcqRel, Acquire};

use shootdown::Word;

use super::{Stage, nothing, programs, use_the_space};
use crate::hardware::{Entry, OnLoad, PAGES};
use crate::machine::{fence, publish, with_machine};

programs! {
    "completed-by-another-cpu":
        use_the_space, broadcast_and_go_on, rely_on_its_own_barrier => nothing;
    "broadcast-without-its-barrier": use_the_space, broadcast_and_reuse => nothing;
    "local-invalidation-for-a-shared-page": use_the_space, invalidate_here_and_reuse => nothing;
    "invalidated-before-the-entry-is-visible": use_the_space, store_and_broadcast => nothing;
    "load-of-a-root-expected-to-flush": load_both_under_no_tag => nothing;
    "asid-chosen-during-a-broadcast": switch_by_the_tag_it_finds, flush_by_the_tag_it_has;
    "walks-enabled-before-the-root-is-written": write_the_asid_and_the_root => nothing;
    "stride-larger-than-the-page": use_the_space, broadcast_by_large_strides => nothing;
    "absence-cached-by-the-walker": use_when_mapped, map_a_kernel_page;
}

fn write_the_asid_and_the_root(stage: &Stage) {
    stage.load_under(0, 1, OnLoad::Flush);
    // The ASID, with walks enabled or disabled.
    let walked = (!stage.is_fixed()).then(|| stage.space(0).root());
    with_machine(|machine| machine.load_root(walked, 2, OnLoad::Keep));
    stage.load_under(1, 2, OnLoad::Keep);
    stage.user_mode();
}

fn broadcast_by_large_strides(stage: &Stage) {
    let frames = [0, 1].map(|page| stage.unmap(0, page));
    let (count, stride) = if stage.is_fixed() { (PAGES, 1) } else { (1, PAGES) };
    with_machine(|machine| machine.broadcast_strided(0, count, stride));
    stage.complete();
    for frame in frames {
        stage.reuse(frame);
    }
}

fn use_when_mapped(stage: &Stage) {
    with_machine(|machine| machine.set_online(true));
    stage.wait_for("mapped");
    with_machine(|machine| machine.touch_kernel_page(0));
}

fn map_a_kernel_page(stage: &Stage) {
    let entry = stage.kernel().swap(0, Entry::EMPTY);
    stage.interrupt_and_wait(0);
    // The page is mapped again, at some later time.
    stage.kernel().swap(0, entry);
    fence();
    if stage.is_fixed() {
        stage.interrupt_and_wait(0);
    }
    stage.signal("mapped");
}

fn broadcast_and_go_on(stage: &Stage) {
    stage.unmap(0, 0);
    publish();
    with_machine(|machine| machine.issue_broadcast(|page| page == 0));
    stage.signal("issued");
    stage.complete();
    stage.signal("completed");
}

fn rely_on_its_own_barrier(stage: &Stage) {
    stage.wait_for("issued");
    if stage.is_fixed() {
        stage.wait_for("completed");
    }
    stage.complete();
    stage.claim_flushed(0, 0);
}

fn broadcast_and_reuse(stage: &Stage) {
    let frame = stage.unmap(0, 0);
    publish();
    with_machine(|machine| machine.issue_broadcast(|page| page == 0));
    if stage.is_fixed() {
        stage.complete();
    }
    stage.reuse(frame);
}

fn invalidate_here_and_reuse(stage: &Stage) {
    let frame = stage.unmap(0, 0);
    publish();
    if stage.is_fixed() {
        stage.broadcast(0);
    } else {
        stage.invalidate_page(0);
    }
    stage.reuse(frame);
}

fn store_and_broadcast(stage: &Stage) {
    let frame = stage.space(0).entry(0).target();
    stage.space(0).store(0, Entry::EMPTY);
    // A full barrier makes the store visible to CPUs, which does not suffice.
    if stage.is_fixed() {
        publish();
    } else {
        fence();
    }
    stage.broadcast(0);
    fence();
    stage.reuse(frame);
}

fn load_both_under_no_tag(stage: &Stage) {
    stage.load_under(0, 0, OnLoad::Keep);
    stage.user_mode();
    let on_load = if stage.is_fixed() { OnLoad::Flush } else { OnLoad::Keep };
    stage.load_under(1, 0, on_load);
    stage.user_mode();
}

fn switch_by_the_tag_it_finds(stage: &Stage) {
    stage.masked(|| {
        let has_global_tag = stage.word("has a global tag").load(Acquire) != 0;
        if stage.is_fixed() || !has_global_tag {
            // The CPU uses its own tag, and a flush must interrupt it for that.
            stage.word("present").fetch_or(1, AcqRel);
        }
        stage.load(0);
        if stage.is_fixed() && !has_global_tag {
            fence();
        }
    });
    stage.user_mode();
}

fn flush_by_the_tag_it_has(stage: &Stage) {
    stage.word("has a global tag").fetch_or(1, AcqRel);
    let frame = stage.unmap(0, 0);
    // A broadcast to the global tag reaches no entry under the CPU's own tag.
    if stage.is_fixed() && stage.word("present").load(Acquire) != 0 {
        stage.interrupt_and_wait(0);
    }
    stage.reuse(frame);
}
