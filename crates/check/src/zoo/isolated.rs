//! Flushes of the kernel's translations that leave out CPUs in user mode.

use std::sync::atomic::Ordering::{Acquire, Release};

use shootdown::Word;

use super::{Bug, Stage, uses_kernels_stale, walks_freed};
use crate::hardware::Entry;
use crate::kernel_pages::ENTRY_PAGE;
use crate::machine::{HostileMachine, fence, with_machine};

const DEFAULT: Bug = Bug {
    finds: uses_kernels_stale,
    has_kernel_table: true,
    words: &["in the kernel"],
    ..Bug::DEFAULT
};

pub(super) const BUGS: &[Bug] = &[
    Bug {
        name: "flushed-before-it-says-in-kernel",
        source: "a series for Linux that defers flushes to isolated CPUs, version 7",
        story: "A CPU that enters the kernel flushes its TLB, and then sets the flag that it is in \
                the kernel. An unmap in between finds the flag clear, sends no interrupt, and \
                frees the page. The CPU has cached the old translation after its flush.",
        cpus: &[enter_the_kernel, |stage| unmap_unless_in_user(stage, 0)],
        ..DEFAULT
    },
    Bug {
        name: "kernel-table-freed-under-user-mode",
        source: "a pitfall of deferred flushes to isolated CPUs",
        story: "An unmap of the kernel's pages also frees a page table, and leaves out a CPU in \
                user mode, which will flush when it enters the kernel. Until then it may walk the \
                table by speculation.",
        finds: walks_freed,
        cpus: &[stay_in_user_mode, free_the_table_unless_in_user],
        ..DEFAULT
    },
    Bug {
        name: "entry-stack-flushed-late",
        source: "a pitfall of deferred flushes to isolated CPUs",
        story: "A page is unmapped that the entry from user mode uses before it flushes, such as \
                its stack. The CPU in user mode is left out, and enters with the old translation.",
        cpus: &[stay_in_user_mode, |stage| unmap_unless_in_user(stage, ENTRY_PAGE)],
        ..DEFAULT
    },
];

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
