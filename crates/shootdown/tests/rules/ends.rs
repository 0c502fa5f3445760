//! Programs about the end of page tables and spaces: tables in quarantine, and spaces that are
//! retired while CPUs are lazy on them.

use std::ptr::NonNull;
use std::sync::Arc;

use loom::thread;
use shootdown::soft::{Config, Frame, Platform};
use shootdown::{DeadSpaces, ExtentSet, Horizon, Pending};

use crate::platform::Loom;
use crate::system::{Cpu, Machine, System, finish, page_at, switch};

/// Makes CPU `cpu` lazy on `a`, whose upper levels it caches.
pub(crate) fn go_lazy<const W: usize>(system: &System<W>, cpu: u32) {
    let cpu = system.cpu(cpu);
    switch(&cpu, &system.a);
    cpu.pin().enter_lazy();
}

/// A system on which CPU 1 is lazy on `a`.
fn lazy<const W: usize>(config: Config) -> Arc<System<W>> {
    let system = System::<W>::new(config);
    go_lazy(&system, 1);
    system
}

/// Retires `a`, which no CPU uses.
pub(crate) fn retire<const W: usize>(system: &System<W>, cpu: &Cpu<'_, W>) {
    // SAFETY: no CPU uses `a`, which stays in place as long as the system exists.
    drop(unsafe { cpu.pin().retire(NonNull::from(&system.a)) });
}

/// Asserts that `a` was reclaimed once, and that no CPU has walked its page tables since.
fn assert_reclaimed_once<const W: usize>(system: &System<W>) {
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
    assert_reclaimed_once(&system);
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
    assert_reclaimed_once(&system);
}

/// CPUs 1 and 2 leave a dead space at the same time.
pub(crate) fn two_cpus_leave_dead_space<const W: usize>(config: Config) {
    let system = lazy::<W>(Config { cpus: 3, ..config });
    go_lazy(&system, 2);
    retire(&system, &system.cpu(0));
    let other = Arc::clone(&system);
    let leaving = thread::spawn(move || other.cpu(2).pin().leave_space());
    switch(&system.cpu(1), &system.b);
    leaving.join().unwrap();
    assert_reclaimed_once(&system);
}

/// CPU 1 resumes the space that CPU 0 retires, if the space is not marked yet, and then leaves it.
/// The contract of `retire` forbids that; the page tables are still reclaimed only once.
pub(crate) fn resume_while_retired<const W: usize>(config: Config) {
    let system = lazy::<W>(config);
    let come_back = |system: &System<W>, cpu: &Cpu<'_, W>| {
        let _ = cpu.pin().resume(system.a.id());
        cpu.speculate();
        cpu.pin().enter_lazy();
        switch(cpu, &system.b);
    };
    system.race(come_back, |cpu| retire(&system, cpu));
    assert_reclaimed_once(&system);
}

/// CPU 0 retires a space that both CPU 0 and CPU 1 are lazy on; both leave it.
pub(crate) fn retire_own<const W: usize>(config: Config) {
    let system = lazy::<W>(config);
    go_lazy(&system, 0);
    let retire_and_leave = |cpu: &Cpu<'_, W>| {
        retire(&system, cpu);
        cpu.speculate();
        switch(cpu, &system.b);
    };
    system.race(|_, cpu| cpu.pin().leave_space(), retire_and_leave);
    assert_reclaimed_once(&system);
}

/// CPU 0 retires a space that it is still active on, while CPU 1 leaves it.
pub(crate) fn retire_active<const W: usize>(config: Config) {
    let system = lazy::<W>(config);
    switch(&system.cpu(0), &system.a);
    system.race(
        |_, cpu| cpu.pin().leave_space(),
        |cpu| {
            retire(&system, cpu);
            cpu.speculate();
            assert!(!cpu.pin().resume(system.a.id()));
        },
    );
    assert!(system.machine().take_reclaimed().is_empty(), "CPU 0 is lazy on the space");
    system.cpu(0).pin().leave_space();
    assert_reclaimed_once(&system);
}

/// CPU 1 goes offline while CPU 0 retires the space that it is lazy on.
pub(crate) fn retire_while_going_offline<const W: usize>(config: Config) {
    let system = lazy::<W>(config);
    system.race(|_, cpu| cpu.pin().offline(), |cpu| retire(&system, cpu));
    assert_reclaimed_once(&system);
}

/// CPU 0 trims the CPU mask while CPU 1 switches away; then it retires the space.
pub(crate) fn retire_after_cpumask_trimmed<const W: usize>(config: Config) {
    let system = lazy::<W>(config);
    system.race(
        |system, cpu| switch(cpu, &system.b),
        |cpu| {
            assert!(cpu.pin().trim_cpumask(&system.a));
            retire(&system, cpu);
        },
    );
    assert_reclaimed_once(&system);
}

/// CPU 0 walks the tables of a space for the last time and retires it, while CPU 1 leaves it. The
/// walk must be ordered before the reclaim on either CPU.
pub(crate) fn retire_after_walking<const W: usize>(config: Config) {
    let system = lazy::<W>(config);
    go_lazy(&system, 0);
    let leave_and_retire = |cpu: &Cpu<'_, W>| {
        cpu.speculate();
        cpu.pin().leave_space();
        retire(&system, cpu);
    };
    system.race(|_, cpu| cpu.pin().leave_space(), leave_and_retire);
    assert_reclaimed_once(&system);
}

/// CPU 1's handler leaves a space that is alive, because tables were unhooked, while CPU 0 retires
/// it. A mark that arrives in the middle of that is not lost: to reap is enough to free the space.
pub(crate) fn retire_while_handler_leaves<const W: usize>(config: Config) {
    let system = lazy::<W>(config);
    let (pending, _) = unhook(&system, &system.cpu(0));
    finish(pending);
    let pending = system.cpu(0).pin().flush_kernel(page_at(1));
    system.race(|_, cpu| cpu.interrupt_point(), |cpu| retire(&system, cpu));
    finish(pending);
    let reaping = system.cpu(0).pin().reap();
    system.cpu(1).interrupt_point();
    drop(reaping);
    assert_reclaimed_once(&system);
}

/// As [`retire_while_handler_leaves`], where CPU 0 frees the quarantined tables after the space was
/// reclaimed.
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
    assert_no_freed_walks(&system);
}

/// CPU 1 is lazy on a dead space, and switches away while CPU 0 reaps.
pub(crate) fn reap<const W: usize>(config: Config) {
    let system = lazy::<W>(config);
    retire(&system, &system.cpu(0));
    let reaping = system.race(|system, cpu| switch(cpu, &system.b), |cpu| cpu.pin().reap());
    system.cpu(1).interrupt_point();
    drop(reaping);
    assert_reclaimed_once(&system);
}

/// CPU 1 idles on a dead space, and does nothing but take interrupts.
pub(crate) fn reap_idle<const W: usize>(config: Config) {
    let system = lazy::<W>(config);
    retire(&system, &system.cpu(0));
    let reaping = system.cpu(0).pin().reap();
    system.cpu(1).interrupt_point();
    drop(reaping);
    assert_reclaimed_once(&system);
}

/// CPU 1 leaves a dead space in its handler, which runs for another reason, while CPU 0 reaps.
pub(crate) fn reap_orphan<const W: usize>(config: Config) {
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
    assert_reclaimed_once(&system);
}

/// CPU 1 drops a dead space in its handler, and replaces its orphaned hazard pointer while CPU 0
/// reaps.
pub(crate) fn leave_orphan<const W: usize>(config: Config) {
    let system = lazy::<W>(config);
    retire(&system, &system.cpu(0));
    let reaping = system.cpu(0).pin().reap();
    system.cpu(1).interrupt_point();
    system.race(|_, cpu| cpu.pin().leave_space(), |_| drop(reaping));
    assert_reclaimed_once(&system);
}

type SpaceMemory = <Loom as Platform>::Frame;

/// CPU 1 reclaims a space and puts it on a list of dead spaces, while CPU 0 frees what is on it.
pub(crate) fn free_from_list<const W: usize>(config: Config) {
    let system = lazy::<W>(config);
    retire(&system, &system.cpu(0));
    // Stands for the memory of the space.
    let memory = Arc::new(SpaceMemory::new());
    let list: Arc<DeadSpaces<Machine<W>>> = Arc::default();
    let free = |system: &System<W>, list: &DeadSpaces<Machine<W>>, memory: &SpaceMemory| {
        let spaces = list.take(system.machine());
        spaces.inspect(|_| memory.reuse()).count()
    };
    let (used, pushed) = (Arc::clone(&memory), Arc::clone(&list));
    let reclaim = move |system: &System<W>, cpu: &Cpu<'_, W>| {
        cpu.pin().leave_space();
        used.use_count();
        for space in system.machine().take_reclaimed() {
            // SAFETY: the engine has reclaimed the space, which stays in place.
            unsafe { pushed.push(system.machine(), space) };
        }
    };
    let freed = system.race(reclaim, |_| free(&system, &list, &memory));
    assert_eq!(freed + free(&system, &list, &memory), 1);
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

/// Asserts that no CPU has walked freed page tables, after a last walk on CPU 1.
fn assert_no_freed_walks<const W: usize>(system: &System<W>) {
    system.cpu(1).speculate();
    assert_eq!(system.machine().freed_table_walks(), 0);
}

/// CPU 0 unhooks tables, and frees them as soon as their flush is clear, while CPU 1 runs `one`.
pub(crate) fn free_when_clear<const W: usize>(
    system: &Arc<System<W>>,
    one: impl FnOnce(&System<W>, &Cpu<'_, W>) + 'static,
) {
    free_when_clear_after(system, one, |_| ());
}

/// As [`free_when_clear`], where CPU 0 first runs `before`.
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
    assert_no_freed_walks(system);
}

/// CPU 1 is lazy and stays lazy while CPU 0 frees tables.
pub(crate) fn quarantine_under_lazy<const W: usize>(config: Config) {
    free_when_clear(&lazy::<W>(config), |_, cpu| cpu.speculate());
}

/// CPU 1 switches away while CPU 0 frees tables.
pub(crate) fn quarantine_while_leaving<const W: usize>(config: Config) {
    let system = lazy::<W>(config);
    switch(&system.cpu(1), &system.a);
    free_when_clear(&system, |system, cpu| switch(cpu, &system.b));
}

/// CPU 1 switches away while CPU 0 frees tables. Its next space has a higher generation than `a`,
/// which must not count for `a`.
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
fn enter_and_idle<const W: usize>(system: &System<W>, cpu: &Cpu<'_, W>) {
    switch(cpu, &system.a);
    cpu.pin().enter_lazy();
}

/// CPU 1 switches in for the first time while CPU 0 frees tables.
pub(crate) fn quarantine_while_entering<const W: usize>(config: Config) {
    free_when_clear(&System::<W>::new(config), enter_and_idle);
}

/// CPU 1 switches in again while CPU 0 frees tables: it is in the CPU mask, and caches earlier
/// tables.
pub(crate) fn quarantine_while_returning<const W: usize>(config: Config) {
    let system = lazy::<W>(config);
    switch(&system.cpu(1), &system.b);
    free_when_clear(&system, enter_and_idle);
}

/// CPU 1 switches in and away while CPU 0 trims the CPU mask and frees tables.
pub(crate) fn quarantine_while_trimming<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    switch(&system.cpu(1), &system.b);
    let switch_in_and_away = |system: &System<W>, cpu: &Cpu<'_, W>| {
        switch(cpu, &system.a);
        switch(cpu, &system.b);
    };
    free_when_clear_after(&system, switch_in_and_away, |cpu| {
        assert!(cpu.pin().trim_cpumask(&system.a));
    });
}

/// CPU 1 comes back and goes lazy again, which publishes that it has caught up. CPU 0 then frees
/// the tables.
pub(crate) fn free_after_catch_up<const W: usize>(config: Config) {
    let system = lazy::<W>(config);
    let (pending, before) = unhook(&system, &system.cpu(0));
    finish(pending);
    assert!(!before.is_clear());
    let (pending, freed) = system.race(enter_and_idle, |cpu| {
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
        // By now, CPU 1 has published that it has caught up.
        let mut extents = ExtentSet::new();
        extents.add(page_at(1));
        let pending = system.cpu(0).pin().flush_gathered(&system.a, &extents);
        let horizon = pending.horizon();
        finish(pending);
        assert!(horizon.cleared() >= before.flush());
        system.machine().free_tables(&system.a);
    }
    assert_no_freed_walks(&system);
}

/// CPU 1 comes back while CPU 0 flushes the walkers of quarantined tables.
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
    assert_no_freed_walks(&system);
}

/// CPU 1 stays lazy while CPU 0 flushes the walkers of quarantined tables.
pub(crate) fn flush_walkers_lazy<const W: usize>(config: Config) {
    let system = lazy::<W>(config);
    let (pending, _) = unhook(&system, &system.cpu(0));
    finish(pending);
    let pending = system.cpu(0).pin().flush_walkers(&system.a);
    system.cpu(1).interrupt_point();
    finish(pending);
    system.machine().free_tables(&system.a);
    assert_no_freed_walks(&system);
}

/// CPU 1 switches in and goes lazy, CPU 0 unhooks tables, and CPU 2 flushes walkers. CPU 1 cannot
/// walk tables that CPU 2's flush clears, even if it has not published its hazard pointer yet.
pub(crate) fn flush_walkers_and_unhook<const W: usize>(config: Config) {
    let system = System::<W>::new(Config { cpus: 3, ..config });
    switch(&system.cpu(1), &system.a);
    system.cpu(1).pin().leave_space();
    // CPU 1 answers both flushes below. (loom first runs the threads in this order, in which the
    // last may miss the flush of the first, so that it finds the failure early.)
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
    enter_and_idle(&system, &system.cpu(1));
    let unhooked = unhooking.join().unwrap();
    let flushed = flushing.join().unwrap();
    system.cpu(1).interrupt_point();
    if unhooked.is_clear() || flushed.cleared() >= unhooked.flush() {
        system.machine().free_tables(&system.a);
    }
    assert_no_freed_walks(&system);
}
