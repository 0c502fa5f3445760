//! Flushes that are put off, and others that rely on what they find meanwhile.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use shootdown::Word;

use super::{Bug, Stage, uses_dead};
use crate::hardware::{Entry, Wrong};
use crate::profile::Profile;
use crate::world::{fence, with_world};

const USER: usize = 0;

pub(super) const BUGS: &[Bug] = &[
    Bug {
        name: "munmap-finds-what-reclaim-took",
        source: "Linux 4.3 to 4.12: 3ea277194daa",
        story: "Reclaim has cleared an entry and not flushed it yet. munmap finds nothing to \
                flush, and returns.",
        finds: uses_dead,
        words: &["held back", "taken"],
        cpus: &[use_it, take_and_flush_later, unmap_what_is_there],
        ..Bug::DEFAULT
    },
    Bug {
        name: "pending-flag-of-two-is-cleared-by-one",
        source: "Linux: 16af97dc5a89",
        story: "Two flushes of one space are under way. That they are is one bit: the first to \
                be done clears it for both, and who looks relies on what the other has yet to \
                flush.",
        finds: uses_dead,
        words: &["pending", "taken"],
        cpus: &[use_it, take_with_a_flag, take_another_and_rely_on_the_first],
        ..Bug::DEFAULT
    },
    Bug {
        name: "clear-entry-taken-for-a-finished-flush",
        source: "Linux: 20841405940e; and 60bae7370896",
        story: "An entry that is clear, or forbids everything, is taken as proof that nobody \
                uses the page: its flush was still to come.",
        finds: uses_dead,
        words: &["flushed"],
        cpus: &[use_it, clear_and_flush, copy_what_is_clear],
        ..Bug::DEFAULT
    },
    Bug {
        name: "written-out-before-the-flush",
        source: "the obligation of seed 004: dirty pages are flushed before I/O",
        story: "A page whose entry said that it was written is written out, and flushed after \
                that: a CPU goes on writing to it.",
        finds: is_written_late,
        cpus: &[use_it, write_out_a_dirty_page],
        ..Bug::DEFAULT
    },
    Bug {
        name: "clean-page-dropped-where-marks-are-not-looked-for",
        source: "what seed 004 asks of an architecture",
        story: "A page whose entry was not marked is dropped as clean, its flush put off. Where \
                a CPU does not look for the entry before it first writes, it may yet write.",
        profile: Profile::ARC,
        finds: is_written_late,
        cpus: &[use_it, drop_a_clean_page],
        ..Bug::DEFAULT
    },
    Bug {
        name: "moved-and-flushed-after-the-lock",
        source: "Linux: CVE-2018-18281, eb66ae030829",
        story: "mremap moves an entry, lets go of the lock, and flushes. In between another \
                unmaps the new place, flushes that, and frees the page, which CPUs still have at \
                the old place.",
        finds: uses_dead,
        words: &["moved"],
        cpus: &[use_it, move_and_flush, unmap_where_it_went],
        ..Bug::DEFAULT
    },
    Bug {
        name: "area-unlinked-before-the-flush",
        source: "Linux: CVE-2022-39188, b67fbebd4cf9",
        story: "munmap clears entries of a driver's pages, unlinks the area, and flushes later. \
                The driver finds no area that maps the pages, and frees them.",
        finds: uses_dead,
        words: &["unlinked"],
        cpus: &[use_it, unlink_and_flush, free_what_no_area_maps],
        ..Bug::DEFAULT
    },
];

const fn is_written_late(wrong: Wrong) -> bool {
    matches!(wrong, Wrong::WritesLate { .. })
}

fn use_it(stage: &Stage) {
    stage.load(0);
    stage.user_mode();
}

fn take_and_flush_later(stage: &Stage) {
    stage.word("held back").fetch_add(1, AcqRel);
    stage.take(0, 0);
    stage.come_to("taken");
    stage.ask_and_wait(USER);
    stage.word("held back").fetch_add(1_u64.wrapping_neg(), AcqRel);
}

fn unmap_what_is_there(stage: &Stage) {
    stage.wait_for("taken");
    let found = stage.space(0).swap(0, Entry::EMPTY);
    let is_batched = stage.is_mended() && stage.word("held back").load(Acquire) != 0;
    if found.is_present() || is_batched {
        stage.ask_and_wait(USER);
    }
    stage.is_flushed(0, 0);
}

fn take_with_a_flag(stage: &Stage) {
    begin_pending(stage);
    stage.take(0, 0);
    stage.come_to("taken");
    stage.ask_and_wait(USER);
    end_pending(stage);
}

fn take_another_and_rely_on_the_first(stage: &Stage) {
    stage.wait_for("taken");
    begin_pending(stage);
    // It finds nothing to flush of its own.
    end_pending(stage);
    if stage.word("pending").load(Acquire) == 0 {
        stage.is_flushed(0, 0);
    }
}

fn begin_pending(stage: &Stage) {
    if stage.is_mended() {
        stage.word("pending").fetch_add(1, AcqRel);
    } else {
        stage.word("pending").store(1, Release);
        fence();
    }
}

fn end_pending(stage: &Stage) {
    if stage.is_mended() {
        stage.word("pending").fetch_add(1_u64.wrapping_neg(), AcqRel);
    } else {
        stage.word("pending").store(0, Release);
        fence();
    }
}

fn clear_and_flush(stage: &Stage) {
    stage.take(0, 0);
    stage.ask_and_wait(USER);
    stage.come_to("flushed");
}

fn copy_what_is_clear(stage: &Stage) {
    if !stage.space(0).entry(0).is_present() {
        if stage.is_mended() {
            stage.wait_for("flushed");
        }
        stage.is_flushed(0, 0);
    }
}

fn write_out_a_dirty_page(stage: &Stage) {
    let frame = stage.take(0, 0);
    if stage.is_mended() {
        stage.ask_and_wait(USER);
    }
    with_world(|world| world.write_out(frame, true));
    if !stage.is_mended() {
        stage.ask_and_wait(USER);
    }
}

fn drop_a_clean_page(stage: &Stage) {
    let frame = stage.take(0, 0);
    if stage.is_mended() {
        stage.ask_and_wait(USER);
    }
    with_world(|world| world.write_out(frame, false));
}

fn move_and_flush(stage: &Stage) {
    let entry = stage.space(0).swap(0, Entry::EMPTY);
    stage.space(0).swap(2, entry);
    fence();
    flush_and_come_to(stage, "moved");
}

/// Flushes, and lets the other CPU go on; with the bug, in the opposite order.
fn flush_and_come_to(stage: &Stage, word: &str) {
    if stage.is_mended() {
        stage.ask_and_wait(USER);
    }
    stage.come_to(word);
    if !stage.is_mended() {
        stage.ask_and_wait(USER);
    }
}

fn unmap_where_it_went(stage: &Stage) {
    stage.wait_for("moved");
    let frame = stage.take(0, 2);
    // Of the new place alone.
    with_world(|world| {
        world.issue_broadcast(|page| page == 2);
        world.complete_broadcasts();
    });
    stage.reuse(frame);
}

fn unlink_and_flush(stage: &Stage) {
    stage.take(0, 0);
    flush_and_come_to(stage, "unlinked");
}

fn free_what_no_area_maps(stage: &Stage) {
    stage.wait_for("unlinked");
    stage.reuse(0);
}
