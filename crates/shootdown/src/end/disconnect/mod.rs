//! *Disconnect*: a surviving CPU takes a CPU that has stopped in a crash out of the engine.
//!
//! A kernel that stops a CPU by NMI cannot let the CPU go [offline](PinnedCpu::offline) first: the
//! CPU may be in the middle of any method. Another CPU then does in its place what the words in
//! shared memory show to be left:
//!
//! - *Before it answered, or in its handler.* CPUs wait for its answer: its bell is disconnected,
//!   which counts as a round.
//! - *With a space loaded.* Its presence and its hazard pointer are cleared. If the space is dead,
//!   the CPU's reference is dropped.
//! - *With an ASID loaded.* The reservation ends.
//! - *After it rang a bell, before it sent the interrupt.* The interrupt is sent again.
//! - *While it held the lock of the ASID allocator.* The lock is released.
//!
//! What the engine cannot repair is only late or lost, never wrong:
//!
//! - A flush of the stopped CPU has been counted, or nothing was freed for it. Its [`Pending`] is
//!   lost, and with it the pages that its caller would have freed. The same holds for tables in a
//!   [`Gather`](crate::Gather) and for pages in a [`Batch`](crate::Batch). The batch's spaces stay
//!   marked: each [`flush_if_batched`](PinnedCpu::flush_if_batched) of them flushes.
//! - Tables in [`Quarantine`](crate::Quarantine) belong to the kernel, which has to free its own
//!   locks. The CPU does not hold back their [`Horizon`](crate::Horizon) any more.
//! - If the CPU stopped while it trimmed a cpumask, that mask is not trimmed any more.
//! - If the CPU stopped while it wrote a log entry, no other CPU can write that entry: a writer
//!   that is only late looks the same. One flush in 16 of that space is not logged any more, and a
//!   CPU that misses such a flush drops its tag. A log of the kernel's translations, likewise.
//! - A dead space is not reclaimed if the CPU stopped just after it dropped the space, before it
//!   reclaimed it, or while its handler dropped it.
//!
//! [`Pending`]: crate::Pending

#![expect(unsafe_code, reason = "only the kernel knows that a CPU has stopped")]

use core::marker::PhantomData;
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;

use crate::base::ids::CpuId;
use crate::base::memory::Word;
use crate::parts::bell::BellState;
use crate::parts::cpu_set::CpuSet;
use crate::parts::hazard::Hazard;
use crate::parts::presence::Presence;
use crate::path::user_mode::IN_KERNEL;
use crate::state::cpu_state::Activity;
use crate::state::machine::Machine;
use crate::state::pinned_cpu::PinnedCpu;

impl<M: Machine> PinnedCpu<'_, M> {
    /// Disconnects a CPU that has stopped in a crash, wherever it was: it leaves its space, and no
    /// other CPU waits for it or interrupts it any more. Waits for its answer that have begun end.
    ///
    /// Call this on a surviving CPU, which may be inside [`Machine::wait_hint`]. The stopped CPU
    /// may come back [`online`](Self::online) after a reset. The [source][source] lists what is
    /// repaired, and what is lost.
    ///
    /// If this drops the last reference to a dead space, it calls [`Machine::reclaim`].
    ///
    /// [source]: https://docs.rs/shootdown/latest/src/shootdown/end/disconnect/mod.rs.html
    ///
    /// # Panics
    ///
    /// If `cpu` is this CPU.
    ///
    /// # Safety
    ///
    /// - `cpu` has stopped: from before this call until it calls [`online`](Self::online), it is
    ///   off, or runs code that uses only memory that is never flushed, with the kernel's own root
    ///   loaded and interrupts masked. It never continues what it was doing. A CPU that does not
    ///   answer has *not* stopped by that alone.
    /// - Every access of `cpu` happens before this call. For instance, the handler of the NMI that
    ///   stops it loads the kernel's root and then stores a flag with release, and this CPU has
    ///   loaded the flag with acquire.
    /// - On a machine that [broadcasts](Machine::broadcaster), the handler has also called
    ///   [`Broadcaster::complete`](crate::Broadcaster::complete), because the broadcasts of a CPU
    ///   can be completed only there.
    /// - No other CPU disconnects `cpu` at the same time.
    pub unsafe fn disconnect(&self, cpu: CpuId) {
        let _operation = self.begin_nested();
        assert_ne!(cpu, self.id, "a CPU that runs goes offline");
        let state = self.machine().state(cpu);
        // The guard of the stopped CPU. The caller promises that the CPU executes nothing, so this
        // is the only thread of execution that accesses the CPU's own part.
        let stopped = PinnedCpu { engine: self.engine, cpu: state, id: cpu, not_send: PhantomData };
        stopped.leave_stopped();
        stopped.withdraw();
        self.repair_asids(cpu);
        self.release_asids(state);
        self.ring_again();
    }

    /// Clears the presence and the hazard pointer of this CPU, which has stopped.
    fn leave_stopped(&self) {
        let local = self.local();
        local.loaded.set(ptr::null());
        // It may have stopped in the middle of an operation, which never ends.
        local.activity.set(Activity::Idle);
        local.policy.outstanding.set(0);
        // Relaxed: `withdraw` removes the CPU from the online set with LeaveOnlineRelease. A flush
        // that finds the CPU back in the set reads a later value of the set, and acquires this.
        self.cpu.bell.owned.0.in_user.store(IN_KERNEL, Relaxed);
        // Relaxed: no walk of the CPU goes on.
        self.cpu.walks.store(0, Relaxed);
        // In the middle of a round, the handler may have dropped its reference already, and not yet
        // changed the hazard pointer. To drop it twice would free a space that is in use.
        let may_have_dropped = self.cpu.bell.state() == BellState::Answering;
        let hazard = self.replace_hazard(Hazard::NOTHING, self.presence());
        self.set_presence(Presence::Out.into());
        if hazard.is_orphaned() || hazard.is_dead() && !may_have_dropped {
            self.release_hazard(hazard);
        }
    }

    /// Sends the flush interrupt again to every CPU whose bell is rung: the CPU that rang it may
    /// have stopped before it sent the interrupt. An interrupt too many finds the bell quiet.
    fn ring_again(&self) {
        let machine = self.machine();
        let mut online = CpuSet::new();
        self.engine.online().read_into(machine, &mut online);
        online.retain(|cpu| machine.state(cpu).bell.state() == BellState::Rung);
        let mut this = CpuSet::new();
        if online.contains(self.id) {
            online.remove(self.id);
            this.insert(self.id);
        }
        for cpus in [online, this].iter().filter(|cpus| !cpus.is_empty()) {
            self.counters().interrupts_sent.add_unshared(cpus.len() as u64);
            machine.ring(cpus);
        }
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests;
