//! Translations that a kernel does not use itself: those of guests and of devices.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use shootdown::Word;

use super::{Stage, nothing, programs, unmap_broadcast_and_reuse, use_the_space};
use crate::hardware::Entry;
use crate::machine::{HostileMachine, WalkCaches, publish, with_machine};

/// The VMID of the guest, which is space 0.
const VMID: u16 = 1;

programs! {
    "combined-entry-outlives-stage-2": use_the_space, unmap_from_the_guest => nothing;
    "combined-again-from-a-dying-entry": use_the_space, unmap_without_a_barrier => nothing;
    "tables-of-a-stopped-guest-edited": run_and_stop, edit_while_it_is_stopped;
    "device-walks-freed-kernel-tables": share_with_a_device, free_the_kernels_table;
    "device-tlb-never-invalidated": use_by_a_device_with_a_tlb, unmap_from_the_device;
    "fault-between-start-and-end": fault_and_use, unmap_from_both;
    "page-freed-before-the-device-is-done": share_with_a_device, unmap_while_the_queue_is_full;
}

fn unmap_from_the_guest(stage: &Stage) {
    unmap_broadcast_and_reuse(stage, || {
        with_machine(|machine| machine.broadcast_combined(VMID));
        stage.complete();
    });
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
