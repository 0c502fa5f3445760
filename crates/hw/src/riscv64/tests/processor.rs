//! The instructions that the processor's methods execute.

use super::*;
use crate::riscv64::encoding::Mode;
use crate::riscv64::instructions::Step::{
    self, BeginInvalidations, DropAll, DropAsid, DropPage, EndInvalidations, FenceAll, FenceMemory,
    FenceStores, Firmware, InvalidatePage, SetSatp,
};
use crate::riscv64::instructions::{set_identity, set_up, steps_of};
use crate::riscv64::sbi::Call;
use shootdown::PageSize;
use std::vec::Vec;

const FEATURES: Features = Features {
    mode: Mode::Sv48,
    asid_bits: 16,
    has_svinval: false,
    workarounds: Workarounds::NONE,
};
const STRICT: RiscV64 = new(FEATURES);
// SAFETY: there are no walks.
const PROMPT: RiscV64 = unsafe { STRICT.assuming_satp_ends_walks() };

const fn new(features: Features) -> RiscV64 {
    // SAFETY: the instructions are only recorded.
    unsafe { RiscV64::new(features) }
}

fn satp(root: u64, tag: u16) -> u64 {
    Mode::Sv48.satp(Root(root), Tag(tag))
}

/// The steps of a load while `old` is loaded.
fn load(processor: &RiscV64, old: u16, new: u16, entries: Entries) -> Vec<Step> {
    set_up(processor.features.asid_bits, satp(0x1000, old));
    // SAFETY: the instructions are only recorded.
    steps_of(|| unsafe { processor.load(Root(0x2000), Tag(new), entries) })
}

#[test]
fn entries_are_discarded_before_root_is_loaded() {
    let loaded = SetSatp(satp(0x2000, 2));
    assert_eq!(load(&PROMPT, 1, 2, Entries::Keep), [loaded]);
    assert_eq!(load(&PROMPT, 1, 2, Entries::Discard), [DropAsid(2), loaded]);
    // The loaded tag is discarded afterwards, because walks would fill the TLB again.
    assert_eq!(load(&PROMPT, 2, 2, Entries::Discard), [loaded, DropAsid(2)]);
    assert_eq!(load(&PROMPT, 2, 2, Entries::Keep), [loaded]);
}

/// A walk that began at the old root may go on until a fence of its ASID.
#[test]
fn departure_ends_walks_unless_satp_does() {
    let loaded = SetSatp(satp(0x2000, 2));
    assert_eq!(load(&STRICT, 1, 2, Entries::Keep), [loaded, DropAsid(1)]);
    assert_eq!(load(&STRICT, 1, 2, Entries::Discard), [DropAsid(2), loaded, DropAsid(1)]);
    assert_eq!(load(&STRICT, 2, 2, Entries::Discard), [loaded, DropAsid(2)]);
    // The kernel's tables are never freed.
    assert_eq!(load(&STRICT, 0, 2, Entries::Keep), [loaded]);
}

#[test]
fn kernel_root_discards_only_without_tags() {
    let kernel = |processor: &RiscV64| {
        set_up(processor.features.asid_bits, satp(0x1000, 5));
        // SAFETY: the instructions are only recorded.
        steps_of(|| unsafe { processor.load_kernel(Root(0x9000)) })
    };
    let loaded = SetSatp(satp(0x9000, 0));
    assert_eq!(kernel(&PROMPT), [loaded]);
    assert_eq!(kernel(&STRICT), [loaded, DropAsid(5)]);
    let untagged = new(Features { asid_bits: 0, ..FEATURES });
    assert_eq!(kernel(&untagged), [loaded, DropAsid(0)]);
}

#[test]
fn pages_are_named_under_tag_or_all() {
    let two = Extent::pages(0x1000, 2, PageSize::SIZE_4K);
    let steps = |f: &dyn Fn()| steps_of(f);
    assert_eq!(
        steps(&|| STRICT.invalidate(Tag(3), two)),
        [DropPage(0x1000, Some(3)), DropPage(0x2000, Some(3))]
    );
    assert_eq!(
        steps(&|| STRICT.invalidate_kernel(two)),
        [DropPage(0x1000, None), DropPage(0x2000, None)]
    );
    // An address drops leaves alone.
    assert_eq!(steps(&|| STRICT.invalidate(Tag(3), two.freeing_tables())), [DropAsid(3)]);
    assert_eq!(steps(&|| STRICT.invalidate_kernel(two.freeing_tables())), [DropAll]);
    assert_eq!(steps(&|| STRICT.invalidate_kernel(Extent::whole())), [DropAll]);
    assert_eq!(steps(&|| STRICT.invalidate_tag(Tag(3))), [DropAsid(3)]);
    assert_eq!(steps(&|| STRICT.invalidate_all()), [DropAll]);
    assert_eq!(steps(&|| STRICT.forget_refused(0x5123)), [DropPage(0x5123, None)]);
    assert_eq!(steps(&|| STRICT.publish()), [FenceStores]);
    let page = Extent::page(0x5000);
    let dropped = DropPage(0x5000, None);
    assert_eq!(steps(&|| STRICT.publish_kernel(page)), [FenceStores, dropped]);
    assert_eq!(steps(&|| STRICT.synchronize()), [FenceMemory]);
}

#[test]
fn svinval_shares_barriers_of_several_pages() {
    let processor = new(Features { has_svinval: true, ..FEATURES });
    let two = Extent::pages(0x1000, 2, PageSize::SIZE_4K);
    let pages = [InvalidatePage(0x1000, Some(3)), InvalidatePage(0x2000, Some(3))];
    assert_eq!(
        steps_of(|| processor.invalidate(Tag(3), two)),
        [&[BeginInvalidations][..], &pages, &[EndInvalidations]].concat()
    );
    let one = Extent::page(0x1000);
    assert_eq!(steps_of(|| processor.invalidate(Tag(3), one)), [DropPage(0x1000, Some(3))]);
    assert_eq!(steps_of(|| processor.invalidate_kernel(one)), [DropPage(0x1000, None)]);
}

#[test]
fn features_are_probed_and_restored() {
    for (asid_bits, tags) in [(0, 0), (9, 511), (16, 65_535)] {
        set_up(asid_bits, satp(0x1000, 0));
        let mut features = FEATURES;
        let steps = steps_of(|| features = Features::detect());
        assert_eq!(features, Features { asid_bits, ..FEATURES });
        assert_eq!(new(features).tag_count(), tags);
        assert_eq!(steps[1..], [SetSatp(satp(0x1000, 0)), DropAll]);
    }
}

fn cpus(numbers: &[u32]) -> CpuSet<[u64; 2]> {
    let mut cpus = CpuSet::new();
    for number in numbers {
        cpus.insert(CpuId(*number));
    }
    cpus
}

/// The number of the hart differs from that of the CPU.
fn hart(cpu: CpuId) -> u64 {
    u64::from(cpu.0) + 1
}

#[test]
fn remote_fence_names_harts_of_cpus() {
    assert!(STRICT.broadcaster().is_none());
    // SAFETY: the calls are only recorded.
    let processor = unsafe { STRICT.with_remote_fences(hart) };
    let page = Extent::page(0x5000);
    let fence =
        |mask, base| Firmware(Call::remote_fence(HartMask { mask, base }, Some(Tag(7)), page));
    let steps = steps_of(|| {
        let broadcaster = processor.broadcaster().expect("there are remote fences");
        broadcaster.broadcast(&cpus(&[0, 3, 70]), Tag(7), page);
        assert_eq!(broadcaster.complete(), 0);
    });
    assert_eq!(steps, [fence(0b10010, 0), fence(1 << 7, 64)]);
    let all = Firmware(Call::remote_fence(HartMask::ALL, None, page));
    assert_eq!(steps_of(|| processor.broadcast_kernel(page)), [all]);
}

#[test]
fn interrupts_are_sent_after_stores() {
    let steps = steps_of(|| sbi::send_ipis([1, 2].into_iter()));
    assert_eq!(steps, [FenceAll, Firmware(Call::send_ipi(HartMask { mask: 0b110, base: 0 }))]);
}

#[test]
#[should_panic(expected = "the firmware refuses")]
fn refused_fence_panics() {
    // SAFETY: the calls are only recorded.
    let processor = unsafe { STRICT.with_remote_fences(hart) };
    processor.broadcast(&cpus(&[62]), Tag(7), Extent::whole());
}

/// SiFive CIP-1200 (Linux: `ALT_SFENCE_VMA_ADDR`, `_ASID` and `_ADDR_ASID`).
#[test]
fn whole_fences_name_nothing() {
    let broken = Features { workarounds: Workarounds::WHOLE_FENCES, ..FEATURES };
    for broken in [broken, Features { has_svinval: true, ..broken }] {
        let processor = new(broken);
        let two = Extent::pages(0x1000, 2, PageSize::SIZE_4K);
        for f in [
            &(|| processor.invalidate(Tag(3), two)) as &dyn Fn(),
            &|| processor.invalidate_kernel(two),
            &|| processor.invalidate_tag(Tag(3)),
            &|| processor.invalidate_all(),
            &|| processor.forget_refused(0x5123),
        ] {
            assert_eq!(steps_of(f), [DropAll]);
        }
        let loaded = SetSatp(satp(0x2000, 2));
        assert_eq!(load(&processor, 1, 2, Entries::Discard), [DropAll, loaded, DropAll]);
        assert_eq!(load(&processor, 2, 2, Entries::Discard), [loaded, DropAll]);
        assert_eq!(steps_of(|| processor.publish_kernel(two)), [FenceStores, DropAll]);
        // SAFETY: nothing is called.
        assert!(unsafe { processor.with_remote_fences(hart) }.broadcaster().is_none());
    }
}

#[test]
fn errata_are_detected_and_late_cpus_refused() {
    set_up(16, satp(0x1000, 0));
    // SAFETY: the instructions are only recorded.
    let set_up_cpu = |features| unsafe { new(features).set_up_cpu() };
    let refuses = |features| std::panic::catch_unwind(|| set_up_cpu(features)).is_err();
    set_up_cpu(FEATURES);
    set_up_cpu(Features { has_svinval: true, asid_bits: 9, ..FEATURES });
    assert!(refuses(Features { mode: Mode::Sv39, ..FEATURES }));
    let broken = Features { workarounds: Workarounds::WHOLE_FENCES, ..FEATURES };
    for identity in [Some([0x489, 0x8000_0000_0000_0007, 0x2018_1004]), None] {
        set_identity(identity);
        assert_eq!(Features::detect(), broken);
        set_up_cpu(broken);
        assert!(refuses(FEATURES), "{identity:?}");
    }
    set_identity(Some([0x489, 0x8000_0000_0000_0007, 0x2020_0631]));
    assert_eq!(Features::detect(), FEATURES);
    set_up(9, satp(0x1000, 0));
    assert!(refuses(FEATURES), "tags of nine bits would be shared by spaces");
}
