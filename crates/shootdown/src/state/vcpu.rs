//! *Virtual CPUs that are away*: the word with which a hypervisor and its guest defer a flush.
//!
//! A hypervisor may stop a virtual CPU for milliseconds. A flush that interrupts such a CPU waits
//! until it runs again. Instead, the flush may leave a request in the word of that CPU, and the
//! hypervisor empties the CPU's TLB before it runs the CPU again. (KVM: `KVM_VCPU_PREEMPTED` and
//! `KVM_VCPU_FLUSH_TLB` in the steal time of a virtual CPU.)
//!
//! The flush and the hypervisor meet in read-modify-writes of one word:
//!
//! ```text
//!   flush                                        hypervisor
//!   ─────                                        ──────────
//!   clear the entry                              last access of the CPU
//!   full fence             (FlushFence)          away := 1              (StopRelease, KeepRequest)
//!   away → request a flush (DeferAcquire)        …
//!        skip the CPU      (SkipAway)            away, request := 0     (ReturnAcquire)
//!   not away → ring, wait                        it was requested → empty the TLB
//!   free the page                                run the CPU: walk page tables
//! ```
//!
//! The request is a compare-and-swap, so there are two cases. Either the hypervisor finds the
//! request before the CPU's first access, or the flush finds the CPU running, and rings it. A load
//! in place of the compare-and-swap leaves a third: the CPU is away when the flush looks, and runs
//! with its old TLB when the flush frees the page. A hypervisor may stop a CPU twice before the CPU
//! runs: `away := 1` keeps the request.
//!
//! This is both ends of the protocol, for a kernel whose hypervisor is written in Rust, and for a
//! kernel that stops its own CPUs. The guest's end of KVM's protocol is in `shootdown-hw`.

#![expect(unsafe_code, reason = "only the hypervisor knows whether a CPU runs")]

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::base::memory::{Memory, Word, order};
use crate::base::rules::Rule;
use crate::state::machine::Entries;

/// The word of one virtual CPU, which its hypervisor and the flushing CPUs of its guest share.
///
/// A CPU is *away* between [`stop`](Self::stop) and [`resume`](Self::resume). The guest's
/// [`Machine::is_away`](crate::Machine::is_away) calls [`defer_flush`](Self::defer_flush).
pub struct VcpuWord<M: Memory>(M::Word);

/// The CPU runs.
const RUNNING: u64 = 0;
/// The CPU does not run.
const AWAY: u64 = 1;
/// A flush has requested that the TLB is emptied before the CPU runs again. Only with [`AWAY`].
const FLUSH: u64 = 2;

impl<M: Memory<Word = AtomicU64>> VcpuWord<M> {
    /// The word of a CPU that runs.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(RUNNING))
    }
}

impl<M: Memory> VcpuWord<M> {
    /// Records that the CPU has stopped. May be called again before the CPU runs.
    ///
    /// # Safety
    ///
    /// The CPU's accesses happen before this call. From now on until the next
    /// [`resume`](Self::resume), the CPU accesses no memory and walks no page table.
    pub unsafe fn stop(&self, machine: &M) {
        let release = order(machine, Rule::StopRelease);
        if machine.breaks(Rule::KeepRequest) {
            self.0.store(AWAY, release);
        } else {
            self.0.fetch_or(AWAY, release);
        }
    }

    /// Records that the CPU is about to run. The hypervisor calls this before the CPU's first
    /// access.
    ///
    /// # Safety
    ///
    /// If the result is [`Discard`](Entries::Discard), the caller empties the TLB of the CPU before
    /// the CPU accesses memory or walks page tables, as
    /// [`Machine::invalidate_all`](crate::Machine::invalidate_all) does. On a CPU that orders
    /// page-table walks weakly, the caller synchronizes between this call and the invalidation, as
    /// [`Machine::synchronize`](crate::Machine::synchronize) does.
    #[must_use = "the CPU's TLB must be emptied if a flush has requested it"]
    pub unsafe fn resume(&self, machine: &M) -> Entries {
        if self.0.swap(RUNNING, order(machine, Rule::ReturnAcquire)) & FLUSH == 0 {
            Entries::Keep
        } else {
            Entries::Discard
        }
    }

    /// Requests that the CPU's TLB is emptied before the CPU runs again. Returns `false` if the CPU
    /// is not away: then there is no request.
    ///
    /// Call this after the flush's page-table writes and a full fence, as the engine calls
    /// [`Machine::is_away`](crate::Machine::is_away).
    #[inline]
    pub fn defer_flush(&self, machine: &M) -> bool {
        // Relaxed: a hint, which the exchange below confirms.
        let mut found = self.0.load(Relaxed);
        while found & AWAY != 0 {
            // Exchanged even if another flush has made the request: the hypervisor then acquires
            // the page-table writes of both flushes, and this flush the CPU's last accesses.
            // Relaxed on failure: the exchange is repeated.
            let acquire = order(machine, Rule::DeferAcquire);
            match self.0.compare_exchange(found, AWAY | FLUSH, acquire, Relaxed) {
                Ok(_) => return true,
                Err(newer) => found = newer,
            }
        }
        false
    }
}

impl<M: Memory> Default for VcpuWord<M> {
    /// The word of a CPU that runs.
    fn default() -> Self {
        Self(M::Word::new(RUNNING))
    }
}

impl<M: Memory> core::fmt::Debug for VcpuWord<M> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("VcpuWord").finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use super::*;
    use crate::soft::{Config, Host, Soft};

    #[test]
    fn request_holds_for_one_return_and_two_stops() {
        let engine = Soft::<Host>::engine(Config::default());
        let (machine, word) = (engine.machine(), VcpuWord::<Soft<Host>>::new());
        assert!(!word.defer_flush(machine), "the CPU runs");
        for flushes in 0..3 {
            // SAFETY: there is no CPU that accesses memory.
            unsafe { word.stop(machine) };
            assert!((0..flushes).all(|_| word.defer_flush(machine)));
            // SAFETY: as above.
            unsafe { word.stop(machine) };
            let expected = if flushes == 0 { Entries::Keep } else { Entries::Discard };
            // SAFETY: as above.
            assert_eq!(unsafe { word.resume(machine) }, expected, "{flushes} flushes");
            assert!(!word.defer_flush(machine), "the CPU runs again");
            // SAFETY: as above.
            assert_eq!(unsafe { word.resume(machine) }, Entries::Keep);
        }
    }
}
