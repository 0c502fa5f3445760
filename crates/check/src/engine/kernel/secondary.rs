//! A secondary table of a space: entries of a hypervisor, which are read from the primary tables.

use std::fmt;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use shootdown::{PrimaryChange, PrimaryChanges, Word};

use super::{EngineMachine, Kernel, KernelSpace};
use crate::hardware::{PAGES, SLOTS};
use crate::machine::{CheckWord, with_machine};
use crate::sometimes::Sometimes;

/// The table, and the lock that a kernel has for it.
pub(super) struct Secondary<const LIFETIME: u8, const WORDS: usize> {
    changes: PrimaryChanges<EngineMachine<LIFETIME, WORDS>>,
    lock: CheckWord,
    /// For each page, a frame plus 1, or 0.
    entries: Vec<CheckWord>,
}

impl<const LIFETIME: u8, const WORDS: usize> Secondary<LIFETIME, WORDS> {
    pub(super) fn new(space: usize) -> Self {
        let entry = |page| {
            CheckWord::named(0, || format!("secondary entry of page {page} of space {space}"))
        };
        Self {
            changes: PrimaryChanges::default(),
            lock: CheckWord::named(0, || format!("lock of the secondary table of space {space}")),
            entries: (0..SLOTS * PAGES).map(entry).collect(),
        }
    }

    fn locked<R>(&self, f: impl FnOnce() -> R) -> R {
        while self.lock.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            with_machine(|machine| machine.wait_until(|| self.lock.load(Relaxed) == 0));
        }
        let result = f();
        self.lock.store(0, Release);
        result
    }

    /// Starts a change of any entries of the primary tables.
    pub(super) fn start<'c>(
        &'c self,
        machine: &'c EngineMachine<LIFETIME, WORDS>,
    ) -> PrimaryChange<'c, EngineMachine<LIFETIME, WORDS>> {
        let change = self.changes.start(machine);
        self.locked(|| self.entries.iter().for_each(|entry| entry.store(0, Relaxed)));
        change
    }
}

impl<const LIFETIME: u8, const WORDS: usize> fmt::Debug for Secondary<LIFETIME, WORDS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secondary").field("changes", &self.changes).finish_non_exhaustive()
    }
}

impl<const LIFETIME: u8, const WORDS: usize> Kernel<'_, LIFETIME, WORDS> {
    /// Handles a guest's fault on a page, and lets the guest use what it has found. Where a
    /// hypervisor would let the guest fault again, the operation ends.
    pub(super) fn shadow(&self, space: usize, number: usize) {
        let KernelSpace { tables, secondary, .. } = &self.spaces[space];
        let (machine, secondary) = (self.engine.machine(), secondary.as_ref());
        let Secondary { changes, entries, .. } =
            secondary.expect("there is one for the space of each such operation");
        let refused = || with_machine(|machine| machine.reach(Sometimes::RefusedSecondary));
        let Some(fault) = changes.begin_fault(machine) else { return refused() };
        let entry = tables.entry(number);
        if !entry.is_present() {
            return;
        }
        let frame = entry.target();
        let incarnation = with_machine(|machine| machine.incarnation(frame));
        let is_installed = secondary.expect("as above").locked(|| {
            let may = changes.may_install(machine, fault);
            if may {
                entries[number].store(frame as u64 + 1, Relaxed);
            }
            may
        });
        if !is_installed {
            return refused();
        }
        with_machine(|machine| {
            machine.reach(Sometimes::InstalledSecondary);
            // The guest walks without a lock, and again later.
            for _ in 0..2 {
                machine.use_by_guest(&entries[number], number, incarnation);
            }
        });
    }
}
