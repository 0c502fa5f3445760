//! Instruction counts of the engine's hot paths on bare metal.
//!
//! `crates/hot-paths` counts the same paths on the host, with hardware that does nothing. Here they
//! are counted with that hardware, and with the processor as it is. The emulator counts: with
//! `-icount shift=0`, time is the number of instructions.
//!
//! # How the clock is subtracted
//!
//! [`time`] calls a path by its address from one place, between two readings of the clock, and an
//! empty function from the same place with the same arguments. The difference is the path without
//! its return, and a return is one instruction: callgrind also counts from a function's first
//! instruction to its last. A path is run once on each system, because it leaves the system in
//! another state, and on as many systems as there are rounds.
//!
//! Where a clock ticks only once in several instructions, a run counts a few too many or too few,
//! depending on when it begins between two ticks. Therefore it begins at a random time.

#![expect(unsafe_code, reason = "makes the systems, whose hardware is real; and waits for little")]

use core::arch::asm;
use core::hint::black_box;

use shootdown::Root;
use shootdown_hot_paths::{Path, Plain, Roots, Stage, System, budget};
use shootdown_hw::Processor;

use crate::kernel::arch::{Arch, Architecture, Boot, Status};
use crate::kernel::console::println;
use crate::kernel::end::end;
use crate::kernel::memory;

/// Counts all paths, and ends the run. On the first CPU, with no others.
pub(crate) fn run(boot: &Boot, runs: u64) -> ! {
    memory::set_up(&boot.memory);
    let runs = runs.max(1);
    let roots = Roots { kernel: Arch::kernel_root(), spaces: [(); Roots::SPACES].map(|()| root()) };
    Counter { hardware: "none", processor: || Plain, roots, runs, delays: 1 }.count_all();
    let processor = Arch::processor;
    Counter { hardware: Arch::NAME, processor, roots, runs, delays: 1 }.count_all();
    end(Status::Passed)
}

/// Page tables that map the kernel and nothing else, for ever.
fn root() -> Root {
    let frame = memory::frames().allocate().expect("this is the first that is used");
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
    /// How often each path is run; not 0.
    runs: u64,
    /// The state of a generator of random numbers.
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
        // The return, which the empty function has as well.
        let tenths = (total.max(0).unsigned_abs() * 10).div_ceil(self.runs) + 10;
        let (count, tenth) = (tenths / 10, tenths % 10);
        println!(
            "{{\"path\":\"{name}\",\"hardware\":\"{hardware}\",\
             \"instructions\":{count}.{tenth},\"budget\":{budget}}}"
        );
    }

    /// Time of a function, with its call, in the state from which a path begins.
    fn time(&mut self, path: &Path<P, WIDTH>, run: fn(&mut Stage<P, WIDTH>)) -> i64 {
        // SAFETY: interrupts are masked until the end, and nobody uses addresses below the kernel's
        // half; each root maps the rest, and stays.
        let system = unsafe { System::new((self.processor)(), &self.roots) };
        let stage = (path.prepare)(&system);
        self.delays = self.delays.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        // A turn is three instructions, or any other number that no clock's ticks are multiples of.
        for _ in 0..(self.delays >> 32) % 64 {
            // SAFETY: it does nothing.
            unsafe { asm!("nop", options(nomem, nostack, preserves_flags)) };
        }
        time(black_box(run), stage)
    }
}

/// One piece of code for all functions, so that instructions outside of them are the same.
#[inline(never)]
fn time<S>(run: fn(&mut S), state: &mut S) -> i64 {
    let start = Arch::instructions();
    run(state);
    Arch::instructions().wrapping_sub(start).cast_signed()
}
