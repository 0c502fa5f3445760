//! *Held*: whose page tables a CPU can walk; its hazard pointer.
//!
//! Presence says what a CPU uses, and so whom a flush must tell. That is not the same as what it
//! has loaded: a CPU on its way from one space to another has said so, and still walks the old
//! tables until the new root is loaded. The second word names the space whose root is loaded, from
//! when it is until another one is. It says who must be waited for before page tables are freed,
//! and it is where a CPU finds that a space died under it: see [`retire`](crate::Here::retire).
//!
//! (Lutomirski proposed such a word for Linux, `rq->lazy_mm`, in 2022; it was not merged.)

use crate::machine::Machine;
use crate::space::Space;

/// What a CPU holds: the address of a space, which is a multiple of 64, and two flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held(pub(crate) u64);

impl Held {
    /// The kernel's own page table.
    pub(crate) const NOTHING: Self = Self(0);

    /// The space is dead, and who lets go of it has to say so: it may be the last.
    const OWING: u64 = 1;
    /// The CPU has let go of it, was the last, and could not reclaim it, for it was in its
    /// interrupt handler: whoever takes this word to another value must do so.
    const BEQUEATHED: u64 = 2;

    /// A space that is alive, for all that is known.
    #[inline]
    pub(crate) fn space<M: Machine>(space: *const Space<M>) -> Self {
        Self(space.expose_provenance() as u64)
    }

    #[inline]
    pub(crate) const fn owing(self) -> Self {
        Self(self.0 | Self::OWING)
    }

    #[inline]
    pub(crate) const fn bequeathed(self) -> Self {
        Self(self.0 | Self::BEQUEATHED)
    }

    #[inline]
    pub(crate) const fn is_owing(self) -> bool {
        self.0 & Self::OWING != 0
    }

    #[inline]
    pub(crate) const fn is_bequeathed(self) -> bool {
        self.0 & Self::BEQUEATHED != 0
    }

    /// Whether there is something to do for who lets go.
    #[inline]
    pub(crate) const fn is_marked(self) -> bool {
        self.0 & (Self::OWING | Self::BEQUEATHED) != 0
    }

    /// Whether it is this space, dead or alive.
    #[inline]
    pub(crate) fn is<M: Machine>(self, space: *const Space<M>) -> bool {
        self.0 & !(Self::OWING | Self::BEQUEATHED) == Self::space(space).0
    }

    /// The space.
    #[inline]
    pub(crate) fn pointer<M: Machine>(self) -> *const Space<M> {
        let address = self.0 & !(Self::OWING | Self::BEQUEATHED);
        core::ptr::with_exposed_provenance(address as usize)
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use super::*;
    use crate::machine::Root;
    use crate::soft::{Config, Host, Soft};

    #[test]
    fn whatever_becomes_of_it_it_is_the_same_space() {
        let engine = Soft::<Host>::engine(Config::default());
        let spaces = [0, 1].map(|root| engine.space(Root(root)));
        let space = Held::space(&raw const spaces[0]);
        let all = [space, space.owing(), space.bequeathed(), space.owing().bequeathed()];
        for held in all {
            assert_eq!(held.pointer(), &raw const spaces[0]);
            assert!(held.is(&raw const spaces[0]) && !held.is(&raw const spaces[1]));
            // To say it again changes nothing.
            assert!(held.is_owing() == (held.owing() == held));
            assert!(held.is_bequeathed() == (held.bequeathed() == held));
        }
        assert_eq!(all.map(Held::is_owing), [false, true, false, true]);
        assert_eq!(all.map(Held::is_bequeathed), [false, false, true, true]);
        assert_eq!(all.map(Held::is_marked), [false, true, true, true]);
        assert!(Held::NOTHING.pointer::<Soft<Host>>().is_null());
        assert!(!Held::NOTHING.is_marked() && !Held::NOTHING.is(&raw const spaces[0]));
    }
}
