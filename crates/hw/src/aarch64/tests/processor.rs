//! The instructions that the processor's methods execute.

use super::*;
use crate::aarch64::features::tests::{V8_0, V8_4};
use crate::aarch64::instruction::Step::{
    CompleteLocal, CompleteShared, InterruptSme, InvalidateInstructions, Publish, SetTtbr0,
    Synchronize, Tlbi,
};
use crate::aarch64::instruction::{self, Step, steps_of};
use crate::aarch64::settings::FlushInterrupt;
use crate::errata::Workarounds;
use shootdown::PageSize;
use std::vec::Vec;

const PROCESSOR: Aarch64 = new(V8_0);
const LOCAL: Domain = Domain::Local;
const SHARED: Domain = Domain::InnerShareable;

const fn new(features: Features) -> Aarch64 {
    // SAFETY: the instructions are only recorded.
    unsafe { Aarch64::new(features) }
}

/// A processor that needs these workarounds.
const fn with(workarounds: Workarounds) -> Aarch64 {
    new(Features { workarounds, ..V8_0 })
}

fn load_on(processor: &Aarch64, root: u64, tag: u16, entries: Entries) -> Vec<Step> {
    // SAFETY: the instructions are only recorded.
    steps_of(|| unsafe { processor.load(Root(root), Tag(tag), entries) })
}

fn load(root: u64, tag: u16, entries: Entries) -> Vec<Step> {
    load_on(&PROCESSOR, root, tag, entries)
}

fn pages(scope: Scope, levels: Levels, addresses: &[u64], domain: Domain) -> Vec<Step> {
    let page = |address: &u64| PageOperand { address: *address, level: None };
    let step = |address| Tlbi(Operation::Page(scope, levels, page(address)), domain);
    addresses.iter().map(step).collect()
}

#[test]
fn root_and_tag_are_loaded_together() {
    let loaded = SetTtbr0(0x0123_0000_4567_8000);
    assert_eq!(load(0x4567_8000, 0x123, Entries::Keep), [loaded, Synchronize]);
}

/// In the other order, a walk could begin at an entry that will be dropped.
#[test]
fn entries_are_discarded_before_root_is_loaded() {
    load(0x1000, 1, Entries::Keep);
    let gone = Tlbi(Operation::Tag(Tag(2)), LOCAL);
    let loaded = SetTtbr0(2 << 48 | 0x2000);
    assert_eq!(load(0x2000, 2, Entries::Discard), [gone, CompleteLocal, loaded, Synchronize]);
    // The loaded tag is discarded afterwards, because walks would fill the TLB again.
    let loaded = SetTtbr0(2 << 48 | 0x3000);
    assert_eq!(
        load(0x3000, 2, Entries::Discard),
        [loaded, Synchronize, gone, CompleteLocal, Synchronize]
    );
}

#[test]
fn kernel_root_is_loaded_with_its_tag() {
    load(0x1000, 1, Entries::Keep);
    // SAFETY: the instructions are only recorded.
    let steps = steps_of(|| unsafe { PROCESSOR.load_kernel(Root(0x9000)) });
    assert_eq!(steps, [SetTtbr0(0x9000), Synchronize]);
}

#[test]
fn local_invalidation_is_complete_on_return() {
    let tag = Scope::Tag(Tag(1));
    let two = Extent::pages(0x1000, 2, PageSize::SIZE_4K);
    let complete = [CompleteLocal, Synchronize];
    let check = |f: &dyn Fn(), dropped: Vec<Step>| {
        assert_eq!(steps_of(f), [&dropped[..], &complete].concat());
    };
    let addresses = &[0x1000, 0x2000];
    check(&|| PROCESSOR.invalidate(Tag(1), two), pages(tag, Levels::Last, addresses, LOCAL));
    check(
        &|| PROCESSOR.invalidate(Tag(1), two.freeing_tables()),
        pages(tag, Levels::All, addresses, LOCAL),
    );
    check(
        &|| PROCESSOR.invalidate_kernel(two),
        pages(Scope::AllTags, Levels::Last, addresses, LOCAL),
    );
    let whole = |operation| [Tlbi(operation, LOCAL)].to_vec();
    check(&|| PROCESSOR.invalidate_tag(Tag(1)), whole(Operation::Tag(Tag(1))));
    check(&|| PROCESSOR.invalidate_all(), whole(Operation::All));
    check(&|| PROCESSOR.invalidate_kernel(Extent::whole()), whole(Operation::All));
}

#[test]
fn executed_operations_are_those_of_the_plan() {
    let with_pages = |count| Extent::pages(7 << 21, count, PageSize::SIZE_4K);
    let large = Extent::pages(7 << 21, 3, PageSize::SIZE_2M);
    for features in [V8_0, V8_4] {
        let processor = new(features);
        for extent in [1, 2, 8, 511, 512, 4095].map(with_pages).into_iter().chain([large]) {
            for extent in [extent, extent.freeing_tables()] {
                let planned = processor.operations(Scope::AllTags, extent);
                let planned: Vec<_> = planned.map(|operation| Tlbi(operation, SHARED)).collect();
                assert_eq!(steps_of(|| processor.broadcast_kernel(extent)), planned, "{extent:?}");
            }
        }
    }
}

/// A level hint that is wrong would remove nothing.
#[test]
fn refused_access_is_forgotten_at_any_level() {
    let leaf = PageOperand { address: 0x5123, level: None };
    let dropped = Tlbi(Operation::Page(Scope::AllTags, Levels::All, leaf), LOCAL);
    let steps = steps_of(|| PROCESSOR.forget_refused(0x5123));
    assert_eq!(steps, [dropped, CompleteLocal, Synchronize]);
}

/// A broadcast is issued without a wait: one `complete` waits for several broadcasts.
#[test]
fn broadcast_is_completed_later() {
    let tag = Scope::Tag(Tag(1));
    let two = Extent::pages(0x1000, 2, PageSize::SIZE_4K);
    let no_cpus = &CpuSet::<[u64; 1]>::new();
    let issued = steps_of(|| PROCESSOR.broadcast(no_cpus, Tag(1), two));
    assert_eq!(issued, pages(tag, Levels::Last, &[0x1000, 0x2000], SHARED));
    let issued = steps_of(|| PROCESSOR.broadcast_kernel(Extent::whole()));
    assert_eq!(issued, [Tlbi(Operation::All, SHARED)]);
    let completed = steps_of(|| assert_eq!(PROCESSOR.complete(), 1_000_000));
    assert_eq!(completed, [Synchronize, CompleteShared, Synchronize]);
    assert_eq!(steps_of(|| PROCESSOR.publish()), [Publish]);
    let page = Extent::page(0x1000);
    assert_eq!(steps_of(|| PROCESSOR.publish_kernel(page)), [Publish, Synchronize]);
    assert_eq!(steps_of(|| PROCESSOR.synchronize()), [CompleteShared]);
}

/// The engine counts one operation for a number of pages. The processor issues at most that
/// many, or more by the scales of one range.
#[test]
fn operations_do_not_exceed_engines_count() {
    for (features, beyond) in [(V8_0, 0), (V8_4, OPERATIONS_OF_RANGE - 1)] {
        let processor = new(features);
        let broadcast = processor.capabilities();
        for count in (1..=Extent::MAX_PAGES).filter(|count| *count <= processor.flush_ceiling()) {
            let extent = Extent::pages(1 << 30, count, PageSize::SIZE_4K);
            let counted = count.div_ceil(broadcast.pages_per_operation);
            let issued = processor.operations(Scope::AllTags, extent).count();
            assert!(issued <= counted + beyond, "{count}: {issued} for {counted}");
            assert!(counted <= broadcast.operation_ceiling);
        }
    }
}

#[test]
fn ranges_cover_the_longest_extent() {
    let processor = new(V8_4);
    let most = Extent::pages(1 << 30, Extent::MAX_PAGES, PageSize::SIZE_4K);
    assert!(processor.flush_ceiling() >= Extent::MAX_PAGES);
    let counted = Extent::MAX_PAGES.div_ceil(processor.capabilities().pages_per_operation);
    assert_eq!(processor.operations(Scope::AllTags, most).count(), counted);
}

#[test]
fn kernel_tag_is_not_counted() {
    assert_eq!(new(V8_0).tag_count(), 65535);
    assert_eq!(new(Features { tag_bits: 8, ..V8_0 }).tag_count(), 255);
}

#[test]
fn counter_ticks_convert_to_ns() {
    let processor = new(V8_0);
    assert_eq!(processor.ns_of(62_500), 1_000_000);
    assert_eq!(processor.ns_of(1), 16);
    let unknown = new(Features { counter_hz: 0, ..V8_0 });
    assert_eq!(unknown.ns_of(1_000), 0);
}

/// Linux since 2026: one `TLBI` and one `DSB` more for each completion, and none for an operation.
#[test]
fn completion_is_repeated_once() {
    let repeating = with(Workarounds::REPEATED_COMPLETION);
    let many = Extent::pages(0x1000, 511, PageSize::SIZE_4K);
    let issue = |processor: &Aarch64| steps_of(|| processor.broadcast_kernel(many));
    assert_eq!(issue(&repeating), issue(&PROCESSOR));
    let any = pages(Scope::Tag(Tag(0)), Levels::Last, &[0], SHARED)[0];
    let completed = steps_of(|| assert_eq!(repeating.complete(), 1_000_000));
    assert_eq!(completed, [Synchronize, CompleteShared, any, CompleteShared, Synchronize]);
    // The erratum does not affect operations of one CPU.
    assert_eq!(steps_of(|| repeating.invalidate_all()).len(), 3);
}

/// Linux 4.10, `pre_ttbr0_update_workaround`: no write changes both ASID and table.
#[test]
fn asid_and_table_change_apart() {
    let falkor = with(Workarounds::ASID_APART);
    assert_eq!(falkor.tag_count(), 65534, "the last ASID is no space's");
    load_on(&PROCESSOR, 0x1000, 1, Entries::Keep);
    let passage = Tlbi(Operation::Tag(Tag(0xffff)), LOCAL);
    let through = |old: u64, new: u64, tag: u64| {
        let writes = [0xffff << 48 | old, 0xffff << 48 | new, tag << 48 | new];
        let writes = writes.map(|value| [SetTtbr0(value), Synchronize]).concat();
        [&[passage, CompleteLocal][..], &writes].concat()
    };
    let steps = load_on(&falkor, 0x2000, 2, Entries::Keep);
    assert_eq!(steps, through(0x1000, 0x2000, 2));
    let mut old = 0x0001_0000_0000_1000_u64;
    for step in steps {
        if let SetTtbr0(value) = step {
            let changed = value ^ old;
            assert!(changed >> 48 == 0 || changed << 16 == 0, "{old:#x} {value:#x}");
            old = value;
        }
    }
    // The kernel's table, and a discard before the first write.
    // SAFETY: the instructions are only recorded.
    let steps = steps_of(|| unsafe { falkor.load_kernel(Root(0x9000)) });
    assert_eq!(steps, through(0x2000, 0x9000, 0));
    let gone = [Tlbi(Operation::Tag(Tag(3)), LOCAL), CompleteLocal];
    let steps = load_on(&falkor, 0x3000, 3, Entries::Discard);
    assert_eq!(steps, [&gone[..], &through(0x9000, 0x3000, 3)].concat());
}

/// Linux: `post_ttbr_update_workaround`.
#[test]
fn switch_invalidates_instructions_on_thunderx() {
    let thunderx = with(Workarounds::ICACHE_AT_SWITCH);
    let invalidated = [InvalidateInstructions, CompleteLocal, Synchronize];
    let loaded = |value| [&[SetTtbr0(value), Synchronize][..], &invalidated].concat();
    assert_eq!(load_on(&thunderx, 0x2000, 2, Entries::Keep), loaded(2 << 48 | 0x2000));
    // SAFETY: the instructions are only recorded.
    let steps = steps_of(|| unsafe { thunderx.load_kernel(Root(0x9000)) });
    assert_eq!(steps, loaded(0x9000));
}

#[test]
fn sme_needs_interrupts_after_broadcasts() {
    let c1_pro = with(Workarounds::SME_INTERRUPT);
    assert!(c1_pro.broadcaster().is_none(), "without the kernel's function");
    // SAFETY: the function only records.
    let c1_pro = unsafe { c1_pro.with_sme_interrupt(instruction::interrupt_sme) };
    let broadcaster = c1_pro.broadcaster().expect("the kernel interrupts");
    let completed = steps_of(|| _ = broadcaster.complete());
    assert_eq!(completed, [Synchronize, CompleteShared, InterruptSme, Synchronize]);
    // Other CPUs do not call the function.
    // SAFETY: as above.
    let other = unsafe { PROCESSOR.with_sme_interrupt(instruction::interrupt_sme) };
    assert!(!steps_of(|| _ = other.complete()).contains(&InterruptSme));
}

#[test]
fn broadcasts_can_be_switched_off() {
    assert!(PROCESSOR.broadcaster().is_some());
    assert!(PROCESSOR.without_broadcasts().broadcaster().is_none());
}

/// `TTBR0_EL1`, BADDR: bits 5:2 are bits 51:48 of the table's address with 52-bit addresses. Bit 0
/// is `CnP`.
#[test]
fn long_roots_leave_the_asid_alone() {
    let loaded = |value| [SetTtbr0(value), Synchronize];
    let longest = 0xf_ffff_ffff_ffc0;
    assert_eq!(load(longest, 0x123, Entries::Keep), loaded(0x0123_ffff_ffff_fffc));
    assert_eq!(load(1 << 48, 0x123, Entries::Keep), loaded(0x0123_0000_0000_0004));
    assert_eq!(load(0x5001, 1, Entries::Keep), loaded(0x0001_0000_0000_5000));
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "an address of a table has 52 bits")]
fn root_above_52_bits_is_refused() {
    load(1 << 52, 1, Entries::Keep);
}

/// `DAIF`: F is bit 6, I is bit 7.
#[test]
fn mask_is_that_of_the_flush_interrupt() {
    let fiq = PROCESSOR.notified_by(FlushInterrupt::Fiq);
    for (daif, by_irq, by_fiq) in
        [(0, false, false), (1 << 7, true, false), (1 << 6, false, true), (0b11 << 6, true, true)]
    {
        instruction::set_daif(daif);
        assert_eq!((PROCESSOR.interrupts_masked(), fiq.interrupts_masked()), (by_irq, by_fiq));
    }
}

#[test]
fn cpu_is_checked_when_it_is_set_up() {
    instruction::set_cpu(Features { has_ranges: true, ..V8_0 });
    // SAFETY: nothing is executed.
    unsafe { PROCESSOR.set_up_cpu() };
    instruction::set_cpu(Features { workarounds: Workarounds::ASID_APART, ..V8_0 });
    // SAFETY: nothing is executed.
    let refused = std::panic::catch_unwind(|| unsafe { PROCESSOR.set_up_cpu() });
    assert!(refused.is_err());
}
