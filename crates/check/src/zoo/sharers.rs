//! Upper page tables for each CPU, and tables of the last level that record their sharers: the CPUs
//! whose upper tables link to them. Space 0 is the tree of CPU 0.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use shootdown::Word;

use super::{Stage, programs, unmap_interrupt_if_set_and_reuse, use_the_space};
use crate::machine::{HostileMachine, fence, with_machine};

programs! {
    "sharers-read-before-the-entry-is-cleared": become_a_sharer, read_the_sharers_and_unmap;
    "not-a-sharer-before-the-path-is-dropped": cut_the_link, free_the_shared_table;
    "shared-table-freed-after-one-flush":
        use_the_first_tree, use_the_second_tree, free_a_table_of_two_trees;
}

/// Loads a tree that does not have the table yet.
fn load_without_the_table(stage: &Stage) {
    stage.unlink_table(0, 0);
    stage.load(0);
}

fn become_a_sharer(stage: &Stage) {
    load_without_the_table(stage);
    stage.word("the sharers").fetch_or(1, AcqRel);
    stage.space(0).link_table(0, Release);
    stage.user_mode();
}

fn read_the_sharers_and_unmap(stage: &Stage) {
    if stage.is_fixed() {
        return unmap_interrupt_if_set_and_reuse(stage, "the sharers");
    }
    let is_sharer = stage.word("the sharers").load(Acquire) != 0;
    let frame = stage.unmap(0, 0);
    if is_sharer {
        stage.interrupt_and_wait(0);
    }
    stage.reuse(frame);
}

fn cut_the_link(stage: &Stage) {
    stage.word("the sharers").store(1, Release);
    stage.load(0);
    stage.signal("linked");
    stage.user_mode();
    stage.masked(|| {
        stage.space(0).unlink_table(0);
        fence();
        let leave = || {
            stage.word("the sharers").fetch_and(!1, AcqRel);
        };
        stage.in_fixed_order(|| stage.invalidate_all(), leave);
    });
}

fn free_the_shared_table(stage: &Stage) {
    let table = stage.space(0).table(0);
    stage.wait_for("linked");
    // Under the kernel's lock: no CPU links the table from now on.
    stage.space(0).unlink_table(0);
    fence();
    stage.interrupt_if_set("the sharers");
    with_machine(|machine| machine.free_table(table));
}

fn use_the_first_tree(stage: &Stage) {
    use_the_space(stage);
    stage.signal("first");
}

fn use_the_second_tree(stage: &Stage) {
    stage.space(1).share_table(0, stage.space(0));
    stage.load(1);
    with_machine(HostileMachine::stay_in_user_mode);
    stage.signal("second");
}

fn free_a_table_of_two_trees(stage: &Stage) {
    let table = stage.space(0).table(0);
    stage.wait_for("first");
    stage.wait_for("second");
    stage.unlink_table(0, 0);
    stage.unlink_table(1, 0);
    fence();
    stage.interrupt_and_wait(0);
    if stage.is_fixed() {
        stage.interrupt_and_wait(1);
    }
    with_machine(|machine| machine.free_table(table));
}
