//! *Flush of the kernel*: of translations that all spaces share.

use core::slice;

use crate::base::rules::Rule;
use crate::parts::extent::Extent;
use crate::parts::extent_set::ExtentSet;
use crate::parts::flush_log::Cause;
use crate::parts::trace_event::{FlushCause, TraceScope};
use crate::path::pending::Pending;
use crate::path::trace::pages_of;
use crate::state::machine::Machine;
use crate::state::pinned_cpu::PinnedCpu;

impl<'e, M: Machine> PinnedCpu<'e, M> {
    /// Flushes `extent` of the kernel's own translations, global ones included, on every CPU that
    /// is online, because idle CPUs also run the kernel. A CPU that has [entered user
    /// mode](Self::enter_user) is left alone, and catches up when it enters the kernel.
    ///
    /// As [`flush`](Self::flush), for the part of the page tables that all spaces share.
    pub fn flush_kernel(&self, extent: Extent) -> Pending<'e, M> {
        self.flush_kernel_all(if extent.is_empty() { &[] } else { slice::from_ref(&extent) })
    }

    /// Flushes several extents of the kernel's own translations in one flush, which interrupts each
    /// CPU once. Flushes nothing if there is no extent.
    ///
    /// For a kernel that collects the ranges that it unmaps, and flushes when it has many. (Linux:
    /// `vunmap` with lazy purging.)
    pub fn flush_kernel_gathered(&self, extents: &ExtentSet) -> Pending<'e, M> {
        self.flush_kernel_all(extents.up_to(self.machine().flush_ceiling()))
    }

    fn flush_kernel_all(&self, extents: &[Extent]) -> Pending<'e, M> {
        let (_operation, began_ns) = (self.begin(), self.begin_trace());
        let mut pending = Pending::done(self.engine);
        if !extents.is_empty() {
            self.flush_kernel_extents(extents, &mut pending);
            let (cause, pages) = (FlushCause::Kernel, pages_of::<M>(extents));
            self.end_trace(began_ns, cause, TraceScope::Kernel, pages, &mut pending);
        }
        pending
    }

    fn flush_kernel_extents(&self, extents: &[Extent], pending: &mut Pending<'e, M>) {
        let (machine, kernel) = (self.machine(), self.engine.kernel());
        self.publish_tables();
        // A machine broadcasts all extents or none. If one is refused, all CPUs are rung for all.
        if extents.iter().all(|&extent| self.try_broadcast_kernel(extent)) {
            self.await_broadcast(pending);
            return;
        }
        let last = kernel.bump(machine, extents.len() as u64);
        for (generation, &extent) in (last + 1 - extents.len() as u64..).zip(extents) {
            kernel.record(machine, generation, extent, Cause::Explicit);
        }
        if !machine.breaks(Rule::RingOnline) {
            self.engine.online().read_into(machine, &mut pending.waiting);
            pending.waiting.remove(self.id);
            self.skip_in_user(extents, &mut pending.waiting);
        }
        self.ring_online(pending);
        self.catch_up_with_kernel();
    }
}
