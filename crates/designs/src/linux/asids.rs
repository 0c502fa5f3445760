//! Global tags as arm64 gives them, and RISC-V after it: `arch/arm64/mm/context.c`.
//!
//! A space keeps the tag that it was given until tags run out (*rollover*). Then the generation is
//! counted up; the tags that CPUs run with are reserved for the spaces that have them; all others
//! are free; and each CPU empties its TLB when it next takes the slow path. Nobody is interrupted.
//! A space notices by its generation that its tag is not good any more, and is given a new one, or
//! its old number again if that is reserved, or still free.
//!
//! A CPU that switches does so without the lock if the tag is of this generation and it can put it
//! in the place of the one it had: the rollover takes that away, and so one of the two sees the
//! other.
//!
//! The bitmap is searched under the lock for nothing, which favours these designs a little. There
//! are no pinned tags, as nothing here uses them.

#![expect(unsafe_code, reason = "a raw lock: taken and let go of in two steps")]

use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering::Relaxed;

use shootdown::Word;
use shootdown_sim::{Sim, SimWord, SpinLock, TagEntries};

use super::rules::LinuxRule;
use super::{CachePadded, CpuMask};

/// The tags of a machine, and who has them.
#[derive(Debug)]
pub(crate) struct Asids {
    /// How many there are, 1 to this. 0 if they are not used.
    count: usize,
    /// `asid_generation`.
    generation: CachePadded<SimWord>,
    /// `cpu_asid_lock`.
    lock: SpinLock,
    book: RefCell<AsidAllocator>,
    cpus: Vec<AsidCpu>,
    /// The CPUs that have not emptied their TLBs since the last rollover (`tlb_flush_pending`).
    flush_pending: CpuMask,
    broken: Option<LinuxRule>,
}

/// Written under the lock alone.
#[derive(Debug)]
struct AsidAllocator {
    /// `asid_map`, by tag.
    used: Vec<bool>,
    /// `cur_idx`.
    cursor: usize,
}

/// What a CPU runs with.
#[derive(Debug)]
struct AsidCpu {
    /// `active_asids`: 0 from a rollover until the CPU next takes the slow path.
    active: CachePadded<SimWord>,
    /// `reserved_asids`; written under the lock alone.
    reserved: Cell<u64>,
}

/// Under which tag a CPU is to load a space.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asid {
    pub(crate) tag: u16,
    pub(crate) entries: TagEntries,
    /// The space was given it just now.
    pub(crate) is_new: bool,
}

/// An identity (`mm.context.id`) is a generation and a tag; 0 is none.
const FIRST_GENERATION: u64 = 1 << 16;
const TAG: u64 = FIRST_GENERATION - 1;

/// The tag of a space, of whichever generation.
pub(crate) fn tag_of(id: &SimWord) -> u16 {
    (id.load(Relaxed) & TAG) as u16
}

impl Asids {
    /// Of a machine with so many global tags, or none: then each load of a root discards.
    pub(crate) fn new(sim: &Sim, count: usize, broken: Option<LinuxRule>) -> Self {
        let cpus = sim.machine().cpu_count();
        let cpu = |_| AsidCpu { active: CachePadded(SimWord::with(0)), reserved: Cell::new(0) };
        Self {
            count,
            generation: CachePadded(SimWord::with(FIRST_GENERATION)),
            lock: <SpinLock as lock_api::RawMutex>::INIT,
            book: RefCell::new(AsidAllocator { used: vec![false; count + 1], cursor: 1 }),
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
            if self.broken != Some(LinuxRule::EmptyAfterRollover) {
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

    /// A new identity for a space that had `old`.
    fn new_context(&self, sim: &Sim, old: u64) -> u64 {
        let mut book = self.book.borrow_mut();
        let mut generation = self.generation.0.load(Relaxed);
        if old != 0 {
            let renewed = generation | old & TAG;
            if self.update_reserved(old, renewed) {
                return renewed;
            }
            if !core::mem::replace(&mut book.used[(old & TAG) as usize], true) {
                sim.count_tag_taken();
                return renewed;
            }
        }
        let tag = book.next_free().unwrap_or_else(|| {
            generation = self.generation.0.fetch_add(FIRST_GENERATION, Relaxed) + FIRST_GENERATION;
            self.roll_over(sim, &mut book);
            // There are more tags than CPUs, and so than are reserved.
            book.next_free().unwrap_or(1)
        });
        book.used[tag] = true;
        book.cursor = tag;
        sim.count_tag_taken();
        generation | tag as u64
    }

    /// Whether a CPU runs with `old`, which then stays the space's (`check_update_reserved_asid`).
    fn update_reserved(&self, old: u64, renewed: u64) -> bool {
        let mut is_reserved = false;
        for cpu in self.cpus.iter().filter(|cpu| cpu.reserved.get() == old) {
            cpu.reserved.set(renewed);
            is_reserved = true;
        }
        is_reserved
    }

    /// Takes back all tags but those that CPUs run with (`flush_context`).
    fn roll_over(&self, sim: &Sim, book: &mut AsidAllocator) {
        sim.count_rollover();
        book.used.fill(false);
        book.cursor = 1;
        for (number, cpu) in self.cpus.iter().enumerate() {
            let active = match cpu.active.0.swap(0, Relaxed) {
                // It has not switched since the last rollover.
                0 => cpu.reserved.get(),
                active => active,
            };
            if self.broken != Some(LinuxRule::ReserveActive) {
                book.used[(active & TAG) as usize] = true;
                cpu.reserved.set(active);
            }
            self.flush_pending.insert(number);
        }
    }
}

impl AsidAllocator {
    fn next_free(&self) -> Option<usize> {
        (self.cursor..self.used.len()).find(|&tag| !self.used[tag])
    }
}
