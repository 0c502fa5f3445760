//! Programs about the end of things: page tables that are held back, and spaces that die while
//! CPUs are lazy on them.

use std::ptr::NonNull;
use std::sync::Arc;

use loom::thread;
use shootdown::soft::Config;
use shootdown::{ExtentSet, Horizon, Pending};

use crate::system::{Cpu, Machine, System, finish, page_at, switch};

/// CPU `cpu` has `a` loaded lazily, and caches its upper levels.
fn go_lazy<const W: usize>(system: &System<W>, cpu: u32) {
    let cpu = system.cpu(cpu);
    switch(&cpu, &system.a);
    cpu.pin().enter_lazy();
}

/// CPU 1 is lazy on `a`.
fn lazy<const W: usize>(config: Config) -> Arc<System<W>> {
    let system = System::<W>::new(config);
    go_lazy(&system, 1);
    system
}

/// Retires `a`, which nobody uses.
pub(crate) fn retire<const W: usize>(system: &System<W>, cpu: &Cpu<'_, W>) {
    // SAFETY: nobody uses it, and it is where it is as long as the system is.
    drop(unsafe { cpu.pin().retire(NonNull::from(&system.a)) });
}

/// `a` was given back once, and nobody has walked its page tables since.
fn was_reclaimed_once<const W: usize>(system: &System<W>) {
    for cpu in 0..system.cpu_count() {
        system.cpu(cpu).speculate();
    }
    assert_eq!(system.machine().freed_table_walks(), 0);
    assert_eq!(system.machine().take_reclaimed(), [NonNull::from(&system.a)]);
}

/// CPU 1 switches away from the space that CPU 0 retires.
pub(crate) fn retire_while_leaving<const W: usize>(config: Config) {
    let system = lazy::<W>(config);
    system.race(|system, cpu| switch(cpu, &system.b), |cpu| retire(&system, cpu));
    was_reclaimed_once(&system);
}

/// CPU 1 stays lazy on a space that CPU 0 retires, and leaves it later.
pub(crate) fn retire_under_lazy<const W: usize>(config: Config) {
    let system = lazy::<W>(config);
    retire(&system, &system.cpu(0));
    let cpu = system.cpu(1);
    cpu.speculate();
    assert_eq!(system.machine().freed_table_walks(), 0);
    cpu.pin().leave_space();
    drop(cpu);
    was_reclaimed_once(&system);
}

/// CPUs 1 and 2 let go of a dead space at once.
pub(crate) fn two_let_go<const W: usize>(config: Config) {
    let system = lazy::<W>(Config { cpus: 3, ..config });
    go_lazy(&system, 2);
    retire(&system, &system.cpu(0));
    let other = Arc::clone(&system);
    let leaving = thread::spawn(move || other.cpu(2).pin().leave_space());
    switch(&system.cpu(1), &system.b);
    leaving.join().unwrap();
    was_reclaimed_once(&system);
}

/// CPU 1 comes back to the space that CPU 0 retires, if it is not too late, and then leaves it for
/// good. That is beyond the contract of `retire`; the page tables are reclaimed once all the same.
pub(crate) fn come_back_while_retired<const W: usize>(config: Config) {
    let system = lazy::<W>(config);
    let come_back = |system: &System<W>, cpu: &Cpu<'_, W>| {
        let _ = cpu.pin().resume(system.a.id());
        cpu.speculate();
        cpu.pin().enter_lazy();
        switch(cpu, &system.b);
    };
    system.race(come_back, |cpu| retire(&system, cpu));
    was_reclaimed_once(&system);
}

/// CPU 0 retires a space that it is lazy on itself, as CPU 1 is; both let go.
pub(crate) fn retire_own<const W: usize>(config: Config) {
    let system = lazy::<W>(config);
    go_lazy(&system, 0);
    let retire_and_leave = |cpu: &Cpu<'_, W>| {
        retire(&system, cpu);
        cpu.speculate();
        switch(cpu, &system.b);
    };
    system.race(|_, cpu| cpu.pin().leave_space(), retire_and_leave);
    was_reclaimed_once(&system);
}

/// CPU 1 goes offline while CPU 0 retires the space that it is lazy on.
pub(crate) fn retire_while_going_offline<const W: usize>(config: Config) {
    let system = lazy::<W>(config);
    system.race(|_, cpu| cpu.pin().offline(), |cpu| retire(&system, cpu));
    was_reclaimed_once(&system);
}

/// The roster moves while CPU 1 switches away; then the space is retired.
pub(crate) fn retire_after_cpumask_trimmed<const W: usize>(config: Config) {
    let system = lazy::<W>(config);
    system.race(
        |system, cpu| switch(cpu, &system.b),
        |cpu| {
            assert!(cpu.pin().trim_cpumask(&system.a));
            retire(&system, cpu);
        },
    );
    was_reclaimed_once(&system);
}

/// CPU 0 walks the tables of a space for the last time and retires it, while CPU 1 lets go of it:
/// whoever frees it must have that walk behind it.
pub(crate) fn retire_after_walking<const W: usize>(config: Config) {
    let system = lazy::<W>(config);
    go_lazy(&system, 0);
    let leave_and_retire = |cpu: &Cpu<'_, W>| {
        cpu.speculate();
        cpu.pin().leave_space();
        retire(&system, cpu);
    };
    system.race(|_, cpu| cpu.pin().leave_space(), leave_and_retire);
    was_reclaimed_once(&system);
}

/// CPU 1's handler lets go of a space that is alive, for its tables were unhooked, while CPU 0
/// retires it.
pub(crate) fn retire_while_handler_leaves<const W: usize>(config: Config) {
    let system = lazy::<W>(config);
    let (pending, _) = unhook(&system, &system.cpu(0));
    finish(pending);
    let pending = system.cpu(0).pin().flush_kernel(page_at(1));
    system.race(|_, cpu| cpu.interrupt_point(), |cpu| retire(&system, cpu));
    finish(pending);
    system.cpu(1).pin().leave_space();
    was_reclaimed_once(&system);
}

/// The same, where CPU 0 frees the tables that were held back once it has reclaimed the space.
pub(crate) fn handler_leaves_unhooked_tables<const W: usize>(config: Config) {
    let system = lazy::<W>(config);
    let (pending, _) = unhook(&system, &system.cpu(0));
    finish(pending);
    let pending = system.cpu(0).pin().flush_kernel(page_at(1));
    let free_if_reclaimed = |system: &System<W>| {
        if !system.machine().take_reclaimed().is_empty() {
            system.machine().free_tables(&system.a);
        }
    };
    system.race(
        |_, cpu| cpu.interrupt_point(),
        |cpu| {
            retire(&system, cpu);
            free_if_reclaimed(&system);
        },
    );
    finish(pending);
    system.cpu(1).pin().leave_space();
    free_if_reclaimed(&system);
    nobody_walks_freed_tables(&system);
}

/// CPU 1 is lazy on a dead space, and is told to let go of it while it switches away by itself.
pub(crate) fn reap<const W: usize>(config: Config) {
    let system = lazy::<W>(config);
    retire(&system, &system.cpu(0));
    let reaping = system.race(|system, cpu| switch(cpu, &system.b), |cpu| cpu.pin().reap());
    system.cpu(1).interrupt_point();
    drop(reaping);
    was_reclaimed_once(&system);
}

/// CPU 1 idles on a dead space for ever, but for interrupts.
pub(crate) fn reap_idle<const W: usize>(config: Config) {
    let system = lazy::<W>(config);
    retire(&system, &system.cpu(0));
    let reaping = system.cpu(0).pin().reap();
    system.cpu(1).interrupt_point();
    drop(reaping);
    was_reclaimed_once(&system);
}

/// CPU 1 lets go of a dead space in its handler, called for another reason, while CPU 0 reaps.
pub(crate) fn reap_what_was_left<const W: usize>(config: Config) {
    let system = lazy::<W>(config);
    retire(&system, &system.cpu(0));
    let pending = system.cpu(0).pin().flush_kernel(page_at(0));
    let reaping = system.race(
        |_, cpu| cpu.interrupt_point(),
        |cpu| {
            let mut reaping = cpu.pin().reap();
            (!reaping.poll()).then_some(reaping)
        },
    );
    system.cpu(1).interrupt_point();
    finish(pending);
    drop(reaping);
    was_reclaimed_once(&system);
}

/// CPU 1 lets go of a dead space in its handler, and leaves while CPU 0 reaps.
pub(crate) fn leave_what_was_left<const W: usize>(config: Config) {
    let system = lazy::<W>(config);
    retire(&system, &system.cpu(0));
    let reaping = system.cpu(0).pin().reap();
    system.cpu(1).interrupt_point();
    system.race(|_, cpu| cpu.pin().leave_space(), |_| drop(reaping));
    was_reclaimed_once(&system);
}

/// Unhooks page tables of `a` and sends a flush that does not ring lazy CPUs for them.
fn unhook<'e, const W: usize>(
    system: &System<W>,
    cpu: &Cpu<'e, W>,
) -> (Pending<'e, Machine<W>>, Horizon) {
    system.machine().unhook_tables(&system.a);
    let mut extents = ExtentSet::new();
    extents.add(page_at(0).freeing_tables());
    let pending = cpu.pin().flush_gathered(&system.a, &extents);
    let horizon = pending.horizon();
    (pending, horizon)
}

fn nobody_walks_freed_tables<const W: usize>(system: &System<W>) {
    system.cpu(1).speculate();
    assert_eq!(system.machine().freed_table_walks(), 0);
}

/// Tables are freed as soon as their own flush says so, while CPU 1 does something.
fn free_when_clear<const W: usize>(
    system: &Arc<System<W>>,
    one: impl FnOnce(&System<W>, &Cpu<'_, W>) + 'static,
) {
    free_when_clear_after(system, one, |_| ());
}

/// The same, where CPU 0 does something, too, before it unhooks them.
fn free_when_clear_after<const W: usize>(
    system: &Arc<System<W>>,
    one: impl FnOnce(&System<W>, &Cpu<'_, W>) + 'static,
    before: impl FnOnce(&Cpu<'_, W>),
) {
    let later = system.race(one, |cpu| {
        before(cpu);
        let (mut pending, horizon) = unhook(system, cpu);
        if !horizon.is_clear() || !pending.poll() {
            return Some((pending, horizon));
        }
        system.machine().free_tables(&system.a);
        None
    });
    let cpu = system.cpu(1);
    cpu.interrupt_point();
    cpu.speculate();
    drop(cpu);
    if let Some((pending, horizon)) = later {
        finish(pending);
        if horizon.is_clear() {
            system.machine().free_tables(&system.a);
        }
    }
    nobody_walks_freed_tables(system);
}

/// CPU 1 is lazy, and stays so.
pub(crate) fn hold_back_under_lazy<const W: usize>(config: Config) {
    free_when_clear(&lazy::<W>(config), |_, cpu| cpu.speculate());
}

/// CPU 1 switches away.
pub(crate) fn hold_back_while_leaving<const W: usize>(config: Config) {
    let system = lazy::<W>(config);
    switch(&system.cpu(1), &system.a);
    free_when_clear(&system, |system, cpu| switch(cpu, &system.b));
}

/// CPU 1 switches away, to a space of which it has seen more flushes than there were of `a`: that
/// says nothing of `a`.
pub(crate) fn seen_of_another_space<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    switch(&system.cpu(1), &system.b);
    for _ in 0..2 {
        let pending = system.cpu(0).pin().flush(&system.b, page_at(1));
        system.cpu(1).interrupt_point();
        finish(pending);
    }
    system.cpu(1).pin().enter_lazy();
    switch(&system.cpu(1), &system.a);
    free_when_clear(&system, |system, cpu| switch(cpu, &system.b));
}

/// Switches to `a`, and goes lazy.
fn come_and_idle<const W: usize>(system: &System<W>, cpu: &Cpu<'_, W>) {
    switch(cpu, &system.a);
    cpu.pin().enter_lazy();
}

/// CPU 1 comes for the first time.
pub(crate) fn hold_back_while_coming<const W: usize>(config: Config) {
    free_when_clear(&System::<W>::new(config), come_and_idle);
}

/// CPU 1 comes again: it is in the roster, and has tables of before cached.
pub(crate) fn hold_back_while_returning<const W: usize>(config: Config) {
    let system = lazy::<W>(config);
    switch(&system.cpu(1), &system.b);
    free_when_clear(&system, come_and_idle);
}

/// CPU 1 comes and goes while the roster moves.
pub(crate) fn hold_back_after_cpumask_trimmed<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    switch(&system.cpu(1), &system.b);
    let come_and_go = |system: &System<W>, cpu: &Cpu<'_, W>| {
        switch(cpu, &system.a);
        switch(cpu, &system.b);
    };
    free_when_clear_after(&system, come_and_go, |cpu| {
        assert!(cpu.pin().trim_cpumask(&system.a));
    });
}

/// CPU 1 comes back and goes lazy again: it has caught up, and says so.
pub(crate) fn free_what_was_seen<const W: usize>(config: Config) {
    let system = lazy::<W>(config);
    let (pending, before) = unhook(&system, &system.cpu(0));
    finish(pending);
    assert!(!before.is_clear());
    let (pending, freed) = system.race(come_and_idle, |cpu| {
        let mut extents = ExtentSet::new();
        extents.add(page_at(1));
        let mut pending = cpu.pin().flush_gathered(&system.a, &extents);
        let horizon = pending.horizon();
        let freed = horizon.cleared() >= before.flush() && pending.poll();
        if freed {
            system.machine().free_tables(&system.a);
        }
        (pending, freed)
    });
    let cpu = system.cpu(1);
    cpu.interrupt_point();
    drop(cpu);
    finish(pending);
    if !freed {
        // Now it has been seen for certain.
        let mut extents = ExtentSet::new();
        extents.add(page_at(1));
        let pending = system.cpu(0).pin().flush_gathered(&system.a, &extents);
        let horizon = pending.horizon();
        finish(pending);
        assert!(horizon.cleared() >= before.flush());
        system.machine().free_tables(&system.a);
    }
    nobody_walks_freed_tables(&system);
}

/// CPU 1 comes back while CPU 0, which holds tables back, has lost patience.
pub(crate) fn flush_walkers<const W: usize>(config: Config) {
    let system = lazy::<W>(config);
    let (pending, _) = unhook(&system, &system.cpu(0));
    finish(pending);
    let freed = system.race(
        |system, cpu| switch(cpu, &system.a),
        |cpu| {
            let mut pending = cpu.pin().flush_walkers(&system.a);
            if !pending.poll() {
                return Some(pending);
            }
            system.machine().free_tables(&system.a);
            None
        },
    );
    system.cpu(1).interrupt_point();
    if let Some(pending) = freed {
        finish(pending);
        system.machine().free_tables(&system.a);
    }
    nobody_walks_freed_tables(&system);
}

/// CPU 1 stays lazy, and CPU 0 has lost patience.
pub(crate) fn flush_walkers_lazy<const W: usize>(config: Config) {
    let system = lazy::<W>(config);
    let (pending, _) = unhook(&system, &system.cpu(0));
    finish(pending);
    let pending = system.cpu(0).pin().flush_walkers(&system.a);
    system.cpu(1).interrupt_point();
    finish(pending);
    system.machine().free_tables(&system.a);
    nobody_walks_freed_tables(&system);
}

/// CPU 1 comes and goes lazy, CPU 0 unhooks tables, and CPU 2 has lost patience: what its expelling
/// clears, CPU 1 cannot walk, even if it has yet to say whose tables it holds.
pub(crate) fn flush_walkers_and_unhook<const W: usize>(config: Config) {
    let system = System::<W>::new(Config { cpus: 3, ..config });
    switch(&system.cpu(1), &system.a);
    system.cpu(1).pin().leave_space();
    // Who is rung by either answers below. (loom first runs threads in this order, in which the
    // last may miss what the first did: it is found early.)
    let other = Arc::clone(&system);
    let unhooking = thread::spawn(move || {
        let (pending, horizon) = unhook(&other, &other.cpu(0));
        std::mem::forget(pending);
        horizon
    });
    let other = Arc::clone(&system);
    let flushing = thread::spawn(move || {
        let pending = other.cpu(2).pin().flush_walkers(&other.a);
        let horizon = pending.horizon();
        std::mem::forget(pending);
        horizon
    });
    come_and_idle(&system, &system.cpu(1));
    let unhooked = unhooking.join().unwrap();
    let flushed = flushing.join().unwrap();
    system.cpu(1).interrupt_point();
    if unhooked.is_clear() || flushed.cleared() >= unhooked.flush() {
        system.machine().free_tables(&system.a);
    }
    nobody_walks_freed_tables(&system);
}
