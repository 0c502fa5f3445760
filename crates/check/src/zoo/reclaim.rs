//! Deferred flushes, and operations that rely on what they find in the meantime.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use shootdown::Word;

use super::{Bug, Stage, use_the_space, uses_stale};
use crate::hardware::{Entry, Violation};
use crate::machine::{fence, with_machine};
use crate::profile::Profile;

const USER: usize = 0;

pub(super) const BUGS: &[Bug] = &[
    Bug {
        name: "munmap-finds-what-reclaim-took",
        source: "Linux 4.3 to 4.12: 3ea277194daa",
        story: "Reclaim has cleared an entry and not flushed it yet. munmap finds nothing to \
                flush, and returns.",
        finds: uses_stale,
        words: &["batched", "unmapped"],
        cpus: &[use_the_space, unmap_and_flush_later, unmap_again],
        ..Bug::DEFAULT
    },
    Bug {
        name: "pending-flag-of-two-is-cleared-by-one",
        source: "Linux: 16af97dc5a89",
        story: "Two flushes of one space are in progress, and one bit records that. The first \
                flush to finish clears the bit for both, and a reader of the bit relies on the \
                other flush, which is not complete.",
        finds: uses_stale,
        words: &["pending", "unmapped"],
        cpus: &[use_the_space, unmap_with_a_flag, unmap_another_and_rely_on_the_flag],
        ..Bug::DEFAULT
    },
    Bug {
        name: "clear-entry-taken-for-a-finished-flush",
        source: "Linux: 20841405940e; and 60bae7370896",
        story: "An entry that is clear, or that forbids every access, is taken as proof that no \
                CPU uses the page, although its flush is still to come.",
        finds: uses_stale,
        words: &["flushed"],
        cpus: &[use_the_space, clear_and_flush, copy_a_clear_page],
        ..Bug::DEFAULT
    },
    Bug {
        name: "written-out-before-the-flush",
        source: "study x86-batched-unmap: flush dirty pages before I/O",
        story: "A page with a dirty entry is written out and flushed after that: a CPU still \
                writes to it.",
        finds: is_written_late,
        cpus: &[use_the_space, write_out_a_dirty_page],
        ..Bug::DEFAULT
    },
    Bug {
        name: "clean-page-dropped-where-marks-are-not-looked-for",
        source: "study x86-batched-unmap: the requirement on an architecture",
        story: "A page with a clean entry is freed as clean, and its flush is deferred. On an \
                architecture where a CPU does not read the entry again before its first write, the \
                CPU can still write.",
        profile: Profile::ARC,
        finds: is_written_late,
        cpus: &[use_the_space, drop_a_clean_page],
        ..Bug::DEFAULT
    },
    Bug {
        name: "tested-for-zeros-before-the-flush",
        source: "a pitfall of discarding pages in place",
        story: "A page that was zeroed is unmapped, found to be zero, flushed, and freed. A CPU \
                writes to it after the test and before the flush, and the write is lost.",
        finds: is_written_late,
        cpus: &[use_the_space, free_a_page_of_zeros],
        ..Bug::DEFAULT
    },
    Bug {
        name: "freed-by-a-clear-dirty-mark",
        source: "a pitfall of discarding pages in place, and of MADV_FREE",
        story: "The dirty mark of a page is cleared without a flush. A CPU that caches the entry \
                as dirty writes again and does not mark it. The page is taken to be clean, and \
                freed although it was written.",
        finds: is_written_late,
        words: &["dirty"],
        cpus: &[mark_dirty_and_use, clear_mark_and_free],
        ..Bug::DEFAULT
    },
    Bug {
        name: "moved-and-flushed-after-the-lock",
        source: "Linux: CVE-2018-18281, eb66ae030829",
        story: "mremap moves an entry, releases the lock, and flushes. In between, another CPU \
                unmaps the new place, flushes it, and frees the page, which CPUs can still use at \
                the old place.",
        finds: uses_stale,
        words: &["moved"],
        cpus: &[use_the_space, move_and_flush, unmap_the_new_place],
        ..Bug::DEFAULT
    },
    Bug {
        name: "area-unlinked-before-the-flush",
        source: "Linux: CVE-2022-39188, b67fbebd4cf9",
        story: "munmap clears entries of a driver's pages, unlinks the area, and flushes later. \
                The driver finds no area that maps the pages, and frees them.",
        finds: uses_stale,
        words: &["unlinked"],
        cpus: &[use_the_space, unlink_and_flush, free_unmapped_pages],
        ..Bug::DEFAULT
    },
];

const fn is_written_late(violation: Violation) -> bool {
    matches!(violation, Violation::WritesLate { .. })
}

fn unmap_and_flush_later(stage: &Stage) {
    stage.word("batched").fetch_add(1, AcqRel);
    stage.unmap(0, 0);
    stage.signal("unmapped");
    stage.interrupt_and_wait(USER);
    stage.word("batched").fetch_add(1_u64.wrapping_neg(), AcqRel);
}

fn unmap_again(stage: &Stage) {
    stage.wait_for("unmapped");
    let found = stage.space(0).swap(0, Entry::EMPTY);
    let is_batched = stage.is_fixed() && stage.word("batched").load(Acquire) != 0;
    if found.is_present() || is_batched {
        stage.interrupt_and_wait(USER);
    }
    stage.claim_flushed(0, 0);
}

fn unmap_with_a_flag(stage: &Stage) {
    change_pending(stage, 1);
    stage.unmap(0, 0);
    stage.signal("unmapped");
    stage.interrupt_and_wait(USER);
    change_pending(stage, -1);
}

fn unmap_another_and_rely_on_the_flag(stage: &Stage) {
    stage.wait_for("unmapped");
    change_pending(stage, 1);
    // This CPU finds no page of its own to flush.
    change_pending(stage, -1);
    if stage.word("pending").load(Acquire) == 0 {
        stage.claim_flushed(0, 0);
    }
}

/// Adds `change`, 1 or -1, to the number of pending flushes. In the faulty variant, a flag stands
/// for the number.
fn change_pending(stage: &Stage, change: i64) {
    let pending = stage.word("pending");
    if stage.is_fixed() {
        pending.fetch_add(change.cast_unsigned(), AcqRel);
    } else {
        pending.store(u64::from(change == 1), Release);
        fence();
    }
}

fn clear_and_flush(stage: &Stage) {
    stage.unmap(0, 0);
    stage.interrupt_and_wait(USER);
    stage.signal("flushed");
}

fn copy_a_clear_page(stage: &Stage) {
    if !stage.space(0).entry(0).is_present() {
        if stage.is_fixed() {
            stage.wait_for("flushed");
        }
        stage.claim_flushed(0, 0);
    }
}

fn write_out_a_dirty_page(stage: &Stage) {
    let frame = stage.unmap(0, 0);
    let write_out = || with_machine(|machine| machine.write_out(frame, true));
    stage.in_fixed_order(|| stage.interrupt_and_wait(USER), write_out);
}

fn drop_a_clean_page(stage: &Stage) {
    let frame = stage.unmap(0, 0);
    if stage.is_fixed() {
        stage.interrupt_and_wait(USER);
    }
    with_machine(|machine| machine.write_out(frame, false));
}

fn free_a_page_of_zeros(stage: &Stage) {
    let frame = stage.unmap(0, 0);
    // The test reads the frame, as writing it out does: the contents must be final.
    let test = || with_machine(|machine| machine.write_out(frame, true));
    stage.in_fixed_order(|| stage.interrupt_and_wait(USER), test);
    stage.reuse(frame);
}

/// Sets the dirty mark before it caches the translation as dirty.
fn mark_dirty_and_use(stage: &Stage) {
    stage.word("dirty").store(1, Release);
    fence();
    use_the_space(stage);
}

fn clear_mark_and_free(stage: &Stage) {
    stage.word("dirty").store(0, Release);
    fence();
    let frame = stage.unmap(0, 0);
    let is_marked = stage.word("dirty").load(Acquire) != 0;
    if stage.is_fixed() || is_marked {
        stage.interrupt_and_wait(USER);
    }
    with_machine(|machine| machine.write_out(frame, true));
}

fn move_and_flush(stage: &Stage) {
    let entry = stage.space(0).swap(0, Entry::EMPTY);
    stage.space(0).swap(2, entry);
    fence();
    stage.in_fixed_order(|| stage.interrupt_and_wait(USER), || stage.signal("moved"));
}

fn unmap_the_new_place(stage: &Stage) {
    stage.wait_for("moved");
    let frame = stage.unmap(0, 2);
    // Flush the new place only.
    stage.broadcast(2);
    stage.reuse(frame);
}

fn unlink_and_flush(stage: &Stage) {
    stage.unmap(0, 0);
    stage.in_fixed_order(|| stage.interrupt_and_wait(USER), || stage.signal("unlinked"));
}

fn free_unmapped_pages(stage: &Stage) {
    stage.wait_for("unlinked");
    stage.reuse(0);
}
