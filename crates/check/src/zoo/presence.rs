//! Who is told: a CPU that was left out because of what it seemed to be doing.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use shootdown::Word;

use super::{Bug, Stage, interrupts_for_nothing, uses_dead, walks_freed};
use crate::flush_scope::{FlushScope, Use};
use crate::hardware::Entry;
use crate::world::{fence, with_world};

pub(super) const BUGS: &[Bug] = &[
    Bug {
        name: "mask-read-before-entry-is-written",
        source: "Linux: CVE-2016-2069, 71b3c126e611",
        story: "A flush stores the page table entry, and reads the mask before that is visible. \
                A CPU that joins meanwhile is not in the mask, and finds the old entry.",
        finds: uses_dead,
        words: &["the mask"],
        cpus: &[join_and_use, flush_whom_the_mask_names],
        ..Bug::DEFAULT
    },
    Bug {
        name: "barrier-skipped-as-the-bit-was-set",
        source: "Linux: 209954cbc7d0, mended by 83b0177a6c48",
        story: "A CPU that comes back from lazy found its bit of the mask set already, and left \
                out the locked operation, which was also the barrier before it read the \
                generation.",
        finds: uses_dead,
        words: &["the generation", "lazy"],
        cpus: &[be_lazy_and_come_back, flush_who_is_not_lazy],
        ..Bug::DEFAULT
    },
    Bug {
        name: "left-out-in-the-middle-of-a-switch",
        source: "Linux: fea4e317f9e7",
        story: "A CPU on its way to a space has read the generation, and not yet said which \
                space it has loaded. A flush looks at what is loaded, and leaves it out.",
        finds: uses_dead,
        words: &["the generation", "what is loaded"],
        cpus: &[switch_and_say_so_late, flush_who_has_loaded],
        ..Bug::DEFAULT
    },
    Bug {
        name: "mask-trimmed-by-another",
        source: "Linux on powerpc: a665eec0a22e",
        story: "Who flushes a space that has one user has all others leave it, and then clears \
                the mask. In between, a kernel thread has begun to use the space on another CPU.",
        finds: uses_dead,
        words: &["the mask", "trimmed"],
        cpus: &[use_while_trimmed, trim_and_flush],
        ..Bug::DEFAULT
    },
    Bug {
        name: "mask-cleared-before-the-root-is-left",
        source: "Asterinas and Redox, which other rules save (by reading)",
        story: "A CPU takes itself out of the mask, and only then loads another root. In \
                between, nobody tells it of a page table that is freed.",
        finds: walks_freed,
        words: &["the mask"],
        cpus: &[leave_the_mask_and_then_the_space, free_a_table_that_the_mask_may_walk],
        ..Bug::DEFAULT
    },
    Bug {
        name: "interrupted-while-lazy",
        source: "Linux 4.12, as seed 000 tells",
        story: "A CPU idles with the space loaded, and is interrupted for each flush, though it \
                uses and could catch up when it comes back. Nothing goes wrong, but that \
                it costs time.",
        finds: interrupts_for_nothing,
        words: &["the generation", "active"],
        cpus: &[run_and_idle, flush_whoever_may_hold_it],
        ..Bug::DEFAULT
    },
    Bug {
        name: "generation-read-after-the-load",
        source: "DragonOS, latent (by reading)",
        story: "A CPU loads a root and then notes the generation: what was changed in between \
                counts as seen, and may be cached as it was.",
        finds: uses_dead,
        words: &["the generation", "active"],
        cpus: &[load_and_note_the_generation, flush_who_is_active],
        ..Bug::DEFAULT
    },
];

fn join_and_use(stage: &Stage) {
    stage.masked(|| {
        stage.word("the mask").fetch_or(1, AcqRel);
        stage.load(0);
    });
    stage.user_mode();
}

fn flush_whom_the_mask_names(stage: &Stage) {
    let entry = stage.space(0).entry(0);
    stage.space(0).store(0, Entry::EMPTY);
    if stage.is_mended() {
        fence();
    }
    if stage.word("the mask").load(Acquire) & 1 != 0 {
        stage.ask_and_wait(0);
    }
    fence();
    stage.is_flushed(0, 0);
    stage.reuse(entry.target());
}

fn flush_whom_the_mask_names_in_order(stage: &Stage) {
    let frame = stage.take(0, 0);
    if stage.word("the mask").load(Acquire) & 1 != 0 {
        stage.ask_and_wait(0);
    }
    stage.reuse(frame);
}

fn be_lazy_and_come_back(stage: &Stage) {
    let (generation, lazy) = (stage.word("the generation"), stage.word("lazy"));
    let seen = generation.load(Acquire);
    stage.load(0);
    lazy.store(1, Release);
    fence();
    stage.masked(|| {
        lazy.store(0, Release);
        if stage.is_mended() {
            fence();
        }
        if generation.load(Acquire) != seen {
            stage.drop_all();
        }
    });
    stage.user_mode();
}

fn flush_who_is_not_lazy(stage: &Stage) {
    let frame = stage.take(0, 0);
    stage.word("the generation").fetch_add(1, AcqRel);
    if stage.word("lazy").load(Acquire) == 0 {
        stage.ask_and_wait(0);
    }
    stage.reuse(frame);
}

fn switch_and_say_so_late(stage: &Stage) {
    let (generation, loaded) = (stage.word("the generation"), stage.word("what is loaded"));
    stage.masked(|| {
        if stage.is_mended() {
            // From here on it counts as loaded.
            loaded.store(1, Release);
            fence();
        }
        generation.load(Acquire);
        stage.load(0);
        loaded.store(1, Release);
        fence();
    });
    stage.user_mode();
}

fn use_while_trimmed(stage: &Stage) {
    stage.masked(|| {
        stage.word("the mask").fetch_or(1, AcqRel);
        stage.load(0);
    });
    stage.wait_for("trimmed");
    stage.user_mode();
}

fn trim_and_flush(stage: &Stage) {
    if !stage.is_mended() {
        // All but the one user have been asked to leave by now, and have.
        stage.word("the mask").store(0, Release);
        fence();
    }
    stage.come_to("trimmed");
    flush_whom_the_mask_names_in_order(stage);
}

fn leave_the_mask_and_then_the_space(stage: &Stage) {
    stage.masked(|| {
        stage.word("the mask").fetch_or(1, AcqRel);
        stage.load(0);
    });
    stage.user_mode();
    stage.masked(|| {
        if stage.is_mended() {
            stage.load_kernel();
            stage.word("the mask").fetch_and(!1, AcqRel);
        } else {
            stage.word("the mask").fetch_and(!1, AcqRel);
            stage.load_kernel();
        }
    });
}

fn free_a_table_that_the_mask_may_walk(stage: &Stage) {
    let table = stage.unhook(0, 0);
    fence();
    if stage.word("the mask").load(Acquire) & 1 != 0 {
        stage.ask_and_wait(0);
    }
    with_world(|world| world.free_table(table));
}

fn run_and_idle(stage: &Stage) {
    stage.masked(|| {
        with_world(|world| world.uses(Use::Switching));
        stage.word("active").store(1, Release);
        fence();
        stage.load(0);
        with_world(|world| world.uses(Use::Of(stage.space(0).root())));
    });
    stage.user_mode();
    stage.masked(|| {
        stage.word("active").store(0, Release);
        with_world(|world| world.uses(Use::None));
    });
}

fn flush_whoever_may_hold_it(stage: &Stage) {
    let frame = stage.take(0, 0);
    stage.word("the generation").fetch_add(1, AcqRel);
    let flush = || {
        if !stage.is_mended() || stage.word("active").load(Acquire) != 0 {
            stage.ask_and_wait(0);
        }
    };
    with_world(|world| world.flushing(stage.space(0).root(), FlushScope::Pages, flush));
    stage.reuse(frame);
}

fn load_and_note_the_generation(stage: &Stage) {
    let (generation, active) = (stage.word("the generation"), stage.word("active"));
    stage.masked(|| {
        let before = generation.load(Acquire);
        stage.load(0);
        let seen = if stage.is_mended() { before } else { generation.load(Acquire) };
        active.store(1, Release);
        fence();
        if generation.load(Acquire) != seen {
            stage.drop_all();
        }
    });
    stage.user_mode();
}

fn flush_who_has_loaded(stage: &Stage) {
    flush_if(stage, "what is loaded");
}

fn flush_who_is_active(stage: &Stage) {
    flush_if(stage, "active");
}

/// Takes a page, and asks CPU 0 to drop it if a word is not zero.
fn flush_if(stage: &Stage, word: &str) {
    let frame = stage.take(0, 0);
    stage.word("the generation").fetch_add(1, AcqRel);
    if stage.word(word).load(Acquire) != 0 {
        stage.ask_and_wait(0);
    }
    stage.reuse(frame);
}
