//! *Presence*: what a CPU could be using, in one word.
//!
//! One word, so that no reader sees half of a transition. Linux keeps `loaded_mm`, `is_lazy` and
//! the CPU's bit in `mm_cpumask` apart, and the order in which they are written and read has been
//! the subject of several fixes (fea4e317f9e7 among them).

use core::fmt;

use crate::machine::Machine;
use crate::rules::Rule;

/// The id of a [`Space`](crate::Space): never 0, and no other space of the same engine ever has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpaceId(pub(crate) u64);

impl SpaceId {
    /// The id as a number: 1 for the first space, and counting.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// What a CPU could be using.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// The kernel's own page table is loaded: nothing of user memory can be touched or walked.
    Out,
    /// The space is loaded, but nothing of user memory is touched: idle, or a kernel thread.
    /// Speculation may walk its page tables.
    Lazy(SpaceId),
    /// The CPU is about to load the space; the one that it comes from may still be loaded.
    Switching(SpaceId),
    /// The space is in use.
    Active(SpaceId),
}

impl Presence {
    const STATE: u64 = 3;
    const STATE_BITS: u32 = 2;

    #[inline]
    pub(crate) const fn to_word(self) -> u64 {
        match self {
            Self::Out => 0,
            Self::Lazy(space) => space.0 << Self::STATE_BITS | 1,
            Self::Switching(space) => space.0 << Self::STATE_BITS | 2,
            Self::Active(space) => space.0 << Self::STATE_BITS | 3,
        }
    }

    #[inline]
    pub(crate) const fn from_word(word: u64) -> Self {
        let space = SpaceId(word >> Self::STATE_BITS);
        match word & Self::STATE {
            0 => Self::Out,
            1 => Self::Lazy(space),
            2 => Self::Switching(space),
            _ => Self::Active(space),
        }
    }

    /// Whether the CPU could be using pages of `space`: then a flush must ring it.
    #[inline]
    pub(crate) fn uses<M: Machine>(self, machine: &M, space: SpaceId) -> bool {
        match self {
            Self::Active(on) => on == space && !machine.breaks(Rule::RingPresent),
            Self::Switching(on) => on == space && !machine.breaks(Rule::RingSwitching),
            Self::Lazy(_) | Self::Out => false,
        }
    }

    /// Whether the CPU is on its way to, in, or lazily on `space`.
    #[inline]
    pub(crate) fn is_on(self, space: SpaceId) -> bool {
        matches!(self, Self::Lazy(on) | Self::Switching(on) | Self::Active(on) if on == space)
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
mod tests {
    use super::*;
    use crate::machine::tests::Plain;
    use std::format;

    #[test]
    fn a_word_says_all() {
        let spaces = [1, 2, 3, 1 << 40].map(SpaceId);
        let states: [fn(SpaceId) -> Presence; 3] =
            [Presence::Lazy, Presence::Switching, Presence::Active];
        let on = spaces.into_iter().flat_map(|space| states.map(|state| (space, state(space))));
        for (space, presence) in on {
            assert_eq!(Presence::from_word(presence.to_word()), presence);
            assert!(presence.is_on(space) && !presence.is_on(SpaceId(space.0 + 1)));
        }
        assert_eq!(Presence::from_word(Presence::Out.to_word()), Presence::Out);
        assert!(!Presence::Out.is_on(SpaceId(1)));
        // What becomes of spaces without end must not repeat before decades are over.
        let last = SpaceId((1 << 62) - 1);
        assert_eq!(Presence::from_word(Presence::Active(last).to_word()), Presence::Active(last));
    }

    #[test]
    fn who_is_on_its_way_in_uses_the_space_and_who_is_lazy_does_not() {
        let machine = Plain::<0>::with_tags(0);
        let (space, other) = (SpaceId(1), SpaceId(2));
        for state in [Presence::Switching, Presence::Active] {
            assert!(state(space).uses(&machine, space));
            assert!(!state(other).uses(&machine, space));
        }
        assert!(!Presence::Lazy(space).uses(&machine, space));
        assert!(!Presence::Out.uses(&machine, space));
    }

    #[test]
    fn it_is_shown_with_the_number_of_the_space() {
        let space = SpaceId(7);
        assert_eq!(space.number(), 7);
        let shown = [
            Presence::Out,
            Presence::Lazy(space),
            Presence::Switching(space),
            Presence::Active(space),
        ]
        .map(|presence| format!("{presence:?}"));
        assert_eq!(shown, ["Out", "Lazy(7)", "Switching(7)", "Active(7)"]);
    }
}
