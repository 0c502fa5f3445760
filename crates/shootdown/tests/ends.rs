//! What becomes of spaces and page tables that die under lazy CPUs, one CPU at a time: who frees
//! them, when, and at what cost. What happens when CPUs meet is in `tests/rules`.

#![expect(unsafe_code, reason = "switching is unsafe, and retiring is")]

#[path = "platforms/lifetimes.rs"]
mod lifetimes;

use std::ptr::NonNull;

use lifetimes::{COUNTED, HANDOFF, SHOOT, With};
use shootdown::soft::{Config, Host, OnCpu, Platform, Soft};
use shootdown::{CpuId, CpuStats, Extent, Extents, Horizon, Presence, Root, Shootdown, Space};

type Handoff = With<Host, HANDOFF>;

/// Four CPUs online, and two spaces.
struct System<P: Platform> {
    engine: Shootdown<Soft<P>>,
    spaces: [Space<Soft<P>>; 2],
}

impl<P: Platform> System<P> {
    fn new() -> Self {
        let config = Config { cpus: 4, ..Config::default() };
        let engine = Soft::engine(config);
        let spaces = [0, 1].map(|root| engine.space(Root(root)));
        let system = Self { engine, spaces };
        (0..config.cpus).for_each(|cpu| system.cpu(cpu).here().online());
        system
    }

    fn cpu(&self, cpu: u32) -> OnCpu<'_, P> {
        self.engine.enter(CpuId(cpu))
    }

    fn switch(&self, cpu: u32, space: usize) {
        // SAFETY: the spaces live as long as the engine, and do not move.
        unsafe { self.cpu(cpu).here().switch(&self.spaces[space]) };
    }

    fn go_lazy(&self, cpu: u32, space: usize) {
        self.switch(cpu, space);
        self.cpu(cpu).here().enter_lazy();
    }

    /// Has CPU 0 retire a space, with all others taking their interrupts.
    fn retire(&self, space: usize) {
        // SAFETY: the tests use it no more, and it stays where it is.
        let mut retiring = unsafe { self.cpu(0).here().retire(NonNull::from(&self.spaces[space])) };
        (1..4).for_each(|cpu| self.cpu(cpu).interrupt_point());
        assert!(retiring.poll());
    }

    /// Has CPU 0 reap, with all others taking their interrupts.
    fn reap(&self) {
        let mut reaping = self.cpu(0).here().reap();
        (1..4).for_each(|cpu| self.cpu(cpu).interrupt_point());
        assert!(reaping.poll());
    }

    /// The spaces that were reclaimed since the last time.
    fn reclaimed(&self) -> Vec<usize> {
        (0..4).for_each(|cpu| self.cpu(cpu).speculate());
        assert_eq!(self.engine.machine().freed_table_walks(), 0);
        let index = |space: NonNull<_>| {
            self.spaces.iter().position(|known| NonNull::from(known) == space).unwrap()
        };
        self.engine.machine().take_reclaimed().into_iter().map(index).collect()
    }

    /// Unhooks page tables, if it is to, and flushes.
    fn flush(&self, cpu: u32, space: usize, tables: bool) -> Horizon {
        let space = &self.spaces[space];
        let mut extents = Extents::new();
        if tables {
            self.engine.machine().unhook_tables(space);
            extents.add(Extent::page(0).freeing_tables());
        } else {
            extents.add(Extent::page(0));
        }
        let (mut pending, horizon) = self.cpu(cpu).here().flush_gathered(space, &extents);
        (0..4).for_each(|cpu| self.cpu(cpu).interrupt_point());
        assert!(pending.poll());
        horizon
    }

    fn stats(&self) -> CpuStats {
        self.engine.machine().total_stats()
    }

    fn presence(&self, cpu: u32) -> Presence {
        self.engine.cpu(CpuId(cpu)).presence(self.engine.machine())
    }
}

#[test]
fn what_nobody_holds_is_reclaimed_at_once() {
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
fn the_last_to_let_go_reclaims() {
    fn check<P: Platform>() {
        let system = System::<P>::new();
        (0..4).for_each(|cpu| system.go_lazy(cpu, 0));
        system.retire(0);
        assert_eq!(system.reclaimed(), []);
        system.cpu(2).here().leave();
        system.switch(0, 1);
        system.cpu(3).here().offline();
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
fn who_is_shot_lets_go_before_the_call_is_over() {
    let system = System::<With<Host, SHOOT>>::new();
    (0..3).for_each(|cpu| system.go_lazy(cpu, 0));
    system.go_lazy(3, 1);
    system.retire(0);
    assert_eq!(system.reclaimed(), [0]);
    assert_eq!([0, 1, 2].map(|cpu| system.presence(cpu)), [Presence::Out; 3]);
    assert_eq!(system.presence(3), Presence::Lazy(system.spaces[1].id()));
    // CPU 0 is on its own; CPU 3 was never there.
    assert_eq!(system.stats().interrupts_sent, 2);
}

/// A kernel thread that borrowed the space goes on with it.
#[test]
fn who_comes_back_to_a_dead_space_keeps_it_until_it_lets_go() {
    let system = System::<Handoff>::new();
    system.go_lazy(1, 0);
    system.retire(0);
    system.switch(1, 0);
    system.reap();
    assert_eq!(system.reclaimed(), []);
    system.cpu(1).here().enter_lazy();
    system.switch(1, 1);
    assert_eq!(system.reclaimed(), [0]);
}

#[test]
fn reaping_interrupts_those_who_hold_a_dead_space_and_no_others() {
    let system = System::<Handoff>::new();
    (0..3).for_each(|cpu| system.go_lazy(cpu, 0));
    system.go_lazy(3, 1);
    system.reap();
    assert_eq!(system.stats().interrupts_sent, 0);
    system.retire(0);
    system.reap();
    assert_eq!(system.reclaimed(), [0]);
    assert_eq!(system.stats().interrupts_sent, 2);
    system.reap();
    assert_eq!((system.reclaimed(), system.stats().interrupts_sent), (vec![], 2));
}

/// The handler reclaims nothing: what falls to it is there for whoever looks next.
#[test]
fn what_the_handler_let_go_of_is_reclaimed_by_who_looks_next() {
    type Next = fn(&System<Handoff>);
    let next: [Next; 4] = [
        |system| system.reap(),
        |system| system.cpu(1).here().leave(),
        |system| system.switch(1, 1),
        |system| system.cpu(1).here().offline(),
    ];
    for next in next {
        let system = System::<Handoff>::new();
        system.go_lazy(1, 0);
        // Rung while the space was alive, it finds it dead.
        let extent = Extent::page(0).freeing_tables();
        system.engine.machine().unhook_tables(&system.spaces[0]);
        let mut pending = system.cpu(0).here().flush(&system.spaces[0], extent);
        // SAFETY: as in `retire`.
        drop(unsafe { system.cpu(0).here().retire(NonNull::from(&system.spaces[0])) });
        system.cpu(1).interrupt_point();
        assert!(pending.poll());
        assert_eq!(system.reclaimed(), []);
        next(&system);
        assert_eq!(system.reclaimed(), [0]);
    }
}

#[test]
fn tables_wait_for_lazy_cpus_and_nobody_is_interrupted_for_them() {
    let system = System::<Handoff>::new();
    system.go_lazy(1, 0);
    let first = system.flush(0, 0, true);
    assert!(!first.is_clear());
    // It stays lazy: nothing is known.
    assert!(system.flush(0, 0, false).cleared() < first.flush());
    // It has caught up, and says so when it goes lazy; a table unhooked after that waits.
    system.switch(1, 0);
    system.cpu(1).here().enter_lazy();
    let second = system.flush(0, 0, true);
    assert!(second.cleared() >= first.flush() && !second.is_clear());
    // It is gone.
    system.switch(1, 1);
    assert!(system.flush(0, 0, false).cleared() >= second.flush());
    assert_eq!(system.stats().interrupts_sent, 0);
}

#[test]
fn tables_that_nobody_can_walk_are_free_at_once() {
    let system = System::<Handoff>::new();
    system.switch(0, 0);
    system.switch(1, 0);
    system.switch(2, 0);
    system.switch(2, 1);
    assert!(system.flush(0, 0, true).is_clear());
    // For the one that uses the space.
    assert_eq!(system.stats().interrupts_sent, 1);
}

#[test]
fn who_is_expelled_is_no_longer_waited_for() {
    let system = System::<Handoff>::new();
    system.go_lazy(1, 0);
    system.go_lazy(2, 0);
    let held_back = system.flush(0, 0, true);
    system.switch(2, 0);
    system.cpu(2).here().enter_lazy();
    let (mut pending, horizon) = system.cpu(0).here().expel(&system.spaces[0]);
    assert!(horizon.cleared() >= held_back.flush());
    system.cpu(1).interrupt_point();
    assert!(pending.poll());
    // CPU 2 had seen it.
    assert_eq!(system.stats().interrupts_sent, 1);
    assert_eq!(system.presence(1), Presence::Out);
    assert!(system.flush(0, 0, false).cleared() >= held_back.flush());
}

#[test]
fn several_extents_are_one_flush() {
    let system = System::<Handoff>::new();
    system.switch(0, 0);
    system.switch(1, 0);
    system.go_lazy(2, 0);
    let mut extents = Extents::new();
    assert_eq!(
        system.cpu(0).here().flush_gathered(&system.spaces[0], &extents).1,
        Horizon::UNKNOWN
    );
    for page in [0, 2] {
        extents.add(Extent::page(page << 12));
    }
    let (mut pending, _) = system.cpu(0).here().flush_gathered(&system.spaces[0], &extents);
    system.cpu(1).interrupt_point();
    assert!(pending.poll());
    assert_eq!(system.stats().interrupts_sent, 1);
    system.switch(2, 0);
    for cpu in 0..3 {
        let stats = system.engine.cpu(CpuId(cpu)).stats();
        assert_eq!((stats.pages_invalidated, stats.flushes_ranged), (2, 2), "CPU {cpu}");
    }
    assert_eq!(system.engine.cpu(CpuId(2)).stats().caught_up_from_log, 2);
}
