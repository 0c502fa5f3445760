//! Page tables: freed, unshared or given away while a CPU could still walk them.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use shootdown::Word;

use super::{Bug, Stage, uses_dead, walks_freed};
use crate::hardware::Entry;
use crate::profile::Profile;
use crate::world::{Upper, fence, with_world};

pub(super) const BUGS: &[Bug] = &[
    Bug {
        name: "table-freed-before-the-flush",
        source: "Linux: d86564a2f085",
        story: "Short of memory for a batch, a page table was freed at once, and CPUs told after \
                that.",
        finds: walks_freed,
        words: &["lazy"],
        cpus: &[use_the_space, free_a_table],
        ..Bug::DEFAULT
    },
    Bug {
        name: "lazy-cpus-walk-freed-tables",
        source: "Linux 4.14 as first merged (seed 000): b956575bed91",
        story: "Lazy CPUs are not told of flushes, for they use no page. But they may walk: a \
                table that was freed under them is read as a table, whatever it is by now.",
        finds: walks_freed,
        words: &["lazy"],
        cpus: &[be_lazy, free_a_table_under_who_may_be_lazy],
        ..Bug::DEFAULT
    },
    Bug {
        name: "lazy-root-outlives-its-space",
        source: "Linux, a fix to 2655421ae69f; Genode 5743; Motor OS (by reading)",
        story: "A CPU that goes offline, or idles, still has the root of a space loaded that \
                exits: it is no longer in the mask, and nobody asks it to leave.",
        finds: walks_freed,
        words: &["the mask", "no thread left"],
        cpus: &[go_offline, exit_the_space],
        handler: leaves_the_space,
        ..Bug::DEFAULT
    },
    Bug {
        name: "only-pages-dropped-when-a-table-goes",
        source: "the rule of Arm's TLBI by last level, and of RISC-V's sfence.vma",
        story: "Who frees a table has others drop its pages, and not what they remember of the \
                way to it.",
        profile: Profile::ARM64,
        finds: walks_freed,
        words: &["lazy"],
        cpus: &[use_the_space, free_a_table_after_the_flush],
        handler: drops_the_pages_of_a_table,
        ..Bug::DEFAULT
    },
    Bug {
        name: "shared-table-unhooked-and-too-little-flushed",
        source: "Linux: CVE-2021-4002",
        story: "A table that two spaces share is unhooked from one of them. Only the pages that \
                were cleared are flushed, and none was: the other owner frees one, and this \
                space still has it.",
        finds: uses_dead,
        words: &["unshared"],
        cpus: &[use_the_space, unshare_and_free],
        ..Bug::DEFAULT
    },
    Bug {
        name: "early-answer-when-tables-are-freed",
        source: "what EuroSys 2020's early acknowledgement must not be used for",
        story: "The handler answers, and flushes then: right for pages, which it does not touch \
                meanwhile, and wrong for tables, which it may walk.",
        finds: walks_freed,
        words: &["the answer"],
        cpus: &[use_the_space, free_a_table_by_early_answer],
        handler: answers_early,
        ..Bug::DEFAULT
    },
];

fn use_the_space(stage: &Stage) {
    stage.load(0);
    stage.user_mode();
}

fn free_a_table(stage: &Stage) {
    let table = stage.unhook(0, 0);
    fence();
    if !stage.is_mended() {
        with_world(|world| world.free_table(table));
    }
    stage.ask_and_wait(0);
    if stage.is_mended() {
        with_world(|world| world.free_table(table));
    }
}

fn free_a_table_after_the_flush(stage: &Stage) {
    let table = stage.unhook(0, 0);
    fence();
    stage.ask_and_wait(0);
    with_world(|world| world.free_table(table));
}

fn be_lazy(stage: &Stage) {
    stage.load(0);
    stage.user_mode();
    stage.word("lazy").store(1, Release);
}

fn free_a_table_under_who_may_be_lazy(stage: &Stage) {
    let table = stage.unhook(0, 0);
    fence();
    if stage.is_mended() || stage.word("lazy").load(Acquire) == 0 {
        stage.ask_and_wait(0);
    }
    with_world(|world| world.free_table(table));
}

fn go_offline(stage: &Stage) {
    stage.masked(|| {
        stage.word("the mask").fetch_or(1, AcqRel);
        stage.load(0);
    });
    stage.user_mode();
    stage.come_to("no thread left");
    stage.masked(|| {
        if stage.is_mended() {
            stage.load_kernel();
        }
        stage.word("the mask").fetch_and(!1, AcqRel);
    });
}

fn exit_the_space(stage: &Stage) {
    stage.wait_for("no thread left");
    if stage.word("the mask").load(Acquire) != 0 {
        stage.ask_and_wait(0);
    }
    with_world(|world| world.free_root(stage.space(0).root()));
}

fn leaves_the_space(stage: &Stage) {
    stage.load_kernel();
}

fn drops_the_pages_of_a_table(stage: &Stage) {
    let upper = if stage.is_mended() { Upper::Dropped } else { Upper::Kept };
    with_world(|world| world.drop_pages(|page| page < 2, upper));
}

fn unshare_and_free(stage: &Stage) {
    let frame = stage.space(0).entry(0).target();
    stage.unhook(0, 0);
    fence();
    if stage.is_mended() {
        stage.ask_and_wait(0);
    }
    // The other owner takes the page away, and knows of no CPU of this space.
    stage.space(0).store(0, Entry::EMPTY);
    fence();
    stage.reuse(frame);
}

fn free_a_table_by_early_answer(stage: &Stage) {
    let table = stage.unhook(0, 0);
    fence();
    if stage.is_mended() {
        stage.ask_and_wait(0);
    } else {
        stage.ask(0);
        stage.wait_for("the answer");
    }
    with_world(|world| world.free_table(table));
}

fn answers_early(stage: &Stage) {
    stage.word("the answer").store(1, Release);
    fence();
    stage.drop_all();
}
