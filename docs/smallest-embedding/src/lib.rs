//! The smallest embedding of the engine: what a kernel calls, on any architecture.

#![no_std]
#![allow(
    missing_docs,
    missing_debug_implementations,
    unsafe_code,
    reason = "an example: the book explains each line"
)]

#[cfg(target_arch = "aarch64")]
#[path = "aarch64.rs"]
mod arch;
#[cfg(target_arch = "loongarch64")]
#[path = "loongarch64.rs"]
mod arch;
#[cfg(target_arch = "riscv64")]
#[path = "riscv64.rs"]
mod arch;
#[cfg(target_arch = "x86_64")]
#[path = "x86_64.rs"]
mod arch;

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use shootdown::{Extent, Shootdown, Space};
use shootdown_hw::Bare;

pub use arch::{MyKernel, engine, flush_interrupt, start_cpu};

pub type Machine = Bare<MyKernel>;

// Four functions that your kernel has already.
unsafe extern "Rust" {
    /// The number of this CPU, from 0 on.
    safe fn cpu_number() -> u32;
    /// What the interrupt controller calls that CPU.
    safe fn controller_id(cpu: u32) -> u64;
    /// Puts a dead space on a list. Free its page tables later, outside of the scheduler.
    safe fn put_on_dead_list(space: NonNull<Space<Machine>>);
    /// Returns a frame to the allocator.
    safe fn free_frame(entry: u64);
}

/// The scheduler, before it runs a thread of `space`, or a kernel thread. Interrupts are masked.
pub fn switch(engine: &Shootdown<Machine>, space: Option<&Space<Machine>>) {
    // SAFETY: interrupts are masked, so that this CPU stays this one until the pin guard is gone.
    let cpu = unsafe { engine.pin() };
    match space {
        // SAFETY: the space stays where it is until it is retired and reclaimed.
        Some(space) => unsafe { cpu.switch(space) },
        None => cpu.enter_lazy(),
    }
}

/// `munmap` of one page. Interrupts are masked; `entry` is its page-table entry.
pub fn unmap(engine: &Shootdown<Machine>, space: &Space<Machine>, entry: &AtomicU64, address: u64) {
    let old = entry.swap(0, Ordering::Release);
    // SAFETY: as above.
    let mut flush = unsafe { engine.pin() }.flush(space, Extent::page(address));
    // Drop the lock of the page tables here: the wait does not need it.
    flush.wait();
    free_frame(old);
}

/// `exit`, after the last thread of the space is gone and its pages are free.
///
/// # Safety
///
/// See `PinnedCpu::retire`: no CPU uses the space any more, and it stays in place until
/// `put_on_dead_list` gets it.
pub unsafe fn exit(engine: &Shootdown<Machine>, space: NonNull<Space<Machine>>) {
    // SAFETY: as above, and by the caller.
    unsafe { engine.pin().retire(space) }.wait();
}
