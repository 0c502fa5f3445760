//! Linux on ARC: tags that each CPU counts up, where to flush a space is to give it the next one.
//! Before and after seed 002.
//!
//! Read in public sources: `get_new_mmu_context`, `local_flush_tlb_mm` and `local_flush_tlb_range`
//! of `arch/arc`, and the seed's own text. A space has a tag on each CPU, with the cycle of the
//! CPU's counter in which it was given; a CPU whose counter wraps empties its TLB, and tags of
//! earlier cycles are no good any more. A flush of fewer than 32 pages probes for each and erases
//! it; of more, or of all, the space forgets its tag, and is given the next one if it runs. When
//! the last user is gone nothing is flushed, for nobody will use the tag again.
//!
//! | | `munmap` and `madvise` | `mprotect`, copies | fork | exit, exec |
//! |---|---|---|---|---|
//! | `arc-3.9` | all of the space, if anything was there | pages | all of it | nothing |
//! | `arc-ranged` | each area from end to end | pages | all of it | nothing |
//!
//! What `munmap` flushes is decided where the memory manager gathers it:
//! [`ExtraFlushes::SPACE_PER_UNMAP`] and [`ExtraFlushes::AREA_PER_UNMAP`].
//!
//! # What differs
//!
//! - Linux 3.9 ran ARC with one counter for all CPUs, and did not interrupt others for flushes.
//!   That came in 3.13, and is here for both. On one CPU they are the same, but that 3.9 looked for
//!   the owner of a tag, where later ones compare cycles.
//! - Tag 0 is the kernel's here, and no space is given it.
//! - A CPU erases pages under the tag that it has loaded. Where a space has a tag and is not
//!   loaded, Linux erases under that one; here the space forgets it, and is given another when it
//!   next runs. That takes a tag more, and on one CPU it does not happen.
//! - Pages of the model have 4 KiB, ARC's have 8; the threshold is 32 pages of the model.
//! - A lazy CPU that is told to flush only forgets the tag, since its kernel refills the TLB for
//!   threads alone. Where hardware walks page tables, which it does on no ARC, such a CPU takes the
//!   next tag at once, so that nothing is left under the loaded one.

#![expect(unsafe_code, reason = "the seam's `switch` is unsafe")]

use core::cell::Cell;
use std::rc::Rc;

use shootdown::{ExtentSet, Horizon, Root};
use shootdown_sim::machine::Refill;
use shootdown_sim::{Sim, TagEntries};
use shootdown_vm::{Change, ExtraFlushes, Flush, Lifetimes, Policy, Retired, Scheduling};

use super::active_mm::{ActiveMms, CountedMm, put};
use super::mm_count::MmCount;
use super::rules::LinuxRule;
use super::{Calls, CpuMask};
use crate::design::{Design, Purpose};

impl Design {
    /// Linux on ARC before seed 002.
    pub const ARC_3_9: Self =
        Self::new("arc-3.9", Purpose::OtherHardware, |sim| Arc::by_space(sim).into());
    /// Linux on ARC with seed 002.
    pub const ARC_RANGED: Self =
        Self::new("arc-ranged", Purpose::OtherHardware, |sim| Arc::by_area(sim).into());
}

/// The design, before or after seed 002.
#[derive(Debug)]
pub struct Arc {
    sim: Rc<Sim>,
    /// For each CPU, how many tags it has given (`asid_cache`).
    given: Vec<Cell<u64>>,
    tags: u64,
    mms: ActiveMms<Mm>,
    calls: Calls<Request>,
    broken: Option<LinuxRule>,
    /// What `munmap` and `madvise` flush.
    unmap: ExtraFlushes,
}

/// A space (`mm_struct`).
#[derive(Debug)]
pub struct Mm {
    root: u64,
    /// For each CPU, the count that it was given, which is cycle and tag; 0 is none. The CPU's own.
    asids: Vec<Cell<u64>>,
    mm_count: MmCount,
    /// The CPUs that have ever run it.
    cpumask: Rc<CpuMask>,
}

/// What other CPUs are asked to flush.
#[derive(Debug)]
struct Request {
    mm: Rc<Mm>,
    /// `None` for all of the space.
    few: Option<ExtentSet>,
}

/// So many pages, and all of the space is flushed instead.
const RENAMED_FROM_PAGES: usize = 32;

impl CountedMm for Mm {
    fn mm_count(&self) -> &MmCount {
        &self.mm_count
    }
    fn root(&self) -> Root {
        Root(self.root << 12)
    }
}

impl Arc {
    /// Before seed 002, on this machine: `munmap` and `madvise` flush all of the space.
    #[must_use]
    pub fn by_space(sim: Rc<Sim>) -> Self {
        Self::with_broken_rule(sim, ExtraFlushes::SPACE_PER_UNMAP, None)
    }

    /// With seed 002: they flush each area.
    #[must_use]
    pub fn by_area(sim: Rc<Sim>) -> Self {
        Self::with_broken_rule(sim, ExtraFlushes::AREA_PER_UNMAP, None)
    }

    /// One that breaks a rule, for tests that expect the oracle to notice.
    #[must_use]
    pub fn with_broken_rule(sim: Rc<Sim>, unmap: ExtraFlushes, broken: Option<LinuxRule>) -> Self {
        let cpus = sim.machine().cpu_count();
        Self {
            given: (0..cpus).map(|_| Cell::new(0)).collect(),
            // Without tags, each space that is loaded takes the only one.
            tags: sim.machine().tlb.tags.max(1) as u64,
            mms: ActiveMms::new(cpus),
            calls: Calls::new(cpus),
            broken,
            unmap,
            sim,
        }
    }

    /// The tag that is the space's on this CPU, in this cycle (`get_new_mmu_context`).
    fn tag_for(&self, mm: &Mm) -> u16 {
        let cpu = self.sim.cpu();
        let cycle = |count: u64| (count - 1) / self.tags;
        let (mut count, given) = (mm.asids[cpu].get(), self.given[cpu].get());
        if count == 0 || cycle(count) != cycle(given) {
            count = given + 1;
            self.given[cpu].set(count);
            mm.asids[cpu].set(count);
            self.sim.count_tag_taken();
            if given != 0 && cycle(count) != cycle(given) {
                self.sim.count_rollover();
                if self.broken != Some(LinuxRule::EmptyAtWrap) {
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

    /// `local_flush_tlb_range`, or `local_flush_tlb_mm` if there are none.
    fn flush_here(&self, mm: &Rc<Mm>, few: Option<&ExtentSet>) {
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
    type Pending = ();

    fn policy(&self) -> Policy {
        Policy { extra_flushes: super::POLICY.extra_flushes.union(self.unmap), ..super::UNBATCHED }
    }

    fn space(&self, root: Root) -> Rc<Mm> {
        let cpus = self.given.len();
        Rc::new(Mm {
            root: root.0 >> 12,
            asids: (0..cpus).map(|_| Cell::new(0)).collect(),
            mm_count: MmCount::new(),
            cpumask: Rc::new(CpuMask::new(cpus)),
        })
    }

    /// `flush_tlb_mm` or `flush_tlb_range`, on every CPU of the mask.
    fn flush(&self, space: &Rc<Mm>, change: &Change) {
        let extents = change.extents;
        let is_much = extents.is_whole()
            || extents.as_slice().iter().any(|extent| extent.page_count() >= RENAMED_FROM_PAGES);
        let few = (!is_much).then_some(extents);
        let request = Rc::new(Request { mm: Rc::clone(space), few });
        let flush_here = || {
            self.sim.mask();
            self.flush_here(space, request.few.as_ref());
            self.sim.unmask();
        };
        let others = space.cpumask.others(self.sim.cpu());
        if others.is_empty() {
            flush_here();
        } else {
            self.calls.call(&self.sim, &others, &request, flush_here);
        }
    }

    fn wait(&self, (): ()) -> Horizon {
        Horizon::CLEAR
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
    /// `switch_mm`, which loads the root and the tag whether or not they are loaded already.
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
        // The TLB is lost without its help.
    }

    fn interrupt(&self) {
        self.calls.serve(&self.sim, |request| {
            self.flush_here(&request.mm, request.few.as_ref());
        });
    }
}
