//! Global tags, as arm64 and RISC-V allocate them (`arch/arm64/mm/context.c`).
//!
//! A space keeps its tag until tags run out (*rollover*). Then the generation is incremented. The
//! tags that CPUs are using are reserved for their spaces, all others become free, and each CPU
//! flushes its TLB when it next takes the slow path. No CPU is interrupted. A space whose tag is of
//! an older generation gets a new tag, or its old tag again if that is reserved or still free.
//!
//! A CPU that switches does not take the lock if the tag is of the current generation and the CPU
//! can replace its active tag by a compare-exchange. A rollover swaps the active tag with 0. So
//! either the rollover finds the new tag, or the compare-exchange fails.
//!
//! The search of the bitmap under the lock costs nothing, which favours these designs a little.
//! There are no pinned tags, because no workload here uses them.

#![expect(unsafe_code, reason = "a raw lock is locked and unlocked in separate calls")]

use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering::Relaxed;

use shootdown::Word;
use shootdown_sim::{Sim, SimWord, SpinLock, TagEntries};

use super::rules::LinuxRule;
use super::{CachePadded, CpuMask};

/// The allocator of a machine's global tags.
#[derive(Debug)]
pub(crate) struct AsidAllocator {
    /// Number of tags, which are 1 to `count`; 0 if tags are not used.
    count: usize,
    /// `asid_generation`.
    generation: CachePadded<SimWord>,
    /// `cpu_asid_lock`.
    lock: SpinLock,
    map: RefCell<AsidMap>,
    cpus: Vec<AsidCpu>,
    /// The CPUs that have not flushed their TLBs since the last rollover (`tlb_flush_pending`).
    flush_pending: CpuMask,
    broken: Option<LinuxRule>,
}

/// The tags in use. Accessed only under the lock.
#[derive(Debug)]
struct AsidMap {
    /// `asid_map`, by tag.
    used: Vec<bool>,
    /// `cur_idx`.
    cursor: usize,
}

/// The tags of a CPU.
#[derive(Debug)]
struct AsidCpu {
    /// `active_asids`; 0 from a rollover until the CPU next takes the slow path.
    active: CachePadded<SimWord>,
    /// `reserved_asids`; accessed only under the lock.
    reserved: Cell<u64>,
}

/// The tag under which a CPU must load a space.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asid {
    pub(crate) tag: u16,
    pub(crate) entries: TagEntries,
    /// The tag was assigned by this call.
    pub(crate) is_new: bool,
}

/// An identity (`mm.context.id`) consists of a generation and a tag; 0 means none.
const FIRST_GENERATION: u64 = 1 << 16;
const TAG: u64 = FIRST_GENERATION - 1;

/// The tag of a space, of any generation.
pub(crate) fn tag_of(id: &SimWord) -> u16 {
    (id.load(Relaxed) & TAG) as u16
}

impl AsidAllocator {
    /// Creates the allocator of `count` tags. With 0 tags, each load of a root discards.
    pub(crate) fn new(sim: &Sim, count: usize, broken: Option<LinuxRule>) -> Self {
        let cpus = sim.machine().cpu_count();
        let cpu = |_| AsidCpu { active: CachePadded(SimWord::with(0)), reserved: Cell::new(0) };
        Self {
            count,
            generation: CachePadded(SimWord::with(FIRST_GENERATION)),
            lock: <SpinLock as lock_api::RawMutex>::INIT,
            map: RefCell::new(AsidMap { used: vec![false; count + 1], cursor: 1 }),
            cpus: (0..cpus).map(cpu).collect(),
            flush_pending: CpuMask::new(cpus),
            broken,
        }
    }

    /// The tag for the space whose identity is `id`, which is about to be loaded on this CPU
    /// (`check_and_switch_context`). Interrupts must be masked.
    pub(crate) fn check_and_switch(&self, sim: &Sim, id: &SimWord) -> Asid {
        if self.count == 0 {
            return Asid { tag: 0, entries: TagEntries::Discarded, is_new: false };
        }
        let active = &self.cpus[sim.cpu()].active.0;
        let asid =
            |id: u64, is_new| Asid { tag: (id & TAG) as u16, entries: TagEntries::Kept, is_new };
        let found = id.load(Relaxed);
        let before = active.load(Relaxed);
        if before != 0
            && self.is_current(found)
            && active.compare_exchange(before, found, Relaxed, Relaxed).is_ok()
        {
            return asid(found, false);
        }
        lock_api::RawMutex::lock(&self.lock);
        let mut found = id.load(Relaxed);
        let is_new = !self.is_current(found);
        if is_new {
            found = self.new_context(sim, found);
            id.store(found, Relaxed);
        }
        if self.flush_pending.contains(sim.cpu()) {
            self.flush_pending.remove(sim.cpu());
            if self.broken != Some(LinuxRule::FlushAfterRollover) {
                sim.invalidate_all();
            }
        }
        active.store(found, Relaxed);
        // SAFETY: locked above.
        unsafe { lock_api::RawMutex::unlock(&self.lock) };
        asid(found, is_new)
    }

    fn is_current(&self, id: u64) -> bool {
        id & !TAG == self.generation.0.load(Relaxed)
    }

    /// Assigns a new identity to a space that had `old`.
    fn new_context(&self, sim: &Sim, old: u64) -> u64 {
        let mut map = self.map.borrow_mut();
        let mut generation = self.generation.0.load(Relaxed);
        if old != 0 {
            let renewed = generation | old & TAG;
            if self.update_reserved(old, renewed) {
                return renewed;
            }
            if !core::mem::replace(&mut map.used[(old & TAG) as usize], true) {
                sim.count_tag_taken();
                return renewed;
            }
        }
        let tag = map.next_free().unwrap_or_else(|| {
            generation = self.generation.0.fetch_add(FIRST_GENERATION, Relaxed) + FIRST_GENERATION;
            self.roll_over(sim, &mut map);
            // There are more tags than CPUs, so not all tags are reserved.
            map.next_free().unwrap_or(1)
        });
        map.used[tag] = true;
        map.cursor = tag;
        sim.count_tag_taken();
        generation | tag as u64
    }

    /// Returns `true` if a CPU uses `old`, which then stays the space's tag
    /// (`check_update_reserved_asid`).
    fn update_reserved(&self, old: u64, renewed: u64) -> bool {
        let mut is_reserved = false;
        for cpu in self.cpus.iter().filter(|cpu| cpu.reserved.get() == old) {
            cpu.reserved.set(renewed);
            is_reserved = true;
        }
        is_reserved
    }

    /// Frees all tags except those that CPUs are using (`flush_context`).
    fn roll_over(&self, sim: &Sim, map: &mut AsidMap) {
        sim.count_rollover();
        map.used.fill(false);
        map.cursor = 1;
        for (number, cpu) in self.cpus.iter().enumerate() {
            let active = match cpu.active.0.swap(0, Relaxed) {
                // The CPU has not switched since the last rollover.
                0 => cpu.reserved.get(),
                active => active,
            };
            if self.broken != Some(LinuxRule::ReserveActive) {
                map.used[(active & TAG) as usize] = true;
                cpu.reserved.set(active);
            }
            self.flush_pending.insert(number);
        }
    }
}

impl AsidMap {
    fn next_free(&self) -> Option<usize> {
        (self.cursor..self.used.len()).find(|&tag| !self.used[tag])
    }
}
