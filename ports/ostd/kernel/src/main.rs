//! The kernel of the comparison: it maps, touches, protects and unmaps memory on several CPUs, and
//! prints the coherence work of each scenario.
//!
//! The command line names the scenarios, or `all`. With `counted`, the clock counts instructions,
//! and they are printed. With `unnotified`, no CPU is notified of another CPU's flush: then stale
//! reads must appear. With `stuck`, one CPU never answers, and the kernel hangs.

#![no_std]
#![no_main]
#![allow(unexpected_cfgs, reason = "`ostd::main` has a condition of the framework's tests")]

extern crate alloc;

mod clock;
mod gate;
mod measurement;
mod process;
mod readers;
mod scenarios;
mod scheduler;
mod user;

use ostd::power::{ExitCode, poweroff};
use ostd::prelude::println;

#[ostd::main]
fn main() {
    scheduler::inject();
    ostd::boot::smp::register_ap_entry(|| scheduler::spawn_idle(scheduler::this_cpu()));
    scheduler::spawn_idle(0);
    scheduler::spawn(0, None, || {
        let line = ostd::boot::boot_info().kernel_cmdline.as_str();
        scenarios::run(line);
        println!("end");
        poweroff(ExitCode::Success);
    });
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    println!("{}", info);
    poweroff(ExitCode::Failure);
}

#[ostd::global_frame_allocator]
static FRAME_ALLOCATOR: osdk_frame_allocator::FrameAllocator = osdk_frame_allocator::FrameAllocator;

#[ostd::global_heap_allocator]
static HEAP_ALLOCATOR: osdk_heap_allocator::HeapAllocator = osdk_heap_allocator::HeapAllocator;

#[ostd::global_heap_allocator_slot_map]
const fn slot_of(layout: core::alloc::Layout) -> Option<ostd::mm::heap::SlotInfo> {
    osdk_heap_allocator::type_from_layout(layout)
}

#[ostd::early_cmdline_parser]
const fn parse_early(_: &str) -> ostd::boot::EarlyCmdline {
    ostd::boot::EarlyCmdline { log_level: ostd::log::LevelFilter::Warning, has_early_console: true }
}
