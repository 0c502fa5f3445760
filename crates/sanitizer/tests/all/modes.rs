//! Each mode: the fault that it reports, and the right kernels that it does not.

use shootdown_sanitizer::Use;
use shootdown_sanitizer::invalidation::{Left, Tags};
use shootdown_sanitizer::report::Mode;

use crate::guest::{
    ENTRY, FRAME, GLOBAL, Guest, KERNEL_PAGE, MAPPED, OTHER, PAGE, READ_ONLY, ROOT, TABLES, UPPER,
    last_level, whole,
};

/// CPU 1 uses the page; CPU 0 unmaps it, invalidates it on itself, and gives the frame away.
fn unmap(guest: &Guest) {
    guest.access(0, PAGE, Use::Load);
    guest.access(1, PAGE, Use::Store);
    guest.store(0, ENTRY, 0);
    guest.invalidate_page(0, PAGE);
}

#[test]
fn old_entry_of_other_cpu_is_reported_once() {
    let guest = Guest::new(&[Mode::Reuse]);
    unmap(&guest);
    guest.reuse(0, FRAME);
    guest.run(0, true);
    assert_eq!(guest.faults(), [], "CPU 0 has invalidated it");
    guest.run(1, true);
    guest.run(1, true);
    let [fault] = &guest.faults()[..] else { panic!("{:?}", guest.faults()) };
    assert_eq!((fault.mode, fault.cpu, fault.page, fault.frame), (Mode::Reuse, 1, PAGE, FRAME));
    assert!(fault.is_writable && !fault.is_used);
    assert_eq!(fault.change.expect("the store was seen").cpu, 0);
    assert_eq!(fault.later, []);
}

#[test]
fn invalidated_cpu_is_not_reported() {
    let guest = Guest::new(&Mode::ALL);
    unmap(&guest);
    guest.invalidate_page(1, PAGE);
    guest.settle(0);
    guest.reuse(0, FRAME);
    guest.run(1, true);
    assert_eq!(guest.faults(), []);
}

#[test]
fn entry_dropped_before_user_mode_is_counted() {
    let guest = Guest::new(&Mode::ALL);
    unmap(&guest);
    guest.reuse(0, FRAME);
    guest.run(1, false);
    guest.invalidate(1, whole(Tags::AllButGlobal));
    guest.run(1, true);
    assert_eq!(guest.faults(), []);
    assert_eq!(guest.sanitizer.totals().dropped_in_time, 1);
}

#[test]
fn entry_of_other_tag_waits_for_its_tag() {
    let guest = Guest::new(&[Mode::Reuse]);
    unmap(&guest);
    guest.load_root(1, ROOT | 5);
    guest.reuse(0, FRAME);
    guest.run(1, true);
    assert_eq!(guest.faults(), [], "tag 0 is not loaded");
    guest.load_root(1, ROOT);
    guest.run(1, true);
    assert_eq!(guest.faults().len(), 1);
}

#[test]
fn report_explains_why_invalidations_left_entry() {
    let guest = Guest::new(&[Mode::Reuse]);
    guest.sanitizer.host().write(ENTRY, FRAME | MAPPED | GLOBAL);
    unmap(&guest);
    guest.invalidate_page(1, PAGE + 0x1000);
    guest.invalidate(1, whole(Tags::AllButGlobal));
    guest.reuse(0, FRAME);
    guest.run(1, true);
    let left: Vec<_> = guest.faults()[0].later.iter().map(|later| later.left).collect();
    assert_eq!(left, [Left::OtherPages, Left::Global]);
}

#[test]
fn removed_permission_is_reported_after_settling() {
    let guest = Guest::new(&[Mode::Permission]);
    guest.access(1, PAGE, Use::Store);
    // Each store is an event, also the later ones into the same table.
    for bits in [MAPPED, MAPPED, READ_ONLY] {
        guest.store(0, ENTRY, FRAME | bits);
    }
    guest.run(1, true);
    assert_eq!(guest.faults(), [], "the flush may still come");
    guest.settle(0);
    guest.run(1, true);
    assert_eq!(guest.faults()[0].mode, Mode::Permission);
}

#[test]
fn cleared_upper_level_changes_pages_below() {
    for (source, value) in [(UPPER, 0), (UPPER, TABLES[2] | READ_ONLY), (ROOT, 0)] {
        let guest = Guest::new(&[Mode::Permission]);
        guest.access(1, PAGE, Use::Store);
        // The pointers are gone, and the page is not.
        guest.invalidate_page(1, PAGE + 0x1000);
        guest.store(0, source, value);
        guest.settle(0);
        guest.run(1, true);
        let [fault] = &guest.faults()[..] else { panic!("{source:#x}: {:?}", guest.faults()) };
        assert_eq!((fault.mode, fault.page), (Mode::Permission, PAGE));
    }
}

#[test]
fn upper_level_put_back_is_no_fault() {
    let guest = Guest::new(&[Mode::Permission]);
    guest.access(1, PAGE, Use::Store);
    for value in [0, TABLES[2] | MAPPED, TABLES[2] | MAPPED | 0x20] {
        guest.store(0, UPPER, value);
    }
    guest.settle(0);
    guest.run(1, true);
    assert_eq!(guest.faults(), []);
}

#[test]
fn kernel_page_below_cleared_table_is_reported() {
    let guest = Guest::new(&[Mode::Reuse]);
    guest.map_kernel_page(OTHER);
    guest.access(1, KERNEL_PAGE, Use::Load);
    guest.store(0, 0x7000, 0);
    guest.reuse(0, OTHER);
    guest.access(1, KERNEL_PAGE, Use::Load);
    assert_eq!(guest.faults().len(), 1);
}

#[test]
fn root_of_exited_program_leaves_kernel_pages() {
    // CPU 1 has used the kernel's page in a space whose root is freed and cleared.
    let guest = Guest::new(&[Mode::Reuse]);
    guest.map_kernel_page(OTHER);
    guest.access(1, KERNEL_PAGE, Use::Load);
    let (root, entry) = (0x9000, (KERNEL_PAGE >> 39 & 511) * 8);
    guest.sanitizer.host().write(root + entry, 0x6000 | 3);
    guest.load_root(1, root);
    guest.store(0, ROOT + entry, 0);
    guest.reuse(0, OTHER);
    guest.access(1, KERNEL_PAGE, Use::Load);
    assert_eq!(guest.faults(), []);
}

#[test]
fn permission_given_back_is_no_fault() {
    let guest = Guest::new(&[Mode::Permission]);
    guest.access(1, PAGE, Use::Store);
    guest.store(0, ENTRY, FRAME | READ_ONLY);
    guest.store(0, ENTRY, FRAME | MAPPED);
    guest.settle(0);
    guest.run(1, true);
    assert_eq!(guest.faults(), []);
}

#[test]
fn accessed_and_dirty_bits_change_nothing() {
    let guest = Guest::new(&[Mode::Permission]);
    guest.access(1, PAGE, Use::Store);
    guest.store(0, ENTRY, FRAME | MAPPED | 0x60);
    guest.settle(0);
    guest.run(1, true);
    assert_eq!(guest.faults(), []);
}

#[test]
fn freed_table_is_reported_in_kernel() {
    let guest = Guest::new(&[Mode::Tables]);
    guest.access(1, PAGE, Use::Load);
    guest.store(0, UPPER, 0);
    // The last level is dropped, and the pointer stays.
    guest.invalidate(1, last_level(PAGE));
    guest.reuse(0, TABLES[2]);
    guest.run(1, false);
    let fault = &guest.faults()[0];
    assert_eq!((fault.mode, fault.frame, fault.bytes), (Mode::Tables, TABLES[2], 2 << 20));
    assert_eq!(fault.later[0].left, Left::LastLevelOnly);
}

#[test]
fn old_pointer_stays_beside_new_pages() {
    let guest = Guest::new(&[Mode::Tables]);
    guest.access(1, PAGE, Use::Load);
    let memory = guest.sanitizer.host();
    memory.write(OTHER + 8, FRAME | MAPPED);
    guest.store(0, UPPER, OTHER | MAPPED);
    guest.access(1, PAGE + 0x1000, Use::Load);
    guest.reuse(0, TABLES[2]);
    guest.run(1, false);
    assert_eq!(guest.faults()[0].frame, TABLES[2]);
}

#[test]
fn store_before_first_walk_is_seen_after_it() {
    // CPU 0 stores into a frame that becomes a table only when CPU 1 walks it.
    let guest = Guest::new(&[Mode::Permission]);
    for _ in 0..2 {
        guest.store(0, ENTRY, FRAME | MAPPED);
    }
    guest.access(1, PAGE, Use::Store);
    guest.store(0, ENTRY, 0);
    guest.settle(0);
    guest.run(1, true);
    assert_eq!(guest.faults().len(), 1);
}

#[test]
fn freed_table_without_pointer_is_no_fault() {
    let guest = Guest::new(&[Mode::Tables]);
    guest.access(1, PAGE, Use::Load);
    guest.store(0, UPPER, 0);
    guest.invalidate_page(1, PAGE);
    guest.reuse(0, TABLES[2]);
    guest.run(1, false);
    assert_eq!(guest.faults(), []);
}

#[test]
fn other_frame_of_two_mib_is_no_table() {
    // A pointer covers many addresses, but its table is one frame.
    let guest = Guest::new(&[Mode::Tables]);
    guest.access(1, PAGE, Use::Load);
    guest.reuse(0, OTHER);
    guest.run(1, true);
    assert_eq!(guest.faults(), []);
    let at_boundary = Guest::new(&[Mode::Tables]);
    let table = OTHER;
    at_boundary.sanitizer.host().write(UPPER, table | MAPPED);
    at_boundary.sanitizer.host().write(table, FRAME | MAPPED);
    // The CPU has used the other frame, and does not any more.
    at_boundary.sanitizer.host().write(table + 8, (table + 0x3000) | MAPPED);
    at_boundary.access(1, PAGE + 0x1000, Use::Load);
    at_boundary.invalidate_page(1, PAGE + 0x1000);
    at_boundary.access(1, PAGE, Use::Load);
    at_boundary.reuse(0, table + 0x3000);
    at_boundary.run(1, true);
    assert_eq!(at_boundary.faults(), []);
}

#[test]
fn kernel_page_is_reported_when_used() {
    // The kernel unmaps a page of its own, frees the frame, and flushes later.
    let guest = Guest::new(&[Mode::Reuse]);
    guest.map_kernel_page(OTHER);
    guest.access(1, KERNEL_PAGE, Use::Load);
    guest.store(0, 0x8000, 0);
    guest.reuse(0, OTHER);
    guest.run(1, false);
    guest.run(1, true);
    assert_eq!(guest.faults(), [], "nobody uses the page");
    guest.access(1, KERNEL_PAGE, Use::Load);
    assert!(guest.faults()[0].is_used);
}

#[test]
fn frames_that_kernel_keeps_mapped_are_no_faults() {
    let guest = Guest::new(&Mode::ALL);
    guest.map_kernel_page(OTHER);
    guest.store(1, OTHER, 1);
    guest.access(1, KERNEL_PAGE, Use::Load);
    guest.reuse(0, OTHER);
    guest.store(1, OTHER, 2);
    guest.access(1, KERNEL_PAGE, Use::Load);
    guest.run(1, true);
    assert_eq!(guest.faults(), []);
}

#[test]
fn table_that_became_ordinary_is_forgotten() {
    let guest = Guest::new(&Mode::ALL);
    guest.access(1, PAGE, Use::Load);
    guest.store(0, UPPER, 0);
    for cpu in 0..2 {
        guest.invalidate(cpu, whole(Tags::All));
    }
    let before = guest.sanitizer.totals().table_stores;
    for value in 0..4 {
        guest.store(0, TABLES[2] + 0x800, value);
    }
    assert_eq!(guest.sanitizer.totals().table_stores, before + 1);
}

#[test]
fn unused_entry_is_reported_by_speculation_alone() {
    for (mode, count) in [(Mode::Reuse, 0), (Mode::Speculation, 1)] {
        let guest = Guest::new(&[mode]);
        // No CPU has used the page.
        guest.store(0, ENTRY, 0);
        guest.invalidate_page(0, PAGE);
        guest.reuse(0, FRAME);
        guest.run(0, true);
        assert_eq!(guest.faults(), []);
        guest.run(1, true);
        assert_eq!(guest.faults().len(), count);
    }
}

#[test]
fn table_that_was_linked_later_is_walked() {
    let guest = Guest::new(&[Mode::Speculation]);
    guest.sanitizer.host().write(OTHER, FRAME | MAPPED);
    guest.store(0, TABLES[1], OTHER | MAPPED);
    // The table is freed, its pages with it, and nothing is invalidated.
    guest.store(0, TABLES[1], 0);
    guest.reuse(0, FRAME);
    guest.run(1, true);
    let [fault] = &guest.faults()[..] else { panic!("{:?}", guest.faults()) };
    assert_eq!((fault.page, fault.frame, fault.change.is_some()), (0, FRAME, true));
    guest.reuse(0, OTHER);
    guest.run(1, false);
    assert_eq!(guest.faults()[1].frame, OTHER);
}

#[test]
fn unused_entry_is_held_while_its_space_was_loaded() {
    // CPU 1 leaves the space before the page is mapped, or between that and its removal.
    for (leaves_before, flushes, count) in [(true, false, 0), (false, false, 1), (false, true, 0)] {
        let guest = Guest::new(&[Mode::Speculation]);
        guest.store(0, ENTRY, 0);
        guest.invalidate(0, whole(Tags::All));
        guest.invalidate(1, whole(Tags::All));
        let leave = || guest.load_root(1, OTHER | 5);
        if leaves_before {
            leave();
        }
        guest.store(0, ENTRY, FRAME | MAPPED);
        if !leaves_before {
            leave();
        }
        if flushes {
            guest.invalidate(1, whole(Tags::One(0)));
        }
        guest.store(0, ENTRY, 0);
        guest.reuse(0, FRAME);
        guest.run(1, true);
        assert_eq!(guest.faults(), [], "another space is loaded");
        guest.load_root(1, ROOT);
        guest.run(1, true);
        assert_eq!(guest.faults().len(), count, "{leaves_before} {flushes}");
    }
}

#[test]
fn unused_permission_is_reported_after_settling() {
    for (value, count) in [(FRAME | MAPPED | 0x60, 0), (FRAME | READ_ONLY, 1)] {
        let guest = Guest::new(&[Mode::Speculation]);
        guest.store(0, ENTRY, value);
        guest.run(1, true);
        assert_eq!(guest.faults(), [], "the flush may still come");
        guest.settle(0);
        guest.run(1, true);
        assert_eq!(guest.faults().len(), count, "{value:#x}");
    }
}
