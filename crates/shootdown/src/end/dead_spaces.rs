//! *Dead spaces*: a list for the spaces that the engine has reclaimed and the kernel has not freed.
//!
//! [`Machine::reclaim`] is called in places where most kernels cannot free memory: at the end of a
//! switch, with the scheduler's lock held. It puts the space on this list, and code that may free
//! memory takes the spaces from it later, on any CPU.

#![expect(unsafe_code, reason = "a dead space is a pointer")]

use core::fmt;
use core::iter;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::base::memory::{Word, order};
use crate::base::rules::Rule;
use crate::parts::hazard::Hazard;
use crate::state::machine::Machine;
use crate::state::space::Space;

/// A list of dead spaces, which any CPU may push to and take from, in handlers too. It needs no
/// memory and no lock: the link is in a word of the space that the engine does not need any more.
///
/// ```
/// # use core::ptr::NonNull;
/// # use core::sync::atomic::AtomicU64;
/// # use shootdown::{DeadSpaces, Machine, Space};
/// # struct Kernel<M: Machine> { dead: DeadSpaces<M> }
/// # impl<M: Machine<Word = AtomicU64>> Kernel<M> {
/// // Called by `Machine::reclaim`.
/// fn reclaim(&self, machine: &M, space: NonNull<Space<M>>) {
///     // SAFETY: the engine passes each space once, and nothing frees it before it is taken.
///     unsafe { self.dead.push(machine, space) };
/// }
///
/// fn free_dead(&self, machine: &M, free: impl Fn(NonNull<Space<M>>)) {
///     self.dead.take(machine).for_each(free);
/// }
/// # }
/// ```
pub struct DeadSpaces<M: Machine> {
    /// The space that was pushed last; 0 if there is none.
    last: M::Word,
}

impl<M: Machine<Word = AtomicU64>> DeadSpaces<M> {
    /// An empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self { last: AtomicU64::new(0) }
    }
}

impl<M: Machine> DeadSpaces<M> {
    /// Adds a space.
    ///
    /// # Safety
    ///
    /// [`Machine::reclaim`] has passed `space`, and the space is not on a list. Nothing accesses it
    /// or frees it before it is [taken](Self::take).
    pub unsafe fn push(&self, machine: &M, space: NonNull<Space<M>>) {
        let address = Hazard::space(space.as_ptr()).0;
        // SAFETY: the caller promises that the space exists. All references to it are dropped, so
        // their count is not used any more.
        let link = unsafe { &(*space.as_ptr()).refs };
        // Relaxed: the exchange confirms it, and is repeated after a failure.
        let mut last = self.last.load(Relaxed);
        loop {
            // Relaxed: the exchange publishes it.
            link.store(last, Relaxed);
            let release = order(machine, Rule::PushDeadRelease);
            // Relaxed on failure: the exchange is repeated.
            match self.last.compare_exchange(last, address, release, Relaxed) {
                Ok(_) => return,
                Err(newer) => last = newer,
            }
        }
    }

    /// Takes all spaces from the list. Spaces that the result has not returned when it is dropped
    /// are put back.
    ///
    /// All accesses of other CPUs to a space that this returns are over, and the caller may free
    /// the space and its page tables.
    pub fn take<'l>(&'l self, machine: &'l M) -> impl Iterator<Item = NonNull<Space<M>>> + 'l {
        // Relaxed: a hint, so that an empty list is not written.
        let is_empty = self.last.load(Relaxed) == 0;
        let acquire = order(machine, Rule::TakeDeadAcquire);
        let next = if is_empty { 0 } else { self.last.swap(0, acquire) };
        Taken { list: self, machine, next }
    }
}

/// Spaces that were taken from a list.
struct Taken<'l, M: Machine> {
    list: &'l DeadSpaces<M>,
    machine: &'l M,
    /// The space that is returned next; 0 if there is none.
    next: u64,
}

impl<M: Machine> Iterator for Taken<'_, M> {
    type Item = NonNull<Space<M>>;

    fn next(&mut self) -> Option<Self::Item> {
        let space = Hazard(self.next).pointer::<Space<M>>()?;
        // SAFETY: the caller of `push` promises that the space exists until it is returned.
        let link = unsafe { &(*space.as_ptr()).refs };
        // Relaxed: acquired by `take`.
        self.next = link.load(Relaxed);
        Some(space)
    }
}

impl<M: Machine> Drop for Taken<'_, M> {
    fn drop(&mut self) {
        let (list, machine) = (self.list, self.machine);
        iter::from_fn(|| self.next()).for_each(|space| {
            // SAFETY: the space was on the list, and is not any more.
            unsafe { list.push(machine, space) };
        });
    }
}

impl<M: Machine> Default for DeadSpaces<M> {
    fn default() -> Self {
        Self { last: M::Word::new(0) }
    }
}

impl<M: Machine> fmt::Debug for DeadSpaces<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Relaxed: for debug output only.
        f.debug_struct("DeadSpaces").field("is_empty", &(self.last.load(Relaxed) == 0)).finish()
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use super::*;
    use crate::base::ids::Root;
    use crate::soft::{Config, Host, Soft};
    use std::format;
    use std::vec::Vec;

    #[test]
    fn every_space_is_taken_once() {
        let engine = Soft::<Host>::engine(Config::default());
        let spaces = [0, 1, 2, 3].map(|root| engine.space(Root(root)));
        let (list, machine) = (DeadSpaces::new(), engine.machine());
        let push = |index: usize| {
            // SAFETY: no CPU uses the spaces, which outlive the list.
            unsafe { list.push(machine, NonNull::from(&spaces[index])) };
        };
        let taken = |count| {
            let taken: Vec<_> = list.take(machine).take(count).collect();
            taken
                .iter()
                .map(|&space| {
                    spaces.iter().position(|other| NonNull::from(other) == space).unwrap()
                })
                .collect::<Vec<_>>()
        };
        let debug = || format!("{list:?}");
        assert!(taken(9).is_empty());
        assert_eq!(debug(), "DeadSpaces { is_empty: true }");
        (0..3).for_each(push);
        assert_eq!(debug(), "DeadSpaces { is_empty: false }");
        assert_eq!(taken(1), [2]);
        push(3);
        let mut rest = taken(9);
        assert_eq!(rest.remove(0), 3);
        rest.sort_unstable();
        assert_eq!(rest, [0, 1]);
        assert!(taken(9).is_empty());
    }
}
