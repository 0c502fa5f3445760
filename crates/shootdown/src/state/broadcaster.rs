//! The contract with hardware or firmware that invalidates on other CPUs without interrupting them.
//!
//! A machine that never broadcasts declares `type Broadcaster = NoBroadcaster`. That type has no
//! value, so the compiler removes all code that broadcasts.

#![expect(unsafe_code, reason = "states a contract that the engine's safety rests on")]

use crate::base::costs::NotifyCosts;
use crate::base::ids::Tag;
use crate::parts::cpu_set::{CpuBits, CpuSet};
use crate::parts::extent::Extent;

/// The capabilities of a [`Broadcaster`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broadcast {
    /// The CPUs that a broadcast reaches.
    pub reach: Reach,
    /// Number of pages that one operation can invalidate: 1 for `TLBI VAE1IS`, more with
    /// `FEAT_TLBIRANGE` or `INVLPGB`.
    pub pages_per_operation: usize,
    /// Number of operations above which the broadcast drops the whole tag instead.
    pub operation_ceiling: usize,
    /// `true` if a broadcast is complete when its call returns, as a call of firmware is: then
    /// [`complete`](Broadcaster::complete) has nothing to wait for.
    ///
    /// The engine then completes each broadcast on the CPU of the flush, before the flush returns.
    /// Otherwise it does so in the wait, and a wait that is not on that CPU, or that is unmasked,
    /// interrupts that CPU. (`true` is safe for every broadcaster, and costs the time between flush
    /// and wait.)
    pub completes_at_issue: bool,
}

/// Error of a broadcast that the hardware, the firmware or the hypervisor refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// The CPUs that a broadcast reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Every CPU, whichever space it runs, and devices that share page tables (Arm, AMD).
    Everyone,
    /// The CPUs that the operation names (RISC-V: SBI's remote fence).
    Targets,
    /// Every CPU, as [`Everyone`](Self::Everyone). An operation that drops a whole tag can instead
    /// be sent to the *domains* that contain some CPUs (Arm: TLBI domains, `FEAT_TLBID`).
    Domains,
}

/// The time that it takes to drop a tag in the domains of some CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DomainCosts {
    /// Time to issue and complete the operations, one for each domain, while no other CPU
    /// broadcasts.
    pub broadcast_ns: u64,
    /// Time that the CPUs then take to refill their TLBs. It is lost only if the flush names pages,
    /// whose invalidation would keep the other entries.
    pub refill_ns: u64,
}

/// A method to invalidate translations on other CPUs without interrupting their kernels.
///
/// # Safety
///
/// An implementation guarantees:
///
/// - [`capabilities`](Self::capabilities) always returns the same value, on every CPU;
/// - a broadcast of a [long](Extent::long) extent drops all addresses of the range, whatever the
///   size of the pages, or the whole tag;
/// - a broadcast takes effect no earlier than the `invalidate` methods of
///   [`Machine`](crate::Machine#safety) are allowed to;
/// - when [`complete`](Self::complete) returns, every broadcast that this CPU issued before the
///   call, and that was not [refused](Refused), has taken full effect on every CPU that it reaches,
///   as an `invalidate` method called there would have. Those CPUs have also completed every access
///   that used a dropped translation. A CPU of the set that is offline counts as reached.
pub unsafe trait Broadcaster {
    /// The capabilities of this broadcaster.
    fn capabilities(&self) -> Broadcast;

    /// The costs with which the engine chooses between interrupts and broadcasts.
    fn costs(&self) -> NotifyCosts;

    /// Begins to drop the translations of `extent` under `tag` as
    /// [`Machine::invalidate`](crate::Machine::invalidate) does, or all translations under the tag
    /// if the extent is [whole](Extent::is_whole).
    ///
    /// With [`Reach::Targets`], reaches the CPUs of `cpus`. Otherwise reaches every CPU, this one
    /// included, and ignores `cpus`.
    ///
    /// # Errors
    ///
    /// [`Refused`] if a CPU may keep a translation: some may have been invalidated on, or none. The
    /// engine then interrupts the CPUs. If the space is [pinned](crate::PinnedCpu::pin_tag) for a
    /// device that observes broadcasts, the engine also calls
    /// [`Machine::issue_to_devices`](crate::Machine::issue_to_devices).
    fn broadcast<B: CpuBits>(
        &self,
        cpus: &CpuSet<B>,
        tag: Tag,
        extent: Extent,
    ) -> Result<(), Refused>;

    /// Begins to drop the translations of the kernel's pages in `extent` as
    /// [`Machine::invalidate_kernel`](crate::Machine::invalidate_kernel) does, or every translation
    /// if the extent is whole.
    ///
    /// The engine calls this only if a broadcast reaches every CPU.
    ///
    /// # Errors
    ///
    /// [`Refused`] if a CPU may keep a translation. The engine then interrupts all CPUs. A
    /// broadcaster that cannot invalidate the kernel's pages always refuses.
    fn broadcast_kernel(&self, extent: Extent) -> Result<(), Refused>;

    /// The costs of [`broadcast_in_domains`](Self::broadcast_in_domains) to these CPUs; `None` if
    /// they are in more domains than an operation to every CPU is worth. The engine calls this only
    /// with [`Reach::Domains`], on the path that notifies other CPUs.
    ///
    /// By default, `None`.
    fn costs_in_domains<B: CpuBits>(&self, _cpus: &CpuSet<B>) -> Option<DomainCosts> {
        None
    }

    /// Begins to drop all translations under `tag` on each CPU of `cpus`, and maybe on others: on
    /// those of each domain that contains a CPU of `cpus`.
    ///
    /// The engine takes every CPU outside of `cpus` for one that was not reached, and lets it catch
    /// up. So domains may overlap, and may gain CPUs at any time. A domain may lose a CPU only if
    /// that CPU's TLB is emptied in between, as a hypervisor does that moves a virtual CPU; or if
    /// another domain has the CPU before, and a broadcast by the old assignment is complete.
    ///
    /// By default, every call is refused.
    ///
    /// # Errors
    ///
    /// [`Refused`] if a CPU of `cpus` may keep a translation. The engine then interrupts the CPUs.
    fn broadcast_in_domains<B: CpuBits>(
        &self,
        _cpus: &CpuSet<B>,
        _tag: Tag,
    ) -> Result<(), Refused> {
        Err(Refused)
    }

    /// Waits for all broadcasts that *this* CPU has issued (`dsb ish`, `TLBSYNC`). Only the issuer
    /// of a broadcast can complete it. (Linux assumed that any CPU can: 4b634918384c.)
    ///
    /// Returns the duration of the wait in ns, or 0 if it is not measured.
    fn complete(&self) -> u64;

    /// A clock of this CPU in ns, with which the engine measures the time that CPUs take to answer
    /// an interrupt. Always 0 if that time must not be measured.
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
    fn broadcast<B: CpuBits>(&self, _: &CpuSet<B>, _: Tag, _: Extent) -> Result<(), Refused> {
        match *self {}
    }
    fn broadcast_kernel(&self, _: Extent) -> Result<(), Refused> {
        match *self {}
    }
    fn complete(&self) -> u64 {
        match *self {}
    }
}
