//! Unexpected exceptions, which end the run.

use core::arch::global_asm;

use super::register::read;
use super::{console, end};
use crate::kernel::arch::contract::Status;

global_asm!(include_str!("vectors.s"));

/// Kinds of exceptions and places where they are taken from, in the order of the vectors.
const KINDS: [&str; 4] = ["exception", "interrupt", "FIQ", "SError"];
const PLACES: [&str; 4] = ["kernel on SP_EL0", "kernel", "user", "user in AArch32"];

/// Reports an unexpected exception. `vectors.s` calls this once, on a stack that is valid.
#[unsafe(no_mangle)]
extern "C" fn report_unexpected(vector: usize, stack: usize) -> ! {
    end::if_begun();
    let (kind, place) = (KINDS[vector % 4], PLACES[vector / 4 % 4]);
    let (syndrome, address) = (read!("esr_el1"), read!("far_el1"));
    panic!(
        "{kind} in {place}: {} esr={syndrome:#x} far={address:#x} pc={:#x} sp={stack:#x}",
        cause(syndrome),
        read!("elr_el1"),
    )
}

/// Ends the run. `vectors.s` calls this if an exception is taken while another is reported.
#[unsafe(no_mangle)]
extern "C" fn end_immediately() -> ! {
    end::if_begun();
    b"\nend failed during a report\n".iter().copied().for_each(console::write);
    end::exit(Status::Failed)
}

/// The name of the exception class, for classes that errors of a kernel cause.
fn cause(syndrome: u64) -> &'static str {
    match syndrome >> 26 & 0x3f {
        0x00 => "an unknown instruction",
        0x07 => "floating point",
        0x0e => "an illegal state",
        0x20 | 0x21 => "instruction abort",
        0x22 => "a misaligned program counter",
        0x24 | 0x25 => "data abort",
        0x26 => "a misaligned stack",
        0x3c => "a breakpoint",
        _ => "see ESR_EL1",
    }
}
