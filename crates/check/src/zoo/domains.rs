//! Invalidations that reach only some CPUs: what TLBI domains (Arm: `FEAT_TLBID`) invite. No kernel
//! has shipped them yet.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use shootdown::Word;

use super::{Stage, nothing, programs};
use crate::hardware::{OnLoad, Reach};
use crate::machine::{HostileMachine, fence, publish, with_machine};

/// The tag of the space.
const TAG: u16 = 1;

programs! {
    "domain-without-the-cpu-that-left":
        |stage| come_back_if(stage, |seen, generation| !stage.is_fixed() || seen == generation),
        flush_in_domains => nothing;
    "domain-taken-for-every-cpu": return_unless_clean, flush_and_mark_clean => nothing;
    "domains-chosen-before-the-change": join, choose_domains_and_unmap => nothing;
    "domain-moves-with-a-virtual-cpu": move_away_and_back, flush_the_virtual_domain => nothing;
}

/// Invalidates the tag in the domains of these CPUs, and waits.
fn invalidate_in_domains(stage: &Stage, cpus: u64) {
    publish();
    with_machine(|machine| machine.issue_tag(Reach::Cpus(cpus), TAG));
    stage.complete();
}

/// Joins the mask. Returns the generation that the space then has.
fn join_at_generation(stage: &Stage) -> u64 {
    stage.word("the mask").fetch_or(1, AcqRel);
    fence();
    stage.word("generation").load(Acquire)
}

/// Uses the space, leaves it, and comes back. `is_clean` decides, from the generations before and
/// after, whether the entries under the tag may stay.
fn come_back_if(stage: &Stage, is_clean: impl FnOnce(u64, u64) -> bool) {
    let mut seen = 0;
    stage.masked(|| {
        seen = join_at_generation(stage);
        stage.load_under(0, TAG, OnLoad::Flush);
    });
    stage.user_mode();
    stage.masked(|| {
        stage.load_kernel();
        stage.word("the mask").fetch_and(!1, AcqRel);
    });
    stage.masked(|| {
        let generation = join_at_generation(stage);
        let on_load = if is_clean(seen, generation) { OnLoad::Keep } else { OnLoad::Flush };
        stage.load_under(0, TAG, on_load);
    });
    stage.user_mode();
}

fn return_unless_clean(stage: &Stage) {
    let is_clean =
        |generation| !stage.is_fixed() && stage.word("clean").load(Acquire) >= generation;
    come_back_if(stage, |seen, generation| seen == generation || is_clean(generation));
}

fn flush_in_domains(stage: &Stage) {
    let frame = stage.unmap(0, 0);
    stage.word("generation").fetch_add(1, AcqRel);
    fence();
    invalidate_in_domains(stage, stage.word("the mask").load(Acquire));
    stage.reuse(frame);
}

fn flush_and_mark_clean(stage: &Stage) {
    let frame = stage.unmap(0, 0);
    let generation = stage.word("generation").fetch_add(1, AcqRel) + 1;
    fence();
    invalidate_in_domains(stage, stage.word("the mask").load(Acquire));
    if !stage.is_fixed() {
        stage.word("clean").store(generation, Release);
    }
    stage.reuse(frame);
}

fn join(stage: &Stage) {
    stage.masked(|| {
        stage.word("the mask").fetch_or(1, AcqRel);
        fence();
        stage.load_under(0, TAG, OnLoad::Flush);
    });
    stage.user_mode();
}

fn choose_domains_and_unmap(stage: &Stage) {
    let (mut domains, mut frame) = (0, 0);
    stage.in_fixed_order(
        || frame = stage.unmap(0, 0),
        || domains = stage.word("the mask").load(Acquire),
    );
    invalidate_in_domains(stage, domains);
    stage.reuse(frame);
}

fn move_away_and_back(stage: &Stage) {
    let domain = stage.word("the domain");
    let run = |on_load| {
        stage.masked(|| {
            domain.fetch_or(1, AcqRel);
            fence();
            stage.load_under(0, TAG, on_load);
        });
        stage.user_mode();
    };
    run(OnLoad::Flush);
    stage.masked(|| {
        stage.load_kernel();
        if stage.is_fixed() {
            with_machine(|machine: &HostileMachine| machine.invalidate_tag(None));
        }
        domain.fetch_and(!1, AcqRel);
    });
    run(OnLoad::Keep);
}

fn flush_the_virtual_domain(stage: &Stage) {
    let frame = stage.unmap(0, 0);
    invalidate_in_domains(stage, stage.word("the domain").load(Acquire));
    stage.reuse(frame);
}
