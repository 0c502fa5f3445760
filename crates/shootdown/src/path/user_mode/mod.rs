//! *User mode*: a CPU that uses no kernel page, and that flushes of the kernel's translations leave
//! alone. It catches up when it enters the kernel.
//!
//! The idea is that of V. Schneider's series for Linux, "Defer some IPIs until a user->kernel
//! transition" (version 8 of 2026, not merged). The fence and the comparison of generations come
//! from the handshake of this engine, which [`rules`](crate::rules) shows.

use core::sync::atomic::Ordering::Relaxed;

use crate::base::memory::{Word, order};
use crate::base::rules::Rule;
use crate::parts::cpu_set::CpuSet;
use crate::parts::extent::Extent;
use crate::state::cpu_state::{Activity, CpuState};
use crate::state::machine::{Machine, is_checked};
use crate::state::pinned_cpu::PinnedCpu;

/// The CPU may use every page of the kernel.
pub(crate) const IN_KERNEL: u64 = 0;
/// The CPU uses only pages of the kernel that no flush covers.
const IN_USER: u64 = 1;

impl<M: Machine> PinnedCpu<'_, M> {
    /// Publishes that this CPU is in user mode, where flushes of the kernel's translations do not
    /// interrupt it. It catches up in [`enter_kernel`](Self::enter_kernel).
    ///
    /// Call this as late as you can before the return to user mode, on the CPUs whose programs
    /// must not be interrupted. A CPU that becomes idle for long may call it as well, and remains
    /// online.
    ///
    /// From here until `enter_kernel` returns, this CPU may use only kernel pages that no flush
    /// covers in that time, or that the kernel [names](Machine::is_used_on_entry). That includes
    /// its handlers that cannot be masked, and walks of page tables by software. It must not use
    /// the engine in any other way: an interrupt's handler calls `enter_kernel` first.
    ///
    /// Flushes of the space that the CPU has loaded reach it as before. So do kernel flushes that
    /// [free tables](Extent::freeing_tables), because a CPU in user mode may still walk them.
    ///
    /// # Panics
    ///
    /// If the machine is [checked](Machine::CHECKS), and the CPU is in user mode already. Does not
    /// compile unless the machine [isolates](Machine::ISOLATES) CPUs.
    #[inline]
    pub fn enter_user(&self) {
        const { assert!(M::ISOLATES, "`Machine::ISOLATES` must be `true`") }
        drop(self.begin());
        if is_checked::<M>() {
            self.local().activity.set(Activity::User);
        }
        // Pairs with InUserAcquire of a kernel flush, which does not wait for this CPU from here
        // on. Without: this CPU's last accesses hit a kernel page that the flush's caller has
        // freed.
        self.cpu.bell.owned.0.in_user.store(IN_USER, order(self.machine(), Rule::EnterUserRelease));
    }

    /// Publishes that this CPU is in the kernel, and catches up with the kernel flushes that it has
    /// missed in user mode.
    ///
    /// Call this first on each entry from user mode, be it a system call, a fault or an interrupt.
    /// If no flush was missed, the call is one barrier and one comparison: 8 instructions on
    /// x86-64. On a CPU that is not in user mode, it costs the same and changes nothing.
    ///
    /// # Panics
    ///
    /// As [`enter_user`](Self::enter_user), if the CPU is in an operation of the engine.
    #[inline]
    pub fn enter_kernel(&self) {
        const { assert!(M::ISOLATES, "`Machine::ISOLATES` must be `true`") }
        if is_checked::<M>() && self.local().activity.get() == Activity::User {
            self.local().activity.set(Activity::Idle);
        }
        let _operation = self.begin();
        // Pairs with FlushFence of a kernel flush. Either the flush finds this CPU in the kernel,
        // and interrupts it; or this CPU observes the flush's generation.
        let (machine, in_user) = (self.machine(), &self.cpu.bell.owned.0.in_user);
        // Relaxed: a flush that finds this CPU in the kernel interrupts it.
        if machine.breaks(Rule::EnterKernelFence) {
            in_user.store(IN_KERNEL, Relaxed);
        } else {
            machine.store_then_fence(in_user, IN_KERNEL, Relaxed);
        }
        if !machine.breaks(Rule::CatchUpOnEntry) {
            self.catch_up_with_kernel();
        }
    }

    /// Returns `true` if this CPU is in user mode.
    #[cfg(feature = "soft")]
    pub(crate) fn is_in_user(&self) -> bool {
        // Relaxed: only this CPU writes the word.
        self.cpu.bell.owned.0.in_user.load(Relaxed) == IN_USER
    }

    /// Removes from `cpus` those that are in user mode, and catch up with a kernel flush of
    /// `extents` when they enter the kernel.
    #[inline]
    pub(crate) fn skip_in_user(&self, extents: &[Extent], cpus: &mut CpuSet<M::CpuBits>) {
        if !M::ISOLATES {
            return;
        }
        let machine = self.machine();
        // A CPU in user mode may walk the kernel's tables, or use its entry pages.
        let frees_tables =
            |it: &Extent| it.frees_tables() && !machine.breaks(Rule::RingInUserForTables);
        let is_entry = |it: &Extent| {
            machine.is_used_on_entry(*it) && !machine.breaks(Rule::RingInUserForEntry)
        };
        if extents.iter().any(|it| frees_tables(it) || is_entry(it)) {
            return;
        }
        let all = cpus.len();
        cpus.retain(|cpu| !machine.state(cpu).is_in_user(machine));
        self.counters().skipped_in_user.add_unshared((all - cpus.len()) as u64);
    }
}

impl<M: Machine> CpuState<M> {
    /// Returns `true` if the CPU is in user mode. See [`Rule::InUserAcquire`].
    #[inline]
    fn is_in_user(&self, machine: &M) -> bool {
        self.bell.owned.0.in_user.load(order(machine, Rule::InUserAcquire)) == IN_USER
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests;
