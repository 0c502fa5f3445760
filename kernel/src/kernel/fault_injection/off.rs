//! CPUs that are switched off in the middle of a storm, and started again: they lose their stack,
//! their registers and their TLB, and come from where CPUs come from at the beginning.
//!
//! The first CPU starts them, for that takes memory that only one uses at a time.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use shootdown::PinnedCpu;

use crate::kernel::arch::{Arch, Architecture};
use crate::kernel::boot_memory::BootMemory;
use crate::kernel::counts::CPUS_MAX;
use crate::kernel::fault_injection::engine::pin;

/// What a CPU that is off was at, from 1. Released by it, as the last thing that it does, and
/// acquired by who starts it again: it is not needed by anybody then.
static OFF: [AtomicU64; CPUS_MAX] = [const { AtomicU64::new(0) }; CPUS_MAX];
/// The same, of one that was started again and does not know it yet. What was stored before a CPU
/// is started, that sees.
static STARTED: [AtomicU64; CPUS_MAX] = [const { AtomicU64::new(0) }; CPUS_MAX];
/// Where the stacks end that they are to have.
static STACKS: [AtomicUsize; CPUS_MAX] = [const { AtomicUsize::new(0) }; CPUS_MAX];

/// Makes stacks. On the first CPU, before any is switched off.
pub(crate) fn set_up(memory: &mut BootMemory, cpus: u32) {
    for stack in &STACKS[1..cpus as usize] {
        stack.store(memory.stack_end(), Ordering::Relaxed);
    }
}

/// Switches the calling CPU off, which is at this turn of a storm.
pub(crate) fn switch_off(turn: u64) -> ! {
    pin(PinnedCpu::offline);
    OFF[Arch::cpu() as usize].store(turn + 1, Ordering::Release);
    Arch::switch_off()
}

/// On the first CPU: starts those that are off.
pub(crate) fn start_again() {
    for (cpu, off) in (0..).zip(&OFF) {
        let turn = off.swap(0, Ordering::Acquire);
        if turn != 0 {
            STARTED[cpu as usize].store(turn, Ordering::Relaxed);
            Arch::start_cpu(cpu, STACKS[cpu as usize].load(Ordering::Relaxed));
        }
    }
}

/// On a CPU that was started: at which turn it was switched off, if it was.
pub(crate) fn was_at(cpu: u32) -> Option<u64> {
    STARTED[cpu as usize].swap(0, Ordering::Relaxed).checked_sub(1)
}
