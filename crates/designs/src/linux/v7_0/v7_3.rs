//! Linux 7.3: a thread that waits until other CPUs have flushed can be preempted.
//!
//! Until then, the thread keeps its CPU until the last target has flushed, however long that takes:
//! a target may have masked interrupts, or may be a virtual CPU that its hypervisor does not run.
//! The series (Zhou, "Allow preemption during IPI completion waiting", v9 of June 2026) ends the
//! section without preemption when the interrupts are sent and the local flush is done. For that,
//! the description of the flush moves to the stack, and the mask of the targets that are waited for
//! belongs to the task. The call objects still belong to the CPU. See
//! `linux/calls.rs`.
//!
//! The targets are those of `linux-7.0`. If no thread waits behind a flush, times differ by the
//! line of the description alone, which moves with its thread.
//!
//! A flush that Linux makes while a page table is locked keeps its CPU: that of a copy on write, of
//! pages that move, and of large pages that are split or made.
//!
//! # Differences from Linux
//!
//! - A thread is preempted as soon as another one should run, as with `preempt=full`. With
//!   `preempt=lazy`, it is preempted at the next tick.
//! - No other code of the kernel is preempted.
//! - Masks are private to their tasks in both, and cost nothing.

use std::rc::Rc;

use shootdown_sim::Sim;
use shootdown_vm::Cause;

use super::Linux70;
use crate::linux::calls::ObjectLock;
use crate::linux::lifetime::ExitFlush;
use crate::linux::{Calls, LinuxRule};

impl Linux70 {
    /// Creates the design `linux-7.3` on this machine. It breaks the rule `broken`, for tests that
    /// expect the oracle to detect that.
    pub fn waiting_preemptibly(sim: Rc<Sim>, broken: Option<LinuxRule>) -> Self {
        let object_lock = match broken {
            Some(LinuxRule::LockCall) => ObjectLock::Broken,
            _ => ObjectLock::Waits,
        };
        let calls = Calls::new(sim.machine().cpu_count()).preemptible(object_lock);
        Self { calls, broken, ..Self::counted(sim, ExitFlush::Interrupts) }
    }
}

/// Returns `true` if Linux flushes with a page table locked (`ptep_clear_flush`, `move_ptes`,
/// `pmdp_collapse_flush`, `__split_huge_pmd`).
pub(super) const fn locks_table(cause: Cause) -> bool {
    matches!(
        cause,
        Cause::CopyOnWrite | Cause::Move | Cause::Collapse | Cause::Split | Cause::Reclaim
    )
}
