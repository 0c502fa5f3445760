//! The root and the tag that a CPU has loaded, for kernels that load roots by themselves.

use crate::base::ids::{Root, SpaceId, Tag};
use crate::state::machine::Machine;
use crate::state::pinned_cpu::PinnedCpu;

/// The root and the tag of the space that a CPU has loaded.
///
/// In some kernels, user mode runs on a root that does not map the kernel: a *trampoline*, which is
/// mapped in all roots, loads it as the last step before user mode, and the kernel's root as the
/// first step after. [`switch`](PinnedCpu::switch) must not load such a root. There, the machine's
/// [`load`](Machine::load) drops what it has to and loads nothing, and the exit path loads what the
/// engine has decided.
///
/// # The rule of the exit path
///
/// With interrupts masked until user mode: `switch` or a `resume`, then read
/// [`loaded_root`](PinnedCpu::loaded_root), then load it, without an operation of the engine in
/// between. Such an operation, in the handler of a timer that runs another thread for instance, may
/// choose another root, or give the space another tag. A value from before it names a tag that may
/// be another space's by now, or under which nothing was invalidated since. (`tests/halves.rs` of
/// `shootdown-hw` fails with a value from before the last switch.)
///
/// With the rule, a later load is as good as the one that `switch` makes. A flush finds the CPU
/// present from before its `switch` read the generation
/// ([`SwitchFence`](crate::Rule::SwitchFence)), and so before the first walk of the new
/// root. On the way in, the kernel's root is loaded before the engine can publish that the CPU has
/// left the space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadedRoot {
    /// The space.
    pub space: SpaceId,
    /// The root of its page tables.
    pub root: Root,
    /// Its tag on this CPU. [`Tag::KERNEL`] if the machine has no tags, or no other was left: then
    /// the exit path drops everything after each load of a root, the kernel's included.
    pub tag: Tag,
    /// `true` if the CPU may access user memory; `false` if it is lazy.
    pub is_active: bool,
}

impl<M: Machine> PinnedCpu<'_, M> {
    /// The root that this CPU has loaded; `None` for the kernel's own. A kernel whose exit path
    /// loads roots loads this one, by the rule of the exit path: see [`LoadedRoot`].
    #[must_use]
    pub fn loaded_root(&self) -> Option<LoadedRoot> {
        let space = self.loaded()?;
        let is_active = self.presence_word().is_active();
        let (root, tag) = (space.root(), self.loaded_slot().tag());
        Some(LoadedRoot { space: space.id(), root, tag, is_active })
    }
}
