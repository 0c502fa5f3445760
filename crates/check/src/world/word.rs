//! Words of the hostile machine, and its barriers.

use std::sync::atomic::Ordering;

use shootdown::Word;

use super::{World, with_world};
use crate::history::LineKind;
use crate::memory::{Access, Stored};
use crate::profile::Stores;

/// A word of the hostile machine.
#[derive(Debug)]
pub struct CheckWord(u32);

impl CheckWord {
    /// A word that is called so in histories.
    #[must_use]
    pub fn named(value: u64, name: impl FnOnce() -> String) -> Self {
        let word = Self::new(value);
        with_world(|world| world.memory.borrow_mut().name(word.0, name));
        word
    }

    pub(crate) const fn number(&self) -> u32 {
        self.0
    }

    /// Reads, modifies and writes, in one. On x86 that waits for all stores before it, and is
    /// visible before anything after it. Elsewhere what it writes is a store like others, but that
    /// no other write to the word comes in between; unless it acquires, what comes after it may
    /// come first.
    fn modify(&self, order: Ordering, text: &str, f: impl FnOnce(u64) -> Option<u64>) -> u64 {
        with_world(|world| {
            let cpu = world.cpu();
            let releases = matches!(order, Ordering::Release | Ordering::AcqRel | Ordering::SeqCst);
            let acquires = matches!(order, Ordering::Acquire | Ordering::AcqRel | Ordering::SeqCst);
            let is_ordered = world.memory.borrow().stores == Stores::Ordered;
            let is_barrier = is_ordered || releases && acquires;
            let is_shared = world.step_to(self.0, Access::Modifies, is_barrier);
            if is_barrier {
                world.drain(cpu);
            }
            world.unlock(self.0, cpu);
            let held = world.memory.borrow().value(self.0);
            world.see(held);
            let new = f(held);
            world.say_word(self.0, |name, shown| match new {
                Some(new) => format!("{text} {name}: from {} to {}", shown(held), shown(new)),
                None => format!("{text} {name}: finds {}, and leaves it", shown(held)),
            });
            if let Some(value) = new {
                if is_ordered || acquires || !is_shared {
                    self.write(world, held, value);
                } else {
                    let stored = Stored { word: self.0, value, releases, is_locked: true };
                    world.memory.borrow_mut().store(cpu, stored);
                }
            }
            held
        })
    }

    fn write(&self, world: &World, held: u64, value: u64) {
        if value != held {
            world.memory.borrow_mut().set(self.0, value);
            world.written(world.cpu(), self.0, held);
        }
    }
}

impl Word for CheckWord {
    fn new(value: u64) -> Self {
        Self(with_world(|world| world.memory.borrow_mut().allocate(value)))
    }
    fn load(&self, _: Ordering) -> u64 {
        with_world(|world| {
            world.step_to(self.0, Access::Reads, false);
            let value = world.memory.borrow().load(world.cpu(), self.0);
            world.see(value);
            world.say_as(LineKind::Access, || {
                let name = world.memory.borrow().name_of(self.0);
                format!("reads {name}: {}", world.shown(self.0, value))
            });
            value
        })
    }
    fn store(&self, value: u64, order: Ordering) {
        with_world(|world| {
            // Nobody sees it before it becomes visible, which is a step of its own.
            world.step_if_interrupted();
            if !world.note_use(self.0, Access::Writes) {
                world.see(2);
                return world.memory.borrow_mut().set(self.0, value);
            }
            let releases = matches!(order, Ordering::Release | Ordering::SeqCst);
            let stored = Stored { word: self.0, value, releases, is_locked: false };
            world.memory.borrow_mut().store(world.cpu(), stored);
            world.see(2);
            world.say_word(self.0, |name, shown| {
                format!("stores to {name}: {} (not visible yet)", shown(value))
            });
        });
    }
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.modify(order, "swaps", |_| Some(value))
    }
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.modify(order, "adds to", |held| Some(held.wrapping_add(value)))
    }
    fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        self.modify(order, "sets in", |held| Some(held | value))
    }
    fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        self.modify(order, "clears in", |held| Some(held & value))
    }
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        _: Ordering,
    ) -> Result<u64, u64> {
        let held = self.modify(success, "exchanges", |held| (held == current).then_some(new));
        if held == current { Ok(held) } else { Err(held) }
    }
}

/// A full barrier of the calling CPU: all that it has stored becomes visible.
pub fn fence() {
    with_world(|world| {
        if world.memory.borrow().has_stored(world.cpu()) {
            world.step();
        }
        world.drain(world.cpu());
        world.order_loads();
        world.see(3);
        world.say_as(LineKind::Access, || "fences".to_owned());
    });
}

/// Makes all that the calling CPU has stored visible, and its page-table writes visible to walkers
/// before any later invalidation: `dsb ishst` on Arm. It does nothing where stores stay in order,
/// as on x86.
pub fn publish() {
    with_world(|world| {
        if world.memory.borrow().stores == Stores::Ordered {
            return;
        }
        if world.memory.borrow().has_stored(world.cpu()) {
            world.step();
        }
        world.drain(world.cpu());
        world.publish_tables();
        world.see(7);
        world.say_as(LineKind::Access, || "publishes its page-table writes".to_owned());
    });
}

/// A full barrier that later invalidations wait for, too: `dsb ish` on Arm.
pub fn complete_accesses() {
    fence();
    publish();
    with_world(World::order_invalidations);
}
