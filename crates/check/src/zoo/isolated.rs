//! Flushes of the kernel's translations that leave out CPUs in user mode.

use std::sync::atomic::Ordering::{Acquire, Release};

use shootdown::Word;

use super::{Stage, programs};
use crate::hardware::Entry;
use crate::kernel_pages::ENTRY_PAGE;
use crate::machine::{HostileMachine, fence, with_machine};

programs! {
    "flushed-before-it-says-in-kernel": enter_the_kernel, |stage| unmap_unless_in_user(stage, 0);
    "kernel-table-freed-under-user-mode": stay_in_user_mode, free_the_table_unless_in_user;
    "entry-stack-flushed-late": stay_in_user_mode, |stage| unmap_unless_in_user(stage, ENTRY_PAGE);
}

fn set_in_user(is_in_user: bool) {
    with_machine(|machine| {
        machine.set_in_user(is_in_user);
        machine.set_online(true);
    });
}

fn enter_the_kernel(stage: &Stage) {
    set_in_user(true);
    stage.in_fixed_order(|| stage.signal("in the kernel"), || stage.invalidate_all());
    set_in_user(false);
    stage.user_mode();
    set_in_user(true);
    stage.word("in the kernel").store(0, Release);
}

fn stay_in_user_mode(stage: &Stage) {
    set_in_user(true);
    stage.user_mode();
}

/// Unmaps a page of the kernel. A fixed variant does not leave out CPUs if they use the page in
/// user mode.
fn unmap_unless_in_user(stage: &Stage, page: usize) {
    let frame = stage.kernel().swap(page, Entry::EMPTY).target();
    fence();
    let is_left_out = page != ENTRY_PAGE || !stage.is_fixed();
    if !is_left_out || stage.word("in the kernel").load(Acquire) != 0 {
        stage.interrupt_and_wait(0);
    }
    with_machine(|machine| machine.reuse_kernel_frame(frame));
}

fn free_the_table_unless_in_user(stage: &Stage) {
    stage.kernel().unlink();
    fence();
    if stage.is_fixed() || stage.word("in the kernel").load(Acquire) != 0 {
        stage.interrupt_and_wait(0);
    }
    with_machine(HostileMachine::free_kernel_table);
}
