//! What is given away, and what a CPU remembers of it: generations, tags, answers.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use shootdown::Word;

use super::{Bug, Stage, uses_dead, uses_foreign};
use crate::hardware::Keeps;
use crate::world::fence;

pub(super) const BUGS: &[Bug] = &[
    Bug {
        name: "frame-freed-before-the-flush",
        source: "nanos f3c9d78b, Redox 4e392d05; LiteBox, StarryOS, Theseus (by reading)",
        story: "The frame is free as soon as its entry is cleared, and is somebody else's while \
                CPUs go on using it.",
        finds: uses_dead,
        cpus: &[use_it, free_and_flush],
        ..Bug::DEFAULT
    },
    Bug {
        name: "late-answer-counts-for-the-next-round",
        source: "Redox's word of answers (by reading)",
        story: "Answers are counted, and not what they answer: one that comes late is taken for \
                the answer to the next question.",
        finds: uses_dead,
        words: &["answers"],
        cpus: &[use_it, flush_twice_and_wait_once],
        handler: drops_and_counts,
        ..Bug::DEFAULT
    },
    Bug {
        name: "partial-flush-overtakes-a-full-one",
        source: "the rule in Linux's tlb.c: a partial flush only if nothing else was missed",
        story: "A CPU that has missed a full flush does the partial one that came after it, and \
                takes itself to have caught up.",
        finds: uses_dead,
        words: &["the generation", "absent"],
        cpus: &[miss_a_full_flush, flush_all_and_then_a_page],
        ..Bug::DEFAULT
    },
    Bug {
        name: "interrupt-before-the-local-flush",
        source: "FreeBSD r362031, mended by r368649 (FreeBSD-EN-22:04.pcid)",
        story: "To save time, a flush notes its own CPU's generation as clean, interrupts the \
                others, and drops its own entries last: a thread that is switched in meanwhile \
                goes by the note.",
        finds: uses_dead,
        spaces: 2,
        words: &["clean"],
        cpus: &[note_and_flush_later],
        ..Bug::DEFAULT
    },
    Bug {
        name: "tag-given-on-with-what-is-under-it",
        source: "SVSM 1157, Zircon (by reading), f4be75635",
        story: "A tag is given to another space, and nothing is dropped: it shows the pages of \
                the last one.",
        finds: uses_foreign,
        spaces: 2,
        cpus: &[give_a_tag_on],
        ..Bug::DEFAULT
    },
    Bug {
        name: "put-off-and-freed-at-once",
        source: "LATR (ASPLOS 2018) with LAZY_MEM_FREE=n, as published",
        story: "munmap tells nobody, for every CPU will look at its next tick; the pages are \
                free before that.",
        finds: uses_dead,
        words: &["state", "swept"],
        cpus: &[use_it_and_sweep, unmap_and_put_off],
        ..Bug::DEFAULT
    },
];

fn use_it(stage: &Stage) {
    stage.load(0);
    stage.user_mode();
}

fn free_and_flush(stage: &Stage) {
    let frame = stage.take(0, 0);
    if stage.is_mended() {
        stage.ask_and_wait(0);
    }
    stage.reuse(frame);
    if !stage.is_mended() {
        stage.ask_and_wait(0);
    }
}

fn flush_twice_and_wait_once(stage: &Stage) {
    let answers = stage.word("answers");
    let ask = || {
        let before = answers.load(Acquire);
        let ticket = stage.ask(0);
        (before, ticket)
    };
    stage.take(0, 0);
    // Nobody waits for this one.
    ask();
    let frame = stage.take(0, 1);
    let (before, ticket) = ask();
    if stage.is_mended() {
        stage.wait_until(|| stage.answered[0].load(Acquire) >= ticket);
    } else {
        stage.wait_until(|| answers.load(Acquire) > before);
    }
    stage.reuse(frame);
}

fn drops_and_counts(stage: &Stage) {
    stage.drop_all();
    stage.word("answers").fetch_add(1, AcqRel);
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
            // The last one was of page 1 alone.
            1 if now == 2 => stage.drop_page(1),
            _ if !stage.is_mended() && now == 2 => stage.drop_page(1),
            _ => stage.drop_all(),
        }
    });
    stage.user_mode();
}

fn flush_all_and_then_a_page(stage: &Stage) {
    for page in [0, 1] {
        let frame = stage.take(0, page);
        stage.word("the generation").fetch_add(1, AcqRel);
        if stage.word("absent").load(Acquire) == 0 {
            stage.ask_and_wait(0);
        }
        stage.reuse(frame);
    }
}

fn note_and_flush_later(stage: &Stage) {
    let clean = stage.word("clean");
    stage.load(0);
    let frame = stage.take(0, 0);
    if stage.is_mended() {
        stage.drop_page(0);
    }
    clean.store(1, Release);
    // It is preempted here: another space runs, and this one again, by its note.
    stage.load(1);
    let keeps = if clean.load(Acquire) == 1 { Keeps::Everything } else { Keeps::Nothing };
    stage.reuse(frame);
    stage.load_under(0, 1, keeps);
    stage.user_mode();
    stage.drop_page(0);
}

fn give_a_tag_on(stage: &Stage) {
    stage.load(0);
    stage.user_mode();
    let keeps = if stage.is_mended() { Keeps::Nothing } else { Keeps::Everything };
    stage.load_under(1, 1, keeps);
    stage.user_mode();
}

fn use_it_and_sweep(stage: &Stage) {
    stage.load(0);
    stage.user_mode();
    // The tick.
    if stage.word("state").load(Acquire) != 0 {
        stage.drop_page(0);
    }
    stage.come_to("swept");
    stage.user_mode();
}

fn unmap_and_put_off(stage: &Stage) {
    let frame = stage.take(0, 0);
    stage.come_to("state");
    if stage.is_mended() {
        // It has looked before we came, or has come to it: who can tell is interrupted.
        stage.wait_for("swept");
        stage.ask_and_wait(0);
    }
    stage.reuse(frame);
}
