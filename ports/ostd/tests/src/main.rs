//! Runs the framework's own unit tests. The runner is the framework's; this crate selects the
//! tests, and supplies what every kernel supplies.

#![no_std]
#![no_main]

extern crate osdk_test_kernel;

use core::panic::PanicInfo;

/// The tests to run: all.
#[unsafe(no_mangle)]
static KTEST_TEST_WHITELIST: Option<&[&str]> = None;

/// The crates whose tests run.
#[unsafe(no_mangle)]
static KTEST_CRATE_WHITELIST: Option<&[&str]> = Some(&["ostd"]);

#[panic_handler]
fn panic(info: &PanicInfo) -> ! {
    unsafe extern "Rust" {
        safe fn __ostd_panic_handler(info: &PanicInfo) -> !;
    }
    __ostd_panic_handler(info)
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
