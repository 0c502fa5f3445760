//! A workload that creates and retires spaces, for stress tests of
//! [`retire`](shootdown::PinnedCpu::retire).

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use shootdown::soft::{Config, Platform, Soft};
use shootdown::{CpuId, Extent, ExtentSet, Quarantine, Root, Shootdown, Space, Word};

use super::worker::{StressReport, Worker, unlock};

/// Spaces that CPUs use, are lazy on, unhook tables of, and retire at random.
///
/// Each space is on the heap. As soon as the engine reclaims a space, its memory is freed, and its
/// page table is given to another space. A memory checker detects if the engine still uses the
/// memory; the machine detects if a CPU still walks the page table.
pub(crate) struct Lifecycles<P: Platform, const WORDS: usize = 1> {
    slots: Vec<Slot<P, WORDS>>,
    /// Page tables that no space has.
    roots: Mutex<Vec<Root>>,
    /// For each page table, the number of unhooked tables still in quarantine when its space was
    /// retired.
    deferred: Vec<AtomicU64>,
    /// The engine lacks a rule.
    is_broken: bool,
}

/// Room for one space.
struct Slot<P: Platform, const WORDS: usize> {
    /// Orders the uses of a space before its retirement, as a kernel's count of users does.
    lock: P::Word,
    live: Mutex<Option<LiveSpace<P, WORDS>>>,
}

/// A space that is not retired.
struct LiveSpace<P: Platform, const WORDS: usize> {
    space: NonNull<Space<Soft<P, WORDS>>>,
    /// Number of CPUs that use the space.
    users: u32,
    /// Unhooked tables that CPUs may still walk: up to three, in two entries.
    quarantine: Quarantine<Vec<()>, 2>,
}

// SAFETY: the pointer is to a `Space`, which is `Sync`, and any thread may use it while it has this
// value.
unsafe impl<P: Platform, const WORDS: usize> Send for LiveSpace<P, WORDS> {}

impl<P: Platform, const WORDS: usize> Lifecycles<P, WORDS> {
    /// A workload of up to `slots` live spaces at a time. Give the machine more page tables than
    /// `slots`, because retired spaces keep theirs for a while.
    pub(crate) fn new(config: Config, slots: usize) -> Self {
        let slot = |_| Slot { lock: P::Word::new(0), live: Mutex::new(None) };
        let tables = config.tables;
        Self {
            slots: (0..slots).map(slot).collect(),
            roots: Mutex::new((0..tables as u64).map(Root).collect()),
            deferred: (0..tables).map(|_| AtomicU64::new(0)).collect(),
            is_broken: config.broken.is_some(),
        }
    }

    /// Runs CPU `cpu` for `steps` random steps on this thread, then takes it offline.
    pub(crate) fn run(
        &self,
        engine: &Shootdown<Soft<P, WORDS>>,
        cpu: CpuId,
        seed: u64,
        steps: usize,
    ) -> StressReport {
        let mut worker = Worker::new(engine, cpu, seed);
        let mut current = None;
        for _ in 0..steps {
            let Worker { cpu, random, report, .. } = &mut worker;
            cpu.interrupt_point();
            let slot = &self.slots[random.index(self.slots.len())];
            match (random.below(16), current) {
                (0..=3, used) => {
                    stop_using(&mut worker, used);
                    current = self.start_using(&mut worker, slot);
                }
                (4..=6, used) => {
                    stop_using(&mut worker, used);
                    current = None;
                }
                (7, None) => cpu.pin().leave_space(),
                (8..=9, _) => self.retire_unused(&mut worker, slot),
                (10, None) => {
                    cpu.pin().offline();
                    cpu.pin().online();
                }
                (11, _) => cpu.pin().reap().wait(),
                (12..=13, Some(used)) => replace_tables(&mut worker, used),
                (_, Some(_)) => report.count(cpu.touch(0)),
                (_, None) => {
                    cpu.speculate();
                    // The CPU idles, while it is lazy.
                    P::spin_hint();
                }
            }
            self.free_reclaimed(&mut worker);
        }
        stop_using(&mut worker, current);
        self.end_worker(worker)
    }

    /// Retires the live spaces, as CPU `cpu`. Call this when all CPUs are done: then every space
    /// that was created has been freed.
    pub(crate) fn end(&self, engine: &Shootdown<Soft<P, WORDS>>, cpu: CpuId) -> StressReport {
        let mut worker = Worker::new(engine, cpu, 0);
        self.slots.iter().for_each(|slot| self.retire_unused(&mut worker, slot));
        self.end_worker(worker)
    }

    fn end_worker(&self, mut worker: Worker<'_, P, WORDS>) -> StressReport {
        worker.cpu.pin().offline();
        self.free_reclaimed(&mut worker);
        worker.report
    }

    /// Begins to use the space of a slot. Creates the space if the slot is empty and a page table
    /// is left. Returns the slot, or `None` if there is no space to use.
    fn start_using<'s>(
        &'s self,
        worker: &mut Worker<'_, P, WORDS>,
        slot: &'s Slot<P, WORDS>,
    ) -> Option<&'s Slot<P, WORDS>> {
        let space = slot.locked(worker, |worker, live| {
            if live.is_none() {
                let root = guard(&self.roots).pop()?;
                let space = Box::new(worker.engine().space(root));
                worker.machine().map(&space, 0);
                let space = NonNull::from(Box::leak(space));
                *live = Some(LiveSpace { space, users: 0, quarantine: Quarantine::new(3) });
                worker.report.created += 1;
            }
            let live = live.as_mut()?;
            live.users += 1;
            Some(live.space)
        })?;
        // SAFETY: no CPU retires the space before this CPU has decremented `users` in `stop_using`.
        unsafe { worker.cpu.pin().switch(space.as_ref()) };
        Some(slot)
    }

    /// Retires the space of a slot, unless a CPU uses it.
    fn retire_unused(&self, worker: &mut Worker<'_, P, WORDS>, slot: &Slot<P, WORDS>) {
        let dead = slot.locked(worker, |_, live| live.take_if(|live| live.users == 0));
        let Some(LiveSpace { space, quarantine, .. }) = dead else { return };
        {
            // SAFETY: the space exists until it is retired, below.
            let space = unsafe { space.as_ref() };
            worker.machine().unmap(space, 0);
            worker.machine().free(space, 0);
            let deferred = quarantine.table_count() as u64;
            self.deferred[space.root().0 as usize].store(deferred, Relaxed);
        }
        // SAFETY: no CPU uses the space or finds it in the slot any more, so none switches to it.
        // Each CPU that used it has entered lazy and waited for its flushes before it decremented
        // `users`. The space stays on the heap until `free_reclaimed`.
        unsafe { worker.cpu.pin().retire(space) }.wait();
    }

    /// Frees the spaces that the engine has reclaimed.
    fn free_reclaimed(&self, worker: &mut Worker<'_, P, WORDS>) {
        let machine = worker.machine();
        for space in machine.take_reclaimed() {
            // SAFETY: `start_using` has leaked the box, and the engine has reclaimed the space, so
            // nothing else points to it.
            let space = unsafe { Box::from_raw(space.as_ptr()) };
            let root = space.root();
            for _ in 0..self.deferred[root.0 as usize].swap(0, Relaxed) {
                machine.free_tables(&space);
            }
            if self.is_broken {
                // A broken engine may reclaim a space in use. The machine detects that only if the
                // memory is not reused.
                Box::leak(space);
            }
            worker.report.freed += 1;
            guard(&self.roots).push(root);
        }
    }
}

impl<P: Platform, const WORDS: usize> Slot<P, WORDS> {
    fn locked<R>(
        &self,
        worker: &mut Worker<'_, P, WORDS>,
        f: impl FnOnce(&mut Worker<'_, P, WORDS>, &mut Option<LiveSpace<P, WORDS>>) -> R,
    ) -> R {
        worker.lock(&self.lock);
        let result = f(worker, &mut guard(&self.live));
        unlock(&self.lock);
        result
    }
}

/// Enters lazy, and stops using the space of a slot.
fn stop_using<P: Platform, const WORDS: usize>(
    worker: &mut Worker<'_, P, WORDS>,
    used: Option<&Slot<P, WORDS>>,
) {
    let Some(slot) = used else { return };
    worker.cpu.pin().enter_lazy();
    slot.locked(worker, |_, live| {
        if let Some(live) = live {
            live.users -= 1;
        }
    });
}

/// Replaces the page tables of a space that is in use, and frees the old ones when no CPU can walk
/// them: after this flush, after a later one, or after an interrupt.
fn replace_tables<P: Platform, const WORDS: usize>(
    worker: &mut Worker<'_, P, WORDS>,
    slot: &Slot<P, WORDS>,
) {
    slot.locked(worker, |worker, live| {
        let Some(live) = live else { return };
        // SAFETY: this CPU is a user of the space, so no CPU retires it.
        let space = unsafe { live.space.as_ref() };
        let machine = worker.machine();
        let mut extents = ExtentSet::new();
        // Some flushes unhook no tables, and may still clear earlier ones.
        let unhooks = worker.random.below(4) != 0;
        if unhooks {
            machine.unhook_tables(space);
            extents.add(Extent::page(0).freeing_tables());
        } else {
            extents.add(Extent::page(0));
        }
        let pending = worker.cpu.pin().flush_gathered(space, &extents);
        let horizon = pending.horizon();
        worker.wait(pending);
        while let Some((count, _)) = live.quarantine.take_cleared(horizon) {
            worker.report.cleared += 1;
            (0..count).for_each(|_| machine.free_tables(space));
        }
        if !unhooks {
            return;
        }
        if !horizon.is_clear() {
            worker.report.deferred += 1;
            if live.quarantine.defer(horizon, 1, vec![()]).is_ok() {
                return;
            }
            let pending = worker.cpu.pin().flush_walkers(space);
            let horizon = pending.horizon();
            worker.wait(pending);
            while let Some((count, _)) = live.quarantine.take_cleared(horizon) {
                (0..count).for_each(|_| machine.free_tables(space));
            }
        }
        machine.free_tables(space);
    });
}

/// Locks a mutex, poisoned or not: a panic while it is locked fails the test anyway.
fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
