//! The engine: a machine, the flushes of the kernel's own translations, and the online CPUs.

#![expect(unsafe_code, reason = "initialises an engine in place")]

use core::fmt;
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::base::cache_padded::CachePadded;
use crate::base::ids::{CpuId, Root, SpaceId};
use crate::base::memory::Word;
use crate::parts::cpu_set::SharedCpuSet;
use crate::parts::flush_log::FlushLog;
use crate::state::cpu_state::CpuState;
use crate::state::machine::Machine;
use crate::state::space::Space;
use crate::state::space_ids::next_id;
use crate::state::tag::asids::AsidAllocator;

/// The engine. A kernel has one, usually as a static.
///
/// The operations of a CPU on its own translations are methods of [`PinnedCpu`](crate::PinnedCpu),
/// which [`pin`](Shootdown::pin) returns.
///
/// The fields that CPUs read at each answer, that they write when they go online and offline, and
/// that are written for many new spaces, have separate cache lines.
pub struct Shootdown<M: Machine> {
    pub(crate) machine: M,
    /// The id that distinguishes this engine from others in the program (tests have many); 0 until
    /// the engine makes its first space. Not a [`Word`]: no protocol between CPUs uses it.
    id: AtomicU32,
    kernel: CachePadded<FlushLog<M>>,
    online: CachePadded<SharedCpuSet<M, M::CpuBits>>,
    /// Number of blocks of [ids](next_id) that CPUs have taken.
    id_blocks: CachePadded<M::Word>,
    tags: CachePadded<AsidAllocator<M>>,
}

impl<M: Machine<Word = AtomicU64>> Shootdown<M> {
    /// An engine for `machine`, with every CPU offline.
    ///
    /// An engine with an allocator of 16-bit tags is 17 KiB large. Put it into a static, where the
    /// compiler initialises it; or, if the machine is known at boot only, into an
    /// [`EngineCell`](crate::EngineCell), or into memory of your own with [`init`](Self::init).
    #[must_use]
    pub const fn new(machine: M) -> Self {
        Self {
            machine,
            id: AtomicU32::new(0),
            kernel: CachePadded(FlushLog::new()),
            online: CachePadded(SharedCpuSet::new()),
            id_blocks: CachePadded(AtomicU64::new(0)),
            tags: CachePadded(AsidAllocator::new()),
        }
    }

    /// Makes an engine in `place`, without a copy on the stack.
    pub const fn init(place: &mut MaybeUninit<Self>, machine: M) -> &mut Self {
        let engine = place.as_mut_ptr();
        // SAFETY: the pointer is to the place. All fields but the machine consist of integers, for
        // which 0 is a value, and of the tags' words, which the last line sets.
        unsafe {
            engine.write_bytes(0, 1);
            (&raw mut (*engine).machine).write(machine);
            AsidAllocator::set_first(&mut (*engine).tags.0);
            place.assume_init_mut()
        }
    }

    /// Makes a new address space in `place`, as [`space`](Self::space) does, without a copy on the
    /// stack.
    pub fn init_space<'s>(
        &self,
        place: &'s mut MaybeUninit<Space<M>>,
        root: Root,
    ) -> &'s mut Space<M> {
        Space::init(place, self.id_or_new(), self.publish_for_space(), root)
    }
}

impl<M: Machine> From<M> for Shootdown<M> {
    /// An engine for `machine`, with every CPU offline, whose words can be of any type.
    ///
    /// [`new`](Shootdown::new) does the same where words are [`AtomicU64`], and in constants.
    fn from(machine: M) -> Self {
        Self {
            machine,
            id: AtomicU32::new(0),
            kernel: CachePadded(FlushLog::default()),
            online: CachePadded(SharedCpuSet::default()),
            id_blocks: CachePadded(M::Word::new(0)),
            tags: CachePadded(AsidAllocator::default()),
        }
    }
}

impl<M: Machine> Shootdown<M> {
    /// The machine.
    #[inline]
    pub const fn machine(&self) -> &M {
        &self.machine
    }

    /// The generation and log of the kernel's own translations.
    #[inline]
    pub(crate) const fn kernel(&self) -> &FlushLog<M> {
        &self.kernel.0
    }

    /// The CPUs that are online.
    #[inline]
    pub(crate) const fn online(&self) -> &SharedCpuSet<M, M::CpuBits> {
        &self.online.0
    }

    /// The allocator of global tags.
    #[inline]
    pub(crate) const fn tags(&self) -> &AsidAllocator<M> {
        &self.tags.0
    }

    /// Returns a new address space whose page tables start at `root`.
    ///
    /// The root must be initialised before this call, which [publishes](Machine::publish) its
    /// entries. Without: a CPU that loads the root walks what the memory contained before.
    ///
    /// The space may be moved until the first CPU switches to it. The id of the space is from a
    /// block of the caller's CPU, whose [state](Machine::state) must exist. The CPU may be offline,
    /// and the caller may be moved to another CPU during the call.
    pub fn space(&self, root: Root) -> Space<M> {
        Space::new(self.id_or_new(), self.publish_for_space(), root)
    }

    /// Publishes the root of a new space, and returns the id of the space.
    fn publish_for_space(&self) -> SpaceId {
        self.machine.publish();
        next_id(&self.id_blocks.0, &self.cpu(self.machine.cpu()).local.last_space)
    }

    /// Returns `true` if this engine made the space. Another engine would look for the space's id
    /// on CPUs that never publish it.
    #[inline]
    pub(crate) fn owns(&self, space: &Space<M>) -> bool {
        space.engine == self.id()
    }

    /// The id that is stored in every space of this engine, and in no other space.
    #[inline]
    fn id(&self) -> u32 {
        // Relaxed: a CPU that has a space of this engine got it from the CPU that stored the id.
        self.id.load(Relaxed)
    }

    /// The engine's id, which is chosen when the engine makes its first space.
    fn id_or_new(&self) -> u32 {
        static LAST: AtomicU32 = AtomicU32::new(0);
        match self.id() {
            0 => {
                // Relaxed: the id publishes no other data.
                let chosen = LAST.fetch_add(1, Relaxed).wrapping_add(1);
                let raced = self.id.compare_exchange(0, chosen, Relaxed, Relaxed);
                raced.map_or_else(|id| id, |_| chosen)
            }
            id => id,
        }
    }

    /// Returns `true` if a handler that cannot be masked, such as an NMI's, may access user memory
    /// through the translations of `space` on this CPU.
    ///
    /// `true` only if the space is loaded and in use, and this CPU has caught up with every flush
    /// that did not interrupt it: then a flush waits for this CPU before pages are freed. `false`
    /// in the middle of a switch, and while the CPU is lazy. (Linux: `nmi_uaccess_okay`.) If CPUs
    /// [answer early](Machine::answers_early), also `false` in the handler and while the CPU waits
    /// for a flush of its own.
    ///
    /// The result holds until the handler returns. The handler must not call
    /// [`pin`](Self::pin).
    pub fn nmi_may_touch_user(&self, space: SpaceId) -> bool {
        self.cpu(self.machine.cpu()).nmi_may_touch_user(&self.machine, space)
    }

    /// The state of a CPU, from which statistics and the presence can be read. The values may be
    /// outdated by the time that they are returned: use them for reports only.
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
    use crate::state::machine::tests::Plain;

    /// A CPU that loads the root must not walk what its memory contained before.
    #[test]
    fn new_space_publishes_its_page_table() {
        let engine = Shootdown::new(Plain::<0>::with_tags(0));
        let publications = || engine.machine().publications.load(Relaxed);
        for spaces in 1..4 {
            let space = engine.space(Root(spaces));
            assert_eq!(publications(), spaces);
            assert!(engine.owns(&space));
        }
    }
}
