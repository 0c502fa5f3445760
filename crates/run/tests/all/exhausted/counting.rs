//! A design that counts its full batches.

use std::any::Any;
use std::cell::Cell;
use std::rc::Rc;

use shootdown::BatchIsFull;
use shootdown_vm::{DynCoherence, ErasedBatch, ErasedCoherence};

pub(crate) struct Counting {
    design: ErasedCoherence,
    full: Rc<Cell<u64>>,
}

impl Counting {
    /// Counts full batches in `full`.
    pub(crate) fn boxed(
        design: impl Into<ErasedCoherence>,
        full: &Rc<Cell<u64>>,
    ) -> ErasedCoherence {
        Box::new(Self { design: design.into(), full: Rc::clone(full) })
    }
}

impl DynCoherence for Counting {
    fn inner(&self) -> &dyn DynCoherence {
        &*self.design
    }

    fn add_space(&self, batch: &mut ErasedBatch, space: &dyn Any) -> Result<(), BatchIsFull> {
        let added = self.design.add_space(batch, space);
        self.full.set(self.full.get() + u64::from(added.is_err()));
        added
    }
}
