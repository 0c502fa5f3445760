//! *Walks by software*: a CPU that reads page tables by itself, with the flush interrupt masked.
//!
//! A flush that frees a table waits for the answer of each CPU that could walk the table. A CPU
//! that walks by software, with the interrupt masked, does not answer before its walk has ended. So
//! the interrupt protects the walk, as it protects a walk of the hardware.
//!
//! There is one exception: a flush does not wait for a CPU that is [away](Machine::is_away),
//! because the CPU empties its TLB before it runs. But the TLB does not hold the pointer that a
//! walk by software has read. So a CPU marks its walks, and a flush waits for a CPU that is away
//! within one.
//!
//! ```text
//!   flush                                        CPU
//!   ─────                                        ───
//!   unhook the table                             walks += 1
//!   away?                  (DeferAcquire)        read the pointer to the table
//!   walks > 0 → ring, wait (WalkAcquire,         its hypervisor stops it (StopRelease)
//!                           WaitForWalks)        … it returns, with an empty TLB
//!   free the table                               read the table
//!                                                walks −= 1             (WalkRelease)
//! ```
//!
//! The flush reads `walks` after it has found the CPU away. Either the CPU was stopped within the
//! walk: then the flush observes the mark, or the end of the walk. Or the CPU began its walk after
//! its return: then it observes that the table is unhooked ([`Rule::ReturnAcquire`]).

#![expect(unsafe_code, reason = "ends a walk whose guard was forgotten")]

use core::marker::PhantomData;
use core::sync::atomic::Ordering::Relaxed;

use crate::base::memory::{Word, order};
use crate::base::rules::Rule;
use crate::state::cpu_state::CpuState;
use crate::state::machine::Machine;
use crate::state::pinned_cpu::PinnedCpu;

impl<'e, M: Machine> PinnedCpu<'e, M> {
    /// Begins a walk of page tables by software on this CPU, of the kernel's tables or of a space
    /// that the CPU has loaded. The walk lasts until the returned guard is dropped.
    ///
    /// Call this before you read the root's entry, and keep the flush interrupt masked until the
    /// guard is dropped. Until then, no table is freed that the walk can reach, and no page is
    /// reused that it can find. That does not hold for flushes that are
    /// [broadcast](Machine::broadcaster), which no masked interrupt delays.
    ///
    /// Only a kernel whose CPUs may be [away](Machine::is_away) has to call this. It costs two
    /// stores to the CPU's own line. Walks may nest. Until a walk has ended, flushes wait for this
    /// CPU even if it is away.
    pub fn begin_walk(&self) -> SoftwareWalk<'e, M> {
        // Relaxed: a flush reads the word after it has found that this CPU was stopped, and
        // StopRelease orders this store before that.
        self.cpu.walks.store(self.cpu.walks.load(Relaxed) + 1, Relaxed);
        SoftwareWalk { cpu: self.cpu, machine: self.machine(), not_send: PhantomData }
    }

    /// Ends a walk whose [guard](Self::begin_walk) was forgotten ([`core::mem::forget`]): for a
    /// kernel that cannot keep the guard, as one in C.
    ///
    /// # Safety
    ///
    /// A guard of this CPU was forgotten, and this is the only call for it. The walk has ended.
    pub unsafe fn end_walk(&self) {
        drop(SoftwareWalk { cpu: self.cpu, machine: self.machine(), not_send: PhantomData });
    }
}

/// A walk of page tables by software, which ends when this is dropped. See
/// [`PinnedCpu::begin_walk`].
#[must_use = "the walk ends when this is dropped"]
pub struct SoftwareWalk<'e, M: Machine> {
    cpu: &'e CpuState<M>,
    machine: &'e M,
    not_send: PhantomData<*mut ()>,
}

impl<M: Machine> Drop for SoftwareWalk<'_, M> {
    fn drop(&mut self) {
        // Relaxed: only this CPU writes the word.
        let left = self.cpu.walks.load(Relaxed).saturating_sub(1);
        self.cpu.walks.store(left, order(self.machine, Rule::WalkRelease));
    }
}

impl<M: Machine> core::fmt::Debug for SoftwareWalk<'_, M> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SoftwareWalk").finish_non_exhaustive()
    }
}

impl<M: Machine> CpuState<M> {
    /// Returns `true` if the CPU is within a walk by software. Call this after the CPU was found
    /// [away](Machine::is_away).
    #[inline]
    pub(crate) fn is_walking(&self, machine: &M) -> bool {
        let walks = self.walks.load(order(machine, Rule::WalkAcquire));
        walks != 0 && !machine.breaks(Rule::WaitForWalks)
    }
}
