//! Tests of the processor with recorded instructions, and of its barriers on two threads.

use super::*;
use crate::x86_64::recorded::Step::{
    Enable, Fence, Invlpg, Invlpgb, ReloadCr3, Tlbsync, ToggleGlobalPages, WriteCr3,
};
use crate::x86_64::recorded::steps_of;
use crate::x86_64::{Registers, Source};
use shootdown::PageSize;
use std::vec::Vec;

/// `INVLPGB` reaches every CPU, whatever the set.
const NO_CPUS: CpuSet<[u64; 1]> = CpuSet::new();

struct FakeCpu {
    pcid: u32,
    invlpgb: u32,
}

impl Source for FakeCpu {
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
    // SAFETY: privileged instructions are only recorded.
    unsafe { X86_64::new(Features::of(&FakeCpu { pcid, invlpgb }), kernel_pages) }
}

#[test]
fn tags_match_the_modules_table() {
    let tags = |pcid, invlpgb| {
        let processor = processor(pcid, invlpgb, KernelPages::Global);
        let broadcast = processor.broadcaster().map(Broadcaster::capabilities);
        (processor.tagging(), processor.tag_count(), broadcast)
    };
    assert_eq!(tags(0, 0), (Tagging::PerCpu, 0, None));
    assert_eq!(tags(1, 0), (Tagging::PerCpu, 6, None));
    let broadcast = Broadcast {
        reach: Reach::Everyone,
        pages_per_operation: 8,
        operation_ceiling: 5,
        completes_at_issue: false,
    };
    assert_eq!(tags(1, 1), (Tagging::Global, 4095, Some(broadcast)));
    assert_eq!(tags(0, 1), (Tagging::PerCpu, 0, None));
}

#[test]
fn cpu_is_set_up_with_features_of_processor() {
    let processor = processor(1, 0, KernelPages::Global);
    // SAFETY: privileged instructions are only recorded.
    let steps = steps_of(|| unsafe { processor.set_up_cpu() });
    assert_eq!(steps, [Enable(processor.features)]);
}

#[test]
fn kernel_keeps_its_cr4() {
    use crate::x86_64::recorded::set_pcide;
    let set_up = |pcid, is_set| {
        let processor = processor(pcid, 0, KernelPages::Global).with_cr4_of_kernel();
        set_pcide(is_set);
        // SAFETY: privileged instructions are only recorded.
        std::panic::catch_unwind(|| steps_of(|| unsafe { processor.set_up_cpu() })).ok()
    };
    for (pcid, is_set) in [(0, false), (1, true)] {
        assert_eq!(set_up(pcid, is_set), Some(Vec::new()));
        assert_eq!(set_up(pcid, !is_set), None);
    }
}

#[test]
fn tag_words_hold_tags_and_pins() {
    use shootdown::TagWords;
    let words = <X86_64 as Processor>::TagWords::zero();
    // The engine uses half of the words for tags.
    assert_eq!(words.words().len() / 2 * 64, cr3::PCID_COUNT);
}

/// SDM 3A, section 4.10.4.1: INVLPG drops global pages, others under the current PCID, and
/// paging-structure caches of the current PCID.
#[test]
fn kernel_entries_under_other_tags_drop_everything() {
    let page = Extent::page(0xffff_8000_0000_0000);
    let drops_everything =
        |pcid, pages, extent| processor(pcid, 0, pages).must_drop_everything(extent);
    let tables = page.freeing_tables();
    for (pages, extent, expected) in [
        (KernelPages::Global, page, [false, false]),
        (KernelPages::Global, tables, [false, true]),
        (KernelPages::PerTag, page, [false, true]),
        (KernelPages::PerTag, tables, [false, true]),
        (KernelPages::Global, Extent::whole(), [true, true]),
    ] {
        let found = [0, 1].map(|pcid| drops_everything(pcid, pages, extent));
        assert_eq!(found, expected, "{pages:?} {extent:?}, without and with tags");
    }
}

#[test]
fn combined_operations_match_their_parts() {
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
    // One instruction names eight pages, as `FakeCpu` reports.
    let pages: Vec<_> = invlpgb::in_space(tag, ten, 8).map(Invlpgb).collect();
    assert_eq!(pages.len(), 2);
    let issued = steps_of(|| processor.broadcast(&NO_CPUS, tag, ten));
    assert_eq!(issued, [&[Fence], &pages[..]].concat());
    let issued = steps_of(|| processor.broadcast(&NO_CPUS, tag, Extent::whole()));
    let whole = invlpgb::in_space(tag, Extent::whole(), 8).map(Invlpgb);
    assert!(issued.into_iter().eq([Fence].into_iter().chain(whole)));
}

#[test]
fn kernel_broadcast_follows_fence() {
    let processor = processor(1, 1, KernelPages::Global);
    let ten = Extent::pages(0xffff_8000_0000_0000, 10, PageSize::SIZE_4K);
    let pages: Vec<_> = invlpgb::everywhere(ten, 8).map(Invlpgb).collect();
    let issued = steps_of(|| processor.broadcast_kernel(ten));
    assert_eq!(issued, [&[Fence], &pages[..]].concat());
    let issued = steps_of(|| processor.broadcast_kernel(Extent::whole()));
    let whole = invlpgb::everywhere(Extent::whole(), 8).map(Invlpgb);
    assert!(issued.into_iter().eq([Fence].into_iter().chain(whole)));
}

#[test]
fn completing_broadcasts_executes_tlbsync() {
    let processor = processor(1, 1, KernelPages::Global);
    let page = Extent::page(0x1000);
    let steps = steps_of(|| {
        assert_eq!(processor.broadcast(&NO_CPUS, Tag(1), page), Ok(()));
        processor.complete();
    });
    let issued = invlpgb::in_space(Tag(1), page, 8).map(Invlpgb);
    let expected: Vec<_> = [Fence].into_iter().chain(issued).chain([Tlbsync]).collect();
    assert_eq!(steps, expected);
}

fn with(workarounds: Workarounds) -> X86_64 {
    let features = processor(1, 1, KernelPages::Global).features;
    // SAFETY: privileged instructions are only recorded.
    unsafe { X86_64::new(Features { workarounds, ..features }, KernelPages::Global) }
}

/// AMD's erratum 1718: one more for each completion, and none for an operation.
#[test]
fn second_tlbsync_completes_broadcasts() {
    let twice = with(Workarounds::SECOND_TLBSYNC);
    assert_eq!(steps_of(|| _ = twice.complete()), [Tlbsync, Tlbsync]);
    let issued = steps_of(|| twice.broadcast_kernel(Extent::page(0x1000)));
    assert!(!issued.contains(&Tlbsync));
}

#[test]
fn errata_withdraw_promises_about_marks_and_sizes() {
    let promises = |workarounds| {
        let processor = with(workarounds);
        (processor.traps_stale_writes(), processor.tolerates_mixed_sizes())
    };
    assert_eq!(promises(Workarounds::NONE), (true, true));
    assert_eq!(promises(Workarounds::LATE_MARKS), (false, true));
    assert_eq!(promises(Workarounds::ONE_PAGE_SIZE), (true, false));
}

#[test]
fn broadcasts_can_be_switched_off() {
    let silent = with(Workarounds::NONE).without_broadcasts();
    assert!(silent.broadcaster().is_none());
    assert_eq!((silent.tagging(), silent.tag_count()), (Tagging::PerCpu, 6));
}

#[test]
#[should_panic(expected = "SECOND_TLBSYNC")]
fn late_cpu_is_refused_before_it_is_enabled() {
    let features = with(Workarounds::SECOND_TLBSYNC).features;
    crate::x86_64::recorded::set_cpu(features);
    let steps = steps_of(|| {
        // SAFETY: privileged instructions are only recorded.
        unsafe { with(Workarounds::SECOND_TLBSYNC).set_up_cpu() };
    });
    assert_eq!(steps, [Enable(features)]);
    // SAFETY: as above.
    unsafe { with(Workarounds::NONE).set_up_cpu() };
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
fn measured_costs_replace_assumed_costs() {
    let measured = NotifyCosts { interrupt_ns: 1, ..NotifyCosts::default() };
    let processor = processor(1, 1, KernelPages::Global).with_notify_costs(measured);
    assert_eq!(processor.costs(), measured);
}

/// On x86-64, a later load may pass a store, and nothing else happens out of order. Each of two
/// CPUs stores to its own word, then loads the other's. Without a full barrier in between, both
/// loads return 0 in some of many thousand rounds.
///
/// The number of such rounds depends on the host, and may be 0. So rounds with and without a
/// barrier alternate until enough rounds without a barrier were observed in which both loads return
/// 0. On a busy host, the test ends earlier and shows less.
#[test]
fn load_does_not_pass_store_and_fence() {
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

/// The largest number of rounds. On a host with one CPU, no load ever passes a store.
const ROUNDS: u64 = 60_000;
/// The largest number of rounds in which a thread had to leave its CPU to the other one. On a busy
/// host, the threads rarely run at the same time, and such a round takes milliseconds.
const ROUNDS_IN_TURNS: usize = 500;
/// Number of rounds without a barrier in which both loads must pass.
const ENOUGH: usize = 20;

/// A word on a cache line of its own. Otherwise, a store would bring the other CPU's word along.
#[derive(Default)]
#[repr(align(64))]
struct PaddedWord(AtomicU64);

impl PaddedWord {
    fn wait_for(&self, value: u64) -> Waited {
        for _ in 0..100 {
            if self.0.load(Ordering::Acquire) >= value {
                return Waited::Running;
            }
            core::hint::spin_loop();
        }
        // On a busy host, the other thread may need this CPU to make progress.
        while self.0.load(Ordering::Acquire) < value {
            std::thread::yield_now();
        }
        Waited::InTurns
    }
}

/// The state of a thread while it waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waited {
    Running,
    /// The thread left its CPU to others.
    InTurns,
}

/// The word of one of two threads, and the value that the thread has loaded in a round.
#[derive(Default)]
struct ThreadWords {
    stored: PaddedWord,
    loaded: PaddedWord,
}

fn rounds_in_which_both_loads_pass(with_barrier: Store) -> usize {
    let processor = processor(0, 0, KernelPages::Global);
    let (first, second) = (ThreadWords::default(), ThreadWords::default());
    let (begun, finished) = (PaddedWord::default(), PaddedWord::default());
    let take_part = |round: u64, mine: &ThreadWords, other: &ThreadWords| {
        if round.is_multiple_of(2) {
            with_barrier(&processor, &mine.stored.0);
        } else {
            mine.stored.0.store(1, Ordering::Relaxed);
        }
        mine.loaded.0.store(other.stored.0.load(Ordering::Relaxed), Ordering::Relaxed);
    };
    let (mut without, mut with, mut in_turns) = (0, 0, 0);
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
            // After the last round, the other thread runs through those that are left.
            let is_last = without >= ENOUGH || in_turns >= ROUNDS_IN_TURNS;
            begun.0.store(if is_last { ROUNDS } else { round }, Ordering::Release);
            if is_last {
                break;
            }
            take_part(round, &first, &second);
            in_turns += usize::from(finished.wait_for(round) == Waited::InTurns);
            let loaded = [&first, &second].map(|words| words.loaded.0.load(Ordering::Relaxed));
            let passed = if round.is_multiple_of(2) { &mut with } else { &mut without };
            *passed += usize::from(loaded == [0, 0]);
        }
    });
    with
}
