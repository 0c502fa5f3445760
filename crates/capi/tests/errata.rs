//! Duties and settings that errata of processors need from a kernel in C.

#![expect(unsafe_code, reason = "constructors have promises")]

use shootdown_hw::aarch64::Features;
use shootdown_hw::aarch64::granule::Granule;
use shootdown_hw::errata::Workarounds;

use crate::config::{
    BroadcastConfig, Config, NotifyCosts, SHOOTDOWN_DUTY_BREAK_EXECUTABLE,
    SHOOTDOWN_DUTY_IGNORE_LATE_MARKS, SHOOTDOWN_DUTY_NO_DIRTY_MARKS, SHOOTDOWN_NEVER_BROADCAST,
};
use crate::errata::{aarch64, duties};

#[allow(dead_code, unreachable_pub, reason = "the library uses the rest")]
#[path = "../src/config.rs"]
mod config;
#[path = "../src/errata.rs"]
mod errata;

#[test]
fn duties_are_those_of_the_workarounds() {
    let each = [
        (Workarounds::BREAK_EXECUTABLE, SHOOTDOWN_DUTY_BREAK_EXECUTABLE),
        (Workarounds::NO_DIRTY_MARKS, SHOOTDOWN_DUTY_NO_DIRTY_MARKS),
        (Workarounds::LATE_MARKS, SHOOTDOWN_DUTY_IGNORE_LATE_MARKS),
        (Workarounds::SME_INTERRUPT, 0),
        (Workarounds::NONE, 0),
    ];
    for (workarounds, expected) in each {
        assert_eq!(duties(workarounds), expected, "{workarounds:?}");
    }
    let all = each.iter().fold(Workarounds::NONE, |all, (each, _)| all.with(*each));
    assert_eq!(duties(all), 7);
}

extern "C" fn interrupt() {}

#[test]
fn sme_interrupt_allows_broadcasts() {
    let costs = NotifyCosts {
        interrupt_ns: 0,
        interrupt_each_ns: 0,
        broadcast_ns: 0,
        broadcast_each_ns: 0,
        operation_ns: 0,
    };
    let broadcast =
        BroadcastConfig { reach: 0, pages_per_operation: 0, operation_ceiling: 0, costs };
    let config = Config {
        layout: 0,
        kernel_root: 0,
        interrupt_sme: None,
        wake_waiters: None,
        mark_user_half: None,
        cpu_limit: 0,
        processor: 0,
        traps_stale_writes: false,
        tolerates_mixed_sizes: false,
        tagging: 0,
        tag_count: 0,
        flush_ceiling: 0,
        broadcast,
    };
    let features = Features {
        tag_bits: 16,
        granule: Granule::Size4K,
        kernel_granule: Granule::Size4K,
        has_large_leaves: false,
        domain_bits: 0,
        has_ranges: true,
        has_level_hints: true,
        marks_writes: false,
        counter_hz: 0,
        workarounds: Workarounds::SME_INTERRUPT,
    };
    let has_broadcasts = |interrupt_sme, processor| {
        let config = Config { interrupt_sme, processor, ..config };
        // SAFETY: nothing uses the processor.
        unsafe { aarch64(features, &config) }.has_broadcasts()
    };
    assert!(!has_broadcasts(None, 0));
    assert!(has_broadcasts(Some(interrupt), 0));
    assert!(!has_broadcasts(Some(interrupt), SHOOTDOWN_NEVER_BROADCAST));
}
