//! Words of the hostile machine, and its barriers.

use std::sync::atomic::Ordering;

use shootdown::Word;

use super::{HostileMachine, with_machine};
use crate::history::LineKind;
use crate::memory::{Access, Stored};
use crate::profile::Stores;

/// A word of the hostile machine's shared memory.
#[derive(Debug)]
pub struct CheckWord(u32);

impl CheckWord {
    /// Creates a word with a name for histories.
    pub fn named(value: u64, name: impl FnOnce() -> String) -> Self {
        let word = Self::new(value);
        with_machine(|machine| machine.memory.borrow_mut().name(word.0, name));
        word
    }

    pub(crate) const fn number(&self) -> u32 {
        self.0
    }

    /// Reads, modifies and writes the word in one locked operation. On x86, the operation waits for
    /// all earlier stores and is visible before anything after it. Elsewhere, its write goes
    /// through the store buffer like a store, except that no other write to the word comes in
    /// between. Unless the operation acquires, later accesses may take effect first.
    fn modify(&self, order: Ordering, text: &str, f: impl FnOnce(u64) -> Option<u64>) -> u64 {
        with_machine(|machine| {
            let cpu = machine.cpu();
            let releases = matches!(order, Ordering::Release | Ordering::AcqRel | Ordering::SeqCst);
            let acquires = matches!(order, Ordering::Acquire | Ordering::AcqRel | Ordering::SeqCst);
            let is_ordered = machine.memory.borrow().stores == Stores::Ordered;
            let is_barrier = is_ordered || releases && acquires;
            let is_shared = machine.step_to(self.0, Access::Modifies, is_barrier);
            if is_barrier {
                machine.drain(cpu);
            }
            machine.unblock(self.0, cpu);
            let old = machine.memory.borrow().value(self.0);
            machine.observe(old);
            let new = f(old);
            machine.record_word(self.0, |name, shown| match new {
                Some(new) => {
                    format!("{text} {name}: from {} to {} ({order:?})", shown(old), shown(new))
                }
                None => format!("{text} {name}: finds {}, unchanged ({order:?})", shown(old)),
            });
            if let Some(value) = new {
                if is_ordered || acquires || !is_shared {
                    self.write(machine, old, value);
                } else {
                    let stored = Stored { word: self.0, value, releases, is_locked: true };
                    machine.memory.borrow_mut().store(cpu, stored);
                }
            }
            old
        })
    }

    fn write(&self, machine: &HostileMachine, old: u64, value: u64) {
        if value != old {
            machine.memory.borrow_mut().set(self.0, value);
            machine.written(machine.cpu(), self.0, old);
        }
    }
}

impl Word for CheckWord {
    fn new(value: u64) -> Self {
        Self(with_machine(|machine| machine.memory.borrow_mut().allocate(value)))
    }
    fn load(&self, order: Ordering) -> u64 {
        with_machine(|machine| {
            machine.step_to(self.0, Access::Reads, false);
            let value = machine.memory.borrow().load(machine.cpu(), self.0);
            machine.observe(value);
            machine.record_as(LineKind::Access, || {
                let name = machine.memory.borrow().name_of(self.0);
                format!("reads {name}: {} ({order:?})", machine.display_value(self.0, value))
            });
            value
        })
    }
    fn store(&self, value: u64, order: Ordering) {
        with_machine(|machine| {
            // No CPU observes the store before it becomes visible, which is an event of its own.
            machine.step_if_interrupted();
            if !machine.note_use(self.0, Access::Writes) {
                machine.observe(2);
                return machine.memory.borrow_mut().set(self.0, value);
            }
            let releases = matches!(order, Ordering::Release | Ordering::SeqCst);
            let stored = Stored { word: self.0, value, releases, is_locked: false };
            machine.memory.borrow_mut().store(machine.cpu(), stored);
            machine.observe(2);
            machine.record_word(self.0, |name, shown| {
                format!("stores to {name}: {} ({order:?}, not visible yet)", shown(value))
            });
        });
    }
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.modify(order, "swaps", |_| Some(value))
    }
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.modify(order, "adds to", |old| Some(old.wrapping_add(value)))
    }
    fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        self.modify(order, "sets in", |old| Some(old | value))
    }
    fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        self.modify(order, "clears in", |old| Some(old & value))
    }
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        _: Ordering,
    ) -> Result<u64, u64> {
        let old = self.modify(success, "exchanges", |old| (old == current).then_some(new));
        if old == current { Ok(old) } else { Err(old) }
    }
}

/// A full barrier: makes all stores of the calling CPU visible.
pub fn fence() {
    with_machine(|machine| {
        if machine.memory.borrow().has_stored(machine.cpu()) {
            machine.step();
        }
        machine.drain(machine.cpu());
        machine.order_loads();
        machine.observe(3);
        machine.record_as(LineKind::Access, || "fences".to_owned());
    });
}

/// Makes all stores of the calling CPU visible, and orders its page-table writes before its later
/// invalidations: `dsb ishst` on Arm. Does nothing where stores stay in order, as on x86.
pub fn publish() {
    with_machine(|machine| {
        machine.record_as(LineKind::Access, || "publishes its page-table writes".to_owned());
        if machine.memory.borrow().stores == Stores::Ordered {
            return;
        }
        if machine.memory.borrow().has_stored(machine.cpu()) {
            machine.step();
        }
        machine.drain(machine.cpu());
        machine.publish_tables();
        machine.observe(7);
    });
}

/// A full barrier that also orders the calling CPU's accesses before its later invalidations: `dsb
/// ish` on Arm.
pub fn complete_accesses() {
    fence();
    publish();
    with_machine(HostileMachine::order_invalidations);
}
