//! A design, as others refer to it.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use shootdown_sim::Sim;
use shootdown_vm::ErasedCoherence;

/// A way to keep TLBs coherent, by its name.
#[derive(Clone, Copy)]
pub struct Design {
    name: &'static str,
    pub(crate) purpose: Purpose,
    make: fn(Rc<Sim>) -> ErasedCoherence,
}

/// What a design is of interest for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Hardware of another kind than x86's: tags that are the same on all CPUs, or are renamed, and
    /// ways to notify other CPUs that interrupt none; and ours with one of these ways alone.
    ///
    /// Such a design is sound on any machine. Without the hardware it does what its kernel does, or
    /// would have to do: see [`linux`](crate::linux).
    OtherHardware,
    /// Memory that is reclaimed: only there does it differ from other designs.
    Reclaim,
    /// A comparison with what was proposed, and is in no kernel.
    Research,
    /// Any comparison on any machine.
    General,
}

impl Design {
    /// A design that `make` makes for a machine. It need not be in the [registry](crate::registry).
    #[must_use]
    pub const fn new(
        name: &'static str,
        purpose: Purpose,
        make: fn(Rc<Sim>) -> ErasedCoherence,
    ) -> Self {
        Self { name, purpose, make }
    }

    /// The name that users type.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// The design on a machine.
    #[must_use]
    pub fn on(self, sim: Rc<Sim>) -> ErasedCoherence {
        (self.make)(sim)
    }
}

impl PartialEq for Design {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Design {}

impl Hash for Design {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl fmt::Debug for Design {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Display for Design {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}
