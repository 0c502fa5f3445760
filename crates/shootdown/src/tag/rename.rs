//! Tags that each CPU counts up, as ARC's MMU wants it: eight bits, and no way to drop what is
//! cached under one.
//!
//! To flush a space is to give it the next tag: what was cached under the old one stays in the TLB,
//! and nobody finds it. When the count comes round, the TLB is emptied, and all tags are new. So
//! each tag that is taken is a part of a full flush to come, 1/255 of it with eight bits; what is
//! flushed page by page takes none. (Seed 002: `munmap` took one each time.)

use super::Choice;
use super::slots::{TagSlot, find, vacate};
use crate::ids::Tag;
use crate::machine::{Entries, Machine};
use crate::pinned_cpu::PinnedCpu;
use crate::rules::Rule;
use crate::space::Space;

impl<'e, M: Machine> PinnedCpu<'e, M> {
    /// The tag that `space` still has here, or the next one, under which nothing is cached.
    pub(crate) fn choose_renamed_tag(&self, space: &Space<M>, generation: u64) -> Choice<'e> {
        if let Some(slot) = find(self.tags(), space.id()) {
            return Choice { slot, generation: Some(slot.generation()) };
        }
        let slot = self.take_over_slot(space);
        let tag = self.rename(space, slot);
        // A machine without tags takes the kernel's, which may hold anything.
        Choice { slot, generation: (tag != Tag::KERNEL).then_some(generation) }
    }

    /// The next tag. If they have run out, the TLB is emptied; the kernel's root is loaded then,
    /// until the caller loads another.
    fn next_tag(&self) -> Tag {
        let (machine, counters) = (self.machine(), self.counters());
        let count = machine.tag_count().min(usize::from(u16::MAX)) as u64;
        if count == 0 {
            return Tag::KERNEL;
        }
        let taken = self.local().renamed_tags.get();
        self.local().renamed_tags.set(taken + 1);
        counters.tags_taken.add_unshared(1);
        if taken != 0 && taken.is_multiple_of(count) {
            counters.rollovers.add_unshared(1);
            counters.flushes_full.add_unshared(1);
            vacate(self.tags());
            if !machine.breaks(Rule::FlushOnWrap) {
                // Not under the tag that is still loaded, which would fill again at once, and is
                // about to be another space's.
                machine.load_kernel();
                machine.invalidate_all();
            }
        }
        Tag((taken % count) as u16 + 1)
    }

    /// Gives the space that is loaded the next tag, and so drops all that is cached of it.
    #[expect(unsafe_code, reason = "loads the root that is loaded")]
    pub(crate) fn rename_loaded(&self, space: &Space<M>) {
        let tag = self.rename(space, self.loaded_slot());
        let entries = if tag == Tag::KERNEL { Entries::Discard } else { Entries::Keep };
        // SAFETY: it is loaded: whoever did that promised that it is and stays a page table.
        unsafe { self.machine().load(space.root(), tag, entries) };
    }

    /// Gives a space that is loaded, or about to be, and has `slot`, the next tag.
    pub(crate) fn rename(&self, space: &Space<M>, slot: &TagSlot) -> Tag {
        let tag = self.next_tag();
        // When the tags came round, every slot was vacated.
        slot.give_to(space.id(), tag);
        tag
    }
}
