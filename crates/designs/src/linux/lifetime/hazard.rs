//! Lazy CPUs have hazard pointers: "sched: Use lightweight hazard pointers to grab lazy mms",
//! Lutomirski's proposal of January 2022, which was not merged.
//!
//! A CPU that goes lazy writes the space's name into a word of its own, and clears it when it has
//! left: no line that others write, and no locked operation. When the last user is gone, the words
//! of the mask's CPUs are looked through. A CPU that is found to be lazy on the space is given a
//! reference, which it drops after the switch by which it leaves; whoever drops the last one frees.
//!
//! The words of a CPU are beside each other, as in `rq`, and in a line of their own. That x86 need
//! not look at all where the exit's flush interrupts is left out: then nobody is found.

use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::collections::BTreeMap;
use std::rc::Rc;

use shootdown::{Root, Word};
use shootdown_sim::{Sim, SimWord};
use shootdown_vm::Retired;

use super::{ExitFlush, Left, Lifetime};
use crate::linux::CachePadded;
use crate::linux::v7_0::{Linux70, Mm};

/// The lifetime.
#[derive(Debug)]
pub struct Hazard {
    exit_flush: ExitFlush,
    rqs: Vec<Rq>,
    /// What the words name, by `ctx_id`: a reference that is handed over is to a dead space.
    dead: RefCell<BTreeMap<u64, Rc<Mm>>>,
}

/// A CPU's state (`rq`).
#[derive(Debug)]
struct Rq {
    words: CachePadded<Words>,
    /// A kernel thread runs that has borrowed a space.
    in_kernel: Cell<bool>,
    /// What this CPU has dropped the last reference to, and not yet handed out.
    free: RefCell<Vec<Root>>,
}

#[derive(Debug)]
struct Words {
    /// The space that must not be freed, as this CPU is lazy on it.
    lazy_mm: SimWord,
    /// The space that this CPU has been given a reference to, for when it is done with it.
    drop_mm: SimWord,
}

/// No space has this name.
const NONE: u64 = 0;

impl Linux70 {
    /// The proposal, on this machine: `linux-hazard`.
    #[must_use]
    pub fn hazard(sim: Rc<Sim>, exit_flush: ExitFlush) -> Self {
        let rq = |_| Rq {
            words: CachePadded(Words {
                lazy_mm: SimWord::with(NONE),
                drop_mm: SimWord::with(NONE),
            }),
            in_kernel: Cell::new(false),
            free: RefCell::default(),
        };
        let rqs = (0..sim.machine().cpu_count()).map(rq).collect();
        Self::with_lifetime(sim, Hazard { exit_flush, rqs, dead: RefCell::default() })
    }
}

impl Hazard {
    fn words(&self, cpu: usize) -> &Words {
        &self.rqs[cpu].words.0
    }

    fn drop(&self, linux: &Linux70, ctx_id: u64) {
        let mm = self.dead.borrow().get(&ctx_id).cloned();
        let mm = mm.expect("who drops a reference had it, and so the space is not yet free");
        if mm.mm_count.drop(1) == Left::Nobody {
            self.dead.borrow_mut().remove(&ctx_id);
            self.rqs[linux.cpu()].free.borrow_mut().push(mm.root());
        }
    }

    /// Sees to it that a CPU that was lazy on the space drops a reference to it, which the caller
    /// has, when it is done with it (`__try_mm_drop_rq_ref`).
    fn try_hand_over(&self, linux: &Linux70, cpu: usize, mm: &Mm) -> Result<(), Raced> {
        let words = self.words(cpu);
        let old = words.drop_mm.load(Acquire);
        if old == NONE {
            words.drop_mm.compare_exchange(NONE, mm.ctx_id, AcqRel, Relaxed).map_err(|_| Raced)?;
            return Ok(());
        }
        // It was given one before, and has not come to drop it. Only after `drop_mm` was read does
        // `lazy_mm` say whether it still uses that: what it names cannot be switched to any more.
        if words.lazy_mm.load(Acquire) != mm.ctx_id {
            mm.mm_count.drop(1);
            return Ok(());
        }
        words.drop_mm.compare_exchange(old, mm.ctx_id, AcqRel, Relaxed).map_err(|_| Raced)?;
        self.drop(linux, old);
        Ok(())
    }

    /// Turns what lazy CPUs have of the space into references (`mm_unlazy_mm_count`).
    fn hand_over(&self, linux: &Linux70, mm: &Mm) {
        let cpus = mm.cpumask.members();
        for &cpu in &cpus {
            // The loads do not depend on each other: see `Linux70`.
            self.words(cpu).lazy_mm.prefetch();
        }
        let mut spare = 0;
        for cpu in cpus {
            if self.words(cpu).lazy_mm.load(Acquire) != mm.ctx_id {
                continue;
            }
            if spare == 0 {
                // As many as could be needed, to count twice instead of once for each.
                spare = self.rqs.len() as u64;
                mm.mm_count.grab(spare);
            }
            spare -= 1;
            while self.try_hand_over(linux, cpu, mm).is_err() {}
        }
        mm.mm_count.drop(spare);
    }
}

/// Another CPU changed the word in between.
#[derive(Debug)]
struct Raced;

impl Lifetime for Hazard {
    fn exit_flush(&self) -> ExitFlush {
        self.exit_flush
    }

    fn enter_lazy(&self, linux: &Linux70, mm: &Rc<Mm>) {
        // Without a barrier: the space has users, and who drops the last of them comes later.
        self.words(linux.cpu()).lazy_mm.store(mm.ctx_id, Relaxed);
        self.rqs[linux.cpu()].in_kernel.set(true);
    }

    fn enter_user(&self, linux: &Linux70) {
        if self.rqs[linux.cpu()].in_kernel.take() {
            self.words(linux.cpu()).lazy_mm.store(NONE, Release);
        }
    }

    fn unlazied(&self, linux: &Linux70) {
        self.words(linux.cpu()).lazy_mm.store(NONE, Release);
    }

    fn finish_switch(&self, linux: &Linux70) -> Option<Root> {
        let words = self.words(linux.cpu());
        loop {
            let old = words.drop_mm.load(Relaxed);
            if old == NONE || old == words.lazy_mm.load(Relaxed) {
                break;
            }
            if words.drop_mm.compare_exchange(old, NONE, Relaxed, Relaxed).is_ok() {
                self.drop(linux, old);
            }
        }
        self.rqs[linux.cpu()].free.borrow_mut().pop()
    }

    fn put(&self, linux: &Linux70, mm: &Rc<Mm>) -> Retired {
        self.dead.borrow_mut().insert(mm.ctx_id, Rc::clone(mm));
        self.hand_over(linux, mm);
        if mm.mm_count.drop(1) == Left::Others {
            return Retired::Loaded;
        }
        self.dead.borrow_mut().remove(&mm.ctx_id);
        Retired::Free
    }
}
