//! Linux 7.0 on AMD CPUs with INVLPGB: a space that runs on more than three CPUs gets a global tag,
//! and the hardware broadcasts its flushes from then on.
//!
//! Read in the public source of Linux 7.0: `consider_global_asid`, `broadcast_tlb_flush`,
//! `finish_asid_transition`, and the allocator, which assigns tags in order and reuses freed tags
//! when it reaches the end. One in 32 of a space's flushes that interrupted, selected by process
//! number and clock, considers a global tag for the space. The space keeps the tag until it dies.
//!
//! With a global tag the last flush interrupts no CPU, so lazy CPUs keep the root. They are
//! counted, as in Linux ([`Counted`](crate::linux::lifetime::Counted)). On a machine without
//! INVLPGB, the results are those of `linux-7.0` to the bit.
//!
//! One difference from Linux: a lazy CPU that is interrupted to change to the global tag stays
//! lazy. In Linux it stops being lazy as a side effect; no later flush would have interrupted it
//! anyway.

use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::collections::BTreeMap;
use std::rc::Rc;

use shootdown::Word;
use shootdown_sim::machine::Tagging;
use shootdown_sim::{BroadcastScope, Sim, SimWord, SpinLock};

use super::{Linux70, Mm, SWITCHING, TLB_NR_DYN_ASIDS};
use crate::linux::FlushInfo;
use crate::linux::lifetime::ExitFlush;

/// The allocator of global tags. Indices are `asid`s, which are one less than tags.
#[derive(Debug)]
pub(super) struct GlobalAsids {
    /// `global_asid_lock`.
    lock: SpinLock,
    used: RefCell<Vec<bool>>,
    /// Freed tags, which become unused at the next wrap.
    freed: RefCell<Vec<usize>>,
    last: Cell<usize>,
    available: Cell<usize>,
    owners: RefCell<BTreeMap<u64, usize>>,
}

/// The global tag of a space, in one line.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct MmGlobal {
    /// The tag's `asid`; 0 if the space has none, because 0 is always a CPU's own.
    asid: SimWord,
    /// 1 while CPUs may still run the space under their own tags (`asid_transition`).
    in_transition: SimWord,
}

/// Number of CPUs above which a space gets a global tag.
const ACTIVE_CPUS: usize = 3;
/// Period of the clock that selects flushes: 1000 ticks a second.
const JIFFY_NS: u64 = 1_000_000;

impl MmGlobal {
    pub(super) const fn new() -> Self {
        Self { asid: SimWord::with(0), in_transition: SimWord::with(0) }
    }
}

impl GlobalAsids {
    /// Creates the allocator; `None` if the machine has no INVLPGB.
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

    #[expect(unsafe_code, reason = "a raw lock is locked and unlocked in separate calls")]
    fn locked<R>(&self, sim: &Sim, f: impl FnOnce() -> R) -> R {
        sim.masked(|| {
            lock_api::RawMutex::lock(&self.lock);
            let result = f();
            // SAFETY: locked above.
            unsafe { lock_api::RawMutex::unlock(&self.lock) };
            result
        })
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

/// Drops everything from all CPUs' TLBs, of all spaces and under all tags
/// (`invlpgb_flush_all_nonglobals`).
pub(super) fn flush_all_nonglobals(sim: &Sim) {
    sim.broadcast(0, BroadcastScope::Everything);
    sim.complete_broadcasts();
}

impl Linux70 {
    /// Creates the design `linux-7.0-invlpgb` on this machine.
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

    /// Makes this CPU, which has the space loaded, use its global tag.
    pub(super) fn load_global(&self, mm: &Rc<Mm>, asid: usize) {
        let me = self.me();
        if me.loaded_mm_asid.get() != asid {
            self.load_cr3(Some(mm), asid, false);
            me.loaded_mm_asid.set(asid);
        }
    }

    pub(super) fn broadcast_tlb_flush(&self, mm: &Rc<Mm>, info: &Rc<FlushInfo>) {
        let Some(asid) = self.global_asid(mm) else { return };
        self.sim.broadcast(asid as u16 + 1, info.broadcast_scope());
        self.finish_asid_transition(mm, info);
        self.sim.complete_broadcasts();
    }

    /// Interrupts the mask if a CPU still runs the space under its own tag.
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
            // `loaded_mm_asid` is in the line of `loaded_mm`.
            if loaded == mm.ctx_id && state.loaded_mm_asid.get() != asid {
                let others = mm.cpumask.others(self.cpu());
                return self.calls.call(&self.sim, &others, info, || self.flush_local(mm, info));
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

    /// Frees the global tag of the space with this root (`mm_free_global_asid`).
    pub(super) fn free_global_asid(&self, root: u64) {
        let Some(global) = &self.global else { return };
        let Some(asid) = global.owners.borrow_mut().remove(&root) else { return };
        global.locked(&self.sim, || {
            global.freed.borrow_mut().push(asid);
            global.available.set(global.available.get() + 1);
        });
    }
}
