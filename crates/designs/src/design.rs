//! A design, as other crates refer to it.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use shootdown_sim::{Machine, Sim};
use shootdown_vm::ErasedCoherence;

/// A named design that keeps TLBs coherent. Designs are equal if their names are.
#[derive(Clone, Copy)]
pub struct Design {
    name: &'static str,
    pub(crate) purpose: Purpose,
    make: fn(Rc<Sim>) -> ErasedCoherence,
}

/// Comparisons for which a design is of interest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Comparisons on hardware of another kind than x86's: with global tags, with tags that are
    /// renamed, or with ways to notify other CPUs without an interrupt;
    /// and with the engine restricted to one notification method.
    ///
    /// Such a design is sound on any machine. Without the hardware it does what its kernel does or
    /// would have to do: see [`linux`](crate::linux).
    OtherHardware,
    /// Comparisons of memory reclaim: only there does the design differ from other designs.
    Reclaim,
    /// Comparisons with recordings of its kernel, which is close to a design for any comparison.
    Recorded,
    /// Comparisons with a proposal that is in no kernel.
    Research,
    /// Any comparison on any machine.
    General,
}

impl Design {
    /// Creates a design, which `make` sets up on a machine. It does not have to be in the
    /// [registry](crate::registry).
    #[must_use]
    pub const fn new(
        name: &'static str,
        purpose: Purpose,
        make: fn(Rc<Sim>) -> ErasedCoherence,
    ) -> Self {
        Self { name, purpose, make }
    }

    /// The name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// Returns the design that this one equals on a machine without the hardware that only this
    /// design would use; `None` if the machine has that hardware, or the design needs none.
    #[must_use]
    pub fn equal_without_hardware(self, machine: &Machine) -> Option<Self> {
        let is_remote = machine.broadcast.is_some() || machine.remote_fence.is_some();
        if self == Self::LINUX_INVLPGB && machine.broadcast.is_none() {
            return Some(Self::LINUX_7_0);
        }
        if self == Self::ARM64_TLBID && machine.domains.is_none() {
            return Some(Self::ARM64);
        }
        (self == Self::SHOOTDOWN_BROADCASTS && !is_remote).then_some(Self::SHOOTDOWN)
    }

    /// Sets the design up on a machine.
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
