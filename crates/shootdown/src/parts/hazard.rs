//! *Hazard pointers*: for each CPU, the space whose page tables the CPU can walk.
//!
//! Presence names the space that a CPU uses, and so decides whether a flush must notify the CPU.
//! That is not the same as the space that the CPU has loaded: a CPU that switches to another space
//! publishes its new presence first, and still walks the old tables until the new root is loaded.
//! The hazard pointer names the space whose root is loaded, until another root is loaded. Page
//! tables are not freed while the hazard pointer of a CPU that may walk them names their space.
//!
//! A CPU also finds out from its hazard pointer that a space has died: see
//! [`retire`](crate::PinnedCpu::retire).
//!
//! (Lutomirski proposed such a word for Linux, `rq->lazy_mm`, in 2022; it was not merged.)

use core::ptr::NonNull;

/// A hazard pointer: the address of a space, which is a multiple of 64, and two flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hazard(pub(crate) u64);

impl Hazard {
    /// The hazard pointer of a CPU that has the kernel's own page table loaded.
    pub(crate) const NOTHING: Self = Self(0);

    /// Flag: the space is dead, and the CPU that drops this hazard pointer must drop a reference to
    /// the space. It may be the last reference.
    const MARKED: u64 = 1;
    /// Flag: the CPU has loaded another root, and has dropped the last reference to the space. It
    /// could not reclaim the space, because it was in its interrupt handler. The CPU that replaces
    /// this hazard pointer must reclaim the space.
    const ORPHANED: u64 = 2;

    /// The hazard pointer of a CPU that has loaded `space`, which is not known to be dead.
    #[inline]
    pub(crate) fn space<S>(space: *const S) -> Self {
        Self(space.expose_provenance() as u64)
    }

    #[inline]
    pub(crate) const fn marked(self) -> Self {
        Self(self.0 | Self::MARKED)
    }

    #[inline]
    pub(crate) const fn unmarked(self) -> Self {
        Self(self.0 & !Self::MARKED)
    }

    #[inline]
    pub(crate) const fn orphaned(self) -> Self {
        Self(self.0 | Self::ORPHANED)
    }

    #[inline]
    pub(crate) const fn is_marked(self) -> bool {
        self.0 & Self::MARKED != 0
    }

    #[inline]
    pub(crate) const fn is_orphaned(self) -> bool {
        self.0 & Self::ORPHANED != 0
    }

    /// Returns `true` if the CPU that replaces this hazard pointer must drop a reference to a dead
    /// space, or reclaim it.
    #[inline]
    pub(crate) const fn is_dead(self) -> bool {
        self.0 & (Self::MARKED | Self::ORPHANED) != 0
    }

    /// Returns `true` if this names `space`, dead or alive.
    #[inline]
    pub(crate) fn is<S>(self, space: *const S) -> bool {
        self.address() == space.expose_provenance() as u64
    }

    /// The space, which must be of type `S`; `None` for the kernel's own page table.
    #[inline]
    pub(crate) fn pointer<S>(self) -> Option<NonNull<S>> {
        NonNull::new(core::ptr::with_exposed_provenance_mut(self.address() as usize))
    }

    #[inline]
    const fn address(self) -> u64 {
        self.0 & !(Self::MARKED | Self::ORPHANED)
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use super::*;
    use crate::base::ids::Root;
    use crate::soft::{Config, Host, Soft};
    use crate::state::space::Space;

    #[test]
    fn flags_do_not_change_the_space() {
        let engine = Soft::<Host>::engine(Config::default());
        let spaces = [0, 1].map(|root| engine.space(Root(root)));
        let space = Hazard::space(&raw const spaces[0]);
        let all = [space, space.marked(), space.orphaned(), space.marked().orphaned()];
        for hazard in all {
            assert_eq!(hazard.pointer(), Some(core::ptr::NonNull::from(&spaces[0])));
            assert!(hazard.is(&raw const spaces[0]) && !hazard.is(&raw const spaces[1]));
            // To set a flag twice changes nothing.
            assert!(hazard.is_marked() == (hazard.marked() == hazard));
            assert!(hazard.is_orphaned() == (hazard.orphaned() == hazard));
            assert!(hazard.is_marked() == (hazard.unmarked() != hazard));
        }
        assert_eq!(all.map(Hazard::is_marked), [false, true, false, true]);
        assert_eq!(all.map(Hazard::is_orphaned), [false, false, true, true]);
        assert_eq!(all.map(Hazard::is_dead), [false, true, true, true]);
        assert_eq!(Hazard::NOTHING.pointer::<Space<Soft<Host>>>(), None);
        assert!(!Hazard::NOTHING.is_dead() && !Hazard::NOTHING.is(&raw const spaces[0]));
    }
}
