//! Frames that are freed, and what a CPU remembers of them: generations, tags, acknowledgements.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use shootdown::Word;

use super::{Bug, Stage, use_the_space, uses_foreign, uses_stale};
use crate::hardware::{Entry, OnLoad};
use crate::machine::{HostileMachine, fence, with_machine};

pub(super) const BUGS: &[Bug] = &[
    Bug {
        name: "frame-freed-before-the-flush",
        source: "nanos f3c9d78b, Redox 4e392d05, LiteBox 848; StarryOS, Theseus (by reading)",
        story: "The frame is freed as soon as its entry is cleared, and reused while CPUs still \
                use its translation.",
        finds: uses_stale,
        cpus: &[use_the_space, free_and_flush],
        ..Bug::DEFAULT
    },
    Bug {
        name: "late-answer-counts-for-the-next-round",
        source: "Redox's word of acknowledgements (by reading)",
        story: "A flush counts acknowledgements and does not match them with its request: a late \
                one counts for the next request.",
        finds: uses_stale,
        words: &["acknowledgements"],
        cpus: &[use_the_space, flush_twice_and_wait_once],
        handler: invalidate_and_count,
        ..Bug::DEFAULT
    },
    Bug {
        name: "partial-flush-overtakes-a-full-one",
        source: "the rule in Linux's tlb.c: a partial flush only if no other flush was missed",
        story: "A CPU that has missed a full flush performs only the partial flush that came after \
                it, and then counts as having caught up.",
        finds: uses_stale,
        words: &["the generation", "absent"],
        cpus: &[miss_a_full_flush, flush_all_and_then_a_page],
        ..Bug::DEFAULT
    },
    Bug {
        name: "interrupt-before-the-local-flush",
        source: "FreeBSD r362031, fixed by r368649 (FreeBSD-EN-22:04.pcid)",
        story: "To save time, a flush marks its own CPU's generation as clean, interrupts the \
                other CPUs, and invalidates its own entries last. A thread that is switched in \
                before that relies on the mark.",
        finds: uses_stale,
        spaces: 2,
        words: &["clean"],
        cpus: &[mark_and_flush_later],
        ..Bug::DEFAULT
    },
    Bug {
        name: "tag-given-on-with-what-is-under-it",
        source: "SVSM 1157, Zircon (by reading), f4be75635, Zephyr 113559",
        story: "A tag is assigned to another space without an invalidation: the new space sees the \
                pages of the previous one.",
        finds: uses_foreign,
        spaces: 2,
        cpus: &[reuse_a_tag],
        ..Bug::DEFAULT
    },
    Bug {
        name: "put-off-and-freed-at-once",
        source: "LATR (ASPLOS 2018) with LAZY_MEM_FREE=n, as published",
        story: "munmap interrupts no CPU, because every CPU will sweep at its next tick. The pages \
                are freed before that.",
        finds: uses_stale,
        words: &["state", "swept"],
        cpus: &[use_and_sweep, unmap_and_defer],
        ..Bug::DEFAULT
    },
    Bug {
        name: "copy-in-use-beside-the-original",
        source: "FreeBSD D14347 and NetBSD, in Go 34988",
        story: "A copy-on-write fault maps the copy and then flushes the original. Until then, one \
                thread writes to the copy, and another one still reads the original.",
        finds: uses_stale,
        cpus: &[use_the_space, copy_on_write],
        ..Bug::DEFAULT
    },
];

/// From the moment at which the copy is mapped, no CPU may use the original.
fn copy_on_write(stage: &Stage) {
    let copy = Entry::to(with_machine(HostileMachine::add_frame)).writable();
    if stage.is_fixed() {
        stage.unmap(0, 0);
        stage.interrupt_and_wait(0);
    }
    stage.space(0).swap(0, copy);
    stage.claim_flushed(0, 0);
    if !stage.is_fixed() {
        stage.interrupt_and_wait(0);
    }
}

fn free_and_flush(stage: &Stage) {
    let frame = stage.unmap(0, 0);
    stage.in_fixed_order(|| stage.interrupt_and_wait(0), || stage.reuse(frame));
}

fn flush_twice_and_wait_once(stage: &Stage) {
    let acknowledgements = stage.word("acknowledgements");
    let interrupt = || {
        let before = acknowledgements.load(Acquire);
        let ticket = stage.interrupt(0);
        (before, ticket)
    };
    stage.unmap(0, 0);
    // No CPU waits for this interrupt.
    interrupt();
    let frame = stage.unmap(0, 1);
    let (before, ticket) = interrupt();
    if stage.is_fixed() {
        stage.wait_until(|| stage.handled[0].load(Acquire) >= ticket);
    } else {
        stage.wait_until(|| acknowledgements.load(Acquire) > before);
    }
    stage.reuse(frame);
}

fn invalidate_and_count(stage: &Stage) {
    stage.invalidate_all();
    stage.word("acknowledgements").fetch_add(1, AcqRel);
}

fn miss_a_full_flush(stage: &Stage) {
    let (generation, absent) = (stage.word("the generation"), stage.word("absent"));
    let seen = generation.load(Acquire);
    stage.load(0);
    stage.user_mode();
    absent.store(1, Release);
    fence();
    stage.masked(|| {
        absent.store(0, Release);
        fence();
        let now = generation.load(Acquire);
        match now - seen {
            0 => {}
            // The last flush was of page 1 only.
            1 if now == 2 => stage.invalidate_page(1),
            _ if !stage.is_fixed() && now == 2 => stage.invalidate_page(1),
            _ => stage.invalidate_all(),
        }
    });
    stage.user_mode();
}

fn flush_all_and_then_a_page(stage: &Stage) {
    for page in [0, 1] {
        let frame = stage.unmap(0, page);
        stage.word("the generation").fetch_add(1, AcqRel);
        if stage.word("absent").load(Acquire) == 0 {
            stage.interrupt_and_wait(0);
        }
        stage.reuse(frame);
    }
}

fn mark_and_flush_later(stage: &Stage) {
    let clean = stage.word("clean");
    stage.load(0);
    let frame = stage.unmap(0, 0);
    if stage.is_fixed() {
        stage.invalidate_page(0);
    }
    clean.store(1, Release);
    // The thread is preempted here: another space runs, and then this one again, according to the
    // mark.
    stage.load(1);
    let on_load = if clean.load(Acquire) == 1 { OnLoad::Keep } else { OnLoad::Flush };
    stage.reuse(frame);
    stage.load_under(0, 1, on_load);
    stage.user_mode();
    stage.invalidate_page(0);
}

fn reuse_a_tag(stage: &Stage) {
    stage.load(0);
    stage.user_mode();
    let on_load = if stage.is_fixed() { OnLoad::Flush } else { OnLoad::Keep };
    stage.load_under(1, 1, on_load);
    stage.user_mode();
}

fn use_and_sweep(stage: &Stage) {
    stage.load(0);
    stage.user_mode();
    // The timer tick.
    if stage.word("state").load(Acquire) != 0 {
        stage.invalidate_page(0);
    }
    stage.signal("swept");
    stage.user_mode();
}

fn unmap_and_defer(stage: &Stage) {
    let frame = stage.unmap(0, 0);
    stage.signal("state");
    if stage.is_fixed() {
        // CPU 0 may have swept too early to see the unmap. This CPU cannot tell, so it interrupts.
        stage.wait_for("swept");
        stage.interrupt_and_wait(0);
    }
    stage.reuse(frame);
}
