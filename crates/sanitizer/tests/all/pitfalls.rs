//! Mistakes of the first sanitizer, and states that it must refuse: a test for each.

use shootdown_sanitizer::Use;
use shootdown_sanitizer::invalidation::{Pointers, Tags};
use shootdown_sanitizer::report::Mode;

use crate::guest::{ENTRY, FRAME, Guest, LARGE, MAPPED, OTHER, PAGE, ROOT, TABLES, UPPER, whole};

#[test]
fn one_invalidation_drops_whole_large_page() {
    let guest = Guest::new(&[Mode::Reuse]);
    guest.sanitizer.host().write(UPPER, OTHER | MAPPED | LARGE);
    for offset in [0, 0x1000, 0x1f_f000] {
        guest.access(1, PAGE + offset, Use::Store);
    }
    assert_eq!(guest.sanitizer.totals().fills, 1, "one entry covers 2 MiB");
    guest.store(0, UPPER, 0);
    guest.invalidate_page(1, PAGE + 0x5000);
    guest.reuse(0, OTHER + 0x3000);
    guest.run(1, true);
    assert_eq!(guest.faults(), []);
}

#[test]
fn no_part_of_dropped_large_page_is_known() {
    let guest = Guest::new(&[Mode::Reuse]);
    guest.sanitizer.host().write(UPPER, OTHER | MAPPED | LARGE);
    for _ in 0..2 {
        guest.access(1, PAGE + 0x3000, Use::Store);
    }
    guest.invalidate_page(1, PAGE);
    guest.access(1, PAGE + 0x3000, Use::Store);
    assert_eq!(guest.sanitizer.totals().fills, 2);
}

#[test]
fn any_frame_of_large_page_is_reported() {
    let guest = Guest::new(&[Mode::Reuse]);
    guest.sanitizer.host().write(UPPER, OTHER | MAPPED | LARGE);
    guest.access(1, PAGE, Use::Store);
    guest.store(0, UPPER, 0);
    guest.invalidate_page(1, PAGE + (2 << 20));
    guest.reuse(0, OTHER + 0x1f_f000);
    guest.run(1, true);
    assert_eq!((guest.faults()[0].frame, guest.faults()[0].bytes), (OTHER, 2 << 20));
}

#[test]
fn nothing_is_forgotten_by_capacity() {
    let guest = Guest::new(&[Mode::Reuse]);
    guest.access(1, PAGE, Use::Load);
    // 80 MiB of other pages, 40 tables of them.
    let pages = 20_480;
    for number in 0..pages {
        let (table, index) = (0x100_0000 + (number / 512) * 0x1000, number % 512);
        let memory = guest.sanitizer.host();
        memory.write(TABLES[1] + (8 + number / 512) * 8, table | MAPPED);
        memory.write(table + index * 8, (0x1000_0000 + number * 0x1000) | MAPPED);
        guest.access(1, (16 << 20) + number * 0x1000, Use::Load);
    }
    assert_eq!(guest.sanitizer.totals().fills, pages + 1);
    guest.store(0, ENTRY, 0);
    guest.reuse(0, FRAME);
    guest.run(1, true);
    assert_eq!(guest.faults().len(), 1);
}

#[test]
fn old_frame_is_kept_though_tables_have_new_one() {
    // The emulator has evicted its entry, and uses the new frame.
    let guest = Guest::new(&[Mode::Reuse]);
    guest.access(1, PAGE, Use::Load);
    guest.store(0, ENTRY, OTHER | MAPPED);
    guest.access(1, PAGE, Use::Store);
    guest.reuse(0, FRAME);
    guest.access(1, PAGE + 8, Use::Store);
    assert!(guest.faults()[0].is_used && guest.faults()[0].frame == FRAME);
}

#[test]
fn refused_access_walks_again() {
    // Copy on write: the CPU that faults drops its own entry.
    let guest = Guest::new(&[Mode::Reuse]);
    guest.sanitizer.host().write(ENTRY, FRAME | 5);
    guest.access(1, PAGE, Use::Load);
    guest.store(1, ENTRY, OTHER | MAPPED);
    guest.access(1, PAGE, Use::Store);
    guest.reuse(1, FRAME);
    guest.run(1, true);
    assert_eq!(guest.faults(), []);
}

#[test]
fn refused_access_drops_large_page() {
    let guest = Guest::new(&[Mode::Reuse]);
    guest.sanitizer.host().write(UPPER, OTHER | 5 | LARGE);
    guest.access(1, PAGE, Use::Load);
    guest.store(1, UPPER, TABLES[2] | MAPPED);
    guest.access(1, PAGE, Use::Store);
    guest.reuse(1, OTHER);
    guest.run(1, true);
    assert_eq!(guest.faults(), []);
}

#[test]
fn cpu_without_user_code_is_not_counted() {
    let guest = Guest::new(&[Mode::Reuse]);
    guest.run(0, true);
    guest.run(1, false);
    assert_eq!(guest.sanitizer.totals().cpus_in_user_mode, 1);
}

#[test]
fn load_that_keeps_pcid_drops_nothing() {
    let guest = Guest::new(&[Mode::Reuse]);
    let context = guest.sanitizer.context(1);
    let write = |value| {
        let operation = shootdown_sanitizer::arch::Operation::WriteControl(3);
        guest.arch().execute(operation, [value, 0], &context, &|_| None).invalidation
    };
    assert_eq!(write(1 << 63 | 5), None);
    assert_eq!(write(5), Some(whole(Tags::One(5))));
    assert_eq!(guest.arch().pointers_with_page(), Pointers::All);
}

#[test]
fn cpu_plugged_again_has_empty_tlb() {
    let guest = Guest::new(&[Mode::Reuse]);
    guest.access(1, PAGE, Use::Load);
    guest.store(0, ENTRY, 0);
    guest.sanitizer.add_cpu(1);
    guest.reuse(0, FRAME);
    guest.run(1, true);
    assert_eq!(guest.faults(), []);
}

#[test]
fn reset_cpu_has_empty_tlb() {
    let off = |guest: &Guest| guest.arch().context(&[0, 0, 0, 0]);
    for (resumes, faults) in [(true, 0), (false, 1)] {
        let guest = Guest::new(&[Mode::Reuse]);
        guest.access(1, PAGE, Use::Load);
        guest.store(0, ENTRY, 0);
        // A guest that disables translation itself keeps its TLB.
        match resumes {
            true => guest.sanitizer.resume(1, off(&guest)),
            false => guest.sanitizer.select_tables(1, off(&guest)),
        }
        guest.load_root(1, ROOT);
        guest.reuse(0, FRAME);
        guest.run(1, true);
        assert_eq!(guest.faults().len(), faults);
    }
}

#[test]
fn halted_cpu_keeps_its_tlb() {
    let guest = Guest::new(&[Mode::Reuse]);
    guest.access(1, PAGE, Use::Load);
    guest.store(0, ENTRY, 0);
    guest.sanitizer.resume(1, guest.sanitizer.context(1));
    guest.reuse(0, FRAME);
    guest.run(1, true);
    assert_eq!(guest.faults().len(), 1);
}

#[test]
fn frame_beyond_limit_is_refused_once() {
    // An address of the kernel in place of a physical one: the hook has another unit.
    const LIMIT: u64 = 2 << 40;
    let guest = Guest::new(&[Mode::Reuse]);
    guest.reuse(0, LIMIT - 0x1000);
    assert_eq!((guest.refused().len(), guest.sanitizer.totals().reused), (0, 1));
    for _ in 0..2 {
        guest.reuse(0, LIMIT);
    }
    assert_eq!((guest.refused().len(), guest.sanitizer.totals().reused), (1, 1));
    let with_page = Guest::new(&[Mode::Reuse]);
    for (frame, refused) in [(LIMIT - 0x1000, 0), (LIMIT, 1)] {
        with_page.sanitizer.host().write(ENTRY, frame | MAPPED);
        with_page.invalidate_page(1, PAGE);
        with_page.access(1, PAGE, Use::Load);
        assert_eq!(with_page.refused().len(), refused);
    }
}

#[test]
fn granules_other_than_4_kib_are_refused() {
    for (granule, refused) in [(0, 0), (1, 1), (2, 1)] {
        let guest = Guest::of("aarch64", &[Mode::Reuse]);
        let registers = [1, ROOT, 0, 16 | granule << 14 | 1 << 23];
        guest.sanitizer.select_tables(1, guest.arch().context(&registers));
        // A pointer, and a block.
        guest.sanitizer.host().write(ROOT, 0x2_0003);
        guest.sanitizer.host().write(0x2_0000, 1 | 1 << 6);
        guest.access(1, 0x1000, Use::Load);
        assert_eq!((guest.refused().len(), guest.sanitizer.totals().fills), (refused, 1));
    }
}
