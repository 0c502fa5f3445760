//! What is told of a processor, and what a process may execute.

use super::*;
use crate::features::{Registers, Source};

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
        (processor.tagging(), processor.tag_count(), processor.broadcast())
    };
    assert_eq!(tags(0, 0), (Tagging::PerCpu, 0, None));
    assert_eq!(tags(1, 0), (Tagging::PerCpu, 4095, None));
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
}

#[test]
fn measured_costs_replace_what_is_assumed() {
    let measured = TellingCosts { interrupt_ns: 1, ..TellingCosts::default() };
    let processor = processor(1, 1, KernelPages::Global).with_telling_costs(measured);
    assert_eq!(processor.telling_costs(), measured);
}

/// On x86-64, a store can pass a later load, and nothing else: each of two CPUs stores, then loads
/// what the other stores. Without a full barrier between, both find the old value sooner or later.
#[test]
fn a_store_and_a_fence_hold_back_a_later_load() {
    type Operation = fn(&X86_64, &AtomicU64);
    let operations: [Operation; 4] = [
        |processor, word| {
            word.store(1, Ordering::Relaxed);
            processor.fence();
        },
        |processor, word| processor.store_then_fence(word, 1, Ordering::Relaxed),
        |processor, word| drop(processor.fetch_add_then_fence(word, 1, Ordering::Relaxed)),
        |processor, word| drop(processor.fetch_or_then_fence(word, 1, Ordering::Relaxed)),
    ];
    for operation in operations {
        for _ in 0..ROUNDS {
            let loaded = store_and_load_on_two_cpus(operation);
            assert_ne!(loaded, [0, 0], "each load has passed the store before it");
        }
    }
}

/// How often both stores must be met by both loads. Without a barrier, some of these would not be.
const ROUNDS: usize = 20_000;

fn store_and_load_on_two_cpus(store: fn(&X86_64, &AtomicU64)) -> [u64; 2] {
    todo!()
}
