//! Those who wait for each other for ever.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use shootdown::Word;

use super::{Bug, Stage, is_stuck};
use crate::world::{World, with_world};

pub(super) const BUGS: &[Bug] = &[
    Bug {
        name: "both-wait-with-interrupts-masked",
        source: "Redox 4158d899; Asterinas, which panics there",
        story: "Two CPUs flush, each with its interrupts masked, and wait for each other: nobody \
                answers.",
        finds: is_stuck,
        cpus: &[|stage| wait_masked(stage, 1), |stage| wait_masked(stage, 0)],
        ..Bug::DEFAULT
    },
    Bug {
        name: "waiter-holds-the-lock-that-the-target-spins-for",
        source: "Redox 7d42e8d9, Twizzler 150, Motor OS ce42f89c",
        story: "Who flushes holds a lock while it waits. The CPU that it waits for spins for \
                that lock with interrupts masked.",
        finds: is_stuck,
        words: &["the lock"],
        cpus: &[take_the_lock_masked, flush_under_the_lock],
        ..Bug::DEFAULT
    },
    Bug {
        name: "rung-before-it-can-answer",
        source: "OSv 102, tgoskits 1196, Nilix R94-8, svsm 600",
        story: "A CPU counts as online before its interrupts work: whoever flushes waits for it.",
        finds: is_stuck,
        words: &["online"],
        cpus: &[come_online, flush_who_is_online],
        ..Bug::DEFAULT
    },
    Bug {
        name: "ring-lost-while-the-handler-leaves",
        source: "the trap of every doorbell: a ring between the last look and the leaving",
        story: "While a CPU attends to its bell nobody sends the interrupt. Who rings after its \
                last look, and before it has left, waits for ever.",
        finds: is_stuck,
        words: &["attended", "rung", "served"],
        cpus: &[attend_and_leave, ring_the_bell],
        handler: serves,
        ..Bug::DEFAULT
    },
];

fn wait_masked(stage: &Stage, other: usize) {
    stage.masked(|| {
        let ticket = stage.ask(other);
        let own = stage.cpu();
        stage.wait_until(|| {
            if stage.is_mended() {
                // As the handler would.
                let asked = stage.asked[own].load(Acquire);
                if asked != stage.answered[own].load(Acquire) {
                    stage.drop_all();
                    stage.answered[own].store(asked, Release);
                }
            }
            stage.answered[other].load(Acquire) >= ticket
        });
    });
}

fn lock(stage: &Stage) {
    stage.wait_until(|| stage.word("the lock").swap(1, AcqRel) == 0);
}

fn unlock(stage: &Stage) {
    stage.word("the lock").store(0, Release);
}

fn take_the_lock_masked(stage: &Stage) {
    stage.masked(|| {
        lock(stage);
        unlock(stage);
    });
}

fn flush_under_the_lock(stage: &Stage) {
    lock(stage);
    let ticket = stage.ask(0);
    if stage.is_mended() {
        unlock(stage);
    }
    stage.wait_until(|| stage.answered[0].load(Acquire) >= ticket);
    if !stage.is_mended() {
        unlock(stage);
    }
}

fn come_online(stage: &Stage) {
    with_world(World::mask);
    let goes_online = || {
        stage.word("online").fetch_or(1, AcqRel);
    };
    if stage.is_mended() {
        with_world(World::unmask);
        goes_online();
    } else {
        // It waits for who has started it, and only then lets interrupts in.
        goes_online();
        stage.wait_until(|| stage.word("online").load(Acquire) & 2 != 0);
        with_world(World::unmask);
    }
}

fn flush_who_is_online(stage: &Stage) {
    if stage.word("online").load(Acquire) & 1 != 0 {
        stage.ask_and_wait(0);
    }
    stage.word("online").fetch_or(2, AcqRel);
}

fn attend_and_leave(stage: &Stage) {
    let (attended, rung) = (stage.word("attended"), stage.word("rung"));
    attended.swap(1, AcqRel);
    serve(stage);
    attended.swap(0, AcqRel);
    if stage.is_mended() && rung.load(Acquire) != 0 {
        serve(stage);
    }
}

fn serve(stage: &Stage) {
    if stage.word("rung").swap(0, AcqRel) != 0 {
        stage.word("served").store(1, Release);
    }
}

fn serves(stage: &Stage) {
    serve(stage);
}

fn ring_the_bell(stage: &Stage) {
    let (attended, rung) = (stage.word("attended"), stage.word("rung"));
    rung.swap(1, AcqRel);
    if attended.load(Acquire) == 0 {
        stage.ask(0);
    }
    stage.wait_for("served");
}
