//! The kernel's half of the engine's machine.

#![expect(unsafe_code, reason = "declares the kernel's half of the engine's contract")]

use core::ptr::NonNull;

use shootdown::{
    CpuBits, CpuId, CpuSet, CpuState, DeviceTicket, Extent, FlushTrace, Lifetime, Root, Space,
    StallReport, WaitTrace,
};

use crate::bare::Bare;
use crate::processor::Processor;

/// The engine's requirements of a kernel, on any processor. Each method is the method of
/// [`Machine`](shootdown::Machine) with the same name.
///
/// # Safety
///
/// The requirements of [`Machine`](shootdown::Machine) for these methods.
pub unsafe trait Kernel: Sync + Sized {
    /// The processor on which the kernel runs.
    type Processor: Processor;
    /// A set of CPUs: one bit for each possible CPU.
    type CpuBits: CpuBits;

    /// How the kernel keeps the page tables of a space allocated while lazy CPUs can walk them.
    const LIFETIME: Lifetime = Lifetime::Handoff;
    /// `true` if the kernel traces flushes and waits, with the three methods below.
    const TRACES: bool = false;

    /// See [`Machine::CHECKS`](shootdown::Machine::CHECKS).
    const CHECKS: bool = false;

    /// See [`Machine::ISOLATES`](shootdown::Machine::ISOLATES).
    const ISOLATES: bool = false;

    /// See [`Machine::FLUSHES_AT_REUSE`](shootdown::Machine::FLUSHES_AT_REUSE).
    const FLUSHES_AT_REUSE: bool = false;

    /// The engine's state of a CPU.
    fn state(&self, cpu: CpuId) -> &CpuState<Bare<Self>>;

    /// The CPU that runs this call.
    fn cpu(&self) -> CpuId;

    /// Both at once: see [`Machine::this_cpu`](shootdown::Machine::this_cpu).
    #[inline]
    fn this_cpu(&self) -> (CpuId, &CpuState<Bare<Self>>) {
        let cpu = self.cpu();
        (cpu, self.state(cpu))
    }

    /// The largest possible number of CPUs.
    fn cpu_limit(&self) -> usize {
        CpuSet::<Self::CpuBits>::capacity()
    }

    /// The page table that maps only the kernel. It must stay valid for ever.
    fn root(&self) -> Root;

    /// Sends the flush interrupt to `cpus`. Their handlers must observe all earlier stores of this
    /// CPU.
    fn ring(&self, cpus: &CpuSet<Self::CpuBits>);

    /// Returns `true` if CPUs answer before they invalidate, where no page table was freed: see
    /// [`Machine::answers_early`](shootdown::Machine::answers_early).
    #[inline]
    fn answers_early(&self) -> bool {
        false
    }

    /// Returns `true` if a hypervisor does not run `cpu`, and will empty its TLB before it runs
    /// again: the promise of [`Machine::is_away`](shootdown::Machine::is_away), which is more than
    /// that the CPU is not running. Under KVM, see [`x86_64::kvm`](crate::x86_64::kvm).
    #[inline]
    fn is_away(&self, cpu: CpuId) -> bool {
        let _ = cpu;
        false
    }

    /// See [`Machine::is_used_on_entry`](shootdown::Machine::is_used_on_entry).
    #[inline]
    fn is_used_on_entry(&self, extent: Extent) -> bool {
        let _ = extent;
        false
    }

    /// Begins to drop translations on the devices that are
    /// [attached](shootdown::Shootdown::attach_device) to a space: see
    /// [`Machine::issue_to_devices`](shootdown::Machine::issue_to_devices).
    ///
    /// # Panics
    ///
    /// The default implementation panics. A kernel that attaches no device needs no other.
    fn issue_to_devices(&self, space: &Space<Bare<Self>>, extents: &[Extent]) -> DeviceTicket {
        let _ = extents;
        panic!("a device is attached to {space:?}, which this kernel cannot invalidate on")
    }

    /// Returns `true` if these commands to devices are done: see
    /// [`Machine::devices_are_done`](shootdown::Machine::devices_are_done).
    ///
    /// # Panics
    ///
    /// The default implementation panics. A kernel whose devices are done at once needs no other.
    fn devices_are_done(&self, ticket: DeviceTicket) -> bool {
        panic!("this kernel issues {ticket:?}, and cannot ask whether devices are done")
    }

    /// Returns a retired space to the kernel. No CPU can use it any more.
    fn reclaim(&self, space: NonNull<Space<Bare<Self>>>);

    /// Called repeatedly while this CPU waits for other CPUs, before [the processor's
    /// hint](Processor::spin_hint). A kernel can count here, or yield a virtual CPU.
    fn wait_hint(&self, waiting: &CpuSet<Self::CpuBits>) {
        let _ = waiting;
    }

    /// Wakes threads that wait for the answer of `cpu`, which has answered:
    /// [`Machine::wake_waiters`](shootdown::Machine::wake_waiters).
    #[cold]
    fn wake_waiters(&self, cpu: CpuId) {
        let _ = cpu;
    }

    /// The time in nanoseconds since any fixed moment, for traces.
    #[inline]
    fn trace_clock_ns(&self) -> u64 {
        0
    }

    /// Called at the end of each flush, if the kernel [traces](Self::TRACES).
    #[inline]
    fn trace_flush(&self, trace: &FlushTrace) {
        let _ = trace;
    }

    /// Called at the end of each wait, if the kernel [traces](Self::TRACES).
    #[inline]
    fn trace_wait(&self, trace: &WaitTrace) {
        let _ = trace;
    }

    /// Reports a wait of some seconds, in builds with debug assertions:
    /// [`Machine::report_stall`](shootdown::Machine::report_stall).
    #[cold]
    fn report_stall(&self, report: &StallReport<'_, Bare<Self>>) {
        panic!("{report}");
    }
}
