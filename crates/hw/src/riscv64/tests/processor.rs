//! The instructions that the processor's methods execute.

use super::*;
use crate::riscv64::encoding::Mode;
use crate::riscv64::errata::Identity;
use crate::riscv64::instructions::Step::{
    self, BeginInvalidations, DropAll, DropAsid, DropPage, EndInvalidations, FenceAll, FenceMemory,
    FenceStores, Firmware, InvalidatePage, SetSatp,
};
use crate::riscv64::instructions::{FirmwareState, set_identity, set_up, steps_of, with_firmware};
use crate::riscv64::sbi::Call;
use crate::{Bare, Kernel};
use core::cell::Cell;
use core::ptr::NonNull;
use shootdown::{CpuState, PageSize, Shootdown, Space};
use std::boxed::Box;
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

/// The exit path writes `satp`. Which tag it had loaded before is not known.
#[test]
fn root_that_kernel_loads_is_only_prepared() {
    // SAFETY: the instructions are only recorded.
    let by_kernel = |processor: RiscV64| unsafe { processor.loaded_by_kernel() };
    for (entries, expected) in [(Entries::Keep, &[][..]), (Entries::Discard, &[DropAsid(2)])] {
        assert_eq!(load(&by_kernel(PROMPT), 0, 2, entries), expected);
        assert_eq!(load(&by_kernel(STRICT), 0, 2, entries), [DropAll]);
    }
}

/// Without firmware, a call of it would trap to the kernel itself.
#[test]
fn processor_without_firmware_calls_none() {
    set_up(16, satp(0x1000, 0));
    // SAFETY: the instructions are only recorded.
    let bare = unsafe { STRICT.without_firmware() };
    let identity = Identity { vendor: 0x489, architecture: 1, implementation: 0 };
    set_identity(None);
    let mut features = FEATURES;
    // SAFETY: as above.
    steps_of(|| unsafe { bare.set_up_cpu() });
    steps_of(|| features = Features::detect_as(Some(identity)));
    assert_eq!(features.workarounds, Workarounds::WHOLE_FENCES);
    set_identity(Some([0; 3]));
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
        assert_eq!(broadcaster.broadcast(&cpus(&[0, 3, 70]), Tag(7), page), Ok(()));
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

/// Hart 2 has stopped. Firmware that skips it has reached all others.
#[test]
fn fence_of_stopped_hart_is_refused_by_strict_firmware() {
    // SAFETY: the calls are only recorded.
    let processor = unsafe { STRICT.with_remote_fences(hart) };
    let broadcast = |cpus: &CpuSet<_>| processor.broadcast(cpus, Tag(7), Extent::whole());
    for (is_strict, expected) in [(false, Ok(())), (true, Err(Refused))] {
        let firmware = FirmwareState { stopped: 1 << 2, is_strict };
        // The refusal of one mask counts for all masks.
        for named in [&[0, 1, 4][..], &[1, 70], &[70, 1]] {
            let refused = with_firmware(firmware, || broadcast(&cpus(named)));
            assert_eq!(refused, expected, "{named:?}");
        }
        assert_eq!(with_firmware(firmware, || broadcast(&cpus(&[0, 4]))), Ok(()));
    }
}

/// A board with three CPUs. One thread is each of them in turn.
struct Board {
    cpus: [CpuState<Bare<Self>>; 3],
    current: Cell<u32>,
    /// An operation of another CPU, which comes between the ring of bells and the interrupt.
    before_interrupt: Cell<Option<Box<dyn FnOnce()>>>,
}

// SAFETY: the test has one thread.
unsafe impl Sync for Board {}

// SAFETY: one thread is each CPU in turn, and instructions are only recorded.
unsafe impl Kernel for Board {
    type Processor = RiscV64;
    type CpuBits = [u64; 1];

    fn state(&self, cpu: CpuId) -> &CpuState<Bare<Self>> {
        &self.cpus[cpu.index()]
    }
    fn cpu(&self) -> CpuId {
        CpuId(self.current.get())
    }
    fn root(&self) -> Root {
        Root(0x9000)
    }
    fn cpu_limit(&self) -> usize {
        3
    }
    fn ring(&self, cpus: &CpuSet<[u64; 1]>) {
        if let Some(operation) = self.before_interrupt.take() {
            operation();
        }
        sbi::send_ipis(cpus.iter().map(hart));
    }
    fn reclaim(&self, _: NonNull<Space<Bare<Self>>>) {}
}

/// CPU 2 goes offline while CPU 0 flushes. Its hart has stopped when the firmware is called for it:
/// for the fence, and for the interrupt that the engine sends instead.
#[test]
fn flush_survives_cpu_that_goes_offline() {
    set_up(16, satp(0x9000, 0));
    let states = [(); 3].map(|()| CpuState::new());
    let before_interrupt = Cell::new(None);
    let board = Board { cpus: states, current: Cell::new(0), before_interrupt };
    let costs = NotifyCosts::default().broadcasts_only();
    // SAFETY: the calls are only recorded.
    let processor = unsafe { STRICT.with_remote_fences(hart) }.with_costs(costs);
    let engine = Box::new(Shootdown::new(Bare::new(board, processor)));
    let engine: &'static Shootdown<Bare<Board>> = Box::leak(engine);
    let space = Box::leak(Box::new(engine.space(Root(0x7000))));
    let on = move |cpu| {
        engine.machine().kernel().current.set(cpu);
        // SAFETY: there is one thread, and no handler.
        unsafe { engine.pin() }
    };
    for cpu in 0..3 {
        on(cpu).online();
        // SAFETY: the space outlives its use, and does not move.
        unsafe { on(cpu).switch(space) };
    }
    let go_offline = move || {
        on(2).offline();
        let _ = on(0);
    };
    engine.machine().kernel().before_interrupt.set(Some(Box::new(go_offline)));
    let firmware = FirmwareState { stopped: 1 << hart(CpuId(2)), is_strict: true };
    let mut pending = with_firmware(firmware, || on(0).flush(space, Extent::page(0x5000)));
    assert!(!pending.poll(), "CPU 1 has not answered");
    on(1).handle_flush_ipi();
    let _ = on(0);
    assert!(pending.poll(), "no CPU waits for one that is offline");
    let counts = engine.cpu(CpuId(0)).stats();
    assert_eq!((counts.broadcasts_sent, counts.interrupts_sent), (0, 2));
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
