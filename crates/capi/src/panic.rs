//! Reports a defect to the kernel.

#![expect(unsafe_code, reason = "calls a function of C")]

use core::fmt::{self, Write as _};
use core::panic::PanicInfo;

use crate::os;

/// A text of at most 256 bytes. What does not fit is cut off.
struct Text {
    bytes: [u8; 256],
    length: usize,
}

impl fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.bytes[self.length..];
        let count = text.len().min(room.len());
        room[..count].copy_from_slice(&text.as_bytes()[..count]);
        self.length += count;
        Ok(())
    }
}

/// Formats the message, and passes it to the kernel.
#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let mut text = Text { bytes: [0; 256], length: 0 };
    // The text never refuses a part.
    let _ = write!(text, "shootdown: {}", info.message());
    if let Some(place) = info.location() {
        let _ = write!(text, " ({}:{})", place.file(), place.line());
    }
    // SAFETY: the text has this many bytes.
    unsafe { os::shootdown_os_panic(text.bytes.as_ptr().cast(), text.length) }
}
