//! Programs about pages that are unmapped in a batch.

use std::sync::Arc;

use loom::thread;
use shootdown::soft::{Config, Touch};
use shootdown::{Batch, SentBatch, Space, StaleWrites};

use crate::system::{Cpu, Machine, System, finish, page_at, switch};

type Spaces<'s, const W: usize> = &'s Space<Machine<W>>;
type Sent<'s, const W: usize> = SentBatch<'s, 's, Machine<W>, Spaces<'s, W>, Vec<usize>, 2>;

/// Unmaps page 0 of each of `spaces` in a batch, and sends the batch.
fn reclaim<'s, const W: usize>(
    system: &'s System<W>,
    cpu: &Cpu<'s, W>,
    spaces: &[Spaces<'s, W>],
) -> Sent<'s, W> {
    let batch = Box::leak(Box::new(Batch::new()));
    for space in spaces {
        let entry = batch.space(system.machine(), space).unwrap();
        assert!(system.machine().try_unmap(space, 0));
        finish(entry.unmapped(&cpu.pin(), page_at(0), StaleWrites::Possible));
        batch.defer_free(0);
    }
    batch.send(&cpu.pin())
}

/// Ends most programs: CPU 1 takes the interrupt if it was sent. The batch must then be done. Its
/// pages are freed, and CPU 1 must not use them.
fn conclude<const W: usize>(system: &System<W>, mut sent: Sent<'_, W>) {
    let cpu = system.cpu(1);
    cpu.interrupt_point();
    assert!(sent.poll(), "no CPU is left to answer");
    sent.wait();
    system.machine().free(&system.a, 0);
    system.machine().free(&system.b, 0);
    assert_ne!(cpu.touch(0), Touch::Stale);
    for space in [&system.a, &system.b] {
        switch(&cpu, space);
        assert_ne!(cpu.touch(0), Touch::Stale);
    }
}

/// CPU 1 uses a page, and takes the interrupt. CPU 0 unmaps the page in a batch, and CPU 2 unmaps
/// it at the same time. If CPU 2 is too late to unmap it, CPU 2 flushes if the space is batched,
/// and frees the page as soon as that flush is done.
pub(crate) fn unmap_batched_page<const W: usize>(config: Config) {
    let system = System::<W>::active(Config { cpus: 3, ..config });
    let other = Arc::clone(&system);
    let using = thread::spawn(move || {
        let cpu = other.cpu(1);
        assert_ne!(cpu.touch(0), Touch::Stale);
        cpu.interrupt_point();
    });
    let other = Arc::clone(&system);
    let unmapping = thread::spawn(move || {
        let (system, cpu) = (&other, other.cpu(2));
        if system.machine().try_unmap(&system.a, 0) {
            return std::mem::forget(cpu.pin().flush(&system.a, page_at(0)));
        }
        let mut pending = cpu.pin().flush_if_batched(&system.a, page_at(0));
        if pending.poll() {
            system.machine().free(&system.a, 0);
        } else {
            std::mem::forget(pending);
        }
    });
    let cpu = system.cpu(0);
    let mut batch: Batch<Spaces<'_, W>, Vec<usize>, 2> = Batch::new();
    let entry = batch.space(system.machine(), &&system.a).unwrap();
    if system.machine().try_unmap(&system.a, 0) {
        finish(entry.unmapped(&cpu.pin(), page_at(0), StaleWrites::Possible));
    }
    let mut sent = batch.send(&cpu.pin());
    if sent.poll() {
        sent.wait();
    } else {
        std::mem::forget(sent);
    }
    using.join().unwrap();
    unmapping.join().unwrap();
}

/// CPU 1 comes back to one of the two spaces that CPU 0 unmaps a page of.
pub(crate) fn reclaim_while_switching<const W: usize>(config: Config) {
    let system = both_cached::<W>(config);
    let sent = system.race(
        |system, cpu| switch(cpu, &system.a),
        |cpu| reclaim(&system, cpu, &[&system.a, &system.b]),
    );
    conclude(&system, sent);
}

/// CPU 1 goes from one of the two spaces to the other, between which the batch looks for it.
pub(crate) fn reclaim_while_switching_away<const W: usize>(config: Config) {
    let system = both_cached::<W>(config);
    switch(&system.cpu(1), &system.a);
    let sent = system.race(
        |system, cpu| switch(cpu, &system.b),
        |cpu| reclaim(&system, cpu, &[&system.a, &system.b]),
    );
    conclude(&system, sent);
}

/// CPU 1 continues to use its space, and takes the interrupt. CPU 0 frees the page as soon as the
/// batch is done.
pub(crate) fn reclaim_active<const W: usize>(config: Config) {
    let system = both_cached::<W>(config);
    switch(&system.cpu(1), &system.a);
    let left = system.race(
        |_, cpu| {
            assert_ne!(cpu.touch(0), Touch::Stale);
            cpu.interrupt_point();
            assert_ne!(cpu.touch(0), Touch::Stale);
        },
        |cpu| {
            let mut sent = reclaim(&system, cpu, &[&system.a, &system.b]);
            if !sent.poll() {
                return Some(sent);
            }
            sent.wait();
            system.machine().free(&system.a, 0);
            None
        },
    );
    if let Some(sent) = left {
        conclude(&system, sent);
    }
}

/// CPU 1 unmaps a page of the space that it uses itself. After the wait, the space is not marked
/// any more.
pub(crate) fn reclaim_own<const W: usize>(config: Config) {
    let system = System::<W>::active(config);
    let cpu = system.cpu(1);
    let sent = reclaim(&system, &cpu, &[&system.a]);
    assert!(system.a.is_batched(system.machine()));
    sent.wait();
    assert!(!system.a.is_batched(system.machine()));
    system.machine().free(&system.a, 0);
    assert_eq!(cpu.touch(0), Touch::Fault);
}

/// A system on which CPU 1 has cached page 0 of both spaces, and uses neither.
fn both_cached<const W: usize>(config: Config) -> Arc<System<W>> {
    let system = System::<W>::active(config);
    let cpu = system.cpu(1);
    switch(&cpu, &system.b);
    assert_eq!(cpu.touch(0), Touch::Ok);
    cpu.pin().leave_space();
    drop(cpu);
    system
}
