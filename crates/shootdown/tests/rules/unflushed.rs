//! Programs about pages that are flushed when their frames are reused.

use shootdown::soft::{Config, Touch};
use shootdown::{CleanBatch, CleanExtent, Rule, SentBatch, Space, StaleWrites, Unflushed};

use crate::system::{Cpu, Machine, System, finish, page_at, switch};
use crate::{Program, find_failure};

type Spaces<'s, const W: usize> = &'s Space<Machine<W>>;
type Sent<'s, const W: usize> = SentBatch<'s, 's, Machine<W>, Spaces<'s, W>, Vec<usize>, 2>;

/// Unmaps page 0 of `a` on CPU 0, and defers its flush.
pub(crate) fn defer<'s, const W: usize>(
    system: &'s System<W>,
    cpu: &Cpu<'s, W>,
) -> Unflushed<Spaces<'s, W>, Vec<usize>, 2> {
    let mut batch = CleanBatch::new();
    let entry = batch.space(system.machine(), &&system.a).unwrap();
    assert!(system.machine().try_unmap(&system.a, 0));
    entry.unmapped(CleanExtent::new(page_at(0), StaleWrites::Impossible).unwrap());
    batch.defer_free(0);
    batch.defer(&cpu.pin())
}

/// Flushes what is due, and frees the page if no CPU has to answer. Returns the flush otherwise.
fn reuse<'s, const W: usize>(
    system: &'s System<W>,
    cpu: &Cpu<'s, W>,
    unflushed: Unflushed<Spaces<'s, W>, Vec<usize>, 2>,
) -> Option<Sent<'s, W>> {
    let mut sent = Box::leak(Box::new(unflushed)).reuse(&cpu.pin());
    if !sent.poll() {
        return Some(sent);
    }
    sent.wait();
    system.machine().free(&system.a, 0);
    None
}

/// Unmaps page 0 of `a`, and reuses its frame.
fn defer_and_reuse<'s, const W: usize>(
    system: &'s System<W>,
    cpu: &Cpu<'s, W>,
) -> Option<Sent<'s, W>> {
    reuse(system, cpu, defer(system, cpu))
}

/// Ends the programs: CPU 1 takes the interrupt if it was sent. The frame is then reused, and CPU 1
/// must not use it.
fn conclude<const W: usize>(system: &System<W>, sent: Option<Sent<'_, W>>) {
    let cpu = system.cpu(1);
    cpu.interrupt_point();
    if let Some(mut sent) = sent {
        assert!(sent.poll(), "no CPU is left to answer");
        sent.wait();
        system.machine().free(&system.a, 0);
    }
    assert_ne!(cpu.touch(0), Touch::Stale);
    switch(&cpu, &system.a);
    assert_ne!(cpu.touch(0), Touch::Stale);
}

/// CPU 1 comes back from lazy, while CPU 0 unmaps the page and reuses its frame.
pub(crate) fn reuse_while_returning<const W: usize>(config: Config) {
    let system = System::<W>::active(config);
    system.cpu(1).pin().enter_lazy();
    let sent =
        system.race(|system, cpu| switch(cpu, &system.a), |cpu| defer_and_reuse(&system, cpu));
    conclude(&system, sent);
}

/// CPU 1 continues to use the page, and takes the interrupt.
pub(crate) fn reuse_under_active<const W: usize>(config: Config) {
    let system = System::<W>::active(config);
    let used = |_: &System<W>, cpu: &Cpu<'_, W>| {
        assert_ne!(cpu.touch(0), Touch::Stale);
        cpu.interrupt_point();
        assert_ne!(cpu.touch(0), Touch::Stale);
    };
    let sent = system.race(used, |cpu| defer_and_reuse(&system, cpu));
    conclude(&system, sent);
}

/// CPU 1 comes from a space whose generation is higher, under which the page is still cached.
pub(crate) fn reuse_while_switching<const W: usize>(config: Config) {
    let system = System::<W>::active(config);
    let cpu = system.cpu(1);
    for _ in 0..3 {
        finish(system.cpu(0).pin().flush(&system.b, page_at(1)));
    }
    switch(&cpu, &system.b);
    drop(cpu);
    let sent =
        system.race(|system, cpu| switch(cpu, &system.a), |cpu| defer_and_reuse(&system, cpu));
    conclude(&system, sent);
}

/// CPU 1 uses the page, and switches to a space whose generation is higher.
pub(crate) fn reuse_while_switching_away<const W: usize>(config: Config) {
    let system = System::<W>::active(config);
    for _ in 0..3 {
        finish(system.cpu(0).pin().flush(&system.b, page_at(1)));
    }
    let leave = |system: &System<W>, cpu: &Cpu<'_, W>| {
        assert_ne!(cpu.touch(0), Touch::Stale);
        switch(cpu, &system.b);
    };
    let sent = system.race(leave, |cpu| defer_and_reuse(&system, cpu));
    conclude(&system, sent);
}

/// CPU 1 uses the unmapped page, and catches up because of another flush. If CPU 0 observes that,
/// it reuses the frame without an interrupt.
pub(crate) fn reuse_after_catch_up<const W: usize>(config: Config) {
    let system = System::<W>::active(config);
    let zero = system.cpu(0);
    let unflushed = defer(&system, &zero);
    let flush = system.unmap(&zero, 1);
    drop(zero);
    let used = |_: &System<W>, cpu: &Cpu<'_, W>| {
        assert_ne!(cpu.touch(0), Touch::Stale);
        cpu.interrupt_point();
        assert_ne!(cpu.touch(0), Touch::Stale);
    };
    let sent = system.race(used, |cpu| reuse(&system, cpu, unflushed));
    conclude(&system, sent);
    finish(flush);
}

/// A frame is reused without an interrupt only in the order of what a CPU has published.
#[test]
fn reuse_needs_the_order_of_what_was_seen() {
    for rule in [Rule::SeenRelease, Rule::SeenAcquire] {
        for program in [reuse_after_catch_up::<1> as Program, reuse_after_catch_up::<2>] {
            let config = Config { broken: Some(rule), ..Config::default() };
            let (_, cause) = find_failure(&[("", program)], config).unwrap();
            assert!(cause.starts_with("Causality"), "{rule:?}: {cause}");
        }
    }
}
