//! The order of the instructions for guests.

use std::vec::Vec;

use shootdown::{CpuId, PageSize};

use super::*;
use crate::Stage2 as _;
use crate::errata::Workarounds;
use crate::riscv64::features::Features;
use crate::riscv64::instructions::Step::{
    self, DropAll, DropAllGuests, DropGuest, DropGuestPage, DropGuestsOwn, DropPage, Firmware,
    SetHgatp,
};
use crate::riscv64::instructions::{set_hgatp, steps_of};
use crate::riscv64::sbi::{Call, HartMask};

const EMPTY: Root = Root(0xc000);

fn host() -> RiscV64 {
    let features = Features {
        mode: Mode::Sv48,
        asid_bits: 16,
        has_svinval: false,
        workarounds: Workarounds::NONE,
    };
    // SAFETY: the instructions are only recorded.
    unsafe { RiscV64::new(features) }
}

fn stage_2(vmid_bits: u32) -> Stage2 {
    // SAFETY: as above.
    unsafe { Stage2::new(host(), Mode::Sv39, vmid_bits, EMPTY) }
}

fn hgatp(Root(root): Root, tag: u16) -> u64 {
    Mode::Sv39.hgatp(Root(root), Tag(tag))
}

/// The steps of a load while `old` is loaded.
fn load(old: u16, new: u16, entries: Entries) -> Vec<Step> {
    // SAFETY: the instructions are only recorded.
    unsafe { set_hgatp(hgatp(Root(0x4000), old)) };
    // SAFETY: as above.
    steps_of(|| unsafe { stage_2(14).load(Root(0x8000), Tag(new), entries) })
}

/// The old guest's tables are freed without another notification, so that its walks must end.
#[test]
fn guest_is_loaded_with_its_vmid() {
    let loaded = SetHgatp(hgatp(Root(0x8000), 2));
    assert_eq!(load(0, 2, Entries::Keep), [loaded]);
    assert_eq!(load(2, 2, Entries::Keep), [loaded]);
    assert_eq!(load(1, 2, Entries::Keep), [loaded, DropGuest(1)]);
    // SAFETY: the instructions are only recorded.
    let steps = steps_of(|| unsafe { stage_2(14).load_kernel(EMPTY) });
    assert_eq!(steps, [SetHgatp(hgatp(EMPTY, 0)), DropGuest(2)]);
}

/// Both stages, under the VMID with the empty table: `HFENCE.VVMA` names no VMID.
#[test]
fn entries_are_discarded_under_the_empty_table() {
    let discarded = [SetHgatp(hgatp(EMPTY, 2)), DropGuest(2), DropGuestsOwn];
    let loaded = SetHgatp(hgatp(Root(0x8000), 2));
    assert_eq!(load(0, 2, Entries::Discard), [&discarded[..], &[loaded]].concat());
    assert_eq!(load(2, 2, Entries::Discard), [&discarded[..], &[loaded]].concat());
    assert_eq!(load(1, 2, Entries::Discard), [&discarded[..], &[loaded, DropGuest(1)]].concat());
}

/// Manual, "Hypervisor Memory-Management Fence Instructions": rs1 has "bits 2 and above" of the
/// address.
#[test]
fn pages_are_named_by_shifted_addresses() {
    let processor = stage_2(14);
    let drop = |extent| steps_of(|| processor.invalidate(Tag(5), extent));
    let two = Extent::pages(0x1000, 2, PageSize::SIZE_4K);
    assert_eq!(drop(two), [DropGuestPage(0x400, 5), DropGuestPage(0x800, 5)]);
    assert_eq!(drop(Extent::page(0x1ff_ffff_f000)), [DropGuestPage(0x7f_ffff_fc00, 5)]);
    for whole in [two.freeing_tables(), Extent::pages(0, 512, PageSize::SIZE_4K)] {
        assert_eq!(drop(whole), [DropGuest(5)]);
    }
    assert_eq!(steps_of(|| processor.invalidate_tag(Tag(5))), [DropGuest(5)]);
    assert_eq!(steps_of(|| processor.invalidate_vcpu(0)), [DropGuestsOwn]);
    let own = steps_of(|| processor.invalidate_kernel(Extent::page(0x3000)));
    assert_eq!(own, [DropPage(0x3000, None)]);
}

/// After a rollover, a VMID is another guest's without a further invalidation.
#[test]
fn everything_includes_first_stage_of_each_vmid() {
    // SAFETY: the instructions are only recorded.
    unsafe { set_hgatp(hgatp(Root(0x4000), 3)) };
    let steps = steps_of(|| stage_2(2).invalidate_all());
    let each = (1..=3).flat_map(|vmid| [SetHgatp(hgatp(EMPTY, vmid)), DropGuestsOwn]);
    let mut expected: Vec<_> = [DropAllGuests].into_iter().chain(each).collect();
    expected.extend([SetHgatp(hgatp(Root(0x4000), 3)), DropAll]);
    assert_eq!(steps, expected);
    assert_eq!([0, 2, 8, 14].map(|bits| stage_2(bits).tag_count()), [0, 3, 255, 255]);
}

#[test]
fn remote_fence_names_harts_and_vmid() {
    let hart = |CpuId(cpu): CpuId| u64::from(cpu) + 1;
    let stage_2 = |host| {
        // SAFETY: the instructions are only recorded.
        unsafe { Stage2::new(host, Mode::Sv39, 14, EMPTY) }
    };
    // SAFETY: the instructions are only recorded.
    let remote = stage_2(unsafe { host().with_remote_fences(hart) });
    assert!(stage_2(host()).broadcaster().is_none() && remote.broadcaster().is_some());
    let mut cpus = CpuSet::<[u64; 1]>::new();
    cpus.insert(CpuId(0));
    cpus.insert(CpuId(2));
    let steps = steps_of(|| remote.broadcast(&cpus, Tag(5), Extent::page(0x3000)).unwrap());
    let harts = HartMask { mask: 0b1010, base: 0 };
    let call = Call::remote_guest_fence(harts, Tag(5), Extent::page(0x3000));
    assert_eq!(steps, [Firmware(call)]);
    cpus.insert(CpuId(61));
    assert_eq!(remote.broadcast(&cpus, Tag(5), Extent::whole()), Err(Refused));
}
