//! Lazy CPUs are shot: seed 001, and `MMU_LAZY_TLB_SHOOTDOWN` on powerpc since 6.4.
//!
//! No count: a switch costs but the barrier that a dropped reference used to be. When the last user
//! is gone, all CPUs of the mask but the one that calls are interrupted, and switch to `init_mm` if
//! they are lazy on the space. Who has gone elsewhere is in the mask still, and is interrupted for
//! nothing.

use core::cell::Cell;
use std::rc::Rc;

use shootdown_sim::Sim;
use shootdown_vm::Retired;

use super::{ExitFlush, Lifetime};
use crate::linux::v7_0::{Linux70, Mm};

/// The lifetime.
#[derive(Debug)]
pub struct Shoot {
    exit_flush: ExitFlush,
    rqs: Vec<Rq>,
}

/// A CPU's private state (`rq`).
#[derive(Debug, Default)]
struct Rq {
    /// A kernel thread runs that has borrowed a space.
    in_kernel: Cell<bool>,
}

impl Linux70 {
    /// Seed 001's patch, on this machine: `powerpc-shoot`.
    #[must_use]
    pub fn shoot(sim: Rc<Sim>, exit_flush: ExitFlush) -> Self {
        let rqs = (0..sim.machine().cpu_count()).map(|_| Rq::default()).collect();
        Self::with_lifetime(sim, Shoot { exit_flush, rqs })
    }
}

impl Lifetime for Shoot {
    fn exit_flush(&self) -> ExitFlush {
        self.exit_flush
    }

    fn enter_lazy(&self, linux: &Linux70, _mm: &Rc<Mm>) {
        self.rqs[linux.cpu()].in_kernel.set(true);
    }

    /// `membarrier` counts on a full barrier between kernel and user (`mmdrop_lazy_tlb_smp_mb`).
    fn enter_user(&self, linux: &Linux70) {
        if self.rqs[linux.cpu()].in_kernel.take() {
            linux.sim().fence();
        }
    }

    fn put(&self, linux: &Linux70, mm: &Rc<Mm>) -> Retired {
        linux.shoot_lazy_tlbs(mm);
        Retired::Free
    }
}
