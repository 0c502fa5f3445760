//! New owners without a hook, by what the kernel does with a frame.

use shootdown_sanitizer::Use;
use shootdown_sanitizer::invalidation::Tags;
use shootdown_sanitizer::report::{Deed, Mode};

use crate::guest::{
    CALLER, ENTRY, FRAME, Guest, KERNEL_PAGE, LARGE, MAPPED, OTHER, PAGE, READ_ONLY, TABLES, UPPER,
    whole,
};

/// A guest in which CPU 1 uses the page, and CPU 0 changes its entry and invalidates nothing on
/// CPU 1.
fn changed(modes: &[Mode], value: u64) -> Guest {
    let guest = Guest::new(modes);
    guest.access(1, PAGE, Use::Store);
    guest.store(0, ENTRY, value);
    guest
}

/// The kernel stores the first words of a frame.
fn fill(guest: &Guest, frame: u64, words: u64) {
    (0..words).for_each(|word| guest.store(0, frame + word * 8, 0));
}

/// What made the only fault one, if there is a fault.
fn deed(guest: &Guest) -> Option<Deed> {
    guest.run(1, true);
    assert!(guest.faults().len() <= 1, "{:?}", guest.faults());
    guest.faults().first().map(|fault| fault.act.deed)
}

#[test]
fn overwritten_frame_has_new_owner() {
    let guest = changed(&[Mode::Reuse], 0);
    fill(&guest, FRAME, 511);
    assert_eq!(deed(&guest), None, "a word is left");
    fill(&guest, FRAME, 512);
    assert_eq!(deed(&guest), Some(Deed::Overwritten));
}

#[test]
fn overwritten_frame_that_is_mapped_is_kept() {
    // The page lost a permission only, or came back.
    let restricted = changed(&Mode::ALL, FRAME | READ_ONLY);
    let back = changed(&Mode::ALL, 0);
    back.store(0, ENTRY, FRAME | MAPPED);
    for guest in [restricted, back] {
        fill(&guest, FRAME, 512);
        assert_eq!(deed(&guest), None);
    }
}

#[test]
fn stores_before_second_loss_do_not_count() {
    let guest = Guest::new(&[Mode::Reuse]);
    guest.sanitizer.host().write(ENTRY + 8, FRAME | MAPPED);
    guest.access(1, PAGE, Use::Load);
    guest.access(1, PAGE + 0x1000, Use::Load);
    guest.store(0, ENTRY, 0);
    fill(&guest, FRAME, 511);
    guest.store(0, ENTRY + 8, 0);
    guest.store(0, FRAME + 511 * 8, 0);
    assert_eq!(deed(&guest), None);
}

#[test]
fn stored_frame_in_other_page_has_new_owner() {
    for (words, expected) in [(0, None), (1, Some(Deed::Mapped))] {
        let guest = changed(&[Mode::Reuse], 0);
        // Without a store by the kernel, both pages may be one file's.
        fill(&guest, FRAME, words);
        guest.store(0, ENTRY + 8, FRAME | MAPPED);
        guest.access(0, PAGE + 0x1000, Use::Load);
        assert_eq!(deed(&guest), expected);
    }
}

#[test]
fn stores_by_pages_of_user_mode_do_not_count() {
    // The program has the frame at another address as well, and writes there.
    let guest = changed(&[Mode::Reuse], 0);
    guest.store(0, ENTRY + 8, FRAME | MAPPED);
    (0..512).for_each(|word| guest.access(0, PAGE + 0x1000 + word * 8, Use::Store));
    assert_eq!(deed(&guest), None);
}

#[test]
fn overwritten_frame_of_large_page_has_new_owner() {
    let guest = Guest::new(&[Mode::Reuse]);
    guest.sanitizer.host().write(UPPER, OTHER | MAPPED | LARGE);
    guest.access(1, PAGE, Use::Load);
    // The kernel has stored into the frame before, so that its stores pass.
    let frame = OTHER + 0x5000;
    fill(&guest, frame, 1);
    guest.store(0, UPPER, 0);
    fill(&guest, frame, 512);
    assert_eq!(deed(&guest), Some(Deed::Overwritten));
}

#[test]
fn stores_after_kernel_page_moves_do_not_count() {
    for (frame, expected) in [(OTHER, None), (FRAME, Some(Deed::Overwritten))] {
        let guest = changed(&[Mode::Reuse], 0);
        guest.map_kernel_page(FRAME);
        let store = |word: u64| guest.access(0, KERNEL_PAGE + word * 8, Use::Store);
        (0..511).for_each(store);
        guest.map_kernel_page(frame);
        guest.invalidate_page(0, KERNEL_PAGE);
        store(511);
        assert_eq!(deed(&guest), expected, "{frame:#x}");
    }
}

#[test]
fn page_that_becomes_table_has_new_owner() {
    let guest = changed(&[Mode::Reuse], 0);
    guest.sanitizer.host().write(FRAME, OTHER | MAPPED);
    guest.store(0, TABLES[1] + 8, FRAME | MAPPED);
    guest.access(0, 0x20_0000, Use::Load);
    assert_eq!(deed(&guest), Some(Deed::Walked));
}

#[test]
fn table_that_becomes_page_has_new_owner() {
    for (value, expected) in [(0, Some(Deed::Mapped)), (TABLES[2] | MAPPED, None)] {
        let guest = Guest::new(&[Mode::Tables]);
        guest.access(1, PAGE, Use::Load);
        guest.sanitizer.host().write(TABLES[1], OTHER | MAPPED);
        guest.sanitizer.host().write(OTHER, TABLES[2] | MAPPED);
        guest.store(0, UPPER, value);
        guest.access(0, 0, Use::Load);
        assert_eq!(deed(&guest), expected);
    }
}

#[test]
fn unused_entry_has_new_owner() {
    let guest = Guest::new(&[Mode::Speculation]);
    guest.store(0, ENTRY, 0);
    guest.invalidate_page(0, PAGE);
    fill(&guest, FRAME, 512);
    assert_eq!(deed(&guest), Some(Deed::Overwritten));
}

#[test]
fn page_in_former_table_is_found() {
    let guest = Guest::new(&[Mode::Reuse]);
    guest.access(0, PAGE, Use::Load);
    guest.store(0, UPPER, 0);
    guest.invalidate(0, whole(Tags::All));
    // The table becomes a page, which CPU 1 writes, and which is lost.
    guest.sanitizer.host().write(TABLES[1], OTHER | MAPPED);
    guest.sanitizer.host().write(OTHER, TABLES[2] | MAPPED);
    for _ in 0..3 {
        guest.access(1, 0, Use::Store);
    }
    guest.store(0, OTHER, 0);
    guest.reuse(0, TABLES[2]);
    assert_eq!(deed(&guest), Some(Deed::Reused(0)));
}

#[test]
fn report_has_callers_of_change_and_act() {
    let guest = changed(&[Mode::Reuse], 0);
    guest.reuse(1, FRAME);
    guest.run(1, true);
    let fault = &guest.faults()[0];
    assert_eq!(
        (&fault.change_callers[..], &fault.act_callers[..]),
        (&[CALLER][..], &[CALLER + 1][..])
    );
}
