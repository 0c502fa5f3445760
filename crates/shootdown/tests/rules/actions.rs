//! A flush on CPU 0 against actions of two or three other CPUs.
//!
//! CPU 0 flushes page 0, and frees it as soon as the flush is done. The other CPUs do the actions
//! of [`programs`](crate::programs), in every combination.

use std::sync::Arc;

use loom::thread;
use shootdown::soft::{Config, Touch};

use crate::system::{Cpu, System, finish, switch};

/// An action of a CPU while CPU 0 flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Switches in for the first time.
    FirstSwitch,
    /// Switches in again, with a tag under which the page is still cached.
    Switch,
    /// Comes back from lazy.
    Resume,
    /// Stops using the space.
    EnterLazy,
    /// Switches to another space.
    SwitchAway,
    /// Continues to use the space, and takes the interrupt.
    TakeInterrupt,
    /// Continues to use the space with interrupts masked, and polls its bell.
    Poll,
    /// Flushes another page.
    Flush,
    /// Trims the space's CPU mask.
    Trim,
    /// Goes offline.
    GoOffline,
}

impl Action {
    pub(crate) const ALL: [Self; 10] = [
        Self::FirstSwitch,
        Self::Switch,
        Self::Resume,
        Self::EnterLazy,
        Self::SwitchAway,
        Self::TakeInterrupt,
        Self::Poll,
        Self::Flush,
        Self::Trim,
        Self::GoOffline,
    ];

    fn prepare(self, system: &System<1>, cpu: &Cpu<'_, 1>) {
        if matches!(self, Self::FirstSwitch | Self::Flush | Self::Trim) {
            return;
        }
        switch(cpu, &system.a);
        assert_eq!(cpu.touch(0), Touch::Ok);
        match self {
            Self::Switch => cpu.pin().leave_space(),
            Self::Resume => cpu.pin().enter_lazy(),
            _ => {}
        }
    }

    fn run(self, system: &System<1>, cpu: &Cpu<'_, 1>) {
        let uses_page = [Self::EnterLazy, Self::SwitchAway, Self::TakeInterrupt, Self::GoOffline];
        if uses_page.contains(&self) {
            assert_ne!(cpu.touch(0), Touch::Stale);
        }
        match self {
            Self::FirstSwitch | Self::Switch | Self::Resume => switch(cpu, &system.a),
            Self::EnterLazy => cpu.pin().enter_lazy(),
            Self::SwitchAway => switch(cpu, &system.b),
            Self::TakeInterrupt => {
                cpu.interrupt_point();
                assert_ne!(cpu.touch(0), Touch::Stale);
            }
            Self::Poll => cpu.pin().handle_flush_ipi(),
            // The CPUs that were rung answer by the end of `run`.
            Self::Flush => std::mem::forget(system.unmap(cpu, 1)),
            Self::Trim => {
                cpu.pin().trim_cpumask(&system.a);
            }
            Self::GoOffline => cpu.pin().offline(),
        }
    }
}

/// Flushes on CPU 0, while CPU 1 does the first action, CPU 2 the second, and so on.
pub(crate) fn run(actions: &[Action], config: Config) {
    let cpus = 1 + actions.len() as u32;
    let system = System::<1>::new(Config { cpus, ..config });
    for (cpu, action) in (1..).zip(actions) {
        action.prepare(&system, &system.cpu(cpu));
    }
    let threads: Vec<_> = (1..)
        .zip(actions)
        .map(|(cpu, &action)| {
            let system = Arc::clone(&system);
            thread::spawn(move || action.run(&system, &system.cpu(cpu)))
        })
        .collect();
    let mut pending = system.unmap(&system.cpu(0), 0);
    let done = pending.poll();
    if done {
        system.machine().free(&system.a, 0);
    }
    for thread in threads {
        thread.join().unwrap();
    }
    for (cpu, &action) in (1..).zip(actions) {
        if action != Action::GoOffline {
            system.cpu(cpu).interrupt_point();
        }
    }
    // The wait is on CPU 0, which must complete its broadcast.
    let _ = system.cpu(0).pin();
    finish(pending);
    if !done {
        system.machine().free(&system.a, 0);
    }
    for (cpu, &action) in (1..).zip(actions) {
        let cpu = system.cpu(cpu);
        if action == Action::GoOffline {
            cpu.pin().online();
        }
        switch(&cpu, &system.a);
        assert_ne!(cpu.touch(0), Touch::Stale);
    }
}
