//! The order of the instructions, alone and under the engine.

use core::ptr::NonNull;
use std::vec::Vec;

use shootdown::{CpuId, CpuState, PageSize, Shootdown, Space};

use super::*;
use crate::aarch64::features::tests::{V8_0, V8_4};
use crate::aarch64::instruction::Step::{
    self, CompleteLocal, CompleteShared, Publish, SetVttbr, Synchronize, TlbiEl2,
};
use crate::aarch64::instruction::steps_of;
use crate::aarch64::operation::{Levels, PageOperand};
use crate::errata::Workarounds;
use crate::{Bare, Kernel};

const EMPTY: Root = Root(0xe000);
const STAGE_2: Stage2 = stage_2(V8_0);
const LOCAL: Domain = Domain::Local;
const SHARED: Domain = Domain::InnerShareable;

const fn stage_2(features: Features) -> Stage2 {
    // SAFETY: the instructions are only recorded.
    unsafe { Stage2::new(Aarch64::new(features), EMPTY) }
}

fn load(root: u64, tag: u16, entries: Entries) -> Vec<Step> {
    // SAFETY: the instructions are only recorded.
    steps_of(|| unsafe { STAGE_2.load(Root(root), Tag(tag), entries) })
}

fn page(levels: Levels, address: u64) -> GuestOperation {
    GuestOperation::Page(levels, PageOperand { address, level: None })
}

fn loaded(root: u64, tag: u64) -> [Step; 2] {
    [SetVttbr(tag << 48 | root), Synchronize]
}

#[test]
fn guest_is_loaded_with_its_vmid() {
    assert_eq!(load(0x4567_8000, 0x123, Entries::Keep), loaded(0x4567_8000, 0x123));
    // SAFETY: the instructions are only recorded.
    let steps = steps_of(|| unsafe { STAGE_2.load_kernel(EMPTY) });
    assert_eq!(steps, loaded(EMPTY.0, 0));
}

/// `VMALLS12E1` names no VMID. The table that is loaded meanwhile has nothing to cache.
#[test]
fn entries_are_discarded_under_the_empty_table() {
    load(0x1000, 1, Entries::Keep);
    let gone = TlbiEl2(GuestOperation::Guest, LOCAL);
    let steps = load(0x2000, 2, Entries::Discard);
    assert_eq!(
        steps,
        [&loaded(EMPTY.0, 2)[..], &[gone, CompleteLocal], &loaded(0x2000, 2)].concat()
    );
    // Under the loaded VMID, walks would fill the TLB again.
    let steps = load(0x3000, 2, Entries::Discard);
    assert_eq!(steps, [&loaded(0x3000, 2)[..], &[gone, CompleteLocal, Synchronize]].concat());
}

/// The combined entries are dropped after the entries of stage 2, and not at the same time.
#[test]
fn combined_entries_are_dropped_after_stage_2() {
    let two = Extent::pages(0x1000, 2, PageSize::SIZE_4K);
    for (extent, levels) in [(two, Levels::Last), (two.freeing_tables(), Levels::All)] {
        let steps = steps_of(|| STAGE_2.invalidate(Tag(1), extent));
        let dropped = [0x1000, 0x2000].map(|address| TlbiEl2(page(levels, address), LOCAL));
        let combined = [CompleteLocal, TlbiEl2(GuestOperation::Combined, LOCAL)];
        let complete = [CompleteLocal, Synchronize];
        assert_eq!(steps, [&dropped[..], &combined, &complete].concat());
    }
}

/// One operation drops both stages.
#[test]
fn whole_guest_is_dropped_at_once() {
    let whole = [TlbiEl2(GuestOperation::Guest, LOCAL), CompleteLocal, Synchronize];
    assert_eq!(steps_of(|| STAGE_2.invalidate_tag(Tag(1))), whole);
    let many = Extent::pages(0, 512, PageSize::SIZE_4K);
    assert_eq!(steps_of(|| STAGE_2.invalidate(Tag(1), many)), whole);
    let all = [GuestOperation::AllGuests, GuestOperation::Own].map(|it| TlbiEl2(it, LOCAL));
    let steps = steps_of(|| STAGE_2.invalidate_all());
    assert_eq!(steps, [&all[..], &[CompleteLocal, Synchronize]].concat());
}

#[test]
fn own_pages_are_dropped_at_el2() {
    let own = GuestOperation::OwnPage(Levels::Last, PageOperand { address: 0x5000, level: None });
    let steps = steps_of(|| STAGE_2.invalidate_kernel(Extent::page(0x5000)));
    assert_eq!(steps, [TlbiEl2(own, LOCAL), CompleteLocal, Synchronize]);
    let steps = steps_of(|| STAGE_2.broadcast_kernel(Extent::whole()));
    let all = [GuestOperation::Own, GuestOperation::AllGuests].map(|it| TlbiEl2(it, SHARED));
    assert_eq!(steps, all);
}

/// A broadcast for a guest that is not loaded here names it by its VMID, and then loads the other
/// guest again.
#[test]
fn broadcast_is_under_the_vmid_of_its_guest() {
    let no_cpus = &CpuSet::<[u64; 1]>::new();
    load(0x1000, 1, Entries::Keep);
    let broadcast = |tag: u16, extent| steps_of(|| STAGE_2.broadcast(no_cpus, Tag(tag), extent));
    let dropped = [
        TlbiEl2(page(Levels::Last, 0x5000), SHARED),
        CompleteShared,
        TlbiEl2(GuestOperation::Combined, SHARED),
    ];
    assert_eq!(broadcast(1, Extent::page(0x5000)), dropped);
    let other = broadcast(2, Extent::page(0x5000));
    assert_eq!(other, [&loaded(EMPTY.0, 2)[..], &dropped, &loaded(0x1000, 1)].concat());
    let whole = [TlbiEl2(GuestOperation::Guest, SHARED)];
    assert_eq!(broadcast(1, Extent::whole()), whole);
    let completed = steps_of(|| _ = STAGE_2.complete());
    assert_eq!(completed, [Synchronize, CompleteShared, Synchronize]);
}

/// As in KVM, the `dsb` between the entries of stage 2 and the combined ones is not repeated: the
/// last completion covers all accesses.
#[test]
fn only_last_completion_is_repeated() {
    let workarounds = Workarounds::REPEATED_COMPLETION;
    let repeating = stage_2(Features { workarounds, ..V8_4 });
    load(0x1000, 1, Entries::Keep);
    let no_cpus = &CpuSet::<[u64; 1]>::new();
    for extent in [Extent::page(0x5000), Extent::whole()] {
        let issue = |processor: &Stage2| steps_of(|| processor.broadcast(no_cpus, Tag(1), extent));
        assert_eq!(issue(&repeating), issue(&stage_2(V8_4)));
    }
    let any = GuestOperation::OwnPage(Levels::Last, PageOperand { address: 0, level: None });
    assert_eq!(
        steps_of(|| _ = repeating.complete()),
        [Synchronize, CompleteShared, TlbiEl2(any, SHARED), CompleteShared, Synchronize]
    );
}

#[test]
fn stage_2_follows_switches_of_the_processor() {
    // SAFETY: the instructions are only recorded.
    let silent = unsafe { Stage2::new(Aarch64::new(V8_0).without_broadcasts(), EMPTY) };
    assert!(silent.broadcaster().is_none() && STAGE_2.broadcaster().is_some());
    let workarounds = Workarounds::NO_DIRTY_MARKS;
    assert_eq!(stage_2(Features { workarounds, ..V8_0 }).workarounds(), workarounds);
    // VTTBR_EL2, bits 5:2: bits 51:48 of the address.
    assert_eq!(load(0xa_0000_1000_0000, 3, Entries::Keep), loaded(0x1000_0028, 3));
}

#[test]
#[should_panic(expected = "needs workarounds that the engine does not use: REPEATED_COMPLETION")]
fn late_cpu_is_refused_at_el2() {
    let workarounds = Workarounds::REPEATED_COMPLETION;
    crate::aarch64::instruction::set_cpu(Features { workarounds, ..V8_0 });
    // SAFETY: the instructions are only recorded.
    unsafe { STAGE_2.set_up_cpu() };
}

/// The guest's own translations, on this CPU alone.
#[test]
fn virtual_cpu_is_dropped_by_combined_entries() {
    let steps = steps_of(|| crate::Stage2::invalidate_vcpu(&STAGE_2, 0));
    assert_eq!(steps, [TlbiEl2(GuestOperation::Combined, LOCAL), CompleteLocal, Synchronize]);
}

/// A hypervisor with one CPU.
struct Hypervisor(CpuState<Bare<Self>>);

// SAFETY: there is one CPU, which runs one thread, and instructions are only recorded.
unsafe impl Kernel for Hypervisor {
    type Processor = Stage2;
    type CpuBits = [u64; 1];

    fn state(&self, _: CpuId) -> &CpuState<Bare<Self>> {
        &self.0
    }
    fn cpu(&self) -> CpuId {
        CpuId(0)
    }
    fn root(&self) -> Root {
        EMPTY
    }
    fn ring(&self, _: &CpuSet<[u64; 1]>) {
        unreachable!("there is no other CPU");
    }
    fn reclaim(&self, _: NonNull<Space<Bare<Self>>>) {}
}

/// A guest enters and leaves, loses a page, enters again, and loses another page.
#[test]
fn engine_runs_guests_as_spaces() {
    let engine = Shootdown::new(Bare::new(Hypervisor(CpuState::new()), STAGE_2));
    let guest = engine.space(Root(0x7000));
    // SAFETY: there is one thread, and no handler.
    let pin = unsafe { engine.pin() };
    pin.online();
    // SAFETY: the guest outlives its use, and does not move.
    let enter = || unsafe { pin.switch(&guest) };
    let steps = steps_of(enter);
    assert_eq!(steps[steps.len() - 2..], loaded(0x7000, 1));
    assert_eq!(steps_of(|| pin.leave_space()), loaded(EMPTY.0, 0));
    // The guest is not loaded, so nothing is invalidated now.
    assert_eq!(steps_of(|| pin.flush(&guest, Extent::page(0x5000)).wait()), [Publish]);
    let caught_up = steps_of(enter);
    assert!(caught_up.contains(&TlbiEl2(GuestOperation::Guest, LOCAL)), "{caught_up:?}");
    let steps = steps_of(|| pin.flush(&guest, Extent::page(0x6000)).wait());
    let expected = [
        Publish,
        TlbiEl2(page(Levels::Last, 0x6000), LOCAL),
        CompleteLocal,
        TlbiEl2(GuestOperation::Combined, LOCAL),
        CompleteLocal,
        Synchronize,
    ];
    assert_eq!(steps, expected);
}
