//! The engine: a machine, the kernel's own translations, and who is online.

use core::fmt;
use core::marker::PhantomData;

use crate::cpu::{Cpu, Here};
use crate::cpu_set::SharedCpuSet;
use crate::journal::Journal;
use crate::line::OwnLine;
use crate::machine::{CpuId, Machine, Root, Word};
use crate::presence::SpaceId;
use crate::space::Space;
use crate::tag::global::GlobalTags;

/// The engine. A kernel has one, and reaches everything from it.
///
/// What a CPU does for itself it does through [`here`](Shootdown::here).
///
/// What CPUs read at each answer, what they write when they come and go, and what is written for
/// each new space, have lines of their own, wherever the kernel puts this.
pub struct Shootdown<M: Machine> {
    pub(crate) machine: M,
    kernel: OwnLine<Journal<M>>,
    online: OwnLine<SharedCpuSet<M>>,
    last_space: OwnLine<M::Word>,
    tags: OwnLine<GlobalTags<M>>,
}

impl<M: Machine> Shootdown<M> {
    /// An engine for `machine`, with every CPU offline.
    #[must_use]
    pub fn new(machine: M) -> Self {
        Self {
            machine,
            kernel: OwnLine(Journal::new()),
            online: OwnLine(SharedCpuSet::new()),
            last_space: OwnLine(M::Word::new(0)),
            tags: OwnLine(GlobalTags::new()),
        }
    }

    /// The machine.
    #[inline]
    pub const fn machine(&self) -> &M {
        &self.machine
    }

    /// The flushes of the kernel's own translations.
    #[inline]
    pub(crate) const fn kernel(&self) -> &Journal<M> {
        &self.kernel.0
    }

    /// The CPUs that are online.
    #[inline]
    pub(crate) const fn online(&self) -> &SharedCpuSet<M> {
        &self.online.0
    }

    /// The book of global tags.
    #[inline]
    pub(crate) const fn tags(&self) -> &GlobalTags<M> {
        &self.tags.0
    }

    /// A new address space whose page tables start at `root`.
    ///
    /// It may be moved to its place for as long as no CPU has switched to it.
    pub fn space(&self, root: Root) -> Space<M> {
        // Relaxed: a number that no other space has is all that is asked for.
        let before = self.last_space.0.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
        Space::new(SpaceId(before + 1), root)
    }

    /// The CPU that runs this call, as a token by which it can switch, flush and answer.
    ///
    /// # Safety
    ///
    /// For as long as the token lives, the caller must stay on this CPU, and keep masked here the
    /// flush interrupt and every other whose handler may make a token, or wait for or drop a
    /// [`Pending`](crate::Pending). Nor may it be in a handler that cannot be masked (an NMI, a
    /// machine check) and so may have interrupted another holder of a token.
    #[inline]
    #[expect(unsafe_code, reason = "only the kernel knows where it runs")]
    pub unsafe fn here(&self) -> Here<'_, M> {
        let id = self.machine.cpu();
        debug_assert!(self.machine.interrupts_masked(), "the flush interrupt must be masked");
        Here { engine: self, cpu: self.machine.state(id), id, not_send: PhantomData }
    }

    /// What another CPU is doing, at some moment during the call. For people and for statistics:
    /// it may be outdated before the call returns.
    pub fn cpu(&self, id: CpuId) -> &Cpu<M> {
        self.machine.state(id)
    }
}

impl<M: Machine> fmt::Debug for Shootdown<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shootdown").field("online", self.online()).finish_non_exhaustive()
    }
}
