//! Linux on ARC, where each CPU counts its tags up, and a space is flushed by giving it the next
//! tag. Before and after the patch of the `arc-asid-range` study.
//!
//! Read in public sources: `get_new_mmu_context`, `local_flush_tlb_mm` and `local_flush_tlb_range`
//! of `arch/arc`, and the patch's own text. A space has a tag on each CPU, and the cycle of the
//! CPU's counter in which it was assigned. A CPU whose counter wraps flushes its TLB, and tags of
//! earlier cycles become invalid. A flush of fewer than 32 pages probes for each page and erases
//! it. A larger flush drops the space's tag, and the space gets the next tag if it is running. When
//! the last user exits, nothing is flushed, because the tag is never used again.
//!
//! | | `munmap` and `madvise` | `mprotect`, copies | fork | exit, exec |
//! |---|---|---|---|---|
//! | `arc-3.9` | the whole space, if a page was mapped | pages | the whole space | nothing |
//! | `arc-ranged` | each area completely | pages | the whole space | nothing |
//!
//! The range that `munmap` flushes is chosen where the memory manager gathers it:
//! [`ExtraFlushes::SPACE_PER_UNMAP`] and [`ExtraFlushes::AREA_PER_UNMAP`].
//!
//! # Differences from Linux
//!
//! - Linux 3.9 ran ARC with one counter for all CPUs, and did not interrupt other CPUs for flushes.
//!   That came in 3.13, and both designs have it. On one CPU the versions are the same, except that
//!   3.9 searched for the owner of a tag, where later versions compare cycles.
//! - Tag 0 is the kernel's, and is not assigned to a space.
//! - A CPU erases pages under the tag that it has loaded. If a space has a tag and is not loaded,
//!   Linux erases under that tag. The model drops the tag, and the space gets another when it next
//!   runs. That costs one tag more, and does not happen on one CPU.
//! - Pages of the model have 4 KiB, and ARC's have 8 KiB. The threshold is 32 pages of the model.
//! - A lazy CPU that must flush only drops the tag, because its kernel refills the TLB only for
//!   user threads. Where hardware walks page tables, as on no ARC, a lazy CPU loads the next tag
//!   immediately, so that no entry remains under the loaded tag.

#![expect(unsafe_code, reason = "the interface's `switch` is unsafe")]

use core::cell::Cell;
use std::rc::Rc;

use shootdown::{ExtentSet, Root};
use shootdown_sim::machine::Refill;
use shootdown_sim::{LockWaiting, Sim, TagEntries};
use shootdown_vm::{Change, ExtraFlushes, Flush, Lifetimes, Policy, Retired, Scheduling};

use super::active_mm::{ActiveMms, CountedMm, put};
use super::mm_count::MmCount;
use super::rules::LinuxRule;
use super::{Calls, CpuMask};

/// The designs `arc-3.9` and `arc-ranged`.
#[derive(Debug)]
#[must_use]
pub struct Arc {
    sim: Rc<Sim>,
    /// For each CPU, the number of tags that it has assigned (`asid_cache`).
    assigned: Vec<Cell<u64>>,
    tags: u64,
    mms: ActiveMms<Mm>,
    calls: Calls<FlushRequest>,
    broken: Option<LinuxRule>,
    /// The range that `munmap` and `madvise` flush.
    unmap: ExtraFlushes,
}

/// A space (`mm_struct`).
#[derive(Debug)]
pub struct Mm {
    root: u64,
    /// For each CPU, its count when it assigned the tag, which contains the cycle and the tag; 0
    /// for none. Only that CPU accesses it.
    asids: Vec<Cell<u64>>,
    mm_count: MmCount,
    /// The CPUs that have ever run the space.
    cpumask: Rc<CpuMask>,
}

/// A flush that other CPUs are called for.
#[derive(Debug)]
struct FlushRequest {
    mm: Rc<Mm>,
    /// The pages; `None` for the whole space.
    few: Option<ExtentSet>,
}

/// Number of pages from which the whole space is flushed instead.
const RENAMED_FROM_PAGES: usize = 32;

impl CountedMm for Mm {
    fn mm_count(&self) -> &MmCount {
        &self.mm_count
    }
}

impl Arc {
    /// Creates the design `arc-3.9` on this machine: `munmap` and `madvise` flush the whole space.
    pub fn by_space(sim: Rc<Sim>) -> Self {
        Self::with_broken_rule(sim, ExtraFlushes::SPACE_PER_UNMAP, None)
    }

    /// Creates the design `arc-ranged` on this machine: `munmap` and `madvise` flush each area.
    pub fn by_area(sim: Rc<Sim>) -> Self {
        Self::with_broken_rule(sim, ExtraFlushes::AREA_PER_UNMAP, None)
    }

    /// Creates a design that breaks a rule, for tests that expect the oracle to detect it.
    pub fn with_broken_rule(sim: Rc<Sim>, unmap: ExtraFlushes, broken: Option<LinuxRule>) -> Self {
        sim.set_lock_waiting(LockWaiting::Sleep);
        let cpus = sim.machine().cpu_count();
        Self {
            assigned: (0..cpus).map(|_| Cell::new(0)).collect(),
            // Without tags, every load of a space assigns the only tag.
            tags: sim.machine().tlb.tags.max(1) as u64,
            mms: ActiveMms::new(cpus),
            calls: Calls::new(cpus),
            broken,
            unmap,
            sim,
        }
    }

    /// The space's tag on this CPU in the current cycle (`get_new_mmu_context`).
    fn tag_for(&self, mm: &Mm) -> u16 {
        let cpu = self.sim.cpu();
        let cycle = |count: u64| (count - 1) / self.tags;
        let (mut count, last) = (mm.asids[cpu].get(), self.assigned[cpu].get());
        if count == 0 || cycle(count) != cycle(last) {
            count = last + 1;
            self.assigned[cpu].set(count);
            mm.asids[cpu].set(count);
            self.sim.count_tag_taken();
            if last != 0 && cycle(count) != cycle(last) {
                self.sim.count_rollover();
                if self.broken != Some(LinuxRule::FlushAtWrap) {
                    self.sim.invalidate_all();
                }
            }
        }
        ((count - 1) % self.tags) as u16 + 1
    }

    fn load(&self, mm: &Mm) {
        let tag = self.tag_for(mm);
        self.sim.load_root(mm.root, tag, TagEntries::Kept);
    }

    /// `local_flush_tlb_range`, or `local_flush_tlb_mm` if `few` is `None`.
    fn flush_local(&self, mm: &Rc<Mm>, few: Option<&ExtentSet>) {
        let (sim, cpu) = (&self.sim, self.sim.cpu());
        let is_loaded = self.mms.has_loaded(cpu, mm);
        match few {
            Some(extents) if is_loaded && mm.asids[cpu].get() != 0 => {
                sim.invalidate(extents.as_slice().iter().flat_map(|extent| extent.addresses()));
            }
            _ => {
                mm.asids[cpu].set(0);
                let walks = sim.machine().refill == Refill::Hardware;
                if is_loaded && (walks || !self.mms.is_lazy(cpu)) {
                    self.load(mm);
                }
            }
        }
    }
}

impl Flush for Arc {
    type Space = Rc<Mm>;
    synchronous!();

    fn policy(&self) -> Policy {
        Policy { extra_flushes: super::POLICY.extra_flushes.union(self.unmap), ..super::UNBATCHED }
    }

    fn space(&self, root: Root) -> Rc<Mm> {
        let cpus = self.assigned.len();
        Rc::new(Mm {
            root: root.0 >> 12,
            asids: (0..cpus).map(|_| Cell::new(0)).collect(),
            mm_count: MmCount::new(root),
            cpumask: Rc::new(CpuMask::new(cpus)),
        })
    }

    /// `flush_tlb_mm` or `flush_tlb_range`, on every CPU of the mask.
    fn flush(&self, space: &Rc<Mm>, change: &Change) {
        let extents = change.extents;
        let is_large = extents.is_whole()
            || extents.as_slice().iter().any(|extent| extent.page_count() >= RENAMED_FROM_PAGES);
        let few = (!is_large).then_some(extents);
        let request = Rc::new(FlushRequest { mm: Rc::clone(space), few });
        let flush_local = || self.sim.masked(|| self.flush_local(space, request.few.as_ref()));
        let others = space.cpumask.others(self.sim.cpu());
        if others.is_empty() {
            flush_local();
        } else {
            self.calls.call(&self.sim, &others, &request, flush_local);
        }
    }
}

unused!(Arc: Defer, Batching);

impl Lifetimes for Arc {
    fn retire(&self, space: &Rc<Mm>) -> Retired {
        put(&**space)
    }

    fn take_dead(&self) -> Option<Root> {
        self.mms.take_free(self.sim.cpu())
    }
}

impl Scheduling for Arc {
    /// `switch_mm`, which loads the root and the tag even if they are loaded already.
    unsafe fn switch(&self, space: &Rc<Mm>) {
        let cpu = self.sim.cpu();
        space.cpumask.insert(cpu);
        self.load(space);
        self.mms.activate(cpu, space);
    }

    fn enter_lazy(&self) {
        self.mms.borrow(self.sim.cpu());
    }

    fn leave_space(&self) {
        // The idle state drops the TLB by itself.
    }

    fn interrupt(&self) {
        self.calls.handle_calls(&self.sim, |request| {
            self.flush_local(&request.mm, request.few.as_ref());
        });
    }
}
