//! The end of spaces and page tables under lazy CPUs, on one thread: which CPU frees them, when,
//! and at what cost. `tests/rules` has the interleavings of several CPUs.

#![expect(unsafe_code, reason = "switching is unsafe, and retiring is")]

mod dropped;
#[path = "../platforms/lifetimes.rs"]
mod lifetimes;

use std::mem;
use std::ptr::NonNull;
use std::thread;
use std::time::Duration;

use lifetimes::{COUNTED, HANDOFF, SHOOT, With};
use shootdown::soft::{Config, Host, OnCpu, Platform, Soft, Touch};
use shootdown::{
    CpuId, CpuStats, Extent, ExtentSet, Horizon, Pending, Presence, Reaping, Retiring, Root,
    Shootdown, Space,
};

type Handoff = With<Host, HANDOFF>;

/// Four CPUs online, and two spaces.
struct System<P: Platform> {
    engine: Shootdown<Soft<P>>,
    spaces: [Space<Soft<P>>; 2],
}

impl<P: Platform> System<P> {
    fn new() -> Self {
        Self::with(Config { cpus: 4, ..Config::default() })
    }

    fn with(config: Config) -> Self {
        let engine = Soft::engine(config);
        let spaces = [0, 1].map(|root| engine.space(Root(root)));
        let system = Self { engine, spaces };
        (0..config.cpus).for_each(|cpu| system.cpu(cpu).pin().online());
        system
    }

    fn cpu(&self, cpu: u32) -> OnCpu<'_, P> {
        self.engine.enter(CpuId(cpu))
    }

    fn switch(&self, cpu: u32, space: usize) {
        // SAFETY: the spaces live as long as the engine, and do not move.
        unsafe { self.cpu(cpu).pin().switch(&self.spaces[space]) };
    }

    fn go_lazy(&self, cpu: u32, space: usize) {
        self.switch(cpu, space);
        self.cpu(cpu).pin().enter_lazy();
    }

    /// Retires a space on CPU 0, while all other CPUs take their interrupts.
    fn retire(&self, space: usize) {
        // SAFETY: no CPU uses the space any more, and it stays in place.
        let retiring = unsafe { self.cpu(0).pin().retire(NonNull::from(&self.spaces[space])) };
        (1..4).for_each(|cpu| self.cpu(cpu).interrupt_point());
        finish(retiring, Retiring::poll);
    }

    /// Reaps on CPU 0, while all other CPUs take their interrupts.
    fn reap(&self) {
        let reaping = self.cpu(0).pin().reap();
        (1..4).for_each(|cpu| self.cpu(cpu).interrupt_point());
        finish(reaping, Reaping::poll);
    }

    /// Indices of the spaces that were reclaimed since the last call.
    fn reclaimed(&self) -> Vec<usize> {
        (0..4).for_each(|cpu| self.cpu(cpu).speculate());
        assert_eq!(self.engine.machine().freed_table_walks(), 0);
        let index = |space: NonNull<_>| {
            self.spaces.iter().position(|known| NonNull::from(known) == space).unwrap()
        };
        self.engine.machine().take_reclaimed().into_iter().map(index).collect()
    }

    /// Flushes a page, or page tables that it unhooks if `tables` is `true`.
    fn flush(&self, cpu: u32, space: usize, tables: bool) -> Horizon {
        let space = &self.spaces[space];
        let mut extents = ExtentSet::new();
        if tables {
            self.engine.machine().unhook_tables(space);
            extents.add(Extent::page(0).freeing_tables());
        } else {
            extents.add(Extent::page(0));
        }
        let pending = self.cpu(cpu).pin().flush_gathered(space, &extents);
        let horizon = pending.horizon();
        (0..4).for_each(|cpu| self.cpu(cpu).interrupt_point());
        finish(pending, Pending::poll);
        horizon
    }

    fn stats(&self) -> CpuStats {
        self.engine.machine().total_stats()
    }

    fn presence(&self, cpu: u32) -> Presence {
        self.engine.cpu(CpuId(cpu)).presence(self.engine.machine())
    }
}

/// Asserts that a wait is over. Does not wait, because no CPU would answer any more.
fn finish<T>(mut waiting: T, poll: impl FnOnce(&mut T) -> bool) {
    let done = poll(&mut waiting);
    if !done {
        // A drop would wait.
        mem::forget(waiting);
    }
    assert!(done, "no CPU is left to answer");
}

#[test]
fn space_loaded_nowhere_is_reclaimed_immediately() {
    fn check<P: Platform>() {
        let system = System::<P>::new();
        system.go_lazy(1, 0);
        system.switch(1, 1);
        system.retire(0);
        assert_eq!(system.reclaimed(), [0]);
        assert_eq!(system.stats().interrupts_sent, 0);
    }
    check::<Handoff>();
    check::<With<Host, SHOOT>>();
    check::<With<Host, COUNTED>>();
}

#[test]
fn space_loaded_nowhere_is_reclaimed_before_retire_returns() {
    let system = System::<Handoff>::new();
    // SAFETY: no CPU uses the space, and it stays in place.
    let retiring = unsafe { system.cpu(0).pin().retire(NonNull::from(&system.spaces[0])) };
    assert_eq!(system.reclaimed(), [0]);
    finish(retiring, Retiring::poll);
    assert_eq!(system.reclaimed(), []);
}

#[test]
fn retire_of_the_active_space_enters_lazy() {
    let system = System::<Handoff>::new();
    system.switch(0, 0);
    system.retire(0);
    assert_eq!(system.presence(0), Presence::Lazy(system.spaces[0].id()));
    assert_eq!(system.reclaimed(), []);
    system.switch(0, 1);
    assert_eq!(system.reclaimed(), [0]);
}

#[test]
fn last_cpu_to_leave_reclaims() {
    fn check<P: Platform>() {
        let system = System::<P>::new();
        (0..4).for_each(|cpu| system.go_lazy(cpu, 0));
        system.retire(0);
        assert_eq!(system.reclaimed(), []);
        system.cpu(2).pin().leave_space();
        system.switch(0, 1);
        system.cpu(3).pin().offline();
        assert_eq!(system.reclaimed(), []);
        system.switch(1, 1);
        assert_eq!(system.reclaimed(), [0]);
        assert_eq!(system.stats().interrupts_sent, 0);
        assert_eq!(system.engine.cpu(CpuId(1)).stats().spaces_reclaimed, 1);
    }
    check::<Handoff>();
    check::<With<Host, COUNTED>>();
}

#[test]
fn shot_cpus_leave_before_retire_returns() {
    let system = System::<With<Host, SHOOT>>::new();
    (0..3).for_each(|cpu| system.go_lazy(cpu, 0));
    system.go_lazy(3, 1);
    system.retire(0);
    assert_eq!(system.reclaimed(), [0]);
    assert_eq!([0, 1, 2].map(|cpu| system.presence(cpu)), [Presence::Out; 3]);
    assert_eq!(system.presence(3), Presence::Lazy(system.spaces[1].id()));
    // CPU 0 has left by itself, and CPU 3 has never run the space.
    assert_eq!(system.stats().interrupts_sent, 2);
}

/// A CPU that a hypervisor does not run has no translations, but a root that it loads again.
#[test]
fn stopped_cpu_is_rung_for_dead_spaces_alone() {
    let config = Config { cpus: 4, is_guest: true, ..Config::default() };
    let system = System::<Handoff>::with(config);
    system.switch(1, 1);
    system.go_lazy(2, 0);
    system.retire(0);
    [1, 2].into_iter().for_each(|cpu| system.cpu(cpu).stop());
    system.flush(0, 1, false);
    assert_eq!((system.stats().interrupts_sent, system.stats().skipped_away), (0, 1));
    let reaping = system.cpu(0).pin().reap();
    assert_eq!((system.stats().interrupts_sent, system.stats().skipped_away), (1, 1));
    system.cpu(2).resume();
    system.cpu(2).interrupt_point();
    finish(reaping, Reaping::poll);
    assert_eq!(system.reclaimed(), [0]);
}

/// This holds both for a poll and for a drop.
#[test]
fn retire_and_reap_wait_until_all_have_left() {
    for is_polled in [true, false] {
        let system = System::<With<Host, SHOOT>>::new();
        system.go_lazy(1, 0);
        // SAFETY: no CPU uses the space any more, and it stays in place.
        let mut retiring = unsafe { system.cpu(0).pin().retire(NonNull::from(&system.spaces[0])) };
        assert!(!retiring.poll());
        assert_eq!(system.reclaimed(), []);
        system.cpu(1).interrupt_point();
        if is_polled {
            assert!(retiring.poll());
        } else {
            drop(retiring);
        }
        assert_eq!(system.reclaimed(), [0]);

        let system = System::<Handoff>::new();
        system.go_lazy(1, 0);
        system.retire(0);
        system.go_lazy(2, 1);
        let mut reaping = system.cpu(0).pin().reap();
        assert!(!reaping.poll());
        system.cpu(1).interrupt_point();
        assert_eq!(system.reclaimed(), []);
        if is_polled {
            assert!(reaping.poll());
        } else {
            drop(reaping);
        }
        assert_eq!(system.reclaimed(), [0]);
    }
}

/// The CPU answers during the wait, and its space is reclaimed after that.
#[test]
fn dropped_reaping_reclaims_after_the_last_answer() {
    let system = System::<Handoff>::new();
    system.go_lazy(1, 0);
    system.retire(0);
    let zero = system.cpu(0);
    let reaping = zero.pin().reap();
    thread::scope(|scope| {
        scope.spawn(|| {
            // Enough time for the drop to return too early.
            thread::sleep(Duration::from_millis(20));
            system.cpu(1).interrupt_point();
        });
        drop(reaping);
    });
    drop(zero);
    assert_eq!(system.reclaimed(), [0]);
}

/// Each entry into lazy takes a reference, and each return drops it.
#[test]
fn counted_references_balance() {
    let system = System::<With<Host, COUNTED>>::new();
    system.switch(1, 0);
    system.switch(1, 1);
    system.go_lazy(2, 0);
    system.switch(2, 0);
    system.go_lazy(2, 0);
    // CPU 2 misses a flush, and catches up when it returns.
    system.cpu(0).pin().flush(&system.spaces[0], Extent::page(0)).wait();
    system.switch(2, 0);
    system.go_lazy(2, 0);
    system.retire(0);
    assert_eq!(system.reclaimed(), [], "CPU 2 has the space loaded");
    system.switch(2, 1);
    assert_eq!(system.reclaimed(), [0]);
}

/// The pages of a dead space are freed without a flush.
#[test]
fn dead_space_is_not_resumed() {
    let system = System::<Handoff>::new();
    system.go_lazy(1, 0);
    assert!(system.cpu(1).pin().resume(system.spaces[0].id()));
    system.cpu(1).pin().enter_lazy();
    system.retire(0);
    assert!(!system.cpu(1).pin().resume(system.spaces[0].id()));
    assert_eq!(system.presence(1), Presence::Lazy(system.spaces[0].id()));
    assert_eq!(system.reclaimed(), []);
    system.switch(1, 1);
    assert_eq!(system.reclaimed(), [0]);
}

#[test]
fn loaded_space_is_resumed_without_its_id() {
    let system = System::<Handoff>::new();
    let resume = || system.cpu(1).pin().resume_loaded();
    assert_eq!(resume(), None, "no space is loaded");
    system.go_lazy(1, 0);
    let id = system.spaces[0].id();
    assert_eq!((resume(), system.presence(1)), (Some(id), Presence::Active(id)));
    assert_eq!(resume(), Some(id), "the space is active");
    system.cpu(1).pin().enter_lazy();
    system.retire(0);
    assert_eq!((resume(), system.presence(1)), (None, Presence::Lazy(id)));
}

#[test]
fn reap_interrupts_only_cpus_on_dead_spaces() {
    let system = System::<Handoff>::new();
    (0..3).for_each(|cpu| system.go_lazy(cpu, 0));
    system.go_lazy(3, 1);
    system.reap();
    assert_eq!(system.stats().interrupts_sent, 0);
    assert_eq!(system.presence(0), Presence::Lazy(system.spaces[0].id()));
    system.retire(0);
    system.reap();
    assert_eq!(system.reclaimed(), [0]);
    assert_eq!(system.stats().interrupts_sent, 2);
    system.reap();
    assert_eq!((system.reclaimed(), system.stats().interrupts_sent), (vec![], 2));
}

/// The handler must not reclaim a space, so it leaves an orphan, which the next operation reclaims.
#[test]
fn orphan_of_the_handler_is_reclaimed_later() {
    type Next = fn(&System<Handoff>);
    let next: [Next; 5] = [
        |system| system.reap(),
        |system| system.cpu(1).pin().reap().wait(),
        |system| system.cpu(1).pin().leave_space(),
        |system| system.switch(1, 1),
        |system| system.cpu(1).pin().offline(),
    ];
    for next in next {
        let system = System::<Handoff>::new();
        system.go_lazy(1, 0);
        // CPU 1 is rung while the space is alive, and handles the interrupt when it is dead.
        let extent = Extent::page(0).freeing_tables();
        system.engine.machine().unhook_tables(&system.spaces[0]);
        let pending = system.cpu(0).pin().flush(&system.spaces[0], extent);
        // SAFETY: no CPU uses the space any more, and it stays in place.
        drop(unsafe { system.cpu(0).pin().retire(NonNull::from(&system.spaces[0])) });
        system.cpu(1).interrupt_point();
        finish(pending, Pending::poll);
        assert_eq!(system.reclaimed(), []);
        next(&system);
        assert_eq!(system.reclaimed(), [0]);
    }
}

#[test]
fn tables_wait_for_lazy_cpus_without_interrupts() {
    let system = System::<Handoff>::new();
    system.go_lazy(1, 0);
    let first = system.flush(0, 0, true);
    assert!(!first.is_clear());
    // CPU 1 stays lazy, and has published nothing.
    assert!(system.flush(0, 0, false).cleared() < first.flush());
    // CPU 1 has caught up, and publishes so when it goes lazy. A table unhooked after that waits.
    system.switch(1, 0);
    system.cpu(1).pin().enter_lazy();
    let second = system.flush(0, 0, true);
    assert!(second.cleared() >= first.flush() && !second.is_clear());
    // CPU 1 has left the space.
    system.switch(1, 1);
    assert!(system.flush(0, 0, false).cleared() >= second.flush());
    assert_eq!(system.stats().interrupts_sent, 0);
}

/// Linux once freed tables under a CPU that was going offline, and still lazy.
#[test]
fn tables_do_not_wait_for_departed_cpus() {
    type Leave = fn(&System<Handoff>);
    let ways: [Leave; 2] =
        [|system| system.cpu(1).pin().leave_space(), |system| system.cpu(1).pin().offline()];
    for leave in ways {
        let system = System::<Handoff>::new();
        system.go_lazy(1, 0);
        let deferred = system.flush(0, 0, true);
        assert!(!deferred.is_clear());
        leave(&system);
        assert!(system.flush(0, 0, false).cleared() >= deferred.flush());
        assert!(system.flush(0, 0, true).is_clear());
        assert_eq!(system.stats().interrupts_sent, 0);
    }
}

#[test]
fn tables_without_lazy_cpus_are_clear_immediately() {
    let system = System::<Handoff>::new();
    system.switch(0, 0);
    system.switch(1, 0);
    system.switch(2, 0);
    system.switch(2, 1);
    assert!(system.flush(0, 0, true).is_clear());
    // CPU 1, which uses the space, was interrupted.
    assert_eq!(system.stats().interrupts_sent, 1);
}

/// A flush that frees tables also clears those that earlier flushes have deferred.
#[test]
fn flush_that_frees_tables_clears_deferred_tables() {
    let system = System::<Handoff>::new();
    system.go_lazy(1, 0);
    let deferred = system.flush(0, 0, true);
    let flush = |extent| {
        let pending = system.cpu(0).pin().flush(&system.spaces[0], extent);
        let horizon = pending.horizon();
        system.cpu(1).interrupt_point();
        finish(pending, Pending::poll);
        horizon
    };
    assert_eq!(flush(Extent::page(0)), Horizon::UNKNOWN);
    let horizon = flush(Extent::page(0).freeing_tables());
    assert!(horizon.is_clear() && horizon.cleared() >= deferred.flush(), "{horizon:?}");
}

#[test]
fn flush_walkers_clears_deferred_tables() {
    let system = System::<Handoff>::new();
    system.go_lazy(1, 0);
    system.go_lazy(2, 0);
    let deferred = system.flush(0, 0, true);
    system.switch(2, 0);
    system.cpu(2).pin().enter_lazy();
    let pending = system.cpu(0).pin().flush_walkers(&system.spaces[0]);
    let horizon = pending.horizon();
    assert!(horizon.cleared() >= deferred.flush());
    system.cpu(1).interrupt_point();
    finish(pending, Pending::poll);
    // CPU 2 had published that it has seen the flush.
    assert_eq!(system.stats().interrupts_sent, 1);
    assert_eq!(system.presence(1), Presence::Out);
    assert!(system.flush(0, 0, false).cleared() >= deferred.flush());
}

/// The flushing CPU is itself lazy on the space, and no other CPU has to be waited for.
#[test]
fn flush_walkers_catches_up_on_its_own_cpu() {
    let system = System::<Handoff>::new();
    system.go_lazy(0, 0);
    let deferred = system.flush(1, 0, true);
    assert!(!deferred.is_clear());
    let pending = system.cpu(0).pin().flush_walkers(&system.spaces[0]);
    let horizon = pending.horizon();
    finish(pending, Pending::poll);
    assert!(horizon.cleared() >= deferred.flush());
    system.engine.machine().free_tables(&system.spaces[0]);
    system.cpu(0).speculate();
    assert_eq!(system.engine.machine().freed_table_walks(), 0);
}

/// The CPU that flushes, one that it interrupts, and one that catches up later invalidate all
/// extents.
#[test]
fn gathered_flush_invalidates_all_extents() {
    const PAGES: [usize; 2] = [0, 2];
    let system = System::<Handoff>::new();
    let (machine, space) = (system.engine.machine(), &system.spaces[0]);
    PAGES.iter().for_each(|&page| machine.map(space, page));
    let touched_by_all = |expected| {
        for (cpu, page) in (0..3).flat_map(|cpu| PAGES.map(|page| (cpu, page))) {
            assert_eq!(system.cpu(cpu).touch(page), expected, "CPU {cpu}, page {page}");
        }
    };
    (0..3).for_each(|cpu| system.switch(cpu, 0));
    touched_by_all(Touch::Ok);
    system.cpu(2).pin().enter_lazy();
    let mut extents = ExtentSet::new();
    for page in PAGES {
        machine.unmap(space, page);
        extents.add(Extent::page((page as u64) << 12));
    }
    let pending = system.cpu(0).pin().flush_gathered(space, &extents);
    system.cpu(1).interrupt_point();
    finish(pending, Pending::poll);
    system.switch(2, 0);
    PAGES.iter().for_each(|&page| machine.free(space, page));
    touched_by_all(Touch::Fault);
}

#[test]
fn gathered_flush_interrupts_once() {
    let system = System::<Handoff>::new();
    system.switch(0, 0);
    system.switch(1, 0);
    system.go_lazy(2, 0);
    let mut extents = ExtentSet::new();
    assert_eq!(
        system.cpu(0).pin().flush_gathered(&system.spaces[0], &extents).horizon(),
        Horizon::UNKNOWN
    );
    for page in [0, 2] {
        extents.add(Extent::page(page << 12));
    }
    let pending = system.cpu(0).pin().flush_gathered(&system.spaces[0], &extents);
    system.cpu(1).interrupt_point();
    finish(pending, Pending::poll);
    assert_eq!(system.stats().interrupts_sent, 1);
    system.switch(2, 0);
    for cpu in 0..3 {
        let stats = system.engine.cpu(CpuId(cpu)).stats();
        assert_eq!((stats.pages_invalidated, stats.flushes_ranged), (2, 2), "CPU {cpu}");
    }
    assert_eq!(system.engine.cpu(CpuId(2)).stats().caught_up_from_log, 2);
}
