//! Linux 7.0 on AMD CPUs with INVLPGB: a space that runs on more than three CPUs is given a tag
//! that is the same on all of them, and is flushed by the hardware from then on.
//!
//! Read in the public source of Linux 7.0: `consider_global_asid`, `broadcast_tlb_flush`,
//! `finish_asid_transition`, and the allocator, which hands tags out in turn and takes freed ones
//! back when it is through. Whether a space is given one is considered after one in 32 of its
//! flushes that interrupted, by process number and clock. It keeps the tag until it dies.
//!
//! With a global tag the last flush interrupts nobody, so that lazy CPUs keep the root. They are
//! therefore counted, as Linux does ([`Counted`](crate::linux::lifetime::Counted)), and what
//! `linux-7.0` leaves out for its own benefit is here: compare with `linux-counted`, which this is,
//! to the bit, on a machine without INVLPGB.
//!
//! What differs: a CPU that is told to change to the global tag while it is lazy stays lazy, where
//! Linux, in passing, ends that; no flush would have looked at it any more.

use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::collections::BTreeMap;
use std::rc::Rc;

use shootdown::{Root, Word};
use shootdown_sim::machine::Tagging;
use shootdown_sim::{BroadcastScope, Sim, SimWord, SpinLock};

use super::{Linux70, Mm, SWITCHING, TLB_NR_DYN_ASIDS};
use crate::design::{Design, Purpose};
use crate::linux::FlushInfo;
use crate::linux::lifetime::ExitFlush;

impl Design {
    /// Linux 7.0 with lazy CPUs counted, and INVLPGB where the machine has it. The last flush
    /// interrupts, as on x86, except where INVLPGB does it.
    pub const LINUX_INVLPGB: Self = Self::new("linux-7.0-invlpgb", Purpose::OtherHardware, |sim| {
        Linux70::invlpgb(sim, ExitFlush::Interrupts).into()
    });
}

/// The global tags, and who has them. By `asid`, which is one less than the tag.
#[derive(Debug)]
pub(super) struct GlobalAsids {
    /// `global_asid_lock`.
    lock: SpinLock,
    used: RefCell<Vec<bool>>,
    /// Theirs are free at the next wrap.
    freed: RefCell<Vec<usize>>,
    last: Cell<usize>,
    available: Cell<usize>,
    owners: RefCell<BTreeMap<u64, usize>>,
}

/// A space's part, within one line.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct MmGlobal {
    /// 0 is none: a CPU's own, in fact.
    asid: SimWord,
    /// Whether CPUs may still run it under a tag of their own (`asid_transition`).
    in_transition: SimWord,
}

/// A space that runs on more CPUs than this is given a global tag.
const ACTIVE_CPUS: usize = 3;
/// The clock by which it is considered; 1000 times a second.
const JIFFY_NS: u64 = 1_000_000;

impl MmGlobal {
    pub(super) const fn new() -> Self {
        Self { asid: SimWord::with(0), in_transition: SimWord::with(0) }
    }
}

impl GlobalAsids {
    /// If the machine has INVLPGB.
    fn new(sim: &Sim) -> Option<Self> {
        let machine = sim.machine();
        let asids = machine.tlb.tags;
        let has_invlpgb = machine.broadcast.is_some() && machine.tagging == Tagging::Global;
        (has_invlpgb && asids > TLB_NR_DYN_ASIDS).then(|| Self {
            lock: <SpinLock as lock_api::RawMutex>::INIT,
            used: RefCell::new(vec![false; asids]),
            freed: RefCell::default(),
            last: Cell::new(TLB_NR_DYN_ASIDS),
            available: Cell::new(asids - TLB_NR_DYN_ASIDS),
            owners: RefCell::default(),
        })
    }

    #[expect(unsafe_code, reason = "a raw lock: taken and let go of in two steps")]
    fn locked<R>(&self, sim: &Sim, f: impl FnOnce() -> R) -> R {
        sim.mask();
        lock_api::RawMutex::lock(&self.lock);
        let result = f();
        // SAFETY: locked above.
        unsafe { lock_api::RawMutex::unlock(&self.lock) };
        sim.unmask();
        result
    }

    /// `allocate_global_asid`.
    fn allocate(&self, sim: &Sim) -> Option<usize> {
        let next = || {
            let used = self.used.borrow();
            (self.last.get()..used.len()).find(|&asid| !used[asid])
        };
        let asid = next().or_else(|| {
            self.reset(sim);
            next()
        })?;
        self.used.borrow_mut()[asid] = true;
        self.last.set(asid);
        self.available.set(self.available.get() - 1);
        Some(asid)
    }

    /// `reset_global_asid_space`.
    fn reset(&self, sim: &Sim) {
        sim.count_rollover();
        flush_all_nonglobals(sim);
        let mut used = self.used.borrow_mut();
        for asid in self.freed.borrow_mut().drain(..) {
            used[asid] = false;
        }
        self.last.set(TLB_NR_DYN_ASIDS);
    }
}

fn flush_all_nonglobals(sim: &Sim) {
    sim.broadcast(0, BroadcastScope::Everything);
    sim.complete_broadcasts();
}

impl Linux70 {
    /// Linux 7.0 as it is on this machine, with INVLPGB if it has it: `linux-7.0-invlpgb`.
    #[must_use]
    pub fn invlpgb(sim: Rc<Sim>, exit_flush: ExitFlush) -> Self {
        let global = GlobalAsids::new(&sim);
        Self { global, ..Self::counted(sim, exit_flush) }
    }
}

impl Linux70 {
    /// The space's global tag, if it has one.
    pub(super) fn global_asid(&self, mm: &Mm) -> Option<usize> {
        self.global.as_ref()?;
        let asid = mm.global.asid.load(Acquire) as usize;
        (asid != 0).then_some(asid)
    }

    /// Has this CPU go on with the space, which it has loaded, under its global tag.
    pub(super) fn load_global(&self, mm: &Rc<Mm>, asid: usize) {
        let me = self.me();
        if me.loaded_mm_asid.get() != asid {
            self.load_cr3(Some(mm), asid, false);
            me.loaded_mm_asid.set(asid);
        }
    }

    pub(super) fn broadcast_tlb_flush(&self, mm: &Rc<Mm>, info: &Rc<FlushInfo>) {
        let Some(asid) = self.global_asid(mm) else { return };
        let scope = match &info.range {
            Some(range) if info.freed_tables => {
                BroadcastScope::Tables(core::slice::from_ref(range))
            }
            Some(range) => BroadcastScope::Pages(core::slice::from_ref(range)),
            None => BroadcastScope::Tag,
        };
        self.sim.broadcast(asid as u16 + 1, scope);
        self.finish_asid_transition(mm, info);
        self.sim.complete_broadcasts();
    }

    /// Has all CPUs drop everything, of all spaces and under all tags.
    pub(super) fn invlpgb_flush_all_nonglobals(&self) {
        flush_all_nonglobals(&self.sim);
    }

    /// Interrupts the mask as long as a CPU runs the space under a tag of its own.
    fn finish_asid_transition(&self, mm: &Rc<Mm>, info: &Rc<FlushInfo>) {
        if mm.global.in_transition.load(Relaxed) == 0 {
            return;
        }
        let asid = mm.global.asid.load(Relaxed) as usize;
        for cpu in mm.cpumask.members() {
            let state = &self.cpus[cpu];
            let mut loaded = state.loaded_mm.0.load(Relaxed);
            while loaded == SWITCHING {
                self.sim.spin_hint();
                loaded = state.loaded_mm.0.load(Relaxed);
            }
            // In one line with `loaded_mm`.
            if loaded == mm.ctx_id && state.loaded_mm_asid.get() != asid {
                let others = mm.cpumask.others(self.cpu());
                return self.calls.call(&self.sim, &others, info, || {
                    self.sim.mask();
                    if self.has_loaded(mm) {
                        self.flush_func(info);
                    }
                    self.sim.unmask();
                });
            }
        }
        mm.global.in_transition.store(0, Relaxed);
    }

    pub(super) fn consider_global_asid(&self, mm: &Rc<Mm>) {
        let Some(global) = &self.global else { return };
        let pid = self.sim.current_thread().map_or(0, |thread| u64::from(thread.0));
        let jiffies = self.sim.now().ps() / 1000 / JIFFY_NS;
        if pid & 0x1f != jiffies & 0x1f || !self.is_active_on_many(mm) {
            return;
        }
        global.locked(&self.sim, || {
            if mm.global.asid.load(Relaxed) != 0 || global.available.get() == 0 {
                return;
            }
            let Some(asid) = global.allocate(&self.sim) else { return };
            self.sim.count_tag_taken();
            global.owners.borrow_mut().insert(mm.root, asid);
            mm.global.in_transition.store(1, Relaxed);
            mm.global.asid.store(asid as u64, Release);
        });
    }

    /// `mm_active_cpus_exceeds`.
    fn is_active_on_many(&self, mm: &Mm) -> bool {
        let cpus = mm.cpumask.members();
        let is_active = |&cpu: &usize| {
            let state = &self.cpus[cpu];
            state.loaded_mm.0.load(Relaxed) == mm.ctx_id && state.is_lazy.0.load(Relaxed) == 0
        };
        cpus.len() > ACTIVE_CPUS
            && cpus.iter().filter(|cpu| is_active(cpu)).nth(ACTIVE_CPUS).is_some()
    }

    /// The space with this root is gone (`mm_free_global_asid`).
    pub(super) fn free_global_asid(&self, root: Root) {
        let Some(global) = &self.global else { return };
        let Some(asid) = global.owners.borrow_mut().remove(&(root.0 >> 12)) else { return };
        global.locked(&self.sim, || {
            global.freed.borrow_mut().push(asid);
            global.available.set(global.available.get() + 1);
        });
    }
}
