//! The calls of the kernel's functions that every machine makes.

#![expect(unsafe_code, reason = "calls functions of C")]

use core::ptr::NonNull;

use shootdown::{CpuBits, CpuId, CpuSet, CpuState, Machine, Space};

use crate::config::Config;
use crate::os;

/// Number of CPUs in one call of `shootdown_os_ring`: 256 bytes of stack.
const RING_MAX: usize = 64;

#[inline]
pub(super) fn state<M: Machine>(cpu: CpuId) -> &'static CpuState<M> {
    // SAFETY: the kernel returns the address of a state that it has initialised with
    // `shootdown_cpu_init`, and that stays there. It has the type of this library's only machine.
    unsafe { &*os::shootdown_os_cpu(cpu.0).cast() }
}

#[inline]
pub(super) fn cpu() -> CpuId {
    // SAFETY: the kernel defines the function without preconditions.
    CpuId(unsafe { os::shootdown_os_this_cpu() })
}

pub(super) fn ring<B: CpuBits>(cpus: &CpuSet<B>) {
    let mut numbers = [0; RING_MAX];
    let mut count = 0;
    for cpu in cpus.iter() {
        numbers[count] = cpu.0;
        count += 1;
        if count == RING_MAX {
            // SAFETY: the array has this many numbers.
            unsafe { os::shootdown_os_ring(numbers.as_ptr(), count) };
            count = 0;
        }
    }
    if count != 0 {
        // SAFETY: the array has at least this many numbers.
        unsafe { os::shootdown_os_ring(numbers.as_ptr(), count) };
    }
}

pub(super) fn reclaim<M: Machine>(space: NonNull<Space<M>>) {
    // SAFETY: the kernel has passed this address to `shootdown_retire`.
    unsafe { os::shootdown_os_reclaim(space.as_ptr().cast()) };
}

#[inline]
pub(super) fn wait_hint<B: CpuBits>(waiting: &CpuSet<B>) {
    if let Some(cpu) = waiting.iter().next() {
        // SAFETY: the kernel defines the function without preconditions.
        unsafe { os::shootdown_os_wait_hint(cpu.0) };
    }
}

/// Upper limit of the number of CPUs.
#[inline]
pub(super) fn cpu_limit<B: CpuBits>(config: &Config) -> usize {
    match config.cpu_limit {
        0 => CpuSet::<B>::capacity(),
        limit => limit as usize,
    }
}
