//! The console: whole lines, whoever writes at the same time.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, Ordering};

use crate::arch::{Arch, Architecture};

static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// Writes a line. Not for handlers that may have interrupted who writes one: they are masked out.
macro_rules! println {
    ($($argument:tt)*) => {
        $crate::console::line(format_args!($($argument)*))
    };
}
pub(crate) use println;

pub(crate) fn line(text: fmt::Arguments<'_>) {
    let were_masked = Arch::interrupts_masked();
    Arch::mask_interrupts();
    while IS_TAKEN.swap(true, Ordering::Acquire) {
        Arch::relax();
    }
    // It cannot fail, and there would be nowhere to say so.
    let _ = writeln!(Console, "{text}");
    IS_TAKEN.store(false, Ordering::Release);
    if !were_masked {
        Arch::unmask_interrupts();
    }
}

struct Console;

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(Arch::write);
        Ok(())
    }
}
