//! Guarantees that kernels assumed and hardware does not give.

use std::sync::atomic::Ordering::{AcqRel, Acquire};

use shootdown::Word;

use super::{Bug, Stage, nothing, use_the_space, uses_foreign, uses_stale};
use crate::hardware::{Entry, OnLoad, PAGES, Violation};
use crate::machine::{fence, publish, with_machine};
use crate::profile::Profile;

pub(super) const BUGS: &[Bug] = &[
    Bug {
        name: "completed-by-another-cpu",
        source: "Linux on arm64: 4b634918384c",
        story: "A CPU broadcasts an invalidation, and another CPU waits for it with a barrier of \
                its own. That barrier does not wait, because the other CPU did not issue the \
                broadcast.",
        profile: Profile::ARM64,
        finds: uses_stale,
        words: &["issued", "completed"],
        cpus: &[use_the_space, broadcast_and_go_on, rely_on_its_own_barrier],
        handler: nothing,
        ..Bug::DEFAULT
    },
    Bug {
        name: "broadcast-without-its-barrier",
        source: "INVLPGB as first posted, without TLBSYNC; aarch64 without dsb",
        story: "The broadcast is issued, and no CPU waits until it is complete.",
        profile: Profile::ARM64,
        finds: uses_stale,
        cpus: &[use_the_space, broadcast_and_reuse],
        handler: nothing,
        ..Bug::DEFAULT
    },
    Bug {
        name: "local-invalidation-for-a-shared-page",
        source: "tgoskits 2008, OSv 1475, MicroV 7; MP.RT.EL1+dsb-tlbi-dsb+dsb-isb",
        story: "The kernel uses vmalle1 instead of vmalle1is: only this CPU forgets the page.",
        profile: Profile::ARM64,
        finds: uses_stale,
        cpus: &[use_the_space, invalidate_here_and_reuse],
        handler: nothing,
        ..Bug::DEFAULT
    },
    Bug {
        name: "invalidated-before-the-entry-is-visible",
        source: "aarch64 kernels without dsb ishst, among them tgoskits 2008",
        story: "The entry is stored, and the invalidation is broadcast before walkers can see the \
                store: they drop the translation, and read the old entry again.",
        profile: Profile::ARM64,
        finds: uses_stale,
        cpus: &[use_the_space, store_and_broadcast],
        handler: nothing,
        ..Bug::DEFAULT
    },
    Bug {
        name: "load-of-a-root-expected-to-flush",
        source: "Asterinas 3672, ArceOS 296: RISC-V's satp invalidates nothing",
        story: "Another root is loaded under the same ASID, and no entry is invalidated.",
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
        story: "A CPU switches to a space under its old tag, while a flush already broadcasts to \
                the new tag only.",
        profile: Profile::ARM64,
        finds: uses_stale,
        words: &["has a global tag", "present"],
        cpus: &[switch_by_the_tag_it_finds, flush_by_the_tag_it_has],
        ..Bug::DEFAULT
    },
    Bug {
        name: "walks-enabled-before-the-root-is-written",
        source: "illumos-gate (arm64) 220",
        story: "A switch writes the ASID, enables walks, and then writes the root. In between, the \
                walker caches entries of the old root under the new ASID.",
        profile: Profile::ARM64,
        finds: uses_foreign,
        spaces: 2,
        cpus: &[write_the_asid_and_the_root],
        handler: nothing,
        ..Bug::DEFAULT
    },
    Bug {
        name: "stride-larger-than-the-page",
        source: "FreeBSD-EN-26:10.amd64",
        story: "INVLPGB is given a count and a stride of 2 MiB for a range of small pages. It \
                invalidates one small page for each count, and leaves the others.",
        finds: uses_stale,
        cpus: &[use_the_space, broadcast_by_large_strides],
        handler: nothing,
        ..Bug::DEFAULT
    },
    Bug {
        name: "absence-cached-by-the-walker",
        source: "bao 378, LiteBox 769: RISC-V caches invalid entries",
        story: "A page is mapped, and nothing is invalidated, because it was not mapped before. A \
                CPU has cached that, and faults where no fault is handled.",
        profile: Profile::RISCV,
        finds: |violation| matches!(violation, Violation::FaultsOnMapped { .. }),
        has_kernel_table: true,
        words: &["mapped"],
        cpus: &[use_when_mapped, map_a_kernel_page],
        ..Bug::DEFAULT
    },
];

fn write_the_asid_and_the_root(stage: &Stage) {
    stage.load_under(0, 1, OnLoad::Flush);
    // The ASID, with walks enabled or disabled.
    let walked = (!stage.is_fixed()).then(|| stage.space(0).root());
    with_machine(|machine| machine.load_root(walked, 2, OnLoad::Keep));
    stage.load_under(1, 2, OnLoad::Keep);
    stage.user_mode();
}

fn broadcast_by_large_strides(stage: &Stage) {
    let frames = [0, 1].map(|page| stage.unmap(0, page));
    let (count, stride) = if stage.is_fixed() { (PAGES, 1) } else { (1, PAGES) };
    with_machine(|machine| machine.broadcast_strided(0, count, stride));
    stage.complete();
    for frame in frames {
        stage.reuse(frame);
    }
}

fn use_when_mapped(stage: &Stage) {
    with_machine(|machine| machine.set_online(true));
    stage.wait_for("mapped");
    with_machine(|machine| machine.touch_kernel_page(0));
}

fn map_a_kernel_page(stage: &Stage) {
    let entry = stage.kernel().swap(0, Entry::EMPTY);
    stage.interrupt_and_wait(0);
    // The page is mapped again, at some later time.
    stage.kernel().swap(0, entry);
    fence();
    if stage.is_fixed() {
        stage.interrupt_and_wait(0);
    }
    stage.signal("mapped");
}

fn broadcast_and_go_on(stage: &Stage) {
    stage.unmap(0, 0);
    publish();
    with_machine(|machine| machine.issue_broadcast(|page| page == 0));
    stage.signal("issued");
    stage.complete();
    stage.signal("completed");
}

fn rely_on_its_own_barrier(stage: &Stage) {
    stage.wait_for("issued");
    if stage.is_fixed() {
        stage.wait_for("completed");
    }
    stage.complete();
    stage.claim_flushed(0, 0);
}

fn broadcast_and_reuse(stage: &Stage) {
    let frame = stage.unmap(0, 0);
    publish();
    with_machine(|machine| machine.issue_broadcast(|page| page == 0));
    if stage.is_fixed() {
        stage.complete();
    }
    stage.reuse(frame);
}

fn invalidate_here_and_reuse(stage: &Stage) {
    let frame = stage.unmap(0, 0);
    publish();
    if stage.is_fixed() {
        stage.broadcast(0);
    } else {
        stage.invalidate_page(0);
    }
    stage.reuse(frame);
}

fn store_and_broadcast(stage: &Stage) {
    let frame = stage.space(0).entry(0).target();
    stage.space(0).store(0, Entry::EMPTY);
    // A full barrier makes the store visible to CPUs, which does not suffice.
    if stage.is_fixed() {
        publish();
    } else {
        fence();
    }
    stage.broadcast(0);
    fence();
    stage.reuse(frame);
}

fn load_both_under_no_tag(stage: &Stage) {
    stage.load_under(0, 0, OnLoad::Keep);
    stage.user_mode();
    let on_load = if stage.is_fixed() { OnLoad::Flush } else { OnLoad::Keep };
    stage.load_under(1, 0, on_load);
    stage.user_mode();
}

fn switch_by_the_tag_it_finds(stage: &Stage) {
    stage.masked(|| {
        let has_global_tag = stage.word("has a global tag").load(Acquire) != 0;
        if stage.is_fixed() || !has_global_tag {
            // The CPU uses its own tag, and a flush must interrupt it for that.
            stage.word("present").fetch_or(1, AcqRel);
        }
        stage.load(0);
        if stage.is_fixed() && !has_global_tag {
            fence();
        }
    });
    stage.user_mode();
}

fn flush_by_the_tag_it_has(stage: &Stage) {
    stage.word("has a global tag").fetch_or(1, AcqRel);
    let frame = stage.unmap(0, 0);
    // A broadcast to the global tag reaches no entry under the CPU's own tag.
    if stage.is_fixed() && stage.word("present").load(Acquire) != 0 {
        stage.interrupt_and_wait(0);
    }
    stage.reuse(frame);
}
