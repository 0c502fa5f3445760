//! What becomes of spaces and page tables that die under lazy CPUs, one CPU at a time: who frees
//! them, when, and at what cost. What happens when CPUs meet is in `tests/rules`.

#![expect(unsafe_code, reason = "switching is unsafe, and retiring is")]

#[path = "platforms/lifetimes.rs"]
mod lifetimes;

use std::cell::RefCell;
use std::mem;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lifetimes::{COUNTED, HANDOFF, SHOOT, With};
use shootdown::soft::{Config, Host, OnCpu, Platform, Soft, Touch};
use shootdown::{
    CpuId, CpuStats, Extent, ExtentSet, Horizon, Pending, Presence, Reaping, Retiring, Root,
    Shootdown, Space, Word,
};

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

    /// Has CPU 0 retire a space, with all others taking their interrupts.
    fn retire(&self, space: usize) {
        // SAFETY: the tests use it no more, and it stays where it is.
        let retiring = unsafe { self.cpu(0).pin().retire(NonNull::from(&self.spaces[space])) };
        (1..4).for_each(|cpu| self.cpu(cpu).interrupt_point());
        finish(retiring, Retiring::poll);
    }

    /// Has CPU 0 reap, with all others taking their interrupts.
    fn reap(&self) {
        let reaping = self.cpu(0).pin().reap();
        (1..4).for_each(|cpu| self.cpu(cpu).interrupt_point());
        finish(reaping, Reaping::poll);
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

/// Everybody has answered, or will not: a wait would spin for ever.
fn finish<T>(mut waiting: T, poll: impl FnOnce(&mut T) -> bool) {
    let done = poll(&mut waiting);
    if !done {
        // Dropping it would wait.
        mem::forget(waiting);
    }
    assert!(done, "nobody is left to answer");
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

/// Whether it asks or just lets go of what it waits by.
#[test]
fn who_retires_or_reaps_is_not_done_before_all_have_let_go() {
    for is_asked in [true, false] {
        let system = System::<With<Host, SHOOT>>::new();
        system.go_lazy(1, 0);
        // SAFETY: as in `retire`.
        let mut retiring = unsafe { system.cpu(0).pin().retire(NonNull::from(&system.spaces[0])) };
        assert!(!retiring.poll());
        assert_eq!(system.reclaimed(), []);
        system.cpu(1).interrupt_point();
        if is_asked {
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
        if is_asked {
            assert!(reaping.poll());
        } else {
            drop(reaping);
        }
        assert_eq!(system.reclaimed(), [0]);
    }
}

/// Those who are lazy, each time that they are, and nobody else.
#[test]
fn who_is_counted_is_counted_out() {
    let system = System::<With<Host, COUNTED>>::new();
    system.switch(1, 0);
    system.switch(1, 1);
    system.go_lazy(2, 0);
    system.switch(2, 0);
    system.go_lazy(2, 0);
    system.retire(0);
    assert_eq!(system.reclaimed(), [], "CPU 2 has it loaded");
    system.switch(2, 1);
    assert_eq!(system.reclaimed(), [0]);
}

/// Its pages were freed without a flush.
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
fn reaping_interrupts_those_who_hold_a_dead_space_and_no_others() {
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

/// The handler reclaims nothing: what falls to it is there for whoever looks next.
#[test]
fn what_the_handler_let_go_of_is_reclaimed_by_who_looks_next() {
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
        // Rung while the space was alive, it finds it dead.
        let extent = Extent::page(0).freeing_tables();
        system.engine.machine().unhook_tables(&system.spaces[0]);
        let pending = system.cpu(0).pin().flush(&system.spaces[0], extent);
        // SAFETY: as in `retire`.
        drop(unsafe { system.cpu(0).pin().retire(NonNull::from(&system.spaces[0])) });
        system.cpu(1).interrupt_point();
        finish(pending, Pending::poll);
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
    system.cpu(1).pin().enter_lazy();
    let second = system.flush(0, 0, true);
    assert!(second.cleared() >= first.flush() && !second.is_clear());
    // It is gone.
    system.switch(1, 1);
    assert!(system.flush(0, 0, false).cleared() >= second.flush());
    assert_eq!(system.stats().interrupts_sent, 0);
}

/// Linux freed tables under a CPU that was on its way offline, and still lazy.
#[test]
fn tables_wait_no_longer_for_who_left_or_went_offline() {
    type Goes = fn(&System<Handoff>);
    let goes: [Goes; 2] =
        [|system| system.cpu(1).pin().leave_space(), |system| system.cpu(1).pin().offline()];
    for goes in goes {
        let system = System::<Handoff>::new();
        system.go_lazy(1, 0);
        let deferred = system.flush(0, 0, true);
        assert!(!deferred.is_clear());
        goes(&system);
        assert!(system.flush(0, 0, false).cleared() >= deferred.flush());
        assert!(system.flush(0, 0, true).is_clear());
        assert_eq!(system.stats().interrupts_sent, 0);
    }
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
    let deferred = system.flush(0, 0, true);
    system.switch(2, 0);
    system.cpu(2).pin().enter_lazy();
    let pending = system.cpu(0).pin().flush_walkers(&system.spaces[0]);
    let horizon = pending.horizon();
    assert!(horizon.cleared() >= deferred.flush());
    system.cpu(1).interrupt_point();
    finish(pending, Pending::poll);
    // CPU 2 had seen it.
    assert_eq!(system.stats().interrupts_sent, 1);
    assert_eq!(system.presence(1), Presence::Out);
    assert!(system.flush(0, 0, false).cleared() >= deferred.flush());
}

/// The tables that it walks itself are free, too, and nobody is there to be waited for.
#[test]
fn who_expels_has_caught_up_itself() {
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

/// On the CPU that flushes, on one that it interrupts, and on one that catches up later.
#[test]
fn all_of_several_extents_are_gone() {
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
fn several_extents_are_one_flush() {
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

/// The host, with something to do in the moment at which a CPU lets go of a space.
struct Interposed;

/// The address of a space, and what to do as soon as no word holds it any more.
struct LetGo(u64, Box<dyn FnOnce()>);

thread_local! {
    static LET_GO: RefCell<Option<LetGo>> = const { RefCell::new(None) };
}

struct InterposedWord(AtomicU64);

impl Word for InterposedWord {
    fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }
    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.0.swap(value, order)
    }
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_add(value, order)
    }
    fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_or(value, order)
    }
    fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_and(value, order)
    }
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        let result = self.0.compare_exchange(current, new, success, failure);
        let is_it = |let_go: &mut LetGo| result == Ok(let_go.0) && new == 0;
        if let Some(LetGo(_, then)) = LET_GO.with_borrow_mut(|let_go| let_go.take_if(is_it)) {
            then();
        }
        result
    }
}

impl Platform for Interposed {
    type Word = InterposedWord;
    type Frame = AtomicU64;
    fn fence() {
        Host::fence();
    }
    fn spin_hint() {
        Host::spin_hint();
    }
    fn cpu() -> CpuId {
        Host::cpu()
    }
    fn set_cpu(cpu: CpuId) {
        Host::set_cpu(cpu);
    }
}

/// Nor may it have a reference: Miri fails if one outlives the space, used or not.
#[test]
fn a_handler_that_has_let_go_does_not_touch_the_space() {
    let engine = Arc::new(Soft::<Interposed>::engine(Config::default()));
    (0..2).for_each(|cpu| engine.enter(CpuId(cpu)).pin().online());
    let dying = NonNull::from(Box::leak(Box::new(engine.space(Root(0)))));
    // SAFETY: until it is retired, it is there.
    let space = || unsafe { dying.as_ref() };

    let one = engine.enter(CpuId(1));
    // SAFETY: it is freed when the engine gives it back, and not before.
    unsafe { one.pin().switch(space()) };
    one.pin().enter_lazy();
    engine.machine().unhook_tables(space());
    let mut extents = ExtentSet::new();
    extents.add(Extent::page(0).freeing_tables());
    // Who is lazy is not rung for these, and finds them when it is rung for something else.
    let pending = engine.enter(CpuId(0)).pin().flush_gathered(space(), &extents);
    finish(pending, Pending::poll);
    let pending = engine.enter(CpuId(0)).pin().flush_kernel(Extent::page(0));

    let other = Arc::clone(&engine);
    let retire_and_free = move || {
        // SAFETY: nobody uses it, and it stays where it is until it is freed below.
        drop(unsafe { other.enter(CpuId(0)).pin().retire(dying) });
        for space in other.machine().take_reclaimed() {
            // SAFETY: leaked above, and given back: it is ours alone.
            drop(unsafe { Box::from_raw(space.as_ptr()) });
        }
        // CPU 1 goes on.
        Interposed::set_cpu(CpuId(1));
    };
    LET_GO.set(Some(LetGo(dying.as_ptr() as u64, Box::new(retire_and_free))));
    one.interrupt_point();
    finish(pending, Pending::poll);
    assert!(LET_GO.take().is_none(), "it has not let go");
}
