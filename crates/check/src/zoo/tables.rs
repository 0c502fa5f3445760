//! Page tables that were freed, unshared or reused while a CPU could still walk them.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use shootdown::Word;

use super::{Stage, free_table_after_interrupt, join_the_mask, programs, use_the_space};
use crate::hardware::Entry;
use crate::machine::{WalkCaches, fence, with_machine};

programs! {
    "table-freed-before-the-flush": use_the_space, free_a_table;
    "lazy-cpus-walk-freed-tables": be_lazy, free_a_table_of_lazy_cpus;
    "lazy-root-outlives-its-space": go_offline, exit_the_space => Stage::load_kernel;
    "only-pages-dropped-when-a-table-goes":
        use_the_space, |stage| free_table_after_interrupt(stage, || true)
        => invalidate_the_pages_of_a_table;
    "shared-table-unhooked-and-too-little-flushed": use_the_space, unshare_and_free;
    "early-answer-when-tables-are-freed":
        use_the_space, free_a_table_on_early_acknowledgement => acknowledge_early;
}

fn free_a_table(stage: &Stage) {
    let table = stage.unlink_table(0, 0);
    fence();
    let free = || with_machine(|machine| machine.free_table(table));
    stage.in_fixed_order(|| stage.interrupt_and_wait(0), free);
}

fn be_lazy(stage: &Stage) {
    use_the_space(stage);
    stage.word("lazy").store(1, Release);
}

fn free_a_table_of_lazy_cpus(stage: &Stage) {
    let is_lazy = || stage.word("lazy").load(Acquire) != 0;
    free_table_after_interrupt(stage, || stage.is_fixed() || !is_lazy());
}

fn go_offline(stage: &Stage) {
    join_the_mask(stage);
    stage.user_mode();
    stage.signal("no thread left");
    stage.masked(|| {
        if stage.is_fixed() {
            stage.load_kernel();
        }
        stage.word("the mask").fetch_and(!1, AcqRel);
    });
}

fn exit_the_space(stage: &Stage) {
    stage.wait_for("no thread left");
    stage.interrupt_if_set("the mask");
    with_machine(|machine| machine.free_root(stage.space(0).root()));
}

fn invalidate_the_pages_of_a_table(stage: &Stage) {
    let upper = if stage.is_fixed() { WalkCaches::Invalidate } else { WalkCaches::Keep };
    with_machine(|machine| machine.invalidate_pages(|page| page < 2, upper));
}

fn unshare_and_free(stage: &Stage) {
    let frame = stage.space(0).entry(0).target();
    stage.unlink_table(0, 0);
    fence();
    if stage.is_fixed() {
        stage.interrupt_and_wait(0);
    }
    // The other owner unmaps the page, and does not know the CPUs of this space.
    stage.space(0).store(0, Entry::EMPTY);
    fence();
    stage.reuse(frame);
}

fn free_a_table_on_early_acknowledgement(stage: &Stage) {
    let table = stage.unlink_table(0, 0);
    fence();
    if stage.is_fixed() {
        stage.interrupt_and_wait(0);
    } else {
        stage.interrupt(0);
        stage.wait_for("acknowledgement");
    }
    with_machine(|machine| machine.free_table(table));
}

fn acknowledge_early(stage: &Stage) {
    stage.word("acknowledgement").store(1, Release);
    fence();
    stage.invalidate_all();
}
