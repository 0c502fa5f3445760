//! Instruction counts of the engine's hot paths on bare metal.
//!
//! `crates/hot-paths` counts the same paths on the host, with hardware that does nothing. This
//! module counts them with that hardware and with the real processor. The emulator counts: with
//! `-icount shift=0`, its clock is the number of instructions.
//!
//! # How the clock is subtracted
//!
//! [`time`] calls a path by its address from one place, between two readings of the clock, and
//! calls an empty function from the same place with the same arguments. The difference is the path
//! without its return, which is one instruction; callgrind also counts from a function's first
//! instruction to its last. A path leaves its system in another state, so it is run once on each
//! system, and on as many systems as there are rounds.
//!
//! Where the clock ticks only once in several instructions, a run counts a few instructions too
//! many or too few. The error depends on when the run begins between two ticks, so each run begins
//! at a random time.

#![expect(unsafe_code, reason = "creates systems whose hardware is real, and executes `nop`")]

use core::arch::asm;
use core::hint::black_box;

use shootdown::Root;
use shootdown_hot_paths::{Path, Plain, Roots, Stage, System, budget};
use shootdown_hw::Processor;

use crate::kernel::arch::{Arch, Architecture, Boot, Status};
use crate::kernel::console::println;
use crate::kernel::end::end;
use crate::kernel::load::Replicas;
use crate::kernel::memory;

/// Counts all paths and ends the run. Call this on the first CPU, before there are others.
pub(crate) fn run(boot: &Boot, runs: u64) -> ! {
    memory::set_up(&boot.memory, u64::MAX, Replicas::Never);
    let runs = runs.max(1);
    let roots = Roots { kernel: Arch::kernel_root(), spaces: [(); Roots::SPACES].map(|()| root()) };
    Counter::<Plain> { hardware: "none", processor: || Plain, roots, runs, delays: 1 }.count_all();
    let processor = Arch::processor;
    Counter { hardware: Arch::NAME, processor, roots, runs, delays: 1 }.count_all();
    end(Status::Passed)
}

/// Allocates page tables that map the kernel and nothing else.
fn root() -> Root {
    let frame = memory::frames().allocate().expect("memory has room for a few roots");
    memory::page::clear(frame);
    let root = Root(frame.address());
    Arch::prepare_root(root);
    root
}

/// Width of the CPU sets, in words: the kernel has up to 64 CPUs.
const WIDTH: usize = 1;

struct Counter<P> {
    /// The name of the processor in reports.
    hardware: &'static str,
    processor: fn() -> P,
    roots: Roots,
    /// Number of runs of each path; at least 1.
    runs: u64,
    /// State of a random number generator.
    delays: u64,
}

impl<P: Processor + 'static> Counter<P> {
    fn count_all(mut self) {
        for path in &Path::<P, WIDTH>::ALL {
            self.count(path);
        }
    }

    fn count(&mut self, path: &Path<P, WIDTH>) {
        let mut total = 0;
        for _ in 0..self.runs {
            total += self.time(path, path.run);
            total -= self.time(path, |_| {});
        }
        let (name, hardware) = (path.name, self.hardware);
        let budget = budget(path.limits.measured[0]);
        // The return instruction, which the empty function also has, was subtracted.
        let tenths = (total.max(0).unsigned_abs() * 10).div_ceil(self.runs) + 10;
        let (count, tenth) = (tenths / 10, tenths % 10);
        println!(
            "{{\"path\":\"{name}\",\"hardware\":\"{hardware}\",\
             \"instructions\":{count}.{tenth},\"budget\":{budget}}}"
        );
    }

    /// The time of a call of `run`, in the state from which `path` begins.
    fn time(&mut self, path: &Path<P, WIDTH>, run: fn(&mut Stage<P, WIDTH>)) -> i64 {
        // SAFETY: interrupts are masked until the end. Nothing uses addresses below the kernel's
        // half, and each root maps that half for ever.
        let system = unsafe { System::new((self.processor)(), &self.roots) };
        let stage = (path.prepare)(&system);
        self.delays = self.delays.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        // An iteration takes three instructions, or another number of which no tick is a multiple.
        for _ in 0..(self.delays >> 32) % 64 {
            // SAFETY: `nop` has no effect.
            unsafe { asm!("nop", options(nomem, nostack, preserves_flags)) };
        }
        time(black_box(run), stage)
    }
}

/// Counts the instructions of a call. It is one piece of code for all functions, so that the
/// instructions around the call are the same.
#[inline(never)]
fn time<S>(run: fn(&mut S), state: &mut S) -> i64 {
    let start = Arch::instructions();
    run(state);
    Arch::instructions().wrapping_sub(start).cast_signed()
}
