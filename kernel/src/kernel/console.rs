//! The console. Lines of several CPUs do not mix.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU32, Ordering};

use crate::kernel::arch::{Arch, Architecture};
use crate::kernel::sync::masked;

/// The number of the CPU that is writing, or [`NO_CPU`].
static WRITER: AtomicU32 = AtomicU32::new(NO_CPU);
const NO_CPU: u32 = u32::MAX;

/// Writes a line. Interrupts are masked while it is written, so a handler cannot interrupt a CPU in
/// the middle of a line and wait for that CPU.
macro_rules! println {
    ($($argument:tt)*) => {
        $crate::kernel::console::line(format_args!($($argument)*))
    };
}
pub(crate) use println;

pub(crate) fn line(text: fmt::Arguments<'_>) {
    masked(|| {
        let before = acquire(Arch::cpu());
        // Writing cannot fail.
        let _ = writeln!(Console, "{text}");
        WRITER.store(before, Ordering::Release);
    });
}

/// Waits until no other CPU is writing, and returns the writer before: none, or this CPU if a fault
/// interrupted it in the middle of a line and the fault handler prints another.
fn acquire(cpu: u32) -> u32 {
    loop {
        match WRITER.compare_exchange(NO_CPU, cpu, Ordering::Acquire, Ordering::Relaxed) {
            Err(other) if other != cpu => Arch::spin_hint(),
            Ok(before) | Err(before) => return before,
        }
    }
}

struct Console;

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(Arch::write);
        Ok(())
    }
}
