//! The start of a workload's run, and the handler of its interrupts.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use shootdown_program::stream::{Stream, StreamError};
use shootdown_vm::Scheduling as _;

use crate::kernel::arch::{Arch, Architecture, Boot, Interrupt, set_interrupt_handler};
use crate::kernel::coherence::Engine;
use crate::kernel::counts;
use crate::kernel::executor::{self, Executor, executor};
use crate::kernel::load::{Load, Settings};
use crate::kernel::scheduler::{self, Stack};
use crate::kernel::sync::Once;
use crate::kernel::{machine, memory};

/// Number of other CPUs that are ready.
static ONLINE: AtomicU32 = AtomicU32::new(0);
/// Set when threads may run.
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);
/// The settings, for the interrupt handler.
static SETTINGS: Once<Settings> = Once::new();

/// Runs the workload of `load`, on the first CPU.
pub(crate) fn run(boot: &Boot, load: &Load) -> ! {
    set_interrupt_handler(interrupt);
    memory::set_up(&boot.memory, load.settings.frames, load.settings.replicas);
    let settings = *SETTINGS.set(load.settings);
    let cpus = settings.cpus;
    machine::set_up(&settings);
    scheduler::set_up(settings, executor::after_switch);
    let stream = checked(load.rest).unwrap_or_else(|error| panic!("{error}"));
    Executor::set_up(settings, load.on_fault, stream);
    for cpu in 1..cpus {
        Arch::start_cpu(cpu, Stack::new().leak());
    }
    while ONLINE.load(Ordering::Acquire) != cpus - 1 {
        Arch::spin_hint();
    }
    Engine.online();
    // Create all threads before any of them runs, as the simulated machine does.
    executor().start();
    HAS_BEGUN.store(true, Ordering::Release);
    Arch::send(&mut (1..cpus), Interrupt::Wake);
    scheduler::run_cpu()
}

/// Runs threads of the workload, on CPUs other than the first.
pub(crate) fn run_on_other() -> ! {
    ONLINE.fetch_add(1, Ordering::AcqRel);
    while !HAS_BEGUN.load(Ordering::Acquire) {
        Arch::wait_for_interrupt();
    }
    Engine.online();
    scheduler::run_cpu()
}

/// Handles an interrupt. It allocates and frees nothing, and takes no lock but the scheduler's,
/// because the interrupted thread may hold any other lock.
fn interrupt(interrupt: Interrupt) {
    let counts = counts::this_cpu();
    match interrupt {
        Interrupt::Flush => {
            let begin_ns = Arch::now_ns();
            Engine.interrupt();
            counts.flush_interrupts_taken.add(1);
            counts.interrupted_ns.add(Arch::now_ns() - begin_ns);
        }
        Interrupt::Wake => counts.wake_interrupts_taken.add(1),
        Interrupt::Timer => {
            counts.timer_interrupts_taken.add(1);
            scheduler::tick();
            if Arch::cpu() == 0 {
                let Settings { cpus, stall_ns, .. } = *SETTINGS.get();
                scheduler::watch(cpus, stall_ns);
            }
        }
    }
}

fn checked(bytes: &'static [u8]) -> Result<Stream<'static>, StreamError> {
    let stream = Stream::parse(bytes)?;
    stream.check()?;
    Ok(stream)
}
