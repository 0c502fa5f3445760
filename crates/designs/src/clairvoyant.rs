//! The design `clairvoyant`, which no machine can have: it knows the future.
//!
//! It is the engine with its own policy, and leaves out an interrupt if the target will not use
//! what the interrupt would remove before it catches up by itself. So it shows how few interrupts a
//! design could send that decides when the flush begins. It is a measure and not a goal.

use std::rc::Rc;

use shootdown_sim::{Foresight, Sim};
use shootdown_vm::ErasedCoherence;

use crate::design::{Design, Purpose};

/// Number of runs after which the choices of `clairvoyant` are taken as they are. A run that still
/// leaves out an interrupt that it needs has violations.
const RUNS_MAX: usize = 200;

impl Design {
    /// The engine, which knows which interrupts will be needed. It needs [`settle`](Self::settle).
    pub const CLAIRVOYANT: Self = Self::new("clairvoyant", Purpose::Impossible, |sim| {
        // Until foresight was given, every interrupt is sent.
        Self::SHOOTDOWN.on(sim)
    });

    /// Runs a simulation under this design: `run` is called with a function that sets the design up
    /// on a machine. It is called once, except for [`CLAIRVOYANT`](Self::CLAIRVOYANT): then until
    /// the interrupts that the design sends stop changing.
    ///
    /// # Errors
    ///
    /// Those of `run`.
    pub fn settle<T, E>(
        self,
        mut run: impl FnMut(&dyn Fn(Rc<Sim>) -> ErasedCoherence) -> Result<T, E>,
    ) -> Result<T, E> {
        if self != Self::CLAIRVOYANT {
            return run(&|sim| self.on(sim));
        }
        let foresight = Foresight::default();
        let mut once = || {
            run(&|sim: Rc<Sim>| {
                sim.foresee(foresight.clone());
                self.on(sim)
            })
        };
        for _ in 1..RUNS_MAX {
            let result = once()?;
            if foresight.has_settled() {
                return Ok(result);
            }
        }
        once()
    }
}
