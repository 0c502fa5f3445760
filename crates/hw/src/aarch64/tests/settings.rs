//! Plans of the two halves of the address space, costs, and CPUs that come online later.

use super::*;
use crate::aarch64::features::Registers;
use crate::aarch64::features::tests::{V8_0, V8_4};
use crate::aarch64::granule::Granule;
use shootdown::Tag;
use std::vec::Vec;

const KERNEL: u64 = 0xffff_8000_0001_0000;
const TAG: Scope = Scope::Tag(Tag(7));

const fn new(features: Features) -> Aarch64 {
    // SAFETY: nothing is executed.
    unsafe { Aarch64::new(features) }
}

fn operations(features: Features, scope: Scope, extent: Extent) -> Vec<Operation> {
    new(features).operations(scope, extent).collect()
}

#[test]
fn long_and_whole_extents_drop_the_tag() {
    let too_much = Extent::pages(0, 512, PageSize::SIZE_4K);
    for extent in [too_much, Extent::whole(), too_much.freeing_tables()] {
        assert_eq!(operations(V8_0, TAG, extent), [Operation::Tag(Tag(7))]);
        assert_eq!(operations(V8_0, Scope::AllTags, extent), [Operation::All]);
    }
    assert_eq!(operations(V8_0, TAG, Extent::pages(0, 511, PageSize::SIZE_4K)).len(), 511);
}

/// Each page of the kernel is named, whatever the granule of user pages is.
#[test]
fn kernel_pages_are_named_by_kernels_granule() {
    let pages = Extent::pages(KERNEL, 16, PageSize::SIZE_4K);
    let user = Extent::pages(0x1_0000, 16, PageSize::SIZE_4K);
    for (granule, kernel_granule, of_user, of_kernel) in [
        (Granule::Size64K, Granule::Size4K, 1, 16),
        (Granule::Size4K, Granule::Size64K, 16, 1),
        (Granule::Size16K, Granule::Size4K, 4, 16),
    ] {
        let features = Features { granule, kernel_granule, ..V8_0 };
        assert_eq!(operations(features, Scope::AllTags, pages).len(), of_kernel);
        assert_eq!(operations(features, TAG, user).len(), of_user);
        // With another granule in TG or TTL, an operation need not drop anything.
        let features = Features { has_level_hints: true, has_ranges: true, ..features };
        for (scope, extent, granule) in
            [(Scope::AllTags, pages, kernel_granule), (TAG, user, granule)]
        {
            let small = new(features);
            // SAFETY: nothing is executed.
            let small = unsafe { small.with_leaves_up_to(PageSize::from_shift(granule.shift())) };
            for operation in small.operations(scope, extent) {
                let named = match operation {
                    Operation::Page(_, _, page) => page.level.map(|hint| hint.granule),
                    Operation::Range(_, _, range) => Some(range.granule),
                    other => panic!("{other:?} covers everything"),
                };
                assert_eq!(named, Some(granule), "{operation:?}");
            }
        }
    }
}

/// A leaf of 52-bit addresses may be cached for the pages of an extent.
#[test]
fn large_leaves_forbid_level_hints() {
    for (granule, shift) in [(Granule::Size4K, 30), (Granule::Size16K, 25), (Granule::Size64K, 29)]
    {
        let features = Features { granule, kernel_granule: granule, has_level_hints: true, ..V8_0 };
        let extent = Extent::pages(0, 1, PageSize::from_shift(shift));
        let hint = |has_large_leaves| {
            let features = Features { has_large_leaves, ..features };
            match operations(features, TAG, extent)[..] {
                [Operation::Page(_, _, page)] => page.level.is_some(),
                ref other => panic!("{other:?}"),
            }
        };
        assert_eq!([false, true].map(hint), [true, false], "{granule:?}");
    }
    // A block of level 0 has no hint, and is one operation.
    let longest = Extent::pages(0, 1, PageSize::from_shift(39));
    let features = Features { has_large_leaves: true, has_level_hints: true, ..V8_0 };
    match operations(features, TAG, longest)[..] {
        [Operation::Page(_, _, page)] => assert_eq!(page.level, None),
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn repeated_completion_doubles_a_broadcast() {
    let repeated = Workarounds::REPEATED_COMPLETION;
    let costs = new(Features { workarounds: repeated, ..V8_0 }).costs;
    assert_eq!(costs.broadcast_ns, 700);
    assert_eq!(NotifyCosts { broadcast_ns: 350, ..costs }, new(V8_0).costs);
}

/// A CPU with more features than the engine uses is admitted, and so is one whose workarounds the
/// engine does not need.
#[test]
fn late_cpu_is_admitted_if_engine_is_right_on_it() {
    let all = Features { workarounds: Workarounds::ASID_APART, ..V8_0 };
    new(V8_0).admit(V8_4);
    new(all).admit(V8_0);
    new(V8_0).admit(Features { has_large_leaves: true, ..V8_0 });
    let broken = Features { workarounds: Workarounds::NO_DIRTY_MARKS, ..V8_0 };
    new(V8_0).admit(broken);
    let sme = Workarounds::SME_INTERRUPT.with(Workarounds::REPEATED_COMPLETION);
    new(V8_0).without_broadcasts().admit(Features { workarounds: sme, ..V8_0 });
    let a55 = Workarounds::REPEATED_COMPLETION.with(broken.workarounds);
    new(V8_4.for_mixed_cores()).admit(Features { workarounds: a55, marks_writes: false, ..V8_4 });
}

/// The message of the panic, or an empty string.
fn refusal(engine: Features, cpu: Features) -> std::string::String {
    let refused = std::panic::catch_unwind(|| new(engine).admit(cpu));
    let message = |panic: std::boxed::Box<dyn core::any::Any + Send>| {
        *panic.downcast::<std::string::String>().expect("the message is formatted")
    };
    refused.err().map(message).unwrap_or_default()
}

#[test]
fn late_cpu_that_needs_more_is_refused() {
    for workarounds in [
        Workarounds::REPEATED_COMPLETION,
        Workarounds::ASID_APART,
        Workarounds::ICACHE_AT_SWITCH,
        Workarounds::SME_INTERRUPT,
        Workarounds::BREAK_EXECUTABLE,
    ] {
        let refused = refusal(V8_0, Features { workarounds, ..V8_0 });
        assert!(refused.contains(&std::format!("does not use: {workarounds:?}.")), "{refused}");
    }
    let broken = Features { workarounds: Workarounds::NO_DIRTY_MARKS, ..V8_4 };
    assert!(refusal(V8_4, broken).contains("NO_DIRTY_MARKS"));
    for cpu in [
        Features { tag_bits: 8, ..V8_0 },
        Features { granule: Granule::Size16K, ..V8_0 },
        Features { kernel_granule: Granule::Size16K, ..V8_0 },
    ] {
        assert!(refusal(V8_0, cpu).contains("lacks features that the engine uses"));
    }
    assert!(refusal(V8_4, V8_0).contains("lacks features"));
}

/// One of Arm's cores, r1p2, whose kernel lets the hardware mark entries as written.
fn core(part: u64) -> Features {
    let midr = 0x411f_0002 | part << 4;
    let tcr = 1 << 36 | 1 << 40;
    Features::of(&Registers { tcr, midr, mmfr0: 0x20, mmfr1: 2, ..Registers::default() })
}

/// big.LITTLE: whichever core is first, the processor is right on both.
#[test]
fn mixed_cores_are_admitted_with_common_features() {
    let (a53, a55, a72, a76, a510, x3) =
        (core(0xd03), core(0xd05), core(0xd08), core(0xd0b), core(0xd46), core(0xd4e));
    let repeated = Workarounds::REPEATED_COMPLETION;
    let both = |one: Features, other: Features| {
        let common = one.common(other);
        assert_eq!(common, other.common(one));
        for cpu in [one, other] {
            new(common).admit(cpu);
            new(one.for_mixed_cores()).admit(cpu);
        }
        (common.workarounds, common.marks_writes)
    };
    assert_eq!(both(a53, a72), (Workarounds::NONE, true));
    assert_eq!(both(a55, a76), (repeated.with(Workarounds::NO_DIRTY_MARKS), false));
    assert_eq!(both(a510, x3), (repeated, true));
    // A little core of such a machine, which is first, has the workaround of the big one.
    new(a510).admit(x3);
    assert!(refusal(a76, a55).contains("NO_DIRTY_MARKS"));
    assert!(refusal(a53, a76).contains("REPEATED_COMPLETION"));
}
