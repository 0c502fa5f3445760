//! Operands, and the order of the instructions of both processors, alone and under the engine.

use core::ptr::NonNull;
use std::boxed::Box;
use std::vec::Vec;

use shootdown::{CpuId, CpuSet, CpuState, PageSize, Shootdown, Space};

use super::*;
use crate::x86_64::features::Features;
use crate::x86_64::guest::{GuestEntry, NestedEntry, Npt, NptFeatures, TlbControl};
use crate::x86_64::identity::{Registers, Source};
use crate::x86_64::processor::KernelPages;
use crate::x86_64::recorded::Step;
use crate::x86_64::recorded::steps_of;
use crate::{Bare, Kernel};

/// The entry of the one CPU.
#[derive(Debug)]
struct OneCpu(&'static GuestEntry);

// SAFETY: there is one CPU, and no guest is entered.
unsafe impl GuestEntries for OneCpu {
    fn of_this_cpu(&self) -> &GuestEntry {
        self.0
    }
}

const EPT: EptFeatures = EptFeatures {
    has_single_invept: true,
    has_single_invvpid: true,
    marks_writes: true,
    levels: 4,
};
const NPT: NptFeatures = NptFeatures { asid_count: 0x8000, flushes_by_asid: true };

fn host() -> X86_64 {
    // SAFETY: the instructions are only recorded.
    unsafe { X86_64::new(Features { has_invpcid: true, ..Features::NONE }, KernelPages::Global) }
}

fn one_cpu() -> OneCpu {
    OneCpu(Box::leak(Box::default()))
}

fn ept(features: EptFeatures) -> Ept<OneCpu> {
    // SAFETY: the instructions are only recorded.
    unsafe { Ept::new(host(), features, one_cpu()) }
}

fn npt(features: NptFeatures) -> Npt<OneCpu> {
    // SAFETY: no guest is entered.
    unsafe { Npt::new(host(), features, one_cpu()) }
}

/// The steps of a load.
fn load(processor: &impl Processor, root: u64, tag: u16, entries: Entries) -> Vec<Step> {
    // SAFETY: the instructions are only recorded.
    steps_of(|| unsafe { processor.load(Root(root), Tag(tag), entries) })
}

/// SDM 3C, "INVEPT" and "INVVPID": types, and the descriptors' fields.
#[test]
fn operands_match_the_manual() {
    assert_eq!(Invept::single(0x1234_505e), Invept { kind: 1, descriptor: [0x1234_505e, 0] });
    assert_eq!(Invept::ALL, Invept { kind: 2, descriptor: [0, 0] });
    assert_eq!(Invvpid::single(0xffff), Invvpid { kind: 1, descriptor: [0xffff, 0] });
    assert_eq!(Invvpid::ALL, Invvpid { kind: 2, descriptor: [0, 0] });
    assert_eq!(
        [TlbControl::Keep, TlbControl::Everything, TlbControl::ThisGuest].map(|it| it as u8),
        [0, 1, 3]
    );
}

/// SDM 3D, "VPID and EPT Capabilities", and 3C, "Extended-Page-Table Pointer". The value is that of
/// a Skylake: every type, 4 levels, 2 MiB and 1 GiB, write-back and uncached tables.
#[test]
fn features_are_decoded_from_the_register() {
    const SKYLAKE: u64 = 0x0f01_0633_4141;
    assert_eq!(EptFeatures::of(SKYLAKE), Some(EPT));
    let without = |bit: u32| EptFeatures::of(SKYLAKE & !(1 << bit));
    for needed in [6, 14, 20, 26, 32, 42] {
        assert_eq!(without(needed), None, "bit {needed}");
    }
    assert_eq!(without(25), Some(EptFeatures { has_single_invept: false, ..EPT }));
    assert_eq!(without(41), Some(EptFeatures { has_single_invvpid: false, ..EPT }));
    assert_eq!(without(21), Some(EptFeatures { marks_writes: false, ..EPT }));
    assert_eq!(EPT.pointer(Root(0x1234_5000)), 0x1234_505e);
    let five = EptFeatures { levels: 5, marks_writes: false, ..EPT };
    assert_eq!(five.pointer(Root(0x1234_5000)), 0x1234_5026);
}

/// CPUID 8000_000A, EBX and EDX.
#[test]
fn nested_features_are_decoded_from_cpuid() {
    struct Cpu(u32, Registers);
    impl Source for Cpu {
        fn cpuid(&self, leaf: u32) -> Registers {
            match leaf {
                0x8000_0000 => Registers { eax: self.0, ..Registers::default() },
                0x8000_000a => self.1,
                _ => unreachable!("no other leaf is needed"),
            }
        }
        fn microcode(&self) -> u32 {
            unreachable!("AMD's is not asked for")
        }
    }
    let of = |highest, edx| {
        let leaf = Registers { ebx: 0x8000, edx, ..Registers::default() };
        NptFeatures::of(&Cpu(highest, leaf))
    };
    assert_eq!(of(0x8000_000a, 0x41), Some(NPT));
    assert_eq!(of(0x8000_001f, 1), Some(NptFeatures { flushes_by_asid: false, ..NPT }));
    assert_eq!((of(0x8000_000a, 0x40), of(0x8000_0008, 0x41)), (None, None));
    let few = NptFeatures { asid_count: 4, flushes_by_asid: false };
    assert_eq!(NPT.common(few), few);
    assert_eq!((npt(few).tag_count(), npt(NPT).tag_count()), (3, 8));
}

#[test]
fn intel_guest_is_dropped_by_its_root() {
    let processor = ept(EPT);
    let gone = |root| Step::Invept(Invept::single(EPT.pointer(Root(root))));
    assert_eq!(load(&processor, 0x1000, 1, Entries::Keep), []);
    assert_eq!(load(&processor, 0x2000, 2, Entries::Discard), [gone(0x2000)]);
    assert_eq!(processor.entries.of_this_cpu().root(), 0x205e);
    let two = Extent::pages(0x1000, 2, PageSize::SIZE_4K);
    assert_eq!(steps_of(|| processor.invalidate(Tag(2), two)), [gone(0x2000)]);
    assert_eq!(steps_of(|| processor.invalidate_tag(Tag(2))), [gone(0x2000)]);
    let all = [Step::Invept(Invept::ALL), Step::Invvpid(Invvpid::ALL), Step::InvpcidAll];
    assert_eq!(steps_of(|| processor.invalidate_all()), all);
    // SAFETY: the instructions are only recorded.
    assert_eq!(steps_of(|| unsafe { processor.load_kernel(Root(0)) }), []);
    assert_eq!(processor.entries.of_this_cpu().root(), 0);
}

#[test]
fn intel_virtual_cpu_is_dropped_by_its_vpid() {
    let drop = |features| steps_of(|| ept(features).invalidate_vcpu(7));
    assert_eq!(drop(EPT), [Step::Invvpid(Invvpid::single(7))]);
    let few = EptFeatures { has_single_invept: false, has_single_invvpid: false, ..EPT };
    assert_eq!(drop(few), [Step::Invvpid(Invvpid::ALL)]);
    let steps = steps_of(|| ept(few).invalidate_tag(Tag(1)));
    assert_eq!(steps, [Step::Invept(Invept::ALL)]);
}

#[test]
#[should_panic = "VPID 0 is the hypervisor's"]
fn vpid_of_hypervisor_is_refused() {
    ept(EPT).invalidate_vcpu(0);
}

/// The flush waits for the guest of its ASID, whichever guests are entered before.
#[test]
fn amd_flush_is_kept_for_its_asid() {
    let processor = npt(NPT);
    let enter = |root, tag, entries| {
        assert_eq!(load(&processor, root, tag, entries), []);
        let entry = processor.entries().of_this_cpu().take(NPT.flushes_by_asid);
        assert_eq!((entry.root, entry.asid), (Root(root), tag.into()));
        entry.control
    };
    assert_eq!(enter(0x1000, 1, Entries::Discard), TlbControl::ThisGuest);
    assert_eq!(enter(0x1000, 1, Entries::Keep), TlbControl::Keep);
    processor.invalidate(Tag(1), Extent::page(0x5000));
    assert_eq!(enter(0x2000, 2, Entries::Keep), TlbControl::Keep);
    assert_eq!(enter(0x1000, 1, Entries::Keep), TlbControl::ThisGuest);
    processor.invalidate_vcpu(0);
    assert_eq!(enter(0x2000, 2, Entries::Keep), TlbControl::Keep);
    assert_eq!(enter(0x1000, 1, Entries::Keep), TlbControl::ThisGuest);
    assert_eq!(steps_of(|| processor.invalidate_all()), [Step::InvpcidAll]);
    for tag in 1..=8 {
        assert_eq!(enter(0x1000, tag, Entries::Keep), TlbControl::ThisGuest);
    }
}

/// One flush of everything does those of all ASIDs.
#[test]
fn amd_without_flush_by_asid_drops_everything() {
    let processor = npt(NptFeatures { flushes_by_asid: false, ..NPT });
    let take = || processor.entries().of_this_cpu().take(false).control;
    processor.invalidate_tag(Tag(2));
    load(&processor, 0x1000, 1, Entries::Keep);
    assert_eq!(take(), TlbControl::Keep);
    processor.invalidate_tag(Tag(1));
    assert_eq!([take(), take()], [TlbControl::Everything, TlbControl::Keep]);
    load(&processor, 0x2000, 2, Entries::Keep);
    assert_eq!(take(), TlbControl::Keep);
}

#[test]
#[should_panic = "no guest is loaded"]
fn entry_without_guest_is_refused() {
    let _ = GuestEntry::new().take(true);
}

/// A hypervisor with one CPU.
struct Hypervisor<P: Processor>(CpuState<Bare<Self>>, core::marker::PhantomData<P>);

// SAFETY: there is one thread.
unsafe impl<P: Processor> Sync for Hypervisor<P> {}

// SAFETY: there is one CPU, which runs one thread, and instructions are only recorded.
unsafe impl<P: Processor> Kernel for Hypervisor<P> {
    type Processor = P;
    type CpuBits = [u64; 1];

    fn state(&self, _: CpuId) -> &CpuState<Bare<Self>> {
        &self.0
    }
    fn cpu(&self) -> CpuId {
        CpuId(0)
    }
    fn root(&self) -> Root {
        Root(0)
    }
    fn ring(&self, _: &CpuSet<[u64; 1]>) {
        unreachable!("there is no other CPU");
    }
    fn reclaim(&self, _: NonNull<Space<Bare<Self>>>) {}
}

/// Enters a guest, which then loses a page; leaves it; the guest loses another page, and is entered
/// again. Calls `observe` with the steps of each.
fn run_guest<P: Stage2>(processor: P, mut observe: impl FnMut(&str, &P, Vec<Step>)) {
    let kernel = Hypervisor(CpuState::new(), core::marker::PhantomData);
    let engine = Shootdown::new(Bare::new(kernel, processor));
    let guest = engine.space(Root(0x7000));
    let mut observe = |what: &str, steps| observe(what, engine.machine().processor(), steps);
    let mut flush = |address, what: &str| {
        let steps = steps_of(|| {
            // SAFETY: there is one thread, and no handler.
            unsafe { engine.pin() }.flush(&guest, Extent::page(address)).wait();
        });
        observe(what, steps);
    };
    // SAFETY: as above.
    let pin = || unsafe { engine.pin() };
    // SAFETY: the guest outlives its use, and does not move.
    let enter = || unsafe { pin().switch(&guest) };
    steps_of(|| pin().online());
    steps_of(enter);
    flush(0x5000, "loaded");
    steps_of(|| pin().leave_space());
    flush(0x6000, "left");
    let steps = steps_of(enter);
    observe("entered again", steps);
}

#[test]
fn engine_runs_guests_of_intel_as_spaces() {
    let gone = Step::Invept(Invept::single(EPT.pointer(Root(0x7000))));
    run_guest(ept(EPT), |what, _, steps| {
        let drops = steps.iter().filter(|step| **step == gone).count();
        let others = steps.iter().any(|step| matches!(step, Step::Invept(_) | Step::Invvpid(_)));
        assert_eq!((drops, others), (usize::from(what != "left"), what != "left"), "{what}");
    });
}

#[test]
fn engine_runs_guests_of_amd_as_spaces() {
    run_guest(npt(NPT), |what, processor, _| {
        let entry = processor.entries().of_this_cpu();
        if what == "left" {
            assert_eq!(entry.root(), 0);
        } else {
            let NestedEntry { root, control, .. } = entry.take(true);
            assert_eq!((root, control), (Root(0x7000), TlbControl::ThisGuest), "{what}");
        }
    });
}
