//! CPUs that wait for each other for ever.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use shootdown::Word;

use super::{Bug, Stage, is_stuck};
use crate::machine::{HostileMachine, with_machine};

pub(super) const BUGS: &[Bug] = &[
    Bug {
        name: "both-wait-with-interrupts-masked",
        source: "Redox 4158d899; Asterinas, which panics there",
        story: "Two CPUs flush, each with interrupts masked, and wait for each other: neither \
                takes the other's interrupt.",
        finds: is_stuck,
        cpus: &[|stage| wait_masked(stage, 1), |stage| wait_masked(stage, 0)],
        ..Bug::DEFAULT
    },
    Bug {
        name: "waiter-holds-the-lock-that-the-target-spins-for",
        source: "Redox 7d42e8d9, Twizzler 150, Motor OS ce42f89c",
        story: "A CPU holds a lock while it waits for a flush. The CPU that it waits for spins for \
                that lock with interrupts masked.",
        finds: is_stuck,
        words: &["the lock"],
        cpus: &[lock_masked, flush_under_the_lock],
        ..Bug::DEFAULT
    },
    Bug {
        name: "rung-before-it-can-answer",
        source: "OSv 102, tgoskits 1196, Nilix R94-8, svsm 600",
        story: "A CPU counts as online before it can take interrupts, and every flush waits for \
                it.",
        finds: is_stuck,
        words: &["online"],
        cpus: &[come_online, flush_if_online],
        ..Bug::DEFAULT
    },
    Bug {
        name: "ring-lost-while-the-handler-leaves",
        source: "the common bug of doorbells: a ring between the last check and the exit",
        story: "While a CPU handles its bell, other CPUs send it no interrupt. A CPU that rings \
                after the last check and before the exit waits for ever.",
        finds: is_stuck,
        words: &["handling", "rung", "handled"],
        cpus: &[handle_and_exit, ring_the_bell],
        handler: handle_the_bell,
        ..Bug::DEFAULT
    },
];

fn wait_masked(stage: &Stage, other: usize) {
    stage.masked(|| {
        let ticket = stage.interrupt(other);
        let own = stage.cpu();
        stage.wait_until(|| {
            if stage.is_fixed() {
                // Do what the interrupt handler would do.
                let requests = stage.requests[own].load(Acquire);
                if requests != stage.handled[own].load(Acquire) {
                    stage.invalidate_all();
                    stage.handled[own].store(requests, Release);
                }
            }
            stage.handled[other].load(Acquire) >= ticket
        });
    });
}

fn lock(stage: &Stage) {
    stage.wait_until(|| stage.word("the lock").swap(1, AcqRel) == 0);
}

fn unlock(stage: &Stage) {
    stage.word("the lock").store(0, Release);
}

fn lock_masked(stage: &Stage) {
    stage.masked(|| {
        lock(stage);
        unlock(stage);
    });
}

fn flush_under_the_lock(stage: &Stage) {
    lock(stage);
    let ticket = stage.interrupt(0);
    let wait = || stage.wait_until(|| stage.handled[0].load(Acquire) >= ticket);
    stage.in_fixed_order(|| unlock(stage), wait);
}

fn come_online(stage: &Stage) {
    with_machine(HostileMachine::mask);
    let go_online = || {
        stage.word("online").fetch_or(1, AcqRel);
    };
    if stage.is_fixed() {
        with_machine(HostileMachine::unmask);
        go_online();
    } else {
        // The CPU waits for the CPU that has started it, and only then unmasks interrupts.
        go_online();
        stage.wait_until(|| stage.word("online").load(Acquire) & 2 != 0);
        with_machine(HostileMachine::unmask);
    }
}

fn flush_if_online(stage: &Stage) {
    stage.interrupt_if_set("online");
    stage.word("online").fetch_or(2, AcqRel);
}

fn handle_and_exit(stage: &Stage) {
    let (handling, rung) = (stage.word("handling"), stage.word("rung"));
    handling.swap(1, AcqRel);
    handle_the_bell(stage);
    handling.swap(0, AcqRel);
    if stage.is_fixed() && rung.load(Acquire) != 0 {
        handle_the_bell(stage);
    }
}

fn handle_the_bell(stage: &Stage) {
    if stage.word("rung").swap(0, AcqRel) != 0 {
        stage.word("handled").store(1, Release);
    }
}

fn ring_the_bell(stage: &Stage) {
    let (handling, rung) = (stage.word("handling"), stage.word("rung"));
    rung.swap(1, AcqRel);
    if handling.load(Acquire) == 0 {
        stage.interrupt(0);
    }
    stage.wait_for("handled");
}
