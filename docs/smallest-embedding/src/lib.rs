//! The smallest embedding of the engine: what a kernel calls, on any architecture.

#![no_std]

#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
#[cfg_attr(target_arch = "loongarch64", path = "loongarch64.rs")]
#[cfg_attr(target_arch = "riscv64", path = "riscv64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
pub mod arch;

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use shootdown::{Extent, Space};
use shootdown_hw::{Platform, ReadyEngine, ReadyMachine};

/// The engine, with the state of 64 CPUs.
pub static ENGINE: ReadyEngine<MyKernel, 64> = ReadyEngine::new();

pub type MySpace = Space<ReadyMachine<MyKernel>>;

// Four functions of your kernel.
unsafe extern "Rust" {
    /// The number of this CPU, from 0 on.
    safe fn cpu_number() -> u32;
    /// The interrupt controller's number of that CPU: its APIC ID, affinity, or hart ID.
    safe fn controller_id(cpu: u32) -> u64;
    /// Puts a dead space on a list. Free its page tables later, outside of the scheduler.
    safe fn put_on_dead_list(space: NonNull<MySpace>);
    /// Returns a frame to the allocator.
    safe fn free_frame(entry: u64);
}

pub struct MyKernel;

// SAFETY: the number of a CPU never changes, and the interrupt controller knows the CPU by its ID.
// None of these three functions takes a lock or uses the engine.
unsafe impl Platform for MyKernel {
    type Processor = arch::Processor;
    type Ipi = arch::Ipi;
    type CpuBits = [u64; 1];
    const CPU_NUMBER: fn() -> u32 = cpu_number;
    const CONTROLLER_ID: fn(u32) -> u64 = controller_id;
    const RECLAIM: fn(NonNull<MySpace>) = put_on_dead_list;
}

/// On each CPU, when its vectors and its interrupt controller are set up.
///
/// # Safety
///
/// Interrupts are masked, and `arch::start` has returned.
pub unsafe fn start_cpu() {
    // SAFETY: by the caller.
    unsafe { ENGINE.start_cpu() };
}

/// The handler of the flush interrupt.
///
/// # Safety
///
/// Nothing else calls this, and interrupts are masked in a handler.
pub unsafe fn flush_interrupt() {
    // SAFETY: by the caller.
    unsafe { ENGINE.handle_interrupt() };
}

/// The scheduler, before it runs a thread of `space`, or a kernel thread. Interrupts are masked.
pub fn switch(space: Option<&MySpace>) {
    // SAFETY: interrupts are masked, so that this CPU stays this one until the pin guard is gone.
    let cpu = unsafe { ENGINE.pin() };
    match space {
        // SAFETY: the space stays where it is until it is retired and reclaimed.
        Some(space) => unsafe { cpu.switch(space) },
        None => cpu.enter_lazy(),
    }
}

/// `munmap` of one page. Interrupts are masked; `entry` is its page-table entry.
pub fn unmap(space: &MySpace, entry: &AtomicU64, address: u64) {
    let old = entry.swap(0, Ordering::Release);
    // SAFETY: as above. Drop the lock of the page tables between `flush` and `wait`.
    unsafe { ENGINE.pin() }.flush(space, Extent::page(address)).wait();
    free_frame(old);
}

/// `exit`, after the last thread of the space is gone and its pages are free.
///
/// # Safety
///
/// See `PinnedCpu::retire`: no CPU uses the space any more, and it stays in place until
/// `put_on_dead_list` gets it.
pub unsafe fn exit(space: NonNull<MySpace>) {
    // SAFETY: as above, and by the caller.
    unsafe { ENGINE.pin().retire(space) }.wait();
}
