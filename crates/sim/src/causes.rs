//! The time of each CPU by its cause. The machine itself attributes time, so no design can forget
//! to, and the causes of a CPU add up to its time.
//!
//! A CPU has one cause at a time, the innermost: a CPU that invalidates a page while it handles a
//! flush interrupt invalidates. Causes change at their boundaries alone, so that a step of time
//! costs nothing more.

use core::iter::Sum;
use core::ops::{AddAssign, Index};

use serde::ser::{Serialize, SerializeMap as _, Serializer};

use crate::time::Time;

macro_rules! causes {
    ($($(#[$doc:meta])* $cause:ident = $name:literal,)*) => {
        /// The reason for which a CPU's time passes.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub enum Cause { $($(#[$doc])* $cause,)* }

        impl Cause {
            /// All causes.
            pub const ALL: [Self; COUNT] = [$(Self::$cause,)*];

            /// The name of the cause in reports.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$cause => $name,)* }
            }

            /// The name of the cause's time in nanoseconds, for example `flush_wait_ns`.
            #[must_use]
            pub const fn name_ns(self) -> &'static str {
                match self { $(Self::$cause => concat!($name, "_ns"),)* }
            }
        }

        const COUNT: usize = [$($name,)*].len();
    };
}

causes! {
    /// Threads in user mode, with their hits in the TLB.
    User = "user",
    /// All work of the kernel that has no other cause.
    #[default]
    Kernel = "kernel",
    /// Waiting until other CPUs have flushed, or until a broadcast is complete.
    FlushWait = "flush_wait",
    /// Waiting for a lock on the CPU. A CPU whose thread sleeps for a lock runs another thread, or
    /// is idle.
    LockWait = "lock_wait",
    /// Flush interrupts that the CPU took, and the time that broadcasts and firmware took from it.
    Interrupts = "interrupts",
    /// Invalidations of this CPU's TLB, loads of a root that discard a tag's entries, and issues of
    /// broadcasts.
    Invalidations = "invalidations",
    /// Walks of page tables after a miss.
    Refills = "refills",
    /// No thread to run, and waking up from an idle state.
    Idle = "idle",
}

/// Times by cause, of one CPU or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct TimeByCause([Time; COUNT]);

impl TimeByCause {
    /// The difference from an earlier reading.
    pub fn since(&self, earlier: &Self) -> Self {
        Self(core::array::from_fn(|cause| self.0[cause] - earlier.0[cause]))
    }

    /// The mean of sums over `runs`, each rounded down to a picosecond. 0 runs count as 1.
    pub fn mean(&self, runs: u64) -> Self {
        Self(self.0.map(|time| Time::from_ps(time.ps() / runs.max(1))))
    }

    /// The sum over all causes.
    #[must_use]
    pub fn total(&self) -> Time {
        self.0.iter().copied().sum()
    }
}

impl Index<Cause> for TimeByCause {
    type Output = Time;

    fn index(&self, cause: Cause) -> &Time {
        &self.0[cause as usize]
    }
}

impl AddAssign for TimeByCause {
    fn add_assign(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, time)| *sum += time);
    }
}

impl<'t> Sum<&'t Self> for TimeByCause {
    fn sum<I: Iterator<Item = &'t Self>>(times: I) -> Self {
        times.fold(Self::default(), |mut sum, times| {
            sum += *times;
            sum
        })
    }
}

/// Serialises as a map from [`Cause::name_ns`] to nanoseconds, rounded down.
impl Serialize for TimeByCause {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(COUNT))?;
        for cause in Cause::ALL {
            map.serialize_entry(cause.name_ns(), &self[cause].ns())?;
        }
        map.end()
    }
}

/// The causes of one CPU's time so far.
#[derive(Debug, Default)]
pub(crate) struct Causes {
    current: Cause,
    since: Time,
    spent: TimeByCause,
}

impl Causes {
    pub(crate) fn is_kernel(&self) -> bool {
        self.current == Cause::Kernel
    }

    /// Changes the cause at the CPU's time `now`. Returns the cause before.
    #[inline]
    pub(crate) fn change(&mut self, cause: Cause, now: Time) -> Cause {
        let before = core::mem::replace(&mut self.current, cause);
        self.spent.0[before as usize] += now - self.since;
        self.since = now;
        before
    }

    /// Attributes the last `time` until now, which belongs to the current cause so far, to another
    /// cause.
    #[inline]
    pub(crate) fn attribute_last(&mut self, time: Time, cause: Cause) {
        self.spent.0[cause as usize] += time;
        self.since += time;
    }

    /// Attributes a part of the current cause's time, which has passed, to another cause.
    pub(crate) fn transfer(&mut self, part: Time, cause: Cause, now: Time) {
        let current = self.change(self.current, now);
        let spent = &mut self.spent.0;
        let part = part.min(spent[current as usize]);
        spent[current as usize] = spent[current as usize] - part;
        spent[cause as usize] += part;
    }

    pub(crate) fn at(&self, now: Time) -> TimeByCause {
        let mut spent = self.spent;
        spent.0[self.current as usize] += now.saturating_sub(self.since);
        spent
    }
}
