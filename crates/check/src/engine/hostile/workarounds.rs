//! The workarounds of the processor behind the engine, for errata that its CPUs have.

use std::sync::atomic::Ordering::{AcqRel, Acquire};

use shootdown::{Entries, Machine, Tag, Word};

use super::EngineMachine;
use crate::hardware::OnLoad;
use crate::machine::{HostileMachine, fence, with_machine};
use crate::profile::{Again, Erratum};

/// The unit of the number in a CPU's word of user mode. Below it is 0, or in user mode the tag plus
/// 1.
const USER: u64 = 1 << 16;

impl<const LIFETIME: u8, const WORDS: usize> EngineMachine<LIFETIME, WORDS> {
    /// Returns `true` if an invalidation must not name a page or a tag.
    pub(super) fn names_nothing(&self) -> bool {
        self.workaround == Some(Erratum::NamesIgnored)
    }

    /// Loads a root, or the kernel's, under a tag.
    pub(super) fn load_root(&self, root: Option<usize>, tag: Tag, entries: Entries) {
        if self.has_entries() {
            return self.load_guest(root, tag, entries);
        }
        let on_load = match entries {
            Entries::Keep => OnLoad::Keep,
            Entries::Discard => OnLoad::Flush,
        };
        if entries == Entries::Keep || !self.names_nothing() {
            return self.load_apart(root, tag, on_load);
        }
        // Entries to discard are invalidated before a walker can continue from them. If the tag is
        // loaded, they are those of a root that is still valid.
        let is_loaded = with_machine(HostileMachine::loaded_tag) == tag.0;
        if !is_loaded {
            self.invalidate_all();
        }
        self.load_apart(root, tag, on_load);
        if is_loaded {
            self.invalidate_all();
        }
    }

    /// Loads a root under a tag. If the two must not change together, the kernel's root, which has
    /// no pages of a space, is loaded in between under both tags.
    fn load_apart(&self, root: Option<usize>, tag: Tag, on_load: OnLoad) {
        with_machine(|machine| {
            if self.workaround == Some(Erratum::TagsMixed) {
                machine.load_root(None, machine.loaded_tag(), OnLoad::Keep);
                machine.load_root(None, tag.0, OnLoad::Keep);
            }
            machine.load_root(root, tag.0, on_load);
        });
    }

    /// Waits for the broadcasts of the calling CPU.
    pub(super) fn wait(&self) {
        with_machine(|machine| {
            machine.complete_broadcasts();
            if let Some(Erratum::CompletesEarly(again)) = self.workaround {
                if again == Again::AfterOperation {
                    machine.broadcast_nothing();
                }
                machine.complete_broadcasts();
            }
        });
    }

    /// Lets the calling CPU stay in user mode for a while.
    pub(in crate::engine) fn stay_in_user_mode(&self) {
        if self.has_entries() {
            return self.stay_in_guest();
        }
        with_machine(|machine| {
            let Some(user) = self.users.get(machine.cpu()) else {
                return machine.stay_in_user_mode();
            };
            let tag = u64::from(machine.loaded_tag()) + 1;
            // A CPU that waits for a broadcast and then finds this word as it was before comes
            // before this barrier, and this CPU then finds the new entries.
            user.fetch_add(USER | tag, AcqRel);
            fence();
            machine.stay_in_user_mode();
            user.fetch_add(USER.wrapping_sub(tag), AcqRel);
        });
    }

    /// Makes the CPUs that are in user mode under a tag that was broadcast enter the kernel, which
    /// ends their accesses.
    ///
    /// A CPU that was given the tag for another space is interrupted as well.
    pub(super) fn interrupt_users(&self) {
        with_machine(|machine| {
            let tags = self.broadcast_tags[machine.cpu()].take();
            for (cpu, user) in self.users.iter().enumerate() {
                let found = user.load(Acquire);
                let is_user = (found % USER).checked_sub(1).is_some_and(|tag| tags >> tag & 1 == 1);
                if is_user && cpu != machine.cpu() {
                    machine.deliver_interrupt(cpu);
                    machine.wait_until(|| user.load(Acquire) != found);
                }
            }
        });
    }

    /// Records that the calling CPU has taken an interrupt.
    pub(in crate::engine) fn note_interrupt(&self) {
        self.enter_guest_again();
        if let Some(user) = with_machine(|machine| self.users.get(machine.cpu())) {
            user.fetch_add(USER, AcqRel);
        }
    }
}
