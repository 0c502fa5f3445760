//! Processors that break the guarantees of their architecture, under kernels without a workaround.

use super::{
    Bug, Stage, nothing, unmap_interrupt_and_reuse, use_the_space, uses_foreign,
    uses_kernels_stale, uses_stale,
};
use crate::hardware::{Entry, OnLoad};
use crate::machine::{HostileMachine, WalkCaches, publish, with_machine};
use crate::profile::Profile;

pub(super) const BUGS: &[Bug] = &[
    Bug {
        name: "completed-before-the-last-access",
        source: "Arm 4118414 (CVE-2025-10263), 1286807, 2441007, 2441009; Falkor 1009",
        story: "A broadcast and its barrier are complete while another CPU still stores through \
                the old translation. Another broadcast with a barrier of its own ends that.",
        profile: Profile::ARM64_4118414,
        finds: uses_stale,
        cpus: &[use_the_space, reuse_after_one_barrier],
        handler: nothing,
        ..Bug::DEFAULT
    },
    Bug {
        name: "one-tlbsync-on-zen-5",
        source: "AMD 1718; Linux: init_amd_zen5",
        story: "TLBSYNC returns before the broadcasts are complete on all CPUs. A second one waits \
                for them.",
        profile: Profile::X86_1718,
        finds: uses_stale,
        cpus: &[use_the_space, reuse_after_one_wait],
        handler: nothing,
        ..Bug::DEFAULT
    },
    Bug {
        name: "fence-that-ignores-its-address",
        source: "SiFive CIP-1200",
        story: "sfence.vma with an address does not invalidate the page. Only sfence.vma without \
                operands works.",
        profile: Profile::RISCV_CIP_1200,
        finds: uses_stale,
        cpus: &[use_the_space, unmap_interrupt_and_reuse],
        handler: invalidate_the_page,
        ..Bug::DEFAULT
    },
    Bug {
        name: "global-page-kept-by-invlpg",
        source: "Intel, Alder Lake and Raptor Lake; Linux: ce0b15d11ad8",
        story: "With PCIDs, INVLPG does not invalidate a global page: a CPU goes on using a page \
                that the kernel has unmapped.",
        profile: Profile::X86_INVLPG,
        finds: uses_kernels_stale,
        has_kernel_table: true,
        cpus: &[use_the_kernel_and_the_space, unmap_a_kernel_page],
        handler: invalidate_the_kernel_page,
        ..Bug::DEFAULT
    },
    Bug {
        name: "root-and-asid-in-one-write",
        source: "Falkor 1003; Linux: 38fd94b0275c",
        story: "One write of TTBR0 changes the root and the ASID. The walker may cache entries of \
                the old root under the new ASID.",
        profile: Profile::ARM64_1003,
        finds: uses_foreign,
        spaces: 2,
        cpus: &[switch_in_one_write],
        handler: nothing,
        ..Bug::DEFAULT
    },
    Bug {
        name: "streaming-accesses-not-waited-for",
        source: "Arm 4193714 (CVE-2026-0995): C1-Pro with SME",
        story: "A broadcast is acknowledged before accesses of another CPU's streaming mode are \
                complete. Only an exception of that CPU waits for them.",
        profile: Profile::ARM64_4193714,
        finds: uses_stale,
        cpus: &[use_the_space, reuse_without_interrupt],
        handler: nothing,
        ..Bug::DEFAULT
    },
    Bug {
        name: "late-mark-taken-for-a-mapping",
        source: "Knights Landing; Linux 4.8: ignore A/D bits in pte/pmd/pud_none()",
        story: "A walker marks an entry as accessed after another CPU has removed it. The kernel \
                finds the entry not empty, and frees the frame that the mark seems to name.",
        profile: Profile::X86_KNL,
        finds: uses_stale,
        cpus: &[mark_and_use, unmap_twice],
        ..Bug::DEFAULT
    },
];

fn reuse_after_one_barrier(stage: &Stage) {
    let frame = stage.unmap(0, 0);
    publish();
    stage.broadcast(0);
    if stage.is_fixed() {
        with_machine(HostileMachine::broadcast_nothing);
        stage.complete();
    }
    stage.reuse(frame);
}

fn reuse_after_one_wait(stage: &Stage) {
    let frame = stage.unmap(0, 0);
    stage.broadcast(0);
    if stage.is_fixed() {
        stage.complete();
    }
    stage.reuse(frame);
}

fn invalidate_the_page(stage: &Stage) {
    if stage.is_fixed() {
        stage.invalidate_all();
    } else {
        stage.invalidate_page(0);
    }
}

fn use_the_kernel_and_the_space(stage: &Stage) {
    with_machine(|machine| machine.set_online(true));
    use_the_space(stage);
}

fn unmap_a_kernel_page(stage: &Stage) {
    let frame = stage.kernel().swap(0, Entry::EMPTY).target();
    stage.interrupt_and_wait(0);
    with_machine(|machine| machine.reuse_kernel_frame(frame));
}

fn invalidate_the_kernel_page(stage: &Stage) {
    if stage.is_fixed() {
        stage.invalidate_all();
    } else {
        let is_unmapped = |page| page == 0;
        with_machine(|machine| machine.invalidate_kernel_pages(is_unmapped, WalkCaches::Keep));
    }
}

fn switch_in_one_write(stage: &Stage) {
    stage.load_under(0, 1, OnLoad::Flush);
    if stage.is_fixed() {
        // An empty root in between, under both ASIDs.
        for tag in [1, 2] {
            with_machine(|machine| machine.load_root(None, tag, OnLoad::Keep));
        }
    }
    stage.load_under(1, 2, OnLoad::Flush);
    stage.user_mode();
}

fn reuse_without_interrupt(stage: &Stage) {
    let frame = stage.unmap(0, 0);
    publish();
    stage.broadcast(0);
    if stage.is_fixed() {
        stage.interrupt_and_wait(0);
    }
    stage.reuse(frame);
}

fn mark_and_use(stage: &Stage) {
    stage.load(0);
    stage.space(0).mark(1);
    stage.user_mode();
}

fn unmap_twice(stage: &Stage) {
    stage.unmap(0, 1);
    stage.interrupt_and_wait(0);
    let found = stage.space(0).swap(1, Entry::EMPTY);
    let is_mapped = if stage.is_fixed() { found.is_present() } else { found != Entry::EMPTY };
    if is_mapped {
        stage.interrupt_and_wait(0);
        stage.reuse(found.target());
    }
}
