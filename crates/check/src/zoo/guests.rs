//! Translations that a kernel does not use itself: those of guests and of devices.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use shootdown::Word;

use super::{Bug, Stage, nothing, use_the_space, uses_stale, walks_freed};
use crate::hardware::Entry;
use crate::machine::{HostileMachine, WalkCaches, publish, with_machine};
use crate::profile::Profile;

/// The VMID of the guest, which is space 0.
const VMID: u16 = 1;

pub(super) const BUGS: &[Bug] = &[
    Bug {
        name: "combined-entry-outlives-stage-2",
        source: "Genode 3726, which invalidates nothing; the rule of Arm's IPAS2E1",
        story: "A hypervisor unmaps a page of its guest, and invalidates the entry of stage 2. The \
                entry that combines both stages remains, and the guest uses the page.",
        profile: Profile::ARM64_STAGE2,
        finds: uses_stale,
        cpus: &[use_the_space, unmap_from_the_guest],
        handler: nothing,
        ..Bug::DEFAULT
    },
    Bug {
        name: "combined-again-from-a-dying-entry",
        source: "the barrier in KVM's __kvm_tlb_flush_vmid_ipa",
        story: "A hypervisor invalidates the entry of stage 2 and the combined entries without a \
                barrier in between. A walker combines the old entry of stage 2 again.",
        profile: Profile::ARM64_STAGE2,
        finds: uses_stale,
        cpus: &[use_the_space, unmap_without_a_barrier],
        handler: nothing,
        ..Bug::DEFAULT
    },
    Bug {
        name: "tables-of-a-stopped-guest-edited",
        source: "tinykvm 79",
        story: "A host edits the page tables of a guest that does not run. No CPU runs the guest \
                then, so nothing is invalidated, and the guest continues with its old entries.",
        profile: Profile::ARM64,
        finds: uses_stale,
        words: &["stopped", "edited"],
        cpus: &[run_and_stop, edit_while_it_is_stopped],
        ..Bug::DEFAULT
    },
    Bug {
        name: "device-walks-freed-kernel-tables",
        source: "Linux: CVE-2025-71202; SVA on x86 was disabled by 72f98ef9a4be",
        story: "A device shares the page tables of a process, and so walks the kernel's half. A \
                page table of the kernel's is freed, all CPUs have flushed, and the IOMMU still \
                caches the pointer to it.",
        finds: walks_freed,
        has_kernel_table: true,
        words: &["freed"],
        cpus: &[share_with_a_device, free_the_kernels_table],
        ..Bug::DEFAULT
    },
    Bug {
        name: "device-tlb-never-invalidated",
        source: "pKVM-IA 84",
        story: "A page is unmapped, and the IOMMU's TLB invalidated. The device has a TLB of its \
                own, and uses the page.",
        finds: uses_stale,
        words: &["freed"],
        cpus: &[use_by_a_device_with_a_tlb, unmap_from_the_device],
        ..Bug::DEFAULT
    },
    Bug {
        name: "fault-between-start-and-end",
        source: "Linux 5.19, \"KVM: Fix multiple races in gfn=>pfn cache refresh\"",
        story: "A page is unmapped in a process, after it was removed from the page table of its \
                guest. In between, a fault of the guest reads the old entry of the process, and \
                installs it in the guest's table.",
        finds: uses_stale,
        words: &["changes", "primary", "lock"],
        cpus: &[fault_and_use, unmap_from_both],
        ..Bug::DEFAULT
    },
    Bug {
        name: "page-freed-before-the-device-is-done",
        source: "Xen: XSA-346, CVE-2020-27671",
        story: "A page is unmapped, and the command to the IOMMU is in its queue. The page is \
                freed before the IOMMU has acted on the command, and the device uses the page.",
        finds: uses_stale,
        words: &["freed"],
        cpus: &[share_with_a_device, unmap_while_the_queue_is_full],
        ..Bug::DEFAULT
    },
];

fn unmap_from_the_guest(stage: &Stage) {
    let frame = stage.unmap(0, 0);
    publish();
    stage.broadcast(0);
    if stage.is_fixed() {
        with_machine(|machine| machine.broadcast_combined(VMID));
        stage.complete();
    }
    stage.reuse(frame);
}

fn unmap_without_a_barrier(stage: &Stage) {
    let frame = stage.unmap(0, 0);
    publish();
    with_machine(|machine| machine.issue_broadcast(|page| page == 0));
    if stage.is_fixed() {
        stage.complete();
    }
    with_machine(|machine| machine.broadcast_combined(VMID));
    stage.complete();
    stage.reuse(frame);
}

fn run_and_stop(stage: &Stage) {
    use_the_space(stage);
    stage.masked(|| {
        with_machine(|machine| machine.set_stopped(true));
        stage.signal("stopped");
        let is_edited = stage.word("stopped").swap(0, AcqRel) == 2;
        with_machine(|machine| machine.set_stopped(false));
        if stage.is_fixed() && is_edited {
            stage.invalidate_all();
        }
    });
    stage.user_mode();
}

/// Edits the tables under the lock of the guest, which does not start in that time.
fn edit_while_it_is_stopped(stage: &Stage) {
    let stopped = stage.word("stopped");
    if stopped.load(Acquire) == 1 {
        let frame = stage.unmap(0, 0);
        if stopped.compare_exchange(1, 2, AcqRel, Acquire).is_ok() {
            stage.reuse(frame);
        }
    }
}

fn share_with_a_device(stage: &Stage) {
    let root = stage.space(0).root();
    with_machine(|machine| machine.attach_device(root, 1));
    stage.wait_for("freed");
    with_machine(HostileMachine::detach_device);
}

fn use_by_a_device_with_a_tlb(stage: &Stage) {
    with_machine(HostileMachine::give_device_tlb);
    share_with_a_device(stage);
}

fn unmap_from_the_device(stage: &Stage) {
    let frame = stage.unmap(0, 0);
    let root = stage.space(0).root();
    with_machine(|machine| {
        let ticket = machine.issue_to_device(root, |page| page == 0, WalkCaches::Keep);
        machine.complete_on_device(ticket);
        if stage.is_fixed() {
            machine.invalidate_device_tlb();
        }
    });
    stage.reuse(frame);
    stage.signal("freed");
}

fn unmap_while_the_queue_is_full(stage: &Stage) {
    let frame = stage.unmap(0, 0);
    let root = stage.space(0).root();
    let ticket =
        with_machine(|machine| machine.issue_to_device(root, |page| page == 0, WalkCaches::Keep));
    let complete = || with_machine(|machine| machine.complete_on_device(ticket));
    stage.in_fixed_order(complete, || stage.reuse(frame));
    stage.signal("freed");
}

/// A change in progress, and one that has ended.
const CHANGE: u64 = 1;
const ENDED: u64 = 2;
/// The primary entry has been cleared.
const CLEARED: u64 = 1;
/// The frame of page 0.
const FRAME: usize = 0;

fn locked(stage: &Stage, f: impl FnOnce()) {
    stage.masked(|| {
        stage.wait_until(|| stage.word("lock").swap(1, AcqRel) == 0);
        f();
        stage.word("lock").store(0, Release);
    });
}

/// A fault of the guest, whose table is space 0.
fn fault_and_use(stage: &Stage) {
    let before = stage.word("changes").load(Acquire);
    let is_refused = stage.is_fixed() && before & CHANGE != 0;
    if !is_refused && stage.word("primary").load(Acquire) != CLEARED {
        locked(stage, || {
            if !stage.is_fixed() || stage.word("changes").load(Acquire) == before {
                stage.space(0).swap(0, Entry::to(FRAME));
            }
        });
    }
    use_the_space(stage);
}

fn unmap_from_both(stage: &Stage) {
    stage.word("changes").fetch_add(CHANGE, AcqRel);
    locked(stage, || assert_eq!(stage.unmap(0, 0), FRAME));
    stage.interrupt_and_wait(0);
    stage.word("primary").store(CLEARED, Release);
    stage.word("changes").fetch_add(ENDED - CHANGE, AcqRel);
    stage.reuse(FRAME);
}

fn free_the_kernels_table(stage: &Stage) {
    stage.kernel().unlink();
    // No other CPU is online, and this one has flushed.
    if stage.is_fixed() {
        with_machine(HostileMachine::invalidate_kernel_on_device);
    }
    with_machine(HostileMachine::free_kernel_table);
    stage.signal("freed");
}
