//! The hostile machine itself: what it allows, and what it does not, by programs of a few steps
//! that were worked out by hand.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::time::Duration;

use shootdown::Word;
use shootdown_check::{
    Budget, CheckWord, Entry, Keeps, KernelTable, Outcome, PageTables, Profile, Scene, Search,
    Setting, System, Upper, World, Wrong, complete_accesses, fence, publish, run, search,
    with_world,
};

const BUDGET: Budget = Budget { time: Duration::from_secs(60), states: 1_000_000 };

type Body = fn(&Shared, usize);

/// Two words, one space, and what two CPUs have seen.
struct Shared {
    x: CheckWord,
    y: CheckWord,
    tables: PageTables,
    kernel: KernelTable,
    seen: Cell<[u64; 2]>,
    /// How many CPUs have come to their end.
    ended: Cell<usize>,
    body: Body,
}

impl System for Shared {
    fn run(&self, cpu: usize) {
        (self.body)(self, cpu);
        self.ended.set(self.ended.get() + 1);
    }
    fn interrupt(&self, _: usize) {
        with_world(|world| world.drop_tag(Some(1)));
        self.y.store(1, Release);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.ended.get() == 2 {
            SEEN.with_borrow_mut(|all| all.insert(self.seen.get()));
        }
    }
}

thread_local! {
    /// What the CPUs have seen, in any run.
    static SEEN: RefCell<BTreeSet<[u64; 2]>> = const { RefCell::new(BTreeSet::new()) };
}

struct Litmus(Body);

impl Scene for Litmus {
    fn run(&self, setting: Setting<'_>) -> Outcome {
        let set_up = |world: &World| Shared {
            x: CheckWord::new(0),
            y: CheckWord::new(0),
            tables: PageTables::new(world),
            kernel: KernelTable::new(world),
            seen: Cell::new([0; 2]),
            ended: Cell::new(0),
            body: self.0,
        };
        run(setting, 2, set_up)
    }
}

impl Shared {
    fn see(&self, cpu: usize, value: u64) {
        let mut seen = self.seen.get();
        seen[cpu] = value;
        self.seen.set(seen);
    }
}

/// All that the CPUs can come to see.
fn seen(profile: Profile, body: Body) -> BTreeSet<[u64; 2]> {
    SEEN.take();
    let all = search(&Litmus(body), profile, None, BUDGET);
    assert!(all.is_complete && all.found.is_none(), "{all:?}");
    SEEN.take()
}

fn wrong(profile: Profile, body: Body) -> Option<Wrong> {
    let Search { found, is_complete, .. } = search(&Litmus(body), profile, None, BUDGET);
    assert!(is_complete || found.is_some());
    found.map(|found| found.wrong)
}

/// Store buffering: each stores, and reads what the other stores.
#[test]
fn stores_may_be_later_than_loads_unless_there_is_a_fence() {
    let without: Body = |it, cpu| {
        let (own, other) = if cpu == 0 { (&it.x, &it.y) } else { (&it.y, &it.x) };
        own.store(1, Relaxed);
        it.see(cpu, other.load(Relaxed));
    };
    let with: Body = |it, cpu| {
        let (own, other) = if cpu == 0 { (&it.x, &it.y) } else { (&it.y, &it.x) };
        own.store(1, Relaxed);
        fence();
        it.see(cpu, other.load(Relaxed));
    };
    for profile in Profile::ALL {
        assert!(seen(profile, without).contains(&[0, 0]), "{}", profile.name);
        let fenced = seen(profile, with);
        assert_eq!(fenced, BTreeSet::from([[0, 1], [1, 0], [1, 1]]), "{}", profile.name);
    }
}

/// The same with a locked operation for the store: on x86 it is a fence; on Arm it is none, unless
/// it acquires.
#[test]
fn what_follows_a_locked_operation_may_come_first_where_that_does_not_acquire() {
    let releases: Body = |it, cpu| {
        let (own, other) = if cpu == 0 { (&it.x, &it.y) } else { (&it.y, &it.x) };
        own.fetch_add(1, Release);
        it.see(cpu, other.load(Relaxed));
    };
    let acquires: Body = |it, cpu| {
        let (own, other) = if cpu == 0 { (&it.x, &it.y) } else { (&it.y, &it.x) };
        own.fetch_add(1, AcqRel);
        it.see(cpu, other.load(Relaxed));
    };
    assert!(!seen(Profile::X86, releases).contains(&[0, 0]));
    assert!(seen(Profile::ARM64, releases).contains(&[0, 0]));
    assert!(!seen(Profile::ARM64, acquires).contains(&[0, 0]));
}

/// Message passing: one stores a message, and then a flag.
#[test]
fn stores_keep_their_order_on_x86_and_elsewhere_if_they_release() {
    let pass: [Body; 2] = [
        |it, cpu| {
            if cpu == 0 {
                it.x.store(1, Relaxed);
                it.y.store(1, Relaxed);
            } else {
                let flag = it.y.load(Relaxed);
                it.see(1, flag << 1 | it.x.load(Relaxed));
            }
        },
        |it, cpu| {
            if cpu == 0 {
                it.x.store(1, Relaxed);
                it.y.store(1, Release);
            } else {
                let flag = it.y.load(Relaxed);
                it.see(1, flag << 1 | it.x.load(Relaxed));
            }
        },
    ];
    // The flag, and no message.
    let is_lost = |profile, body| seen(profile, body).contains(&[0, 2]);
    assert!(!is_lost(Profile::X86, pass[0]));
    assert!(is_lost(Profile::ARM64, pass[0]));
    assert!(!is_lost(Profile::ARM64, pass[1]));
}

/// Two that add lose nothing.
#[test]
fn locked_operations_are_atomic() {
    let body: Body = |it, cpu| {
        let before = it.x.fetch_add(1, Relaxed);
        it.see(cpu, before + 1);
    };
    for profile in Profile::ALL {
        assert_eq!(seen(profile, body), BTreeSet::from([[1, 2], [2, 1]]), "{}", profile.name);
    }
}

fn load(it: &Shared, tag: u16) {
    with_world(|world| world.load_root(Some(it.tables.root()), tag, Keeps::Everything));
}

/// CPU 0 is in user mode while CPU 1 takes a page away, and says that it is flushed.
#[test]
fn a_tlb_forgets_nothing_by_itself() {
    let body: Body = |it, cpu| {
        if cpu == 0 {
            load(it, 1);
            with_world(World::stay_in_user_mode);
        } else {
            it.tables.swap(0, Entry::EMPTY);
            fence();
            with_world(|world| world.flush_is_done(world.outdated(it.tables.root(), |it| it == 0)));
        }
    };
    for profile in Profile::ALL {
        assert_eq!(wrong(profile, body), Some(Wrong::UsesFlushed { cpu: 0, page: 0 }));
    }
}

/// The same, and CPU 1 interrupts CPU 0, which drops it, and waits for its answer: the published
/// litmus test of a shootdown by software.
#[test]
fn what_was_dropped_before_the_flush_is_done_is_not_used_after_it() {
    let body: Body = |it, cpu| {
        if cpu == 0 {
            load(it, 1);
            with_world(World::stay_in_user_mode);
            with_world(World::stay_in_user_mode);
        } else {
            it.tables.swap(0, Entry::EMPTY);
            fence();
            with_world(|world| {
                world.ring(0);
                while it.y.load(Relaxed) == 0 {
                    world.spin_hint();
                }
                world.flush_is_done(world.outdated(it.tables.root(), |it| it == 0));
                world.reuse_frame(0);
            });
        }
    };
    for profile in Profile::ALL {
        assert_eq!(wrong(profile, body), None, "{}", profile.name);
    }
}

/// And where the answer does not come after the drop.
#[test]
fn who_answers_too_early_is_found() {
    let body: Body = |it, cpu| {
        if cpu == 0 {
            load(it, 1);
            it.y.store(1, Release);
            with_world(World::stay_in_user_mode);
            with_world(|world| world.drop_tag(Some(1)));
        } else {
            it.tables.swap(0, Entry::EMPTY);
            while it.y.load(Relaxed) == 0 {
                with_world(World::spin_hint);
            }
            with_world(|world| world.reuse_frame(0));
        }
    };
    assert_eq!(wrong(Profile::X86, body), Some(Wrong::UsesReused { cpu: 0, page: 0 }));
}

/// CPU 0 idles with the root loaded, and drops the pages, when CPU 1 frees the table above them.
#[test]
fn the_way_to_a_table_is_remembered_where_only_pages_are_dropped() {
    let body: Body = |it, cpu| {
        if cpu == 0 {
            load(it, 1);
            while it.x.load(Relaxed) == 0 {
                with_world(World::spin_hint);
            }
            with_world(|world| world.drop_pages(|page| page < 2, Upper::Kept));
            it.y.store(1, Release);
        } else {
            let table = it.tables.unhook(0).expect("it is there");
            fence();
            it.x.store(1, Release);
            while it.y.load(Relaxed) == 0 {
                with_world(World::spin_hint);
            }
            with_world(|world| world.free_table(table));
        }
    };
    assert_eq!(wrong(Profile::X86, body), None);
    assert_eq!(wrong(Profile::ARM64, body), Some(Wrong::WalksFreed { cpu: 0 }));
}

/// CPU 0 takes a page away that it has loaded itself, and invalidates it there.
fn invalidate_own_after(it: &Shared, cpu: usize, barrier: fn()) {
    if cpu == 0 {
        load(it, 1);
        it.tables.swap(0, Entry::EMPTY);
        barrier();
        with_world(|world| {
            world.drop_pages(|page| page == 0, Upper::Kept);
            world.reuse_frame(0);
            world.stay_in_user_mode();
        });
    }
}

#[test]
fn fenced_entry_is_read_again_after_invalidation() {
    let fenced: Body = |it, cpu| invalidate_own_after(it, cpu, fence);
    let published: Body = |it, cpu| invalidate_own_after(it, cpu, publish);
    let reused = Some(Wrong::UsesReused { cpu: 0, page: 0 });
    assert_eq!(wrong(Profile::ARM64, fenced), reused);
    assert_eq!(wrong(Profile::ARM64, published), None);
}

/// The same by a broadcast, which is complete before the frame is given away.
#[test]
fn fenced_entry_is_read_again_after_broadcast() {
    let fenced: Body = |it, cpu| broadcast_after(it, cpu, fence);
    let published: Body = |it, cpu| broadcast_after(it, cpu, publish);
    let reused = Some(Wrong::UsesReused { cpu: 1, page: 0 });
    assert_eq!(wrong(Profile::ARM64, fenced), reused);
    assert_eq!(wrong(Profile::ARM64, published), None);
    for profile in [Profile::X86, Profile::RISCV] {
        assert_eq!(wrong(profile, fenced), None, "{}", profile.name);
    }
}

fn broadcast_after(it: &Shared, cpu: usize, barrier: fn()) {
    if cpu == 1 {
        load(it, 1);
        return with_world(World::stay_in_user_mode);
    }
    it.tables.swap(0, Entry::EMPTY);
    barrier();
    with_world(|world| {
        world.issue_broadcast(|page| page == 0);
        // What comes after the invalidation was issued does not help it.
        publish();
        world.complete_broadcasts();
        world.reuse_frame(0);
    });
}

/// CPU 0 takes a kernel page away and counts that; CPU 1 reads the count, drops everything, and
/// comes online if it has found the page counted.
fn drop_all_after_load(it: &Shared, cpu: usize, barrier: Option<fn()>) {
    if cpu == 0 {
        let entry = it.kernel.swap(0, Entry::EMPTY);
        publish();
        it.x.store(1, Release);
        while it.y.load(Relaxed) == 0 {
            with_world(World::spin_hint);
        }
        return with_world(|world| world.reuse_kernel_frame(entry.target()));
    }
    fence();
    let count = it.x.load(Acquire);
    if let Some(barrier) = barrier {
        barrier();
    }
    with_world(|world| world.drop_tag(None));
    if count == 1 {
        with_world(|world| world.set_online(true));
    }
    it.y.store(1, Release);
}

#[test]
fn dropping_everything_may_precede_an_earlier_load() {
    let early: Body = |it, cpu| drop_all_after_load(it, cpu, None);
    let fenced: Body = |it, cpu| drop_all_after_load(it, cpu, Some(fence));
    let ordered: Body = |it, cpu| drop_all_after_load(it, cpu, Some(complete_accesses));
    let reused = Some(Wrong::UsesReusedKernel { cpu: 1, page: 0 });
    assert_eq!(wrong(Profile::ARM64, early), reused);
    assert_eq!(wrong(Profile::ARM64, fenced), reused);
    assert_eq!(wrong(Profile::ARM64, ordered), None);
    assert_eq!(wrong(Profile::X86, early), None);
}

/// Two spaces under one tag, and nothing dropped in between.
#[test]
fn a_tag_that_is_given_on_shows_what_was_there_before() {
    let body: Body = |it, cpu| {
        if cpu == 0 {
            load(it, 1);
            let other = with_world(PageTables::new);
            with_world(|world| {
                world.load_root(Some(other.root()), 1, Keeps::Everything);
                world.stay_in_user_mode();
            });
        }
    };
    assert_eq!(wrong(Profile::X86, body), Some(Wrong::UsesForeign { cpu: 0, page: 0 }));
    let dropped: Body = |it, cpu| {
        if cpu == 0 {
            load(it, 1);
            let other = with_world(PageTables::new);
            with_world(|world| {
                world.load_root(Some(other.root()), 1, Keeps::Nothing);
                world.stay_in_user_mode();
            });
        }
    };
    assert_eq!(wrong(Profile::X86, dropped), None);
}

/// A page that reclaim takes to be clean, while a CPU may remember it as writable.
#[test]
fn a_clean_page_is_written_late_where_marks_are_not_looked_for() {
    let body: Body = |it, cpu| {
        if cpu == 0 {
            load(it, 1);
            with_world(World::stay_in_user_mode);
        } else {
            let entry = it.tables.swap(0, Entry::EMPTY);
            with_world(|world| world.write_out(entry.target(), false));
        }
    };
    assert_eq!(wrong(Profile::X86, body), None);
    assert_eq!(wrong(Profile::ARC, body), Some(Wrong::WritesLate { cpu: 0, page: 0 }));
}

#[test]
fn who_waits_for_nobody_is_stuck() {
    let body: Body = |it, cpu| {
        while cpu == 0 && it.x.load(Relaxed) == 0 {
            with_world(World::spin_hint);
        }
    };
    assert_eq!(wrong(Profile::X86, body), Some(Wrong::Stuck));
}
