//! The hostile machine itself: the outcomes that it allows, in programs of a few steps whose
//! outcomes were worked out by hand.

mod processors;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::time::Duration;

use shootdown::Word;
use shootdown_check::{
    Budget, CheckWord, Entry, HostileMachine, KernelTable, OnLoad, Outcome, PageTables, Profile,
    RunSettings, Scenario, Search, System, Violation, WalkCaches, complete_accesses, fence,
    publish, run, search, with_machine,
};

const BUDGET: Budget = Budget { time: Duration::from_secs(3600), states: 1_000_000 };

type Body = fn(&Shared, usize);

/// Two words, one space, and the values that two CPUs have observed.
struct Shared {
    x: CheckWord,
    y: CheckWord,
    tables: PageTables,
    kernel: KernelTable,
    observed_values: Cell<[u64; 2]>,
    /// Number of CPUs that have finished.
    ended: Cell<usize>,
    body: Body,
}

impl System for Shared {
    fn run(&self, cpu: usize) {
        (self.body)(self, cpu);
        self.ended.set(self.ended.get() + 1);
    }
    fn handle_interrupt(&self, _: usize) {
        with_machine(|machine| machine.invalidate_tag(Some(1)));
        self.y.store(1, Release);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.ended.get() == 2 {
            OBSERVED.with_borrow_mut(|all| all.insert(self.observed_values.get()));
        }
    }
}

thread_local! {
    /// The observed values of all runs.
    static OBSERVED: RefCell<BTreeSet<[u64; 2]>> = const { RefCell::new(BTreeSet::new()) };
}

struct Litmus(Body);

impl Scenario for Litmus {
    fn run(&self, settings: RunSettings<'_>) -> Outcome {
        let set_up = |machine: &HostileMachine| Shared {
            x: CheckWord::new(0),
            y: CheckWord::new(0),
            tables: PageTables::new(machine),
            kernel: KernelTable::new(machine),
            observed_values: Cell::new([0; 2]),
            ended: Cell::new(0),
            body: self.0,
        };
        run(settings, 2, set_up)
    }
}

impl Shared {
    fn observe(&self, cpu: usize, value: u64) {
        let mut observed_values = self.observed_values.get();
        observed_values[cpu] = value;
        self.observed_values.set(observed_values);
    }
}

/// Returns all values that the CPUs can observe.
fn observed(profile: Profile, body: Body) -> BTreeSet<[u64; 2]> {
    OBSERVED.take();
    let all = search(&Litmus(body), profile, None, BUDGET);
    assert!(all.is_complete && all.found.is_none(), "{all:?}");
    OBSERVED.take()
}

fn violation(profile: Profile, body: Body) -> Option<Violation> {
    let Search { found, is_complete, .. } = search(&Litmus(body), profile, None, BUDGET);
    assert!(is_complete || found.is_some());
    found.map(|found| found.violation)
}

/// Store buffering: each CPU stores, and reads the word that the other stores.
#[test]
fn store_may_pass_load_without_fence() {
    let without: Body = |it, cpu| {
        let (own, other) = if cpu == 0 { (&it.x, &it.y) } else { (&it.y, &it.x) };
        own.store(1, Relaxed);
        it.observe(cpu, other.load(Relaxed));
    };
    let with: Body = |it, cpu| {
        let (own, other) = if cpu == 0 { (&it.x, &it.y) } else { (&it.y, &it.x) };
        own.store(1, Relaxed);
        fence();
        it.observe(cpu, other.load(Relaxed));
    };
    for profile in Profile::ALL {
        assert!(observed(profile, without).contains(&[0, 0]), "{}", profile.name);
        let fenced = observed(profile, with);
        assert_eq!(fenced, BTreeSet::from([[0, 1], [1, 0], [1, 1]]), "{}", profile.name);
    }
}

/// Store buffering with a locked operation for the store. On x86 the operation is a fence. On Arm
/// it is a fence only if it acquires.
#[test]
fn load_may_pass_locked_operation_without_acquire() {
    let releases: Body = |it, cpu| {
        let (own, other) = if cpu == 0 { (&it.x, &it.y) } else { (&it.y, &it.x) };
        own.fetch_add(1, Release);
        it.observe(cpu, other.load(Relaxed));
    };
    let acquires: Body = |it, cpu| {
        let (own, other) = if cpu == 0 { (&it.x, &it.y) } else { (&it.y, &it.x) };
        own.fetch_add(1, AcqRel);
        it.observe(cpu, other.load(Relaxed));
    };
    assert!(!observed(Profile::X86, releases).contains(&[0, 0]));
    assert!(observed(Profile::ARM64, releases).contains(&[0, 0]));
    assert!(!observed(Profile::ARM64, acquires).contains(&[0, 0]));
}

/// Message passing: one CPU stores a message, and then a flag.
#[test]
fn stores_keep_order_on_x86_or_with_release() {
    let pass: [Body; 2] = [
        |it, cpu| {
            if cpu == 0 {
                it.x.store(1, Relaxed);
                it.y.store(1, Relaxed);
            } else {
                let flag = it.y.load(Relaxed);
                it.observe(1, flag << 1 | it.x.load(Relaxed));
            }
        },
        |it, cpu| {
            if cpu == 0 {
                it.x.store(1, Relaxed);
                it.y.store(1, Release);
            } else {
                let flag = it.y.load(Relaxed);
                it.observe(1, flag << 1 | it.x.load(Relaxed));
            }
        },
    ];
    // The reader observes the flag without the message.
    let is_lost = |profile, body| observed(profile, body).contains(&[0, 2]);
    assert!(!is_lost(Profile::X86, pass[0]));
    assert!(is_lost(Profile::ARM64, pass[0]));
    assert!(!is_lost(Profile::ARM64, pass[1]));
}

/// Two additions are never lost.
#[test]
fn locked_operations_are_atomic() {
    let body: Body = |it, cpu| {
        let before = it.x.fetch_add(1, Relaxed);
        it.observe(cpu, before + 1);
    };
    for profile in Profile::ALL {
        assert_eq!(observed(profile, body), BTreeSet::from([[1, 2], [2, 1]]), "{}", profile.name);
    }
}

fn load(it: &Shared, tag: u16) {
    with_machine(|machine| machine.load_root(Some(it.tables.root()), tag, OnLoad::Keep));
}

/// CPU 0 is in user mode while CPU 1 unmaps a page, and claims without a flush that it is flushed.
#[test]
fn tlb_evicts_no_entry() {
    let body: Body = |it, cpu| {
        if cpu == 0 {
            load(it, 1);
            with_machine(HostileMachine::stay_in_user_mode);
        } else {
            it.tables.swap(0, Entry::EMPTY);
            fence();
            with_machine(|machine| {
                machine.complete_flush(machine.stale_entries(it.tables.root(), |it| it == 0));
            });
        }
    };
    for profile in Profile::ALL {
        assert_eq!(violation(profile, body), Some(Violation::UsesFlushed { cpu: 0, page: 0 }));
    }
}

/// CPU 1 unmaps a page, interrupts CPU 0, which invalidates it, and waits for the acknowledgement:
/// the published litmus test of a software shootdown.
#[test]
fn acknowledged_invalidation_is_final() {
    let body: Body = |it, cpu| {
        if cpu == 0 {
            load(it, 1);
            with_machine(HostileMachine::stay_in_user_mode);
            with_machine(HostileMachine::stay_in_user_mode);
        } else {
            it.tables.swap(0, Entry::EMPTY);
            fence();
            with_machine(|machine| {
                machine.send_interrupt(0);
                while it.y.load(Relaxed) == 0 {
                    machine.spin_hint();
                }
                machine.complete_flush(machine.stale_entries(it.tables.root(), |it| it == 0));
                machine.reuse_frame(0);
            });
        }
    };
    for profile in Profile::ALL {
        assert_eq!(violation(profile, body), None, "{}", profile.name);
    }
}

/// The acknowledgement comes before the invalidation.
#[test]
fn early_acknowledgement_is_detected() {
    let body: Body = |it, cpu| {
        if cpu == 0 {
            load(it, 1);
            it.y.store(1, Release);
            with_machine(HostileMachine::stay_in_user_mode);
            with_machine(|machine| machine.invalidate_tag(Some(1)));
        } else {
            it.tables.swap(0, Entry::EMPTY);
            while it.y.load(Relaxed) == 0 {
                with_machine(HostileMachine::spin_hint);
            }
            with_machine(|machine| machine.reuse_frame(0));
        }
    };
    assert_eq!(violation(Profile::X86, body), Some(Violation::UsesReused { cpu: 0, page: 0 }));
}

/// CPU 0 idles with the root loaded, and invalidates pages when CPU 1 frees the table above them.
#[test]
fn page_invalidation_keeps_table_pointers_on_arm() {
    let body: Body = |it, cpu| {
        if cpu == 0 {
            load(it, 1);
            while it.x.load(Relaxed) == 0 {
                with_machine(HostileMachine::spin_hint);
            }
            with_machine(|machine| machine.invalidate_pages(|page| page < 2, WalkCaches::Keep));
            it.y.store(1, Release);
        } else {
            let table = it.tables.unlink_table(0).expect("it is linked");
            fence();
            it.x.store(1, Release);
            while it.y.load(Relaxed) == 0 {
                with_machine(HostileMachine::spin_hint);
            }
            with_machine(|machine| machine.free_table(table));
        }
    };
    assert_eq!(violation(Profile::X86, body), None);
    assert_eq!(violation(Profile::ARM64, body), Some(Violation::WalksFreed { cpu: 0 }));
}

/// CPU 0 unmaps a page of the root that it has loaded, and invalidates it there.
fn invalidate_own_after(it: &Shared, cpu: usize, barrier: fn()) {
    if cpu == 0 {
        load(it, 1);
        it.tables.swap(0, Entry::EMPTY);
        barrier();
        with_machine(|machine| {
            machine.invalidate_pages(|page| page == 0, WalkCaches::Keep);
            machine.reuse_frame(0);
            machine.stay_in_user_mode();
        });
    }
}

#[test]
fn fenced_entry_is_read_again_after_invalidation() {
    let fenced: Body = |it, cpu| invalidate_own_after(it, cpu, fence);
    let published: Body = |it, cpu| invalidate_own_after(it, cpu, publish);
    let reused = Some(Violation::UsesReused { cpu: 0, page: 0 });
    assert_eq!(violation(Profile::ARM64, fenced), reused);
    assert_eq!(violation(Profile::ARM64, published), None);
}

/// The invalidation is a broadcast that is complete before the frame is reused.
#[test]
fn fenced_entry_is_read_again_after_broadcast() {
    let fenced: Body = |it, cpu| broadcast_after(it, cpu, fence);
    let published: Body = |it, cpu| broadcast_after(it, cpu, publish);
    let reused = Some(Violation::UsesReused { cpu: 1, page: 0 });
    assert_eq!(violation(Profile::ARM64, fenced), reused);
    assert_eq!(violation(Profile::ARM64, published), None);
    for profile in [Profile::X86, Profile::RISCV] {
        assert_eq!(violation(profile, fenced), None, "{}", profile.name);
    }
}

fn broadcast_after(it: &Shared, cpu: usize, barrier: fn()) {
    if cpu == 1 {
        load(it, 1);
        return with_machine(HostileMachine::stay_in_user_mode);
    }
    it.tables.swap(0, Entry::EMPTY);
    barrier();
    with_machine(|machine| {
        machine.issue_broadcast(|page| page == 0);
        // A barrier after the invalidation was issued does not help it.
        publish();
        machine.complete_broadcasts();
        machine.reuse_frame(0);
    });
}

/// CPU 0 unmaps a kernel page and counts that. CPU 1 reads the count, invalidates everything, and
/// comes online if it has found the page counted.
fn drop_all_after_load(it: &Shared, cpu: usize, barrier: Option<fn()>) {
    if cpu == 0 {
        let entry = it.kernel.swap(0, Entry::EMPTY);
        publish();
        it.x.store(1, Release);
        while it.y.load(Relaxed) == 0 {
            with_machine(HostileMachine::spin_hint);
        }
        return with_machine(|machine| machine.reuse_kernel_frame(entry.target()));
    }
    fence();
    let count = it.x.load(Acquire);
    if let Some(barrier) = barrier {
        barrier();
    }
    with_machine(|machine| machine.invalidate_tag(None));
    if count == 1 {
        with_machine(|machine| machine.set_online(true));
    }
    it.y.store(1, Release);
}

#[test]
fn full_invalidation_may_precede_earlier_load() {
    let early: Body = |it, cpu| drop_all_after_load(it, cpu, None);
    let fenced: Body = |it, cpu| drop_all_after_load(it, cpu, Some(fence));
    let ordered: Body = |it, cpu| drop_all_after_load(it, cpu, Some(complete_accesses));
    let reused = Some(Violation::UsesReusedKernel { cpu: 1, page: 0 });
    assert_eq!(violation(Profile::ARM64, early), reused);
    assert_eq!(violation(Profile::ARM64, fenced), reused);
    assert_eq!(violation(Profile::ARM64, ordered), None);
    assert_eq!(violation(Profile::X86, early), None);
}

/// Two spaces use one tag, without an invalidation in between.
#[test]
fn reused_tag_shows_old_entries() {
    let body: Body = |it, cpu| {
        if cpu == 0 {
            load(it, 1);
            let other = with_machine(PageTables::new);
            with_machine(|machine| {
                machine.load_root(Some(other.root()), 1, OnLoad::Keep);
                machine.stay_in_user_mode();
            });
        }
    };
    assert_eq!(violation(Profile::X86, body), Some(Violation::UsesForeign { cpu: 0, page: 0 }));
    let dropped: Body = |it, cpu| {
        if cpu == 0 {
            load(it, 1);
            let other = with_machine(PageTables::new);
            with_machine(|machine| {
                machine.load_root(Some(other.root()), 1, OnLoad::Flush);
                machine.stay_in_user_mode();
            });
        }
    };
    assert_eq!(violation(Profile::X86, dropped), None);
}

/// Reclaim takes a page to be clean, while a CPU may hold a writable entry.
#[test]
fn clean_page_is_written_late_on_arc() {
    let body: Body = |it, cpu| {
        if cpu == 0 {
            load(it, 1);
            with_machine(HostileMachine::stay_in_user_mode);
        } else {
            let entry = it.tables.swap(0, Entry::EMPTY);
            with_machine(|machine| machine.write_out(entry.target(), false));
        }
    };
    assert_eq!(violation(Profile::X86, body), None);
    assert_eq!(violation(Profile::ARC, body), Some(Violation::WritesLate { cpu: 0, page: 0 }));
}

#[test]
fn waiting_for_no_store_is_stuck() {
    let body: Body = |it, cpu| {
        while cpu == 0 && it.x.load(Relaxed) == 0 {
            with_machine(HostileMachine::spin_hint);
        }
    };
    assert_eq!(violation(Profile::X86, body), Some(Violation::Stuck));
}
