//! A workload from the set-up to its threads, and the interrupts that come meanwhile.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use shootdown_program::stream::{Stream, StreamError};
use shootdown_vm::Scheduling as _;

use crate::kernel::arch::{Arch, Architecture, Boot, Interrupt, set_interrupt_handler};
use crate::kernel::coherence::Engine;
use crate::kernel::counts;
use crate::kernel::load::Load;
use crate::kernel::scheduler::{self, Settings, Stack};
use crate::kernel::sync::Once;
use crate::kernel::world::{self, World, world};
use crate::kernel::{machine, memory};

/// How many other CPUs wait for the beginning.
static ONLINE: AtomicU32 = AtomicU32::new(0);
/// Threads can be run.
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);
/// For handlers.
static SETTINGS: Once<Settings> = Once::new();

/// The first CPU.
pub(crate) fn run(boot: &Boot, load: &Load) -> ! {
    set_interrupt_handler(interrupt);
    let Load { cpus, slice_ns, tick_ns, stall_ns, on_fault, rest, .. } = *load;
    memory::set_up(&boot.memory);
    let settings = *SETTINGS.set(Settings { cpus, slice_ns, tick_ns, stall_ns });
    machine::set_up(cpus, stall_ns);
    scheduler::set_up(settings, world::after_switch);
    let stream = checked(rest).unwrap_or_else(|error| panic!("{error}"));
    World::set_up(settings, on_fault, stream);
    for cpu in 1..cpus {
        Arch::start_cpu(cpu, Stack::new().leak());
    }
    while ONLINE.load(Ordering::Acquire) != cpus - 1 {
        Arch::spin_hint();
    }
    Engine.online();
    // All of them before any runs, as on the simulated machine.
    world().start();
    HAS_BEGUN.store(true, Ordering::Release);
    Arch::send(&mut (1..cpus), Interrupt::Wake);
    scheduler::run_cpu()
}

/// All others.
pub(crate) fn run_on_other() -> ! {
    ONLINE.fetch_add(1, Ordering::AcqRel);
    while !HAS_BEGUN.load(Ordering::Acquire) {
        Arch::wait_for_interrupt();
    }
    Engine.online();
    scheduler::run_cpu()
}

/// An interrupt has come. Nothing is allocated or freed here, and no lock taken but the
/// scheduler's: who was interrupted may hold any other.
fn interrupt(interrupt: Interrupt) {
    let counts = counts::pin();
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
