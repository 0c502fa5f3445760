//! What hardware was expected to do, and does not.

use std::sync::atomic::Ordering::{AcqRel, Acquire};

use shootdown::Word;

use super::{Bug, Stage, nothing, uses_dead, uses_foreign};
use crate::hardware::{Entry, Keeps};
use crate::profile::Profile;
use crate::world::{World, fence, publish, with_world};

pub(super) const BUGS: &[Bug] = &[
    Bug {
        name: "completed-by-another-cpu",
        source: "Linux on arm64: 4b634918384c",
        story: "A CPU broadcasts an invalidation, and another waits for it with a barrier of its \
                own: that waits for nothing, for the broadcast is not its own.",
        profile: Profile::ARM64,
        finds: uses_dead,
        words: &["issued", "completed"],
        cpus: &[use_it, broadcast_and_go_on, rely_on_its_own_barrier],
        handler: nothing,
        ..Bug::DEFAULT
    },
    Bug {
        name: "broadcast-without-its-barrier",
        source: "INVLPGB as first posted, without TLBSYNC; aarch64 without dsb",
        story: "The broadcast is issued, and nobody waits until it is done.",
        profile: Profile::ARM64,
        finds: uses_dead,
        cpus: &[use_it, broadcast_and_reuse],
        handler: nothing,
        ..Bug::DEFAULT
    },
    Bug {
        name: "local-invalidation-for-a-shared-page",
        source: "tgoskits 2008; the litmus test MP.RT.EL1+dsb-tlbi-dsb+dsb-isb",
        story: "vmalle1 for vmalle1is: only this CPU forgets the page.",
        profile: Profile::ARM64,
        finds: uses_dead,
        cpus: &[use_it, invalidate_here_and_reuse],
        handler: nothing,
        ..Bug::DEFAULT
    },
    Bug {
        name: "invalidated-before-the-entry-is-visible",
        source: "aarch64 kernels without dsb ishst, among them tgoskits 2008",
        story: "The entry is stored, and others are told, before walkers can see it: they drop \
                the translation, and read the old entry again.",
        profile: Profile::ARM64,
        finds: uses_dead,
        cpus: &[use_it, store_and_broadcast],
        handler: nothing,
        ..Bug::DEFAULT
    },
    Bug {
        name: "load-of-a-root-expected-to-flush",
        source: "Asterinas 3672: RISC-V's satp drops nothing",
        story: "Another root is loaded, under the same ASID, and nothing is dropped.",
        profile: Profile::RISCV,
        finds: uses_foreign,
        spaces: 2,
        cpus: &[load_both_under_no_tag],
        handler: nothing,
        ..Bug::DEFAULT
    },
    Bug {
        name: "asid-chosen-during-a-broadcast",
        source: "INVLPGB in review: the transition to a global ASID",
        story: "A CPU switches to a space by its old tag, while a flush already broadcasts to \
                the new one alone.",
        profile: Profile::ARM64,
        finds: uses_dead,
        words: &["has a global tag", "present"],
        cpus: &[switch_by_the_tag_it_finds, flush_by_the_tag_it_has],
        ..Bug::DEFAULT
    },
];

fn use_it(stage: &Stage) {
    stage.load(0);
    stage.user_mode();
}

fn broadcast_and_go_on(stage: &Stage) {
    stage.take(0, 0);
    publish();
    with_world(|world| world.issue_broadcast(|page| page == 0));
    stage.come_to("issued");
    with_world(World::complete_broadcasts);
    stage.come_to("completed");
}

fn rely_on_its_own_barrier(stage: &Stage) {
    stage.wait_for("issued");
    if stage.is_mended() {
        stage.wait_for("completed");
    }
    with_world(World::complete_broadcasts);
    stage.is_flushed(0, 0);
}

fn broadcast_and_reuse(stage: &Stage) {
    let frame = stage.take(0, 0);
    publish();
    with_world(|world| world.issue_broadcast(|page| page == 0));
    if stage.is_mended() {
        with_world(World::complete_broadcasts);
    }
    stage.reuse(frame);
}

fn invalidate_here_and_reuse(stage: &Stage) {
    let frame = stage.take(0, 0);
    publish();
    if stage.is_mended() {
        with_world(|world| {
            world.issue_broadcast(|page| page == 0);
            world.complete_broadcasts();
        });
    } else {
        stage.drop_page(0);
    }
    stage.reuse(frame);
}

fn store_and_broadcast(stage: &Stage) {
    let frame = stage.space(0).entry(0).target();
    stage.space(0).store(0, Entry::EMPTY);
    // A full barrier makes it visible to CPUs, which is not enough.
    if stage.is_mended() {
        publish();
    } else {
        fence();
    }
    with_world(|world| {
        world.issue_broadcast(|page| page == 0);
        world.complete_broadcasts();
    });
    fence();
    stage.reuse(frame);
}

fn load_both_under_no_tag(stage: &Stage) {
    stage.load_under(0, 0, Keeps::Everything);
    stage.user_mode();
    let keeps = if stage.is_mended() { Keeps::Nothing } else { Keeps::Everything };
    stage.load_under(1, 0, keeps);
    stage.user_mode();
}

fn switch_by_the_tag_it_finds(stage: &Stage) {
    stage.masked(|| {
        let has_global_tag = stage.word("has a global tag").load(Acquire) != 0;
        if stage.is_mended() || !has_global_tag {
            // By its own tag, for which it must be interrupted.
            stage.word("present").fetch_or(1, AcqRel);
        }
        stage.load(0);
        if stage.is_mended() && !has_global_tag {
            fence();
        }
    });
    stage.user_mode();
}

fn flush_by_the_tag_it_has(stage: &Stage) {
    stage.word("has a global tag").fetch_or(1, AcqRel);
    let frame = stage.take(0, 0);
    // A broadcast to the global tag reaches no entry under the CPU's own.
    if stage.is_mended() && stage.word("present").load(Acquire) != 0 {
        stage.ask_and_wait(0);
    }
    stage.reuse(frame);
}
