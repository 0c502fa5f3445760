//! CPUs that wait for each other for ever.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use shootdown::Word;

use super::{Stage, programs};
use crate::machine::{HostileMachine, with_machine};

programs! {
    "both-wait-with-interrupts-masked":
        |stage| wait_masked(stage, 1), |stage| wait_masked(stage, 0);
    "waiter-holds-the-lock-that-the-target-spins-for": lock_masked, flush_under_the_lock;
    "rung-before-it-can-answer": come_online, flush_if_online;
    "ring-lost-while-the-handler-leaves": handle_and_exit, ring_the_bell => handle_the_bell;
}

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
