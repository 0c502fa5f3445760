//! The kernel's half of the machine.

#![expect(unsafe_code, reason = "calls functions of C")]

use core::marker::PhantomData;
use core::ptr::NonNull;

use shootdown::{CpuBits, CpuId, CpuSet, CpuState, Root, Space};
use shootdown_hw::Kernel;

use super::MachineOf;
use crate::config::Config;
use crate::os;

/// Number of CPUs in one call of the kernel: 256 bytes of stack.
const CALL_MAX: usize = 64;

/// The functions `shootdown_os_…` of the C kernel.
#[derive(Debug)]
pub(crate) struct Os<B> {
    cpu_limit: usize,
    root: Root,
    wake_waiters: Option<extern "C" fn(u32)>,
    cpus: PhantomData<B>,
}

impl<B: CpuBits> Os<B> {
    /// The kernel that `config` describes.
    pub(super) fn new(config: &Config) -> Self {
        let cpu_limit = match config.cpu_limit {
            0 => CpuSet::<B>::capacity(),
            limit => limit as usize,
        };
        let (root, wake_waiters) = (Root(config.kernel_root), config.wake_waiters);
        Self { cpu_limit, root, wake_waiters, cpus: PhantomData }
    }
}

// SAFETY: the kernel's functions keep the contracts that the header states. They are those of this
// trait.
unsafe impl<B: CpuBits + Sync + 'static> Kernel for Os<B> {
    type Processor = super::Processor;
    type CpuBits = B;

    const TRACES: bool = cfg!(feature = "trace");
    /// C has no types that keep the engine's contracts.
    const CHECKS: bool = cfg!(feature = "checks");
    const ISOLATES: bool = cfg!(feature = "isolation");
    const FLUSHES_AT_REUSE: bool = cfg!(feature = "reuse");

    #[cfg(feature = "percpu-gs")]
    #[inline(always)]
    fn state(&self, cpu: CpuId) -> &CpuState<MachineOf<B>> {
        // SAFETY: the kernel has stored the address of each CPU's variables, and has initialised
        // the state with `shootdown_cpu_init`. It has the type of this library's only machine.
        unsafe {
            let base = *(&raw const os::shootdown_os_percpu_base).cast::<usize>().add(cpu.index());
            let offset = (&raw const os::shootdown_os_percpu_state).addr();
            &*core::ptr::with_exposed_provenance(base.wrapping_add(offset))
        }
    }

    #[cfg(feature = "percpu-gs")]
    #[inline(always)]
    fn cpu(&self) -> CpuId {
        let number;
        // SAFETY: the kernel has stored the number of each CPU, before this CPU uses the library.
        // It stays the same while the library's caller is pinned.
        unsafe {
            core::arch::asm!(
                "mov {:e}, dword ptr gs:[{}]", out(reg) number,
                sym os::shootdown_os_percpu_number,
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        CpuId(number)
    }

    #[cfg(feature = "percpu-gs")]
    #[inline(always)]
    fn this_cpu(&self) -> (CpuId, &CpuState<MachineOf<B>>) {
        let base: usize;
        // SAFETY: as for the number, and for the state of any CPU.
        let state = unsafe {
            core::arch::asm!(
                "mov {}, qword ptr gs:[{}]", out(reg) base,
                sym os::shootdown_os_percpu_offset,
                options(pure, readonly, nostack, preserves_flags),
            );
            let offset = (&raw const os::shootdown_os_percpu_state).addr();
            &*core::ptr::with_exposed_provenance(base.wrapping_add(offset))
        };
        (self.cpu(), state)
    }

    #[cfg(not(feature = "percpu-gs"))]
    #[inline]
    fn state(&self, cpu: CpuId) -> &CpuState<MachineOf<B>> {
        // SAFETY: the kernel returns the address of a state that it has initialised with
        // `shootdown_cpu_init`, and that stays there. It has the type of this library's only
        // machine.
        unsafe { &*os::shootdown_os_cpu(cpu.0).cast() }
    }

    #[cfg(not(feature = "percpu-gs"))]
    #[inline]
    fn cpu(&self) -> CpuId {
        // SAFETY: the kernel defines the function without preconditions.
        CpuId(unsafe { os::shootdown_os_this_cpu() })
    }

    #[inline]
    fn cpu_limit(&self) -> usize {
        self.cpu_limit
    }

    #[inline]
    fn root(&self) -> Root {
        self.root
    }

    fn ring(&self, cpus: &CpuSet<B>) {
        for_each_block(cpus, |numbers| {
            // SAFETY: the array has this many numbers.
            unsafe { os::shootdown_os_ring(numbers.as_ptr(), numbers.len()) };
        });
    }

    #[cfg(feature = "away")]
    #[inline]
    fn is_away(&self, cpu: CpuId) -> bool {
        // SAFETY: the kernel defines the function without preconditions.
        unsafe { os::shootdown_os_is_away(cpu.0) }
    }

    #[cfg(feature = "isolation")]
    fn is_used_on_entry(&self, extent: shootdown::Extent) -> bool {
        let count = if extent.is_long() { 0 } else { extent.page_count() };
        let shift = extent.page_size().shift();
        // SAFETY: the kernel defines the function without preconditions.
        unsafe { os::shootdown_os_is_used_on_entry(extent.start(), count, shift) }
    }

    #[cfg(feature = "devices")]
    fn issue_to_devices(
        &self,
        space: &Space<MachineOf<B>>,
        extents: &[shootdown::Extent],
    ) -> shootdown::DeviceTicket {
        let space = core::ptr::from_ref(space).cast();
        let issue = |extent: &shootdown::Extent| {
            let is_all = extent.is_whole() || extent.is_long();
            let count = if is_all { 0 } else { extent.page_count() };
            let (shift, frees_tables) = (extent.page_size().shift(), extent.frees_tables());
            // SAFETY: the kernel defines the function without preconditions.
            unsafe {
                os::shootdown_os_issue_to_devices(space, extent.start(), count, shift, frees_tables)
            }
        };
        shootdown::DeviceTicket(extents.iter().map(issue).max().unwrap_or(0))
    }

    #[cfg(feature = "devices")]
    fn devices_are_done(&self, ticket: shootdown::DeviceTicket) -> bool {
        // SAFETY: the kernel defines the function without preconditions.
        unsafe { os::shootdown_os_devices_are_done(ticket.0) }
    }

    #[cfg(feature = "trace")]
    fn trace_clock_ns(&self) -> u64 {
        // SAFETY: the kernel defines the function without preconditions.
        unsafe { os::shootdown_os_trace_clock_ns() }
    }

    #[cfg(feature = "trace")]
    fn trace_flush(&self, trace: &shootdown::FlushTrace) {
        // SAFETY: the event is valid during the call.
        unsafe { os::shootdown_os_trace_flush(&trace.into()) };
    }

    #[cfg(feature = "trace")]
    fn trace_wait(&self, trace: &shootdown::WaitTrace) {
        // SAFETY: the event is valid during the call.
        unsafe { os::shootdown_os_trace_wait(&trace.into()) };
    }

    #[cold]
    fn wake_waiters(&self, cpu: CpuId) {
        if let Some(wake) = self.wake_waiters {
            wake(cpu.0);
        }
    }

    fn reclaim(&self, space: NonNull<Space<MachineOf<B>>>) {
        // SAFETY: the kernel has passed this address to `shootdown_retire`.
        unsafe { os::shootdown_os_reclaim(space.as_ptr().cast()) };
    }

    #[inline]
    fn wait_hint(&self, waiting: &CpuSet<B>) {
        if let Some(cpu) = waiting.iter().next() {
            // SAFETY: the kernel defines the function without preconditions.
            unsafe { os::shootdown_os_wait_hint(cpu.0) };
        }
    }
}

/// Calls `call` with the numbers of all CPUs of a set, in blocks.
pub(super) fn for_each_block<B: CpuBits>(cpus: &CpuSet<B>, mut call: impl FnMut(&[u32])) {
    let mut numbers = [0; CALL_MAX];
    let mut count = 0;
    for cpu in cpus.iter() {
        numbers[count] = cpu.0;
        count += 1;
        if count == CALL_MAX {
            call(&numbers);
            count = 0;
        }
    }
    if count != 0 {
        call(&numbers[..count]);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::vec::Vec;

    #[test]
    fn cpu_65_needs_a_second_call() {
        for count in [0, 1, 64, 65, 128, 129] {
            let mut cpus = CpuSet::<[u64; 3]>::new();
            (0..count).for_each(|cpu| cpus.insert(CpuId(cpu)));
            let mut calls = Vec::new();
            for_each_block(&cpus, |numbers| calls.push(numbers.to_vec()));
            let all: Vec<u32> = (0..count).collect();
            assert!(calls.iter().eq(all.chunks(64)), "{count} CPUs in {calls:?}");
        }
    }
}
