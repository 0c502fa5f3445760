//! The contract with hardware, or firmware, that invalidates on other CPUs without interrupting
//! them.
//!
//! A machine that never broadcasts says `type Broadcaster = NoBroadcaster`. That type has no value,
//! so no such machine can be asked to broadcast, and no code is left for the question.

#![expect(unsafe_code, reason = "states a contract that the engine's safety rests on")]

use crate::costs::NotifyCosts;
use crate::cpu_set::{CpuBits, CpuSet};
use crate::extent::Extent;
use crate::ids::Tag;

/// The capabilities of a [`Broadcaster`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broadcast {
    /// The CPUs that a broadcast reaches.
    pub reach: Reach,
    /// Number of pages that one operation can name: 1 for `TLBI VAE1IS`, more with
    /// `FEAT_TLBIRANGE` or `INVLPGB`.
    pub pages_per_operation: usize,
    /// Number of operations above which the whole tag is dropped instead.
    pub operation_ceiling: usize,
}

/// The CPUs that a broadcast reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Every CPU, whatever it runs, and devices that share page tables (Arm, AMD).
    Everyone,
    /// The CPUs that the operation names (RISC-V: SBI's remote fence).
    Targets,
}

/// A way to invalidate translations on other CPUs without interrupting their kernels.
///
/// # Safety
///
/// An implementation guarantees:
///
/// - [`capabilities`](Self::capabilities) always returns the same value, on every CPU;
/// - no broadcast takes effect earlier than an `invalidate` method of
///   [`Machine`](crate::Machine#safety) may;
/// - when [`complete`](Self::complete) returns, every broadcast that this CPU issued before has
///   taken full effect on every CPU that it reaches, as the `invalidate` methods would have there.
///   Those CPUs have also completed every access that used a translation which is now gone.
pub unsafe trait Broadcaster {
    /// The capabilities of this broadcaster.
    fn capabilities(&self) -> Broadcast;

    /// The costs by which the engine chooses between interrupts and broadcasts.
    fn costs(&self) -> NotifyCosts;

    /// Begins to drop the translations of `extent` under `tag` as
    /// [`Machine::invalidate`](crate::Machine::invalidate) does, or all of the tag if the extent is
    /// [whole](Extent::is_whole).
    ///
    /// With [`Reach::Targets`], reaches the CPUs of `cpus`. With [`Reach::Everyone`], reaches every
    /// CPU, this one included, and ignores `cpus`.
    fn broadcast<B: CpuBits>(&self, cpus: &CpuSet<B>, tag: Tag, extent: Extent);

    /// Begins to drop the kernel's pages in `extent`, or everything if it is whole, as
    /// [`Machine::invalidate_kernel`](crate::Machine::invalidate_kernel) does.
    ///
    /// The engine calls this only with [`Reach::Everyone`].
    fn broadcast_kernel(&self, extent: Extent);

    /// Waits for all broadcasts that *this* CPU has issued (`dsb ish`, `TLBSYNC`). Those of other
    /// CPUs are for them to complete. (Linux assumed that any CPU can: 4b634918384c.)
    ///
    /// Returns the duration of the wait in ns; 0 if it is not measured.
    fn complete(&self) -> u64;

    /// A clock of this CPU in ns, by which the engine measures how long CPUs take to answer an
    /// interrupt; always 0 if they are not to be measured.
    #[inline]
    fn clock_ns(&self) -> u64 {
        0
    }
}

/// The broadcaster of a machine that never broadcasts. It has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoBroadcaster {}

// SAFETY: it has no value, so no method is ever called.
unsafe impl Broadcaster for NoBroadcaster {
    fn capabilities(&self) -> Broadcast {
        match *self {}
    }
    fn costs(&self) -> NotifyCosts {
        match *self {}
    }
    fn broadcast<B: CpuBits>(&self, _: &CpuSet<B>, _: Tag, _: Extent) {
        match *self {}
    }
    fn broadcast_kernel(&self, _: Extent) {
        match *self {}
    }
    fn complete(&self) -> u64 {
        match *self {}
    }
}
