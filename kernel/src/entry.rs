//! Where CPUs come from the architecture's code, and where its handlers call.

use core::fmt;
use core::panic::PanicInfo;

use crate::arch::{Arch, Architecture, Boot, Interrupt, Status};
use crate::by_hand::Memory;
use crate::console::println;
use crate::load::{Load, Mode};
use crate::{smoke, trials};

/// The first CPU begins here, with interrupts masked.
pub(crate) fn main_on_first_cpu(boot: &Boot) -> ! {
    Arch::set_up_cpu(0);
    let load = Load::parse(boot.load);
    println!("boot {} cpus={} memory={:#x}", Arch::NAME, load.cpus, boot.memory.end);
    let mut memory = Memory::new(boot);
    if load.mode == Mode::Trials {
        trials::engine::make(&mut memory, load.cpus);
    }
    smoke::run(&mut memory, load.cpus);
    match load.mode {
        Mode::Smoke => end(Status::Passed),
        Mode::Trials => trials::run(&mut memory, load.cpus),
    }
}

/// Every other CPU begins here, with interrupts masked.
pub(crate) fn main_on_other_cpu(cpu: u32) -> ! {
    Arch::set_up_cpu(cpu);
    smoke::run_on_other(cpu);
    if trials::engine::is_made() {
        trials::user::obey(cpu);
    }
    loop {
        Arch::wait_for_interrupt();
    }
}

/// An interrupt has come, and its controller been told so. Interrupts are masked.
pub(crate) fn interrupt(interrupt: Interrupt) {
    if smoke::is_over() {
        trials::interrupt(interrupt);
    } else {
        smoke::interrupt(interrupt);
    }
}

/// Something happened that must not: says what, and ends the run.
pub(crate) fn fatal(what: fmt::Arguments<'_>) -> ! {
    Arch::mask_interrupts();
    println!("fatal cpu={} {what}", Arch::cpu());
    end(Status::Failed)
}

/// Ends the run, with the line by which whoever started it tells an end from a crash.
pub(crate) fn end(status: Status) -> ! {
    let word = match status {
        Status::Passed => "passed",
        Status::Failed => "failed",
    };
    println!("end {word}");
    Arch::exit(status)
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    fatal(format_args!("{info}"))
}
