//! Lazy CPUs are interrupted at exit: the patch of the `powerpc-shoot-lazies` study, which is
//! `MMU_LAZY_TLB_SHOOTDOWN` on powerpc since 6.4.
//!
//! There is no count: a switch costs only the barrier that a dropped reference used to be. When the
//! last user exits, it interrupts all other CPUs of the mask, and they switch to `init_mm` if they
//! are lazy on the space. CPUs that run other spaces are still in the mask, and are interrupted
//! without need.

use core::cell::Cell;
use std::rc::Rc;

use shootdown_sim::Sim;
use shootdown_vm::Retired;

use super::{ExitFlush, Lifetime};
use crate::linux::v7_0::{Linux70, Mm};

/// The lifetime that interrupts lazy CPUs at exit.
#[derive(Debug)]
pub struct Shoot {
    /// For each CPU, set while it runs a kernel thread that has borrowed a space.
    in_kernel: Vec<Cell<bool>>,
}

impl Linux70 {
    /// Creates the design `powerpc-shoot` on this machine.
    pub fn shoot(sim: Rc<Sim>, exit_flush: ExitFlush) -> Self {
        let in_kernel = (0..sim.machine().cpu_count()).map(|_| Cell::new(false)).collect();
        Self::with_lifetime(sim, exit_flush, Shoot { in_kernel })
    }
}

impl Lifetime for Shoot {
    fn enter_lazy(&self, linux: &Linux70, _mm: &Rc<Mm>) {
        self.in_kernel[linux.cpu()].set(true);
    }

    /// `membarrier` relies on a full barrier between kernel and user (`mmdrop_lazy_tlb_smp_mb`).
    fn enter_user(&self, linux: &Linux70) {
        if self.in_kernel[linux.cpu()].take() {
            linux.sim().fence();
        }
    }

    fn put(&self, linux: &Linux70, mm: &Rc<Mm>) -> Retired {
        linux.shoot_lazy_tlbs(mm);
        Retired::Free
    }
}
