//! The console: whole lines, whoever writes at the same time.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU32, Ordering};

use crate::kernel::arch::{Arch, Architecture};

/// Who writes: a CPU's number, or nobody.
static WRITER: AtomicU32 = AtomicU32::new(NOBODY);
const NOBODY: u32 = u32::MAX;

/// Writes a line. Not for handlers that may have interrupted who writes one: they are masked out.
macro_rules! println {
    ($($argument:tt)*) => {
        $crate::kernel::console::line(format_args!($($argument)*))
    };
}
pub(crate) use println;

pub(crate) fn line(text: fmt::Arguments<'_>) {
    let were_masked = Arch::interrupts_masked();
    Arch::mask_interrupts();
    let before = take(Arch::cpu());
    // It cannot fail, and there would be nowhere to say so.
    let _ = writeln!(Console, "{text}");
    WRITER.store(before, Ordering::Release);
    if !were_masked {
        Arch::unmask_interrupts();
    }
}

/// Waits until nobody else writes; who did: nobody, or this CPU, which has come to a fault in the
/// middle of a line, and has to say so.
fn take(cpu: u32) -> u32 {
    loop {
        match WRITER.compare_exchange(NOBODY, cpu, Ordering::Acquire, Ordering::Relaxed) {
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
