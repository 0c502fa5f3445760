//! The causes of flush interrupts that were in vain.
//!
//! A design may give CPUs upper page tables of their own, *replicas*
//! ([`Sim::replicate`](crate::Sim::replicate)), so that a flush concerns only the CPUs whose
//! replicas link to a changed table. The cause states why such a design has sent the interrupt
//! nevertheless. It is decided when the interrupt is sent, by what the machine observes: the
//! replicas of the space, and the root that the target has loaded.

use core::ops::{AddAssign, Sub};

/// The reason why an interrupt was sent in vain. If several apply, it is the first of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VainCause {
    /// The target must not walk page tables that are about to be freed, or the flush concerned
    /// every space.
    Tables,
    /// The space had no replica yet, and got one later.
    BeforeReplicas,
    /// The space never had a replica.
    NoReplicas,
    /// A CPU of the space had returned from its replica to the space's own tables.
    GivenUp,
    /// The target had loaded another space, or none.
    Absent,
    /// The target had loaded the space's own tables, as a CPU does that has no replica yet.
    OwnTables,
    /// The target had loaded its replica, and had not read the last-level table of a flushed
    /// address since it last dropped the tag: it is recorded as a sharer, and has nothing.
    UnreadTable,
    /// The target had loaded its replica, and had read the table, but held no flushed page.
    ReadTable,
}

impl VainCause {
    /// All causes.
    pub const ALL: [Self; COUNT] = [
        Self::Tables,
        Self::BeforeReplicas,
        Self::NoReplicas,
        Self::GivenUp,
        Self::Absent,
        Self::OwnTables,
        Self::UnreadTable,
        Self::ReadTable,
    ];

    /// The name of the cause in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tables => "tables are freed",
            Self::BeforeReplicas => "no replicas yet",
            Self::NoReplicas => "never replicas",
            Self::GivenUp => "replicas given up",
            Self::Absent => "not loaded",
            Self::OwnTables => "own tables loaded",
            Self::UnreadTable => "table not read",
            Self::ReadTable => "page not held",
        }
    }
}

const COUNT: usize = 8;

/// Numbers of interrupts in vain by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VainCauses {
    counts: [u64; COUNT],
    /// Number of interrupts to spaces without a replica, of those that got one later.
    replicated: u64,
}

impl VainCauses {
    /// Returns the number of interrupts with this cause.
    #[must_use]
    pub fn of(&self, cause: VainCause) -> u64 {
        let count = self.counts[cause as usize];
        // Some may have been sent before the time that is measured.
        let replicated = self.replicated.min(self.counts[VainCause::NoReplicas as usize]);
        match cause {
            VainCause::BeforeReplicas => replicated,
            VainCause::NoReplicas => count - replicated,
            _ => count,
        }
    }

    /// The sum over all causes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Adds an interrupt. `is_replicated` is `true` if the space had no replica when the
    /// interrupt was sent, and has one now.
    pub(crate) fn add(&mut self, cause: VainCause, is_replicated: bool) {
        self.counts[cause as usize] += 1;
        self.replicated += u64::from(is_replicated);
    }

    /// Records that a space has got its first replica after this number of interrupts.
    pub(crate) const fn add_replicated(&mut self, interrupts: u64) {
        self.replicated += interrupts;
    }
}

impl AddAssign for VainCauses {
    fn add_assign(&mut self, other: Self) {
        self.counts.iter_mut().zip(other.counts).for_each(|(sum, count)| *sum += count);
        self.replicated += other.replicated;
    }
}

impl Sub for VainCauses {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            counts: core::array::from_fn(|cause| self.counts[cause] - other.counts[cause]),
            replicated: self.replicated - other.replicated,
        }
    }
}
