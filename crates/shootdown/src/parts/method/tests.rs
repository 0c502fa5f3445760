use super::*;
use NotifyMethod::{Broadcast as ByBroadcast, Interrupt as ByInterrupt};
use proptest::prelude::*;

const COSTS: NotifyCosts = NotifyCosts {
    interrupt_ns: 2000,
    interrupt_each_ns: 500,
    broadcast_ns: 1000,
    broadcast_each_ns: 0,
    operation_ns: 100,
};

#[test]
fn cpus_favour_broadcasts_operations_favour_interrupts() {
    let policy = NotifyPolicy::new();
    assert_eq!(policy.choose(&COSTS, 1, 1), ByBroadcast);
    // 2500 ns, against 1000 ns and 100 ns for each operation but the first.
    assert_eq!(policy.choose(&COSTS, 1, 60), ByInterrupt);
    assert_eq!(policy.choose(&COSTS, 60, 60), ByBroadcast);
}

#[test]
fn equal_costs_keep_the_method() {
    assert_eq!(NotifyPolicy::new().choose(&NotifyCosts::default(), 3, 1), ByInterrupt);
    for first in [ByInterrupt, ByBroadcast] {
        let policy = NotifyPolicy::new();
        policy.last.set(Some(first));
        for (interrupt_ns, broadcast_ns) in [(100, 100), (100, 90), (90, 100), (0, 0)] {
            let costs = NotifyCosts { interrupt_ns, broadcast_ns, ..NotifyCosts::default() };
            assert_eq!(policy.choose(&costs, 3, 1), first);
        }
    }
}

#[test]
fn overflowing_costs_saturate() {
    let policy = NotifyPolicy::new();
    let dear = NotifyCosts { interrupt_each_ns: u64::MAX, interrupt_ns: 9, ..COSTS };
    assert_eq!(policy.choose(&dear, 4, 1), ByBroadcast);
    let dear = NotifyCosts { broadcast_ns: u64::MAX, operation_ns: 7, ..COSTS };
    assert_eq!(policy.choose(&dear, 4, 9), ByInterrupt);
    policy.record_completion(&COSTS, u64::MAX);
    assert_eq!(policy.choose(&COSTS, 4, 1), ByInterrupt);
}

/// A queue is detected within a few broadcasts, avoided for a while, and then tried again.
#[test]
fn queueing_is_measured_and_forgotten() {
    let policy = NotifyPolicy::new();
    let is_chosen = |chosen| policy.choose(&COSTS, 1, 1) == chosen;
    let broadcasts = (0..9).take_while(|_| is_chosen(ByBroadcast));
    let broadcasts = broadcasts.inspect(|_| policy.record_completion(&COSTS, 100_000)).count();
    assert!((1..=4).contains(&broadcasts), "{broadcasts}");
    let interrupts = 1 + (0..999).take_while(|_| is_chosen(ByInterrupt)).count();
    assert!((50..=400).contains(&interrupts), "{interrupts}");
}

/// If all CPUs flush, most of them poll their bells, and interrupts cost less than the
/// machine's figure.
#[test]
fn coalesced_rings_make_interrupts_cheaper() {
    let policy = NotifyPolicy::new();
    let costs = NotifyCosts { broadcast_ns: 2000, ..COSTS };
    assert_eq!(policy.choose(&costs, 4, 1), ByBroadcast);
    policy.record_rings(0, 0);
    assert_eq!(policy.choose(&costs, 4, 1), ByBroadcast);
    (0..8).for_each(|_| policy.record_rings(1, 3));
    assert_eq!(policy.choose(&costs, 4, 1), ByInterrupt);
    (0..16).for_each(|_| policy.record_rings(4, 0));
    assert_eq!(policy.choose(&costs, 4, 1), ByBroadcast);
    policy.interrupts_of_128.set(64);
    assert_eq!(policy.discounted(12_800), 6400);
}

#[test]
fn share_of_interrupts_has_a_floor() {
    let policy = NotifyPolicy::new();
    let discounted = [0, 47, 48, 49].map(|share| {
        policy.interrupts_of_128.set(share);
        policy.discounted(12_800)
    });
    assert_eq!(discounted, [4800, 4800, 4800, 4900]);
}

/// If broadcasts cost time for each CPU, interrupts are tried first, and later as often as the
/// possible saving allows. If broadcasts cost the same for any number of CPUs, or interrupts
/// are excluded, there is no trial.
#[test]
#[cfg_attr(miri, ignore = "thousands of steps, without unsafe code")]
fn interrupts_are_tried_occasionally() {
    let trials = |costs: NotifyCosts| {
        let policy = NotifyPolicy::new();
        let tries =
            |count: u64| (0..count).filter(|_| policy.choose(&costs, 2, 1) == ByInterrupt).count();
        (tries(1), tries(1600))
    };
    assert_eq!(trials(COSTS), (0, 0));
    // 3000 ns against 1200 ns: one trial whenever 8 x 1800 ns have been spent, 200 ns a time.
    let by_target = NotifyCosts { broadcast_each_ns: 100, ..COSTS };
    assert_eq!(trials(by_target), (1, 1600 / 73));
    let alone = NotifyCosts { interrupt_ns: u64::MAX, ..by_target };
    assert_eq!(trials(alone), (0, 0));
}

#[test]
fn many_operations_are_not_a_queue() {
    let policy = NotifyPolicy::new();
    (0..100).for_each(|_| policy.record_completion(&COSTS, COSTS.broadcast_ns + 8000));
    assert!((7990..=8000).contains(&policy.queueing_ns.get()), "a queue of 8 µs");
    for _ in 0..100 {
        policy.outstanding.set(50);
        policy.record_completion(&COSTS, COSTS.broadcast_ns + 49 * COSTS.operation_ns);
    }
    assert_eq!(policy.queueing_ns.get(), 0);
}

/// A virtual CPU that is not running answers after milliseconds.
#[test]
fn slow_answers_are_measured_and_forgotten() {
    let policy = NotifyPolicy::new();
    let costs = NotifyCosts { broadcast_ns: 5000, ..COSTS };
    let is_chosen = |chosen| policy.choose(&costs, 1, 1) == chosen;
    let slow = |_: &i32| policy.record_answers(&costs, 1, 10_000_000);
    let interrupts = (0..9).take_while(|_| is_chosen(ByInterrupt)).inspect(slow).count();
    assert_eq!(interrupts, 1);
    let broadcasts = 1 + (0..999).take_while(|_| is_chosen(ByBroadcast)).count();
    assert!((100..=700).contains(&broadcasts), "{broadcasts}");
    policy.record_answers(&costs, 1, 0);
    assert_eq!(policy.choose(&costs, 1, 1), ByInterrupt, "answers as fast as the machine's figure");
}

#[test]
fn broadcasts_only_never_interrupts() {
    let policy = NotifyPolicy::new();
    let costs = NotifyCosts { broadcast_each_ns: 100, ..COSTS }.broadcasts_only();
    for _ in 0..1000 {
        assert_eq!(policy.choose(&costs, 64, 9), ByBroadcast);
        policy.record_completion(&costs, 1_000_000);
        policy.record_rings(0, 1);
    }
}

proptest! {
    /// If costs vary by up to an eighth, the method does not change back. If one method costs
    /// less than half of the other, it is chosen.
    #[test]
    fn cheaper_method_is_chosen_and_kept(
        interrupt in 1000u64..100_000, broadcast in 1000u64..100_000,
        shakes in prop::collection::vec((0u64..=125, 0u64..=125), 1..20)
    ) {
        let policy = NotifyPolicy::new();
        let costs = |shake: (u64, u64)| NotifyCosts {
            interrupt_ns: interrupt + interrupt * shake.0 / 1000,
            broadcast_ns: broadcast + broadcast * shake.1 / 1000,
            ..NotifyCosts::default()
        };
        let first = policy.choose(&costs((0, 0)), 5, 1);
        if interrupt * 2 < broadcast {
            prop_assert_eq!(first, ByInterrupt);
        }
        if broadcast * 2 < interrupt {
            prop_assert_eq!(first, ByBroadcast);
        }
        let mut last = first;
        let mut changes = 0;
        for shake in shakes {
            let chosen = policy.choose(&costs(shake), 5, 1);
            changes += u32::from(chosen != last);
            last = chosen;
        }
        prop_assert!(changes <= 1, "the method changed back");
    }
}
