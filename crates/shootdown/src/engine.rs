//! The engine: a machine, the kernel's own translations, and who is online.

use core::fmt;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use crate::cache_padded::CachePadded;
use crate::cpu_set::SharedCpuSet;
use crate::cpu_state::CpuState;
use crate::flush_log::FlushLog;
use crate::ids::{CpuId, Root, SpaceId};
use crate::machine::Machine;
use crate::memory::Word;
use crate::presence::Presence;
use crate::space::Space;
use crate::tag::asids::AsidAllocator;

/// The engine. A kernel has one, and reaches everything from it.
///
/// What a CPU does for itself it does through [`pin`](Shootdown::pin).
///
/// What CPUs read at each answer, what they write when they come and go, and what is written for
/// each new space, have lines of their own, wherever the kernel puts this.
pub struct Shootdown<M: Machine> {
    pub(crate) machine: M,
    /// What tells it from other engines of the program, of which tests have many; 0 until it has
    /// made a space. Not a [`Word`]: no protocol between CPUs rests on it.
    number: AtomicU32,
    kernel: CachePadded<FlushLog<M>>,
    online: CachePadded<SharedCpuSet<M, M::CpuBits>>,
    last_space: CachePadded<M::Word>,
    tags: CachePadded<AsidAllocator<M>>,
}

impl<M: Machine> Shootdown<M> {
    /// An engine for `machine`, with every CPU offline.
    #[must_use]
    pub fn new(machine: M) -> Self {
        Self {
            machine,
            number: AtomicU32::new(0),
            kernel: CachePadded(FlushLog::new()),
            online: CachePadded(SharedCpuSet::new()),
            last_space: CachePadded(M::Word::new(0)),
            tags: CachePadded(AsidAllocator::new()),
        }
    }

    /// The machine.
    #[inline]
    pub const fn machine(&self) -> &M {
        &self.machine
    }

    /// The flushes of the kernel's own translations.
    #[inline]
    pub(crate) const fn kernel(&self) -> &FlushLog<M> {
        &self.kernel.0
    }

    /// The CPUs that are online.
    #[inline]
    pub(crate) const fn online(&self) -> &SharedCpuSet<M, M::CpuBits> {
        &self.online.0
    }

    /// The book of global tags.
    #[inline]
    pub(crate) const fn tags(&self) -> &AsidAllocator<M> {
        &self.tags.0
    }

    /// A new address space whose page tables start at `root`, which is ready: what it holds now is
    /// [published](Machine::publish) here, so that no CPU that loads it walks what was in that
    /// memory before.
    ///
    /// The space may be moved to its place for as long as no CPU has switched to it.
    pub fn space(&self, root: Root) -> Space<M> {
        self.machine.publish();
        // Relaxed: ids are told apart, and not ordered.
        let before = self.last_space.0.fetch_add(1, Relaxed);
        Space::new(self.choose_number(), SpaceId(before + 1), root)
    }

    /// Whether this engine made the space. Another engine would look for the space's id on CPUs
    /// that never publish it.
    #[inline]
    pub(crate) fn owns(&self, space: &Space<M>) -> bool {
        space.engine == self.number()
    }

    /// The number that the spaces of this engine carry, and no others.
    #[inline]
    fn number(&self) -> u32 {
        // Relaxed: whoever has a space of this engine has it from the CPU that stored the number.
        self.number.load(Relaxed)
    }

    /// The number, which is chosen for the first space.
    fn choose_number(&self) -> u32 {
        static LAST: AtomicU32 = AtomicU32::new(0);
        match self.number() {
            0 => {
                // Relaxed: the number stands for nothing else.
                let chosen = LAST.fetch_add(1, Relaxed).wrapping_add(1);
                let raced = self.number.compare_exchange(0, chosen, Relaxed, Relaxed);
                raced.map_or_else(|number| number, |_| chosen)
            }
            number => number,
        }
    }

    /// Whether an NMI, or another handler that the engine's masking does not keep out, may touch
    /// user memory by the translations of `space` on this CPU.
    ///
    /// `true` only if the space is loaded, in use, and this CPU has caught up with every flush that
    /// did not interrupt it: then a flush waits for this CPU before pages are freed. `false` in the
    /// middle of a switch, and while the CPU is lazy. (Linux: `nmi_uaccess_okay`.)
    ///
    /// The answer holds until the handler returns. The handler must not use a token.
    pub fn nmi_may_touch_user(&self, space: SpaceId) -> bool {
        self.cpu(self.machine.cpu()).presence(&self.machine) == Presence::Active(space)
    }

    /// What another CPU is doing, at some moment during the call. For people and for statistics:
    /// it may be outdated before the call returns.
    pub fn cpu(&self, id: CpuId) -> &CpuState<M> {
        self.machine.state(id)
    }
}

impl<M: Machine> fmt::Debug for Shootdown<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shootdown").field("online", self.online()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::Plain;

    /// A CPU that loads it must not walk what was in that memory before.
    #[test]
    fn page_table_of_a_new_space_is_published() {
        let engine = Shootdown::new(Plain::<0>::with_tags(0));
        let publications = || engine.machine().publications.load(Relaxed);
        for spaces in 1..4 {
            let space = engine.space(Root(spaces));
            assert_eq!(publications(), spaces);
            assert!(engine.owns(&space));
        }
    }
}
