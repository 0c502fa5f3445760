//! The processors of x86 hypervisors behind the engine, as `shootdown-hw` implements them.

use shootdown::{Entries, Tag};

use super::EngineMachine;
use crate::engine::Fault;
use crate::hardware::OnLoad;
use crate::machine::{HostileMachine, WalkCaches, with_machine};
use crate::profile::Stages;

/// The record of a CPU.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GuestEntry {
    /// One bit for each tag that must be invalidated before its guest is entered.
    stale: u64,
    /// The name of the virtual CPU that was entered last.
    name: u16,
    is_in_guest: bool,
}

impl<const LIFETIME: u8, const WORDS: usize> EngineMachine<LIFETIME, WORDS> {
    /// Returns `true` if spaces are guests of an x86 hypervisor.
    pub(super) const fn has_entries(&self) -> bool {
        self.stages.walks_in_guests_only()
    }

    fn update_entry<R>(&self, f: impl FnOnce(&mut GuestEntry) -> R) -> R {
        let cell = &self.entries[with_machine(HostileMachine::cpu)];
        let mut entry = cell.get();
        let result = f(&mut entry);
        cell.set(entry);
        result
    }

    /// Loads a guest's root, or none. With EPT, the hardware's tag is the root.
    pub(super) fn load_guest(&self, root: Option<usize>, tag: Tag, entries: Entries) {
        let is_named = self.stages == Stages::TwoNamed;
        let tag = if is_named { Tag(root.map_or(0, |root| root as u16 + 1)) } else { tag };
        let on_load = match entries {
            Entries::Discard if is_named => OnLoad::Flush,
            _ => OnLoad::Keep,
        };
        with_machine(|machine| machine.load_root(root, tag.0, on_load));
        if entries == Entries::Discard && !is_named {
            self.invalidate_guest(tag);
        }
    }

    /// Invalidates all of a guest: the loaded one, with EPT.
    pub(super) fn invalidate_guest(&self, tag: Tag) {
        if self.stages == Stages::TwoAtEntry {
            return self.update_entry(|entry| entry.stale |= 1 << tag.0);
        }
        let name = self.update_entry(|entry| entry.name);
        with_machine(|machine| match self.fault {
            Some(Fault::OneNameInvalidated) => machine.invalidate_name(name),
            _ => machine.invalidate_tag(Some(machine.loaded_tag())),
        });
    }

    /// Invalidates the kernel's pages, and each guest where it is entered.
    pub(super) fn invalidate_all_at_entry(&self) {
        self.update_entry(|entry| entry.stale = u64::MAX);
        with_machine(|machine| machine.invalidate_kernel_pages(|_| true, WalkCaches::Invalidate));
    }

    /// Invalidates what the entry of the loaded guest must: its `TLB_CONTROL`. Call this with
    /// interrupts masked until the guest is entered.
    fn invalidate_at_entry(&self) {
        let tag = with_machine(HostileMachine::loaded_tag);
        let is_stale = self.update_entry(|entry| {
            let is_stale = entry.stale >> tag & 1 == 1;
            let forgets_all = self.fault == Some(Fault::EntriesForgotten);
            entry.stale &= if forgets_all { 0 } else { !(1 << tag) };
            is_stale
        });
        if is_stale {
            with_machine(|machine| machine.invalidate_tag(Some(tag)));
        }
    }

    /// Runs the loaded guest for a while: one of its two virtual CPUs in turn.
    pub(super) fn stay_in_guest(&self) {
        with_machine(|machine| {
            machine.mask();
            if self.stages == Stages::TwoNamed {
                machine.set_name(self.update_entry(|entry| {
                    entry.name = entry.name % 2 + 1;
                    entry.name
                }));
            }
            self.update_entry(|entry| entry.is_in_guest = true);
            self.invalidate_at_entry();
            machine.enter_user_mode();
            machine.unmask();
            machine.leave_user_mode();
            self.update_entry(|entry| entry.is_in_guest = false);
        });
    }

    /// Enters the guest again after an interrupt.
    pub(super) fn enter_guest_again(&self) {
        let is_kept = self.fault == Some(Fault::InterruptedKept);
        if self.update_entry(|entry| entry.is_in_guest) && !is_kept {
            self.invalidate_at_entry();
        }
    }
}
