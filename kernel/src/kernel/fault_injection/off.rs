//! CPUs that are switched off in the middle of a storm and started again. They lose their stack,
//! registers and TLB contents, and enter the kernel as at boot.
//!
//! The first CPU starts them, because starting a CPU uses memory that only one CPU may use at a
//! time.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use shootdown::PinnedCpu;

use crate::kernel::arch::{Arch, Architecture};
use crate::kernel::boot_memory::BootMemory;
use crate::kernel::counts::CPUS_MAX;
use crate::kernel::fault_injection::engine::with_pinned;

/// For each CPU that is off, the turn of the storm at which it was switched off, plus 1. The CPU
/// stores it with release as its last action. The first CPU loads it with acquire before it starts
/// the CPU again. At that time, no code uses the CPU's old stack any more.
static OFF: [AtomicU64; CPUS_MAX] = [const { AtomicU64::new(0) }; CPUS_MAX];
/// For each CPU that was started again and has not run yet, its value of [`OFF`]. A CPU observes
/// all stores from before it was started.
static STARTED: [AtomicU64; CPUS_MAX] = [const { AtomicU64::new(0) }; CPUS_MAX];
/// Ends of the stacks for CPUs that are started again.
static STACKS: [AtomicUsize; CPUS_MAX] = [const { AtomicUsize::new(0) }; CPUS_MAX];

/// Allocates the stacks. Call this on the first CPU, before any CPU is switched off.
pub(crate) fn set_up(memory: &mut BootMemory, cpus: u32) {
    for stack in &STACKS[1..cpus as usize] {
        stack.store(memory.stack_end(), Ordering::Relaxed);
    }
}

/// Switches the calling CPU off at this turn of a storm.
pub(crate) fn switch_off(turn: u64) -> ! {
    with_pinned(PinnedCpu::offline);
    OFF[Arch::cpu() as usize].store(turn + 1, Ordering::Release);
    Arch::switch_off()
}

/// Starts all CPUs that are off. Call this on the first CPU.
pub(crate) fn start_again() {
    for (cpu, off) in (0..).zip(&OFF) {
        let turn = off.swap(0, Ordering::Acquire);
        if turn != 0 {
            STARTED[cpu as usize].store(turn, Ordering::Relaxed);
            Arch::start_cpu(cpu, STACKS[cpu as usize].load(Ordering::Relaxed));
        }
    }
}

/// Returns the turn at which this CPU was switched off; `None` if it was not.
pub(crate) fn take_turn(cpu: u32) -> Option<u64> {
    STARTED[cpu as usize].swap(0, Ordering::Relaxed).checked_sub(1)
}
