//! The engine: a machine, the kernel's own translations, and who is online.

use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use crate::cache_padded::OwnLine;
use crate::cpu::{Cpu, Here};
use crate::cpu_set::SharedCpuSet;
use crate::flush_log::Journal;
use crate::machine::{CpuId, Machine, Root, Word};
use crate::presence::{Presence, SpaceId};
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
    /// What tells it from other engines of the program, of which tests have many; 0 until it has
    /// made a space. Not a [`Word`]: no protocol between CPUs rests on it.
    number: AtomicU32,
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
            number: AtomicU32::new(0),
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

    /// The CPU that runs this call, as a token by which it can switch, flush and answer.
    ///
    /// # Safety
    ///
    /// Whenever a method of the token runs, the caller must be on this CPU, stay there, and have
    /// masked the flush interrupt and every other whose handler may make a token, or wait for or
    /// drop a [`Pending`](crate::Pending). It must not be in a handler that cannot be masked (an
    /// NMI, a machine check) and so may have interrupted another token's method.
    ///
    /// The methods themselves call [`Machine::ring`], [`Machine::relax`] and [`Machine::reclaim`]
    /// where a second token may be made, to [answer](Here::answer): a lock that these take may be
    /// waited for in a loop that answers, and `relax` may let the flush interrupt in.
    #[inline]
    #[expect(unsafe_code, reason = "only the kernel knows where it runs")]
    pub unsafe fn here(&self) -> Here<'_, M> {
        let id = self.machine.cpu();
        debug_assert!(self.machine.interrupts_masked(), "the flush interrupt must be masked");
        Here { engine: self, cpu: self.machine.state(id), id, not_send: PhantomData }
    }

    /// What the spaces of this engine, and of no other, have in common.
    #[inline]
    pub(crate) fn number(&self) -> u32 {
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
    pub fn cpu(&self, id: CpuId) -> &Cpu<M> {
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
            assert!(space.is_of(&engine));
        }
    }
}
