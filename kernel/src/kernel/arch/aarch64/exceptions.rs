//! Exceptions that nobody expects: what they were, and the end.

use core::arch::global_asm;

use super::register::read;
use super::{console, end};
use crate::kernel::arch::contract::Status;

global_asm!(include_str!("vectors.s"));

/// In the order of the vectors, from each of four places.
const KINDS: [&str; 4] = ["exception", "interrupt", "FIQ", "SError"];
const PLACES: [&str; 4] = ["kernel on SP_EL0", "kernel", "user", "user in AArch32"];

/// From `vectors.s`, on a stack that is good, once.
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

/// From `vectors.s`, when that has gone wrong, too.
#[unsafe(no_mangle)]
extern "C" fn end_immediately() -> ! {
    end::if_begun();
    b"\nend failed, while that was said\n".iter().copied().for_each(console::write);
    end::exit(Status::Failed)
}

/// The classes that a kernel's errors have.
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
