//! The end of a run, and the panic handler, which ends it.

use core::panic::PanicInfo;

use crate::kernel::arch::{Arch, Architecture, Status};
use crate::kernel::console::println;

/// Ends the run, after the line by which `shootdown boot` distinguishes an end from a crash.
pub(crate) fn end(status: Status) -> ! {
    let word = if status == Status::Passed { "passed" } else { "failed" };
    println!("end {word}");
    Arch::exit(status)
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    Arch::mask_interrupts();
    println!("fatal cpu={} {info}", Arch::cpu());
    end(Status::Failed)
}
