//! *Presence*: the space that a CPU could be using, in one word.
//!
//! It is one word, so that no reader observes half of a transition. Linux keeps `loaded_mm`,
//! `is_lazy` and the CPU's bit in `mm_cpumask` in three places, and the order in which they are
//! written and read has been the subject of several fixes (fea4e317f9e7 among them).

use core::fmt;

use crate::base::ids::SpaceId;
use crate::base::memory::Memory;
use crate::base::rules::Rule;

/// The space that a CPU could be using, and how.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// The kernel's own page table is loaded: the CPU can neither access user memory nor walk a
    /// space's tables.
    Out,
    /// The space is loaded, but the CPU accesses no user memory, because it idles or runs a kernel
    /// thread. Speculation may walk the space's page tables.
    Lazy(SpaceId),
    /// The CPU is about to use the space. It has not loaded the space yet, and may still have
    /// another one loaded; or it is returning from `Lazy`, and has not caught up yet.
    Switching(SpaceId),
    /// The CPU uses the space, and has caught up with every flush that did not interrupt it.
    Active(SpaceId),
}

impl Presence {
    const STATE: u64 = 3;
    const STATE_BITS: u32 = 2;
    const OUT: u64 = 0;
    const ACTIVE: u64 = 1;
    const LAZY: u64 = 2;
    /// The bits of active and lazy, so that one bit tests for `Active` and `Switching`.
    const SWITCHING: u64 = Self::ACTIVE | Self::LAZY;

    #[inline]
    pub(crate) const fn to_word(self) -> u64 {
        match self {
            Self::Out => Self::OUT,
            Self::Active(space) => space.0 << Self::STATE_BITS | Self::ACTIVE,
            Self::Lazy(space) => space.0 << Self::STATE_BITS | Self::LAZY,
            Self::Switching(space) => space.0 << Self::STATE_BITS | Self::SWITCHING,
        }
    }

    #[inline]
    pub(crate) const fn from_word(word: u64) -> Self {
        let space = SpaceId(word >> Self::STATE_BITS);
        match word & Self::STATE {
            Self::OUT => Self::Out,
            Self::ACTIVE => Self::Active(space),
            Self::LAZY => Self::Lazy(space),
            _ => Self::Switching(space),
        }
    }
}

/// A presence as the word in memory. The hot paths test it with one comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PresenceWord(pub(crate) u64);

impl From<Presence> for PresenceWord {
    #[inline]
    fn from(presence: Presence) -> Self {
        Self(presence.to_word())
    }
}

impl PresenceWord {
    /// Returns `true` if the CPU could be using pages of `space`: then a flush must notify it.
    #[inline]
    pub(crate) fn uses<M: Memory>(self, machine: &M, space: SpaceId) -> bool {
        self.0 | Presence::LAZY == Presence::Switching(space).to_word()
            && !machine.breaks(if self.is_switching_to(space) {
                Rule::RingSwitching
            } else {
                Rule::RingPresent
            })
    }

    /// Returns `true` if the CPU is lazy on `space`.
    #[inline]
    pub(crate) fn is_lazy_on(self, space: SpaceId) -> bool {
        self.0 == Presence::Lazy(space).to_word()
    }

    /// Returns `true` if the CPU is active on `space`.
    #[inline]
    pub(crate) fn is_active_on(self, space: SpaceId) -> bool {
        self.0 == Presence::Active(space).to_word()
    }

    /// Returns `true` if the CPU is active on any space. The CPU must not be in the middle of a
    /// switch: a CPU calls this for itself, outside of a switch.
    #[inline]
    pub(crate) fn is_active(self) -> bool {
        debug_assert!(
            self.0 & Presence::STATE != Presence::SWITCHING,
            "the CPU is in the middle of a switch"
        );
        self.0 & Presence::ACTIVE != 0
    }

    /// Returns `true` if the CPU is lazy on any space. The CPU must not be in the middle of a
    /// switch: a CPU calls this for itself, outside of a switch.
    #[inline]
    pub(crate) fn is_lazy(self) -> bool {
        debug_assert!(
            self.0 & Presence::STATE != Presence::SWITCHING,
            "the CPU is in the middle of a switch"
        );
        self.0 & Presence::LAZY != 0
    }

    /// Changes `Lazy` to `Switching`, for the same space.
    #[inline]
    pub(crate) const fn lazy_to_switching(self) -> Self {
        Self(self.0 | Presence::ACTIVE)
    }

    /// Changes `Lazy` to `Active`, for the same space.
    #[inline]
    pub(crate) const fn lazy_to_active(self) -> Self {
        Self(self.0 ^ Presence::SWITCHING)
    }

    /// Changes `Active` to `Lazy`, for the same space.
    #[inline]
    pub(crate) const fn active_to_lazy(self) -> Self {
        Self(self.0 ^ Presence::SWITCHING)
    }

    /// Returns `true` if the CPU is switching to `space`.
    #[inline]
    pub(crate) fn is_switching_to(self, space: SpaceId) -> bool {
        self.0 == Presence::Switching(space).to_word()
    }

    /// Returns `true` if the CPU is active on, lazy on, or switching to `space`.
    #[inline]
    pub(crate) fn is_on(self, space: SpaceId) -> bool {
        self.0 >> Presence::STATE_BITS == space.0
    }
}

impl fmt::Debug for Presence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Out => f.write_str("Out"),
            Self::Lazy(space) => write!(f, "Lazy({})", space.0),
            Self::Switching(space) => write!(f, "Switching({})", space.0),
            Self::Active(space) => write!(f, "Active({})", space.0),
        }
    }
}

#[cfg(test)]
mod tests;
