//! Page tables that were freed, unshared or reused while a CPU could still walk them.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use shootdown::Word;

use super::{
    Bug, Stage, free_table_after_interrupt, join_the_mask, use_the_space, uses_stale, walks_freed,
};
use crate::hardware::Entry;
use crate::machine::{WalkCaches, fence, with_machine};
use crate::profile::Profile;

pub(super) const BUGS: &[Bug] = &[
    Bug {
        name: "table-freed-before-the-flush",
        source: "Linux: d86564a2f085",
        story: "When there was no memory for a batch, a page table was freed immediately, and CPUs \
                were interrupted after that.",
        finds: walks_freed,
        words: &["lazy"],
        cpus: &[use_the_space, free_a_table],
        ..Bug::DEFAULT
    },
    Bug {
        name: "lazy-cpus-walk-freed-tables",
        source: "Linux 4.14 as first merged (study x86-lazy-tlb): b956575bed91",
        story: "A flush does not interrupt lazy CPUs, because they use no page. But they may walk: \
                such a CPU reads a freed page as a table, whatever that page contains by then.",
        finds: walks_freed,
        words: &["lazy"],
        cpus: &[be_lazy, free_a_table_of_lazy_cpus],
        ..Bug::DEFAULT
    },
    Bug {
        name: "lazy-root-outlives-its-space",
        source: "Linux, a fix to 2655421ae69f; Genode 5743; Motor OS (by reading)",
        story: "A CPU that goes offline or idles still has the root of an exiting space loaded. It \
                is no longer in the mask, and no CPU asks it to leave.",
        finds: walks_freed,
        words: &["the mask", "no thread left"],
        cpus: &[go_offline, exit_the_space],
        handler: leave_the_space,
        ..Bug::DEFAULT
    },
    Bug {
        name: "only-pages-dropped-when-a-table-goes",
        source: "the rule of Arm's last-level TLBI, and of RISC-V's sfence.vma",
        story: "A CPU frees a table and makes other CPUs invalidate its pages, but not their \
                cached pointers to the table.",
        profile: Profile::ARM64,
        finds: walks_freed,
        words: &["lazy"],
        cpus: &[use_the_space, |stage| free_table_after_interrupt(stage, || true)],
        handler: invalidate_the_pages_of_a_table,
        ..Bug::DEFAULT
    },
    Bug {
        name: "shared-table-unhooked-and-too-little-flushed",
        source: "Linux: CVE-2021-4002",
        story: "A table that two spaces share is unlinked from one of them. Only cleared pages are \
                flushed, and none was cleared. The other owner frees a page, and this space can \
                still use it.",
        finds: uses_stale,
        words: &["unshared"],
        cpus: &[use_the_space, unshare_and_free],
        ..Bug::DEFAULT
    },
    Bug {
        name: "early-answer-when-tables-are-freed",
        source: "the case in which EuroSys 2020's early acknowledgement must not be used",
        story: "The handler acknowledges first and flushes then. This is right for pages, which \
                the handler does not touch before its flush, and wrong for tables, which the CPU \
                may walk.",
        finds: walks_freed,
        words: &["acknowledgement"],
        cpus: &[use_the_space, free_a_table_on_early_acknowledgement],
        handler: acknowledge_early,
        ..Bug::DEFAULT
    },
];

fn free_a_table(stage: &Stage) {
    let table = stage.unlink_table(0, 0);
    fence();
    let free = || with_machine(|machine| machine.free_table(table));
    stage.in_fixed_order(|| stage.interrupt_and_wait(0), free);
}

fn be_lazy(stage: &Stage) {
    stage.load(0);
    stage.user_mode();
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

fn leave_the_space(stage: &Stage) {
    stage.load_kernel();
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
