//! Processors that break the guarantees of their architecture, under kernels without a workaround.

use super::{
    Stage, nothing, programs, unmap_broadcast_and_reuse, unmap_interrupt_and_reuse, use_the_space,
};
use crate::hardware::{Entry, OnLoad};
use crate::machine::{HostileMachine, WalkCaches, with_machine};

programs! {
    "completed-before-the-last-access": use_the_space, reuse_after_one_barrier => nothing;
    "one-tlbsync-on-zen-5": use_the_space, reuse_after_one_wait => nothing;
    "fence-that-ignores-its-address":
        use_the_space, unmap_interrupt_and_reuse => invalidate_the_page;
    "global-page-kept-by-invlpg":
        use_the_kernel_and_the_space, unmap_a_kernel_page => invalidate_the_kernel_page;
    "root-and-asid-in-one-write": switch_in_one_write => nothing;
    "streaming-accesses-not-waited-for":
        use_the_space, |stage| unmap_broadcast_and_reuse(stage, || stage.interrupt_and_wait(0))
        => nothing;
    "late-mark-taken-for-a-mapping": mark_and_use, unmap_twice;
}

fn reuse_after_one_barrier(stage: &Stage) {
    unmap_broadcast_and_reuse(stage, || {
        with_machine(HostileMachine::broadcast_nothing);
        stage.complete();
    });
}

fn reuse_after_one_wait(stage: &Stage) {
    let frame = stage.unmap(0, 0);
    stage.broadcast(0);
    if stage.is_fixed() {
        stage.complete();
    }
    stage.reuse(frame);
}

fn invalidate_the_page(stage: &Stage) {
    if stage.is_fixed() {
        stage.invalidate_all();
    } else {
        stage.invalidate_page(0);
    }
}

fn use_the_kernel_and_the_space(stage: &Stage) {
    with_machine(|machine| machine.set_online(true));
    use_the_space(stage);
}

fn unmap_a_kernel_page(stage: &Stage) {
    let frame = stage.kernel().swap(0, Entry::EMPTY).target();
    stage.interrupt_and_wait(0);
    with_machine(|machine| machine.reuse_kernel_frame(frame));
}

fn invalidate_the_kernel_page(stage: &Stage) {
    if stage.is_fixed() {
        stage.invalidate_all();
    } else {
        let is_unmapped = |page| page == 0;
        with_machine(|machine| machine.invalidate_kernel_pages(is_unmapped, WalkCaches::Keep));
    }
}

fn switch_in_one_write(stage: &Stage) {
    stage.load_under(0, 1, OnLoad::Flush);
    if stage.is_fixed() {
        // An empty root in between, under both ASIDs.
        for tag in [1, 2] {
            with_machine(|machine| machine.load_root(None, tag, OnLoad::Keep));
        }
    }
    stage.load_under(1, 2, OnLoad::Flush);
    stage.user_mode();
}

fn mark_and_use(stage: &Stage) {
    stage.load(0);
    stage.space(0).mark(1);
    stage.user_mode();
}

fn unmap_twice(stage: &Stage) {
    stage.unmap(0, 1);
    stage.interrupt_and_wait(0);
    let found = stage.space(0).swap(1, Entry::EMPTY);
    let is_mapped = if stage.is_fixed() { found.is_present() } else { found != Entry::EMPTY };
    if is_mapped {
        stage.interrupt_and_wait(0);
        stage.reuse(found.target());
    }
}
