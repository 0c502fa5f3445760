//! Lazy CPUs have hazard pointers: "sched: Use lightweight hazard pointers to grab lazy mms",
//! Lutomirski's proposal of January 2022, which was not merged.
//!
//! A CPU that goes lazy stores the space's identity into its own word, and clears the word when it
//! has left the space. That needs no line that other CPUs write, and no locked operation. When the
//! last user exits, it reads the words of the mask's CPUs. A CPU that is lazy on the space gets a
//! reference, which it drops after the switch by which it leaves the space. The CPU that drops the
//! last reference frees the space.
//!
//! The words of a CPU are adjacent, as in `rq`, and have their own line. The proposal does not read
//! the words on x86 if the exit's flush interrupts, because no CPU is lazy then. The model reads
//! them.

use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::collections::BTreeMap;
use std::rc::Rc;

use shootdown::{Root, Word};
use shootdown_sim::{Sim, SimWord};
use shootdown_vm::Retired;

use super::{ExitFlush, Lifetime};
use crate::linux::CachePadded;
use crate::linux::mm_count::retired;
use crate::linux::v7_0::{Linux70, Mm};

/// The lifetime with hazard pointers.
#[derive(Debug)]
pub struct Hazard {
    rqs: Vec<Rq>,
    /// The dead spaces that words may name, by `ctx_id`. Only dead spaces are handed over.
    dead: RefCell<BTreeMap<u64, Rc<Mm>>>,
}

/// A CPU's state (`rq`).
#[derive(Debug)]
struct Rq {
    words: CachePadded<Words>,
    /// A kernel thread is running that has borrowed a space.
    in_kernel: Cell<bool>,
    /// Roots of the spaces whose last reference this CPU dropped.
    free: RefCell<Vec<Root>>,
}

#[derive(Debug)]
struct Words {
    /// The space on which this CPU is lazy, and which must not be freed.
    lazy_mm: SimWord,
    /// The space to which this CPU was given a reference, to drop when it has left the space.
    drop_mm: SimWord,
}

/// The identity of no space.
const NONE: u64 = 0;

impl Linux70 {
    /// Creates the design `linux-hazard` on this machine: the proposal.
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
        Self::with_lifetime(sim, exit_flush, Hazard { rqs, dead: RefCell::default() })
    }
}

impl Hazard {
    fn words(&self, cpu: usize) -> &Words {
        &self.rqs[cpu].words.0
    }

    fn drop(&self, linux: &Linux70, ctx_id: u64) {
        let mm = self.dead.borrow().get(&ctx_id).cloned();
        let mm = mm.expect("a space with references is not freed");
        if let Some(root) = mm.mm_count.drop(1) {
            self.dead.borrow_mut().remove(&ctx_id);
            self.rqs[linux.cpu()].free.borrow_mut().push(root);
        }
    }

    /// Gives a reference, which the caller has, to a CPU that was lazy on the space, so that the
    /// CPU drops it after leaving the space (`__try_mm_drop_rq_ref`).
    fn give_reference(&self, linux: &Linux70, cpu: usize, mm: &Mm) {
        let words = self.words(cpu);
        loop {
            let old = words.drop_mm.load(Acquire);
            // If the CPU has not yet dropped an earlier reference, `lazy_mm` shows whether it still
            // uses the dead space, which it cannot load again. This load must follow that of
            // `drop_mm`.
            if old != NONE && words.lazy_mm.load(Acquire) != mm.ctx_id {
                mm.mm_count.drop(1);
                return;
            }
            if words.drop_mm.compare_exchange(old, mm.ctx_id, AcqRel, Relaxed).is_ok() {
                if old != NONE {
                    self.drop(linux, old);
                }
                return;
            }
        }
    }

    /// Turns the hazard pointers of lazy CPUs to the space into references (`mm_unlazy_mm_count`).
    fn give_references(&self, linux: &Linux70, mm: &Mm) {
        let cpus = mm.cpumask.members();
        for &cpu in &cpus {
            // The loads are independent: see `Linux70::prefetch_states`.
            self.words(cpu).lazy_mm.prefetch();
        }
        let mut spare = 0;
        for cpu in cpus {
            if self.words(cpu).lazy_mm.load(Acquire) != mm.ctx_id {
                continue;
            }
            if spare == 0 {
                // Takes the largest possible number, to update the count twice instead of per CPU.
                spare = self.rqs.len() as u64;
                mm.mm_count.grab(spare);
            }
            spare -= 1;
            self.give_reference(linux, cpu, mm);
        }
        mm.mm_count.drop(spare);
    }
}

impl Lifetime for Hazard {
    fn enter_lazy(&self, linux: &Linux70, mm: &Rc<Mm>) {
        // No barrier: the space has users, and its last user reads the word later.
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
        self.give_references(linux, mm);
        let root = mm.mm_count.drop(1);
        if root.is_some() {
            self.dead.borrow_mut().remove(&mm.ctx_id);
        }
        retired(root)
    }
}
