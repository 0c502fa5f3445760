//! How the hardware tells one space's translations from another's.
//!
//! Hardware has tags in three ways, and the engine asks three things of each: under which tag a
//! space is to be loaded ([`Here::choose_tag`]), how all of it is dropped
//! ([`Here::rename_loaded`] where that is no invalidation), and what becomes of tags when they run
//! out.

pub(crate) mod global;
pub(crate) mod rename;
pub(crate) mod slots;

use crate::cpu::Here;
use crate::machine::{Machine, Tag};
use crate::space::Space;
use slots::{Memory, SlotIndex, remember};

/// How tags are given to spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tagging {
    /// Each CPU gives its few tags to the spaces that it ran last (x86: PCIDs). A space has another
    /// tag on each CPU, and nobody else knows which.
    PerCpu,
    /// A space has the same tag on all CPUs (Arm, RISC-V, and AMD with `INVLPGB`), so that hardware
    /// can broadcast what is to be dropped. When tags run out, all but those that are loaded
    /// somewhere are taken back, and each CPU empties its TLB before it uses a new one.
    Global,
    /// Each CPU counts tags up (ARC: 8 bits). To drop a space's translations, it gives the space
    /// the next one; when they run out, it empties its TLB and begins anew.
    Renamed,
}

/// The tag under which a space is to be loaded here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) tag: Tag,
    /// Where this CPU remembers it.
    pub(crate) slot: SlotIndex,
    /// The generation up to which what the TLB holds under the tag is clean; `None` if it is
    /// another space's, or unknown.
    pub(crate) generation: Option<u64>,
}

impl<M: Machine> Here<'_, M> {
    /// The tag for `space`, which is at `generation`. `now` counts this CPU's switches.
    #[inline]
    pub(crate) fn choose_tag(&self, space: &Space<M>, generation: u64, now: u64) -> Choice {
        let memory = remember(self.tags(), space.id(), now);
        match self.machine().tagging() {
            Tagging::PerCpu => {
                if memory.generation.is_none() {
                    self.counters().tags_taken.add_alone(1);
                }
                let Memory { slot, generation } = memory;
                Choice { tag: slot.tag(), slot, generation }
            }
            Tagging::Global => self.choose_global_tag(space, memory, generation, now),
            Tagging::Renamed => self.choose_renamed_tag(space, memory, generation, now),
        }
    }
}
