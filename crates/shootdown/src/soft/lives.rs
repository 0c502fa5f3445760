//! A workload of spaces that come and go, for stress tests of [`retire`](crate::PinnedCpu::retire).

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::boxed::Box;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use super::churn::{Random, finish, lock, unlock};
use super::{OnCpu, Platform, Soft, Touch};
use crate::engine::Shootdown;
use crate::extent::Extent;
use crate::extent_set::ExtentSet;
use crate::ids::{CpuId, Root};
use crate::memory::Word;
use crate::quarantine::Quarantine;
use crate::space::Space;

/// Spaces that CPUs use, are lazy on, unhook tables of, and retire as chance has it.
///
/// Each lives on the heap, and is freed for good as soon as the engine gives it back, and so is its
/// page table, which another one gets then. A checker of memory sees if the engine still uses the
/// former; the machine sees if a CPU walks the latter.
pub struct Lives<P: Platform, const WORDS: usize = 1> {
    slots: Vec<Slot<P, WORDS>>,
    /// Page tables that no space has.
    roots: Mutex<Vec<Root>>,
    /// For each page table, how many lots were unhooked and held back when its space died.
    deferred: Vec<AtomicU64>,
}

/// A place for a space.
struct Slot<P: Platform, const WORDS: usize> {
    /// What orders the uses of a space before its end, as a kernel's count of users does.
    lock: P::Word,
    life: Mutex<Option<Life<P, WORDS>>>,
}

/// A space that is alive.
struct Life<P: Platform, const WORDS: usize> {
    space: NonNull<Space<Soft<P, WORDS>>>,
    /// CPUs that use it.
    users: u32,
    /// Tables that are held back: up to three, in two lots.
    quarantine: Quarantine<Vec<()>, 2>,
}

// SAFETY: whoever has it may follow the pointer, from whatever thread.
unsafe impl<P: Platform, const WORDS: usize> Send for Life<P, WORDS> {}

/// What one CPU saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LivesReport {
    /// Uses of mapped pages.
    pub touches: u64,
    /// Uses of pages that had been given away.
    pub stale: u64,
    /// Spaces made.
    pub born: u64,
    /// Spaces freed.
    pub freed: u64,
    /// Times that tables were held back.
    pub deferred: u64,
    /// Times that they could be freed later, without an interrupt.
    pub cleared: u64,
}

impl core::ops::AddAssign for LivesReport {
    fn add_assign(&mut self, other: Self) {
        self.touches += other.touches;
        self.stale += other.stale;
        self.born += other.born;
        self.freed += other.freed;
        self.deferred += other.deferred;
        self.cleared += other.cleared;
    }
}

impl<P: Platform, const WORDS: usize> Lives<P, WORDS> {
    /// Room for so many spaces at a time. The machine should have more page tables than that, for
    /// those of the dead are held for a while.
    pub fn new(engine: &Shootdown<Soft<P, WORDS>>, slots: usize) -> Self {
        let slot = |_| Slot { lock: P::Word::new(0), life: Mutex::new(None) };
        let tables = engine.machine().config.tables;
        Self {
            slots: (0..slots).map(slot).collect(),
            roots: Mutex::new((0..tables as u64).map(Root).collect()),
            deferred: (0..tables).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Is CPU `cpu` for so many steps, then goes offline.
    pub fn run(
        &self,
        engine: &Shootdown<Soft<P, WORDS>>,
        cpu: CpuId,
        seed: u64,
        steps: usize,
    ) -> LivesReport {
        let mut random = Random::new(seed, cpu);
        let cpu = engine.enter(cpu);
        cpu.pin().online();
        let mut report = LivesReport::default();
        let mut current = None;
        for _ in 0..steps {
            cpu.interrupt_point();
            let slot = &self.slots[random.index(self.slots.len())];
            match (random.below(16), current) {
                (0..=3, used) => {
                    stop_using(&cpu, used);
                    current = self.start_using(engine, &cpu, slot, &mut report);
                }
                (4..=6, used) => {
                    stop_using(&cpu, used);
                    current = None;
                }
                (7, None) => cpu.pin().leave_space(),
                (8..=9, _) => self.kill(engine, &cpu, slot),
                (10, None) => {
                    cpu.pin().offline();
                    cpu.pin().online();
                }
                (11, _) => cpu.pin().reap().wait(),
                (12..=13, Some(used)) => {
                    replace_tables(engine, &cpu, used, &mut random, &mut report);
                }
                (_, Some(_)) => match cpu.touch(0) {
                    Touch::Ok => report.touches += 1,
                    Touch::Stale => report.stale += 1,
                    Touch::Fault => {}
                },
                (_, None) => {
                    cpu.speculate();
                    // Idle: time for others, while this CPU is lazy.
                    P::spin_hint();
                }
            }
            self.bury(engine, &mut report);
        }
        stop_using(&cpu, current);
        cpu.pin().offline();
        self.bury(engine, &mut report);
        report
    }

    /// When all CPUs are done: kills what lives, on this one. Then all that was born is freed.
    pub fn end(&self, engine: &Shootdown<Soft<P, WORDS>>, cpu: CpuId) -> LivesReport {
        let mut report = LivesReport::default();
        let cpu = engine.enter(cpu);
        cpu.pin().online();
        self.slots.iter().for_each(|slot| self.kill(engine, &cpu, slot));
        cpu.pin().offline();
        self.bury(engine, &mut report);
        report
    }

    /// Uses the space of a slot from now on; makes it, if there is none and a page table is left.
    fn start_using<'s>(
        &'s self,
        engine: &Shootdown<Soft<P, WORDS>>,
        cpu: &OnCpu<'_, P, WORDS>,
        slot: &'s Slot<P, WORDS>,
        report: &mut LivesReport,
    ) -> Option<&'s Slot<P, WORDS>> {
        let space = slot.locked(cpu, |life| {
            if life.is_none() {
                let root = self.roots().pop()?;
                let space = Box::new(engine.space(root));
                engine.machine().map(&space, 0);
                let space = NonNull::from(Box::leak(space));
                *life = Some(Life { space, users: 0, quarantine: Quarantine::new(3) });
                report.born += 1;
            }
            let life = life.as_mut()?;
            life.users += 1;
            Some(life.space)
        })?;
        // SAFETY: nobody retires it before we have said that we use it no more.
        unsafe { cpu.pin().switch(space.as_ref()) };
        Some(slot)
    }

    /// Retires the space of a slot, unless somebody uses it.
    fn kill(
        &self,
        engine: &Shootdown<Soft<P, WORDS>>,
        cpu: &OnCpu<'_, P, WORDS>,
        slot: &Slot<P, WORDS>,
    ) {
        let dead = slot.locked(cpu, |life| life.take_if(|life| life.users == 0));
        let Some(Life { space, quarantine, .. }) = dead else { return };
        {
            // SAFETY: it is there until it is retired.
            let space = unsafe { space.as_ref() };
            engine.machine().unmap(space, 0);
            engine.machine().free(space, 0);
            let deferred = quarantine.table_count() as u64;
            self.deferred[space.root().0 as usize].store(deferred, Relaxed);
        }
        // SAFETY: nobody uses it, nor can find it in the slot.
        unsafe { cpu.pin().retire(space) }.wait();
    }

    /// Frees the spaces that the engine gave back.
    fn bury(&self, engine: &Shootdown<Soft<P, WORDS>>, report: &mut LivesReport) {
        let machine = engine.machine();
        for space in machine.take_reclaimed() {
            // SAFETY: leaked in `start_using`, and given back: it is ours alone.
            let space = unsafe { Box::from_raw(space.as_ptr()) };
            let root = space.root();
            for _ in 0..self.deferred[root.0 as usize].swap(0, Relaxed) {
                machine.free_tables(&space);
            }
            if machine.config.broken.is_some() {
                // An engine that frees what is in use: the machine notices, but only if the memory
                // stays what it was.
                Box::leak(space);
            }
            report.freed += 1;
            self.roots().push(root);
        }
    }

    fn roots(&self) -> MutexGuard<'_, Vec<Root>> {
        self.roots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P: Platform, const WORDS: usize> Slot<P, WORDS> {
    fn locked<R>(
        &self,
        cpu: &OnCpu<'_, P, WORDS>,
        f: impl FnOnce(&mut Option<Life<P, WORDS>>) -> R,
    ) -> R {
        lock(cpu, &self.lock);
        let result = f(&mut self.life.lock().unwrap_or_else(PoisonError::into_inner));
        unlock(&self.lock);
        result
    }
}

/// Goes lazy, and uses the space no more.
fn stop_using<P: Platform, const WORDS: usize>(
    cpu: &OnCpu<'_, P, WORDS>,
    used: Option<&Slot<P, WORDS>>,
) {
    let Some(slot) = used else { return };
    cpu.pin().enter_lazy();
    slot.locked(cpu, |life| {
        if let Some(life) = life {
            life.users -= 1;
        }
    });
}

/// Replaces the page tables of a space that is in use, and frees the old ones when that is safe:
/// at once, at a later call, or after an interrupt.
fn replace_tables<P: Platform, const WORDS: usize>(
    engine: &Shootdown<Soft<P, WORDS>>,
    cpu: &OnCpu<'_, P, WORDS>,
    slot: &Slot<P, WORDS>,
    random: &mut Random,
    report: &mut LivesReport,
) {
    slot.locked(cpu, |life| {
        let Some(life) = life else { return };
        // SAFETY: we use it.
        let space = unsafe { life.space.as_ref() };
        let machine = engine.machine();
        let mut extents = ExtentSet::new();
        // Now and then there are only pages, and earlier tables may be free all the same.
        let unhooks = random.below(4) != 0;
        if unhooks {
            machine.unhook_tables(space);
            extents.add(Extent::page(0).freeing_tables());
        } else {
            extents.add(Extent::page(0));
        }
        let pending = cpu.pin().flush_gathered(space, &extents);
        let horizon = pending.horizon();
        finish(cpu, pending, random);
        while let Some((count, _)) = life.quarantine.take_cleared(horizon) {
            report.cleared += 1;
            (0..count).for_each(|_| machine.free_tables(space));
        }
        if !unhooks {
            return;
        }
        if !horizon.is_clear() {
            report.deferred += 1;
            if life.quarantine.defer(horizon, 1, std::vec![()]).is_ok() {
                return;
            }
            let pending = cpu.pin().flush_walkers(space);
            let horizon = pending.horizon();
            finish(cpu, pending, random);
            while let Some((count, _)) = life.quarantine.take_cleared(horizon) {
                (0..count).for_each(|_| machine.free_tables(space));
            }
        }
        machine.free_tables(space);
    });
}

impl<P: Platform, const WORDS: usize> core::fmt::Debug for Lives<P, WORDS> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Lives").field("slots", &self.slots.len()).finish_non_exhaustive()
    }
}
