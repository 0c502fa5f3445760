//! Reports a defect to the kernel.

#![expect(unsafe_code, reason = "calls a function of C")]

use core::fmt::Write as _;
use core::panic::PanicInfo;

use crate::os;
use crate::text::Text;

/// Formats the message, and passes it to the kernel.
#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let mut text = Text::<256>::new();
    // The text never refuses a part.
    let _ = write!(text, "shootdown: {}", info.message());
    if let Some(place) = info.location() {
        let _ = write!(text, " ({}:{})", place.file(), place.line());
    }
    let bytes = text.bytes();
    // SAFETY: the text has this many bytes.
    unsafe { os::shootdown_os_panic(bytes.as_ptr().cast(), bytes.len()) }
}
