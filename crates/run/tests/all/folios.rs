//! Replays of recordings in which Linux split large folios of files.

use shootdown_designs::Linux70;
use shootdown_recording::record::{
    Event, FlushReason, Frame, FrameId, Layer, Left, SpaceId, TaskId,
};

use crate::replay::*;

/// Two threads that use a page each of a mapping.
fn sharing_mapping(flags: u32) -> Script {
    Script::two_threads()
        .map_with(0, PAGE, 4 << 20, flags)
        .fault(0, PAGE, WRITE_ABSENT)
        .fault(1, PAGE + 4096, READ_ABSENT)
        .after_ns(100_000)
}

/// Returns `true` if one entry maps the pages of [`sharing_mapping`] at the end of a script: a call
/// that unmaps another page then flushes.
fn is_folio(script: Script) -> bool {
    let script = script.fault(0, PAGE, WRITE_ABSENT).after_ns(100_000);
    let before = flushes(&script);
    flushes(&script.unmap(0, PAGE + (9 << 12), &[])) != before
}

#[test]
fn full_flush_of_one_page_splits_a_folio() {
    let split = sharing_mapping(MAP_SHARED).split(0, PAGE + (7 << 12));
    assert_eq!(flushes(&split), (2, 0, 1));
    assert!(is_folio(split));
    let anonymous = sharing_mapping(MAP_PRIVATE | MAP_ANONYMOUS).split(0, PAGE + (7 << 12));
    assert_eq!(flushes(&anonymous), (0, 0, 0));
}

#[test]
fn ranged_flush_of_one_page_is_of_a_small_page() {
    let small = sharing_mapping(MAP_SHARED).advise(0, PAGE, 1, DONT_NEED);
    assert_eq!(flushes(&small), (0, 2, 1));
    assert!(!is_folio(sharing_mapping(MAP_SHARED).advise(0, PAGE, 1, DONT_NEED)));
    // The majority decides.
    let more = sharing_mapping(MAP_SHARED).split(0, PAGE).advise(0, PAGE, 1, DONT_NEED);
    assert!(!is_folio(more));
}

#[test]
fn full_flush_within_another_call_is_no_split() {
    let nested = |script: Script| {
        let script = script.begin_advice(1, PAGE + 4096, 1, DONT_NEED).split(0, PAGE);
        script.on(1, Event::Return { value: 0 })
    };
    assert!(!is_folio(nested(sharing_mapping(MAP_SHARED))));
}

#[test]
fn call_stack_shows_a_split() {
    let call = |frame, caller, function: &str| Event::Frame {
        frame: FrameId(frame),
        caller: FrameId(caller),
        function: Frame {
            layer: Layer::Kernel,
            function: function.to_owned(),
            file: String::new(),
            line: 0,
        },
    };
    let with_stack = |callee| {
        sharing_mapping(MAP_SHARED)
            .begin_advice(1, PAGE + 4096, 1, DONT_NEED)
            .begin_advice(0, PAGE, 1, DONT_NEED)
            .on(0, Event::Flush { reason: FlushReason::Request, pages: None })
            .on(0, call(1, 0, "do_madvise"))
            .on(0, call(2, 1, callee))
            .on(0, call(3, 2, "flush_tlb_mm_range"))
            .on(0, Event::Stack { frame: FrameId(3), requests: 1 })
            .on(0, Event::Flush { reason: FlushReason::LocalSpace, pages: None })
            .on(0, Event::Return { value: 0 })
            .on(1, Event::Return { value: 0 })
    };
    assert!(is_folio(with_stack("__split_huge_pmd_locked")));
    assert!(!is_folio(with_stack("tlb_finish_mmu")));
}

#[test]
fn write_to_a_folio_that_was_read_splits_it() {
    let read = Script::two_threads()
        .map_with(0, PAGE, 4 << 20, MAP_SHARED)
        .fault(0, PAGE, READ_ABSENT)
        .fault(1, PAGE + 4096, READ_ABSENT)
        .after_ns(100_000);
    let written = read
        .fault(0, PAGE, WRITE_REFUSED)
        .on(0, Event::Flush { reason: FlushReason::LocalSpace, pages: None })
        .after_ns(100_000);
    assert_eq!(flushes(&written), (2, 0, 1));
    assert!(is_folio(written));
}

/// Two threads that discard pages of a file on tmpfs with huge pages (`programs/folios.c`).
#[test]
fn splits_of_folios_are_replayed() {
    let file = include_bytes!("../../../../traces/folios/tmpfs.shootdown");
    let kernel = survey(file).kernel;
    let outcome = under_recorded_schedule(file, Linux70::uncounted).unwrap();
    let counts = &outcome.counts;
    let full = counts.flushes_full - counts.flushes_full_at_switch;
    let ranged = counts.flushes_ranged - counts.flushes_ranged_at_switch;
    for (predicted, real) in [(full, kernel.flushes_full), (ranged, kernel.flushes_ranged)] {
        assert!(10 * predicted.abs_diff(real) <= real, "{predicted} instead of {real}");
    }
    assert!(outcome.memory.folios_split > 800, "{:?}", outcome.memory);
    assert_eq!((outcome.violations, outcome.dropped_steps), (0, 0));
}

#[test]
fn child_inherits_folios_of_its_parent() {
    let (child, space) = (TaskId(3), SpaceId(1));
    let script = Script::two_threads()
        .map_with(0, PAGE, 4 << 20, MAP_SHARED)
        .on(0, Event::Spawn { task: child, space, name: String::new() })
        .on(0, Event::Switch { next: child, left: Left::Blocked })
        .fault(0, PAGE, WRITE_ABSENT)
        .after_ns(100_000);
    let (full, ranged, interrupts) = flushes(&script);
    // Only the child's CPU has its space loaded.
    assert_eq!(flushes(&script.split(0, PAGE + 4096)), (full + 1, ranged, interrupts));
}
