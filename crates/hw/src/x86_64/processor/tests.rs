//! What is told of a processor, and what a process may execute.

use super::*;
use crate::x86_64::features::{Registers, Source};
use crate::x86_64::recorded::Step::{
    Fence, Invlpg, Invlpgb, ReloadCr3, Tlbsync, ToggleGlobalPages, WriteCr3,
};
use crate::x86_64::recorded::steps_of;
use shootdown::PageSize;
use std::vec::Vec;

/// `INVLPGB` reaches every CPU, whatever the set.
const NO_CPUS: CpuSet<[u64; 1]> = CpuSet::new();

struct With {
    pcid: u32,
    invlpgb: u32,
}

impl Source for With {
    fn cpuid(&self, leaf: u32) -> Registers {
        let none = Registers::default();
        match leaf {
            0 => Registers { eax: 7, ..none },
            1 => Registers { ecx: self.pcid << 17, ..none },
            0x8000_0000 => Registers { eax: 0x8000_0008, ..none },
            0x8000_0008 => Registers { ebx: self.invlpgb << 3, edx: 7, ..none },
            _ => none,
        }
    }

    fn microcode(&self) -> u32 {
        0
    }
}

fn processor(pcid: u32, invlpgb: u32, kernel_pages: KernelPages) -> X86_64 {
    // SAFETY: nothing privileged is asked of it here.
    unsafe { X86_64::new(Features::of(&With { pcid, invlpgb }), kernel_pages) }
}

#[test]
fn tags_are_as_the_table_says() {
    let tags = |pcid, invlpgb| {
        let processor = processor(pcid, invlpgb, KernelPages::Global);
        let broadcast = processor.broadcaster().map(Broadcaster::capabilities);
        (processor.tagging(), processor.tag_count(), broadcast)
    };
    assert_eq!(tags(0, 0), (Tagging::PerCpu, 0, None));
    assert_eq!(tags(1, 0), (Tagging::PerCpu, 6, None));
    let broadcast =
        Broadcast { reach: Reach::Everyone, pages_per_operation: 8, operation_ceiling: 5 };
    assert_eq!(tags(1, 1), (Tagging::Global, 4095, Some(broadcast)));
    assert_eq!(tags(0, 1), (Tagging::PerCpu, 0, None));
}

#[test]
fn there_is_room_for_every_tag_and_its_pin() {
    use shootdown::TagWords;
    let words = <X86_64 as Processor>::TagWords::zero();
    // The engine takes half of them for tags.
    assert_eq!(words.words().len() / 2 * 64, cr3::PCID_COUNT);
}

/// SDM 3A, section 4.10.4.1: INVLPG drops global pages, others under the current PCID, and
/// paging-structure caches of the current PCID.
#[test]
fn what_is_cached_under_other_tags_takes_everything_along() {
    let page = Extent::page(0xffff_8000_0000_0000);
    let drops_everything =
        |pcid, pages, extent| processor(pcid, 0, pages).must_drop_everything(extent);
    let tables = page.freeing_tables();
    for (pages, extent, expected) in [
        (KernelPages::Global, page, [false, false]),
        (KernelPages::Global, tables, [false, true]),
        (KernelPages::ByTag, page, [false, true]),
        (KernelPages::ByTag, tables, [false, true]),
        (KernelPages::Global, Extent::whole(), [true, true]),
    ] {
        let found = [0, 1].map(|pcid| drops_everything(pcid, pages, extent));
        assert_eq!(found, expected, "{pages:?} {extent:?}, without and with tags");
    }
}

#[test]
fn combined_operations_do_what_their_parts_do() {
    let (processor, word) = (processor(0, 0, KernelPages::Global), AtomicU64::new(1));
    assert_eq!(processor.fetch_add_then_fence(&word, 3, Ordering::Relaxed), 1);
    assert_eq!(processor.fetch_or_then_fence(&word, 3, Ordering::Relaxed), 4);
    assert_eq!(word.load(Ordering::Relaxed), 7);
    processor.store_then_fence(&word, 9, Ordering::Relaxed);
    assert_eq!(word.load(Ordering::Relaxed), 9);
    assert!(processor.traps_stale_writes() && !processor.interrupts_masked());
    assert!(processor.tolerates_mixed_sizes());
}

/// AMD's manual, volume 3, "INVLPGB": it is weakly ordered, and `TLBSYNC` alone waits for it.
#[test]
fn broadcast_follows_fence() {
    let processor = processor(1, 1, KernelPages::Global);
    let (tag, ten) = (Tag(7), Extent::pages(0x1000, 10, PageSize::SIZE_4K));
    // Eight pages an instruction, as CPUID says here.
    let pages: Vec<_> = invlpgb::pages(tag, ten, 8).map(Invlpgb).collect();
    assert_eq!(pages.len(), 2);
    let issued = steps_of(|| processor.broadcast(&NO_CPUS, tag, ten));
    assert_eq!(issued, [&[Fence], &pages[..]].concat());
    let issued = steps_of(|| processor.broadcast(&NO_CPUS, tag, Extent::whole()));
    assert_eq!(issued, [Fence, Invlpgb(invlpgb::tag(tag))]);
}

#[test]
fn kernel_broadcast_follows_fence() {
    let processor = processor(1, 1, KernelPages::Global);
    let ten = Extent::pages(0xffff_8000_0000_0000, 10, PageSize::SIZE_4K);
    let pages: Vec<_> = invlpgb::kernel_pages(ten, 8).map(Invlpgb).collect();
    let issued = steps_of(|| processor.broadcast_kernel(ten));
    assert_eq!(issued, [&[Fence], &pages[..]].concat());
    let issued = steps_of(|| processor.broadcast_kernel(Extent::whole()));
    assert_eq!(issued, [Fence, Invlpgb(invlpgb::everything())]);
}

#[test]
fn completing_broadcasts_executes_tlbsync() {
    let processor = processor(1, 1, KernelPages::Global);
    let page = Extent::page(0x1000);
    let steps = steps_of(|| {
        processor.broadcast(&NO_CPUS, Tag(1), page);
        processor.complete();
    });
    let issued = invlpgb::pages(Tag(1), page, 8).map(Invlpgb);
    let expected: Vec<_> = [Fence].into_iter().chain(issued).chain([Tlbsync]).collect();
    assert_eq!(steps, expected);
}

#[test]
fn local_invalidation_executes_its_instruction() {
    let processor = processor(1, 0, KernelPages::Global);
    let two = Extent::pages(0x1000, 2, PageSize::SIZE_4K);
    let both = [Invlpg(0x1000), Invlpg(0x2000)];
    assert_eq!(steps_of(|| processor.invalidate(Tag(1), two)), both);
    assert_eq!(steps_of(|| processor.invalidate_kernel(two)), both);
    assert_eq!(steps_of(|| processor.invalidate_tag(Tag(1))), [ReloadCr3]);
    assert_eq!(steps_of(|| processor.invalidate_all()), [ToggleGlobalPages]);
    // SAFETY: `write_cr3` only records.
    let loaded = steps_of(|| unsafe { processor.load(Root(0x5000), Tag(2), Entries::Discard) });
    assert_eq!(loaded, [WriteCr3(cr3::with_pcid(Root(0x5000), Tag(2), Entries::Discard))]);
}

#[test]
fn measured_costs_replace_what_is_assumed() {
    let measured = NotifyCosts { interrupt_ns: 1, ..NotifyCosts::default() };
    let processor = processor(1, 1, KernelPages::Global).with_notify_costs(measured);
    assert_eq!(processor.costs(), measured);
}

/// On x86-64 a store may be passed by a later load, and nothing else happens out of order. Each of
/// two CPUs stores, then loads what the other stores. Without a full barrier between, there is a
/// round among some thousands in which both loads find that nothing has been stored.
///
/// How many there are, and whether any, is the host's mood. So each round with a barrier follows
/// one without, until enough of these have been passed.
#[test]
fn a_load_does_not_pass_a_store_and_a_fence() {
    let with_barriers: [Store; 4] = [
        |processor, word| {
            word.store(1, Ordering::Relaxed);
            processor.fence();
        },
        |processor, word| processor.store_then_fence(word, 1, Ordering::Relaxed),
        |processor, word| _ = processor.fetch_add_then_fence(word, 1, Ordering::Relaxed),
        |processor, word| _ = processor.fetch_or_then_fence(word, 1, Ordering::Relaxed),
    ];
    for with_barrier in with_barriers {
        assert_eq!(rounds_in_which_both_loads_pass(with_barrier), 0);
    }
}

type Store = fn(&X86_64, &AtomicU64);

/// At most so many; on a host with one CPU, nothing is ever seen.
const ROUNDS: u64 = 60_000;
/// So many without a barrier.
const ENOUGH: usize = 20;

/// On a line of its own: else what one writes is on its way to the other before it is asked for.
#[derive(Default)]
#[repr(align(64))]
struct Alone(AtomicU64);

impl Alone {
    fn wait_for(&self, value: u64) {
        // The other may have to wait for this CPU, on a host that has few or is busy.
        for turn in 0.. {
            if self.0.load(Ordering::Acquire) >= value {
                return;
            }
            if turn < 100 { core::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }
}

/// What one of two threads stores to in a round, and what it has loaded then.
#[derive(Default)]
struct Side {
    stored: Alone,
    loaded: Alone,
}

fn rounds_in_which_both_loads_pass(with_barrier: Store) -> usize {
    let processor = processor(0, 0, KernelPages::Global);
    let (first, second) = (Side::default(), Side::default());
    let (begun, finished) = (Alone::default(), Alone::default());
    let take_part = |round: u64, mine: &Side, other: &Side| {
        if round.is_multiple_of(2) {
            with_barrier(&processor, &mine.stored.0);
        } else {
            mine.stored.0.store(1, Ordering::Relaxed);
        }
        mine.loaded.0.store(other.stored.0.load(Ordering::Relaxed), Ordering::Relaxed);
    };
    let (mut without, mut with) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                begun.wait_for(round);
                take_part(round, &second, &first);
                finished.0.store(round, Ordering::Release);
            }
        });
        for round in 1..=ROUNDS {
            first.stored.0.store(0, Ordering::Relaxed);
            second.stored.0.store(0, Ordering::Relaxed);
            // When enough has been seen, the other runs through the rounds that are left.
            let is_last = without >= ENOUGH;
            begun.0.store(if is_last { ROUNDS } else { round }, Ordering::Release);
            if is_last {
                break;
            }
            take_part(round, &first, &second);
            finished.wait_for(round);
            let loaded = [&first, &second].map(|side| side.loaded.0.load(Ordering::Relaxed));
            let passed = if round.is_multiple_of(2) { &mut with } else { &mut without };
            *passed += usize::from(loaded == [0, 0]);
        }
    });
    with
}
