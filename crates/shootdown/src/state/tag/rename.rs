//! Tags that each CPU counts up, for MMUs such as ARC's, which has tags of eight bits and no
//! instruction that invalidates one tag.
//!
//! To flush a space, the CPU gives it the next tag. The translations under the old tag stay in the
//! TLB, where nothing finds them. When the count wraps around, the CPU empties its TLB, and all
//! tags are new. So each new tag costs a share of a later full flush: 1/255 with eight bits. A
//! flush page by page needs no new tag. (Linux's `munmap` on ARC used one tag each time: study
//! `arc-asid-range`.)

use super::Choice;
use super::slots::{TagSlot, least_recently_used, vacate};
use crate::base::ids::Tag;
use crate::base::rules::Rule;
use crate::state::machine::{Entries, Machine};
use crate::state::pinned_cpu::PinnedCpu;
use crate::state::space::Space;

impl<'e, M: Machine> PinnedCpu<'e, M> {
    /// Gives a space without a tag the next one, under which nothing is cached.
    pub(crate) fn choose_renamed_tag(&self, space: &Space<M>, generation: u64) -> Choice<'e> {
        let slot = self.give_slot(least_recently_used(self.tags()), space);
        let tag = self.rename(space, slot);
        // A machine without tags uses the kernel's tag, under which translations of any space may
        // be cached.
        Choice { slot, generation: (tag != Tag::KERNEL).then_some(generation) }
    }

    /// Returns the next tag. If tags have run out, this loads the kernel's root and empties the
    /// TLB; the caller then loads another root.
    fn next_tag(&self) -> Tag {
        let (machine, counters) = (self.machine(), self.counters());
        let count = machine.tag_count().min(usize::from(u16::MAX)) as u64;
        if count == 0 {
            return Tag::KERNEL;
        }
        let taken = self.local().tag_clock.get();
        self.local().tag_clock.set(taken + 1);
        counters.tags_taken.add_unshared(1);
        if taken != 0 && taken % count == 0 {
            counters.rollovers.add_unshared(1);
            counters.flushes_full.add_unshared(1);
            vacate(self.tags());
            if !machine.breaks(Rule::FlushOnWrap) {
                // Not under the tag that is still loaded: the CPU would refill the TLB under it,
                // and the tag is about to belong to another space.
                machine.load_kernel();
                machine.invalidate_all();
            }
        }
        Tag((taken % count) as u16 + 1)
    }

    /// Gives the loaded space the next tag, which drops all its translations.
    #[expect(unsafe_code, reason = "loads the root that is loaded")]
    pub(crate) fn rename_loaded(&self, space: &Space<M>) {
        let tag = self.rename(space, self.loaded_slot());
        let entries = if tag == Tag::KERNEL { Entries::Discard } else { Entries::Keep };
        // SAFETY: the root is loaded, and the caller that loaded it guaranteed that it is a valid
        // page table and stays one.
        unsafe { self.machine().load(space.root(), tag, entries) };
    }

    /// Gives `space`, which is loaded or about to be loaded, the next tag, and stores it in `slot`.
    pub(crate) fn rename(&self, space: &Space<M>, slot: &TagSlot) -> Tag {
        let tag = self.next_tag();
        // `next_tag` has vacated every slot if the count has wrapped around.
        slot.give_to(space.id(), tag);
        tag
    }
}
