//! Three and four CPUs, each with a part.
//!
//! CPU 0 always flushes page 0 and gives it away as soon as it may. The others do what they do in
//! [`programs`](crate::programs), in every combination.

use std::sync::Arc;

use loom::thread;
use shootdown::soft::{Config, Touch};

use crate::system::{Cpu, System, finish, switch};

/// What a CPU does while CPU 0 flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Switches in for the first time.
    FirstSwitch,
    /// Switches in again, with a tag that still holds the page.
    Switch,
    /// Comes back from lazy.
    Resume,
    /// Stops using the space.
    EnterLazy,
    /// Switches to another space.
    SwitchAway,
    /// Goes on using it, and takes the interrupt.
    Answer,
    /// Goes on using it with interrupts masked, and polls its bell.
    Poll,
    /// Flushes another page.
    Flush,
    /// Moves the roster.
    MoveRoster,
    /// Goes offline.
    GoOffline,
}

impl Part {
    pub(crate) const ALL: [Self; 10] = [
        Self::FirstSwitch,
        Self::Switch,
        Self::Resume,
        Self::EnterLazy,
        Self::SwitchAway,
        Self::Answer,
        Self::Poll,
        Self::Flush,
        Self::MoveRoster,
        Self::GoOffline,
    ];

    fn prepare(self, system: &System<1>, cpu: &Cpu<'_, 1>) {
        if matches!(self, Self::FirstSwitch | Self::Flush | Self::MoveRoster) {
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

    fn play(self, system: &System<1>, cpu: &Cpu<'_, 1>) {
        let uses_it = [Self::EnterLazy, Self::SwitchAway, Self::Answer, Self::GoOffline];
        if uses_it.contains(&self) {
            assert_ne!(cpu.touch(0), Touch::Stale);
        }
        match self {
            Self::FirstSwitch | Self::Switch | Self::Resume => switch(cpu, &system.a),
            Self::EnterLazy => cpu.pin().enter_lazy(),
            Self::SwitchAway => switch(cpu, &system.b),
            Self::Answer => {
                cpu.interrupt_point();
                assert_ne!(cpu.touch(0), Touch::Stale);
            }
            Self::Poll => cpu.pin().handle_flush_ipi(),
            // Who is rung answers in the end.
            Self::Flush => std::mem::forget(system.unmap(cpu, 1)),
            Self::MoveRoster => {
                cpu.pin().trim_cpumask(&system.a);
            }
            Self::GoOffline => cpu.pin().offline(),
        }
    }
}

/// CPU 1 plays the first part, CPU 2 the second, and so on.
pub(crate) fn play(parts: &[Part], config: Config) {
    let cpus = 1 + parts.len() as u32;
    let system = System::<1>::new(Config { cpus, ..config });
    for (cpu, part) in (1..).zip(parts) {
        part.prepare(&system, &system.cpu(cpu));
    }
    let threads: Vec<_> = (1..)
        .zip(parts)
        .map(|(cpu, &part)| {
            let system = Arc::clone(&system);
            thread::spawn(move || part.play(&system, &system.cpu(cpu)))
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
    for (cpu, &part) in (1..).zip(parts) {
        if part != Part::GoOffline {
            system.cpu(cpu).interrupt_point();
        }
    }
    // Where it was sent: a broadcast is completed there.
    let _ = system.cpu(0).pin();
    finish(pending);
    if !done {
        system.machine().free(&system.a, 0);
    }
    for (cpu, &part) in (1..).zip(parts) {
        let cpu = system.cpu(cpu);
        if part == Part::GoOffline {
            cpu.pin().online();
        }
        switch(&cpu, &system.a);
        assert_ne!(cpu.touch(0), Touch::Stale);
    }
}
