//! CPUs that do not answer, and CPUs that have stopped.

#![expect(unsafe_code, reason = "the C interface: the kernel promises what Rust's types enforce")]

use core::ffi::c_char;
use core::fmt::Write as _;
use core::ptr;

use shootdown::{CpuId, CpuSet, StallReport};

use crate::engine::{engine, pin};
use crate::machine::CPUS_MAX;
use crate::text::Text;

/// Writes a line about a CPU that does not answer a flush, for a watchdog: whether it was rung,
/// whether it has entered its handler, and which space it uses. Returns the length of the line,
/// which is cut off after `size` bytes, and has no final 0. May be called in
/// `shootdown_os_wait_hint`.
///
/// In builds with debug assertions, the library writes such a line by itself after a wait of some
/// seconds, and calls `shootdown_os_panic`.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 512.
///
/// # Safety
///
/// `line` is valid for writes of `size` bytes. The CPU's state is initialised.
///
/// # Panics
///
/// If `cpu` is not below `SHOOTDOWN_CPUS_MAX`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_describe_unanswered(
    cpu: u32,
    line: *mut c_char,
    size: usize,
) -> usize {
    assert!((cpu as usize) < CPUS_MAX, "shootdown_describe_unanswered: there is no CPU {cpu}");
    let mut cpus = CpuSet::default();
    cpus.insert(CpuId(cpu));
    let mut text = Text::<256>::new();
    for unanswered in StallReport::new(engine().machine(), &cpus).cpus() {
        // The text never refuses a part.
        let _ = write!(text, "{unanswered}");
    }
    let length = text.bytes().len().min(size);
    // SAFETY: the caller's promise, and the text is at least this long.
    unsafe { ptr::copy_nonoverlapping(text.bytes().as_ptr(), line.cast(), length) };
    length
}

/// Disconnects a CPU that has stopped in a crash, wherever it was: it leaves its space, and no
/// other CPU waits for it or interrupts it any more. Waits for its answer that have begun end. Call
/// this on a surviving CPU, also within `shootdown_os_wait_hint`. The stopped CPU may call
/// `shootdown_online` again after a reset.
///
/// Interrupts: yes. Waits: no. Reclaims: yes. Callable: before shootdown_online. Stack: 512.
///
/// # Safety
///
/// Masked. All of this must hold:
///
/// - the CPU has stopped: until it calls `shootdown_online` again, it is off, or runs code that
///   uses only memory that is never flushed, with the kernel's own page table loaded and interrupts
///   masked. It never continues what it was doing. That a CPU does not answer does not mean that it
///   has stopped;
/// - every access of the CPU happens before this call. For instance, the handler of the NMI that
///   stops it loads the kernel's page table and stores a flag with release, and this CPU has loaded
///   the flag with acquire;
/// - on a machine that broadcasts, the handler has also completed the CPU's broadcasts
///   (`shootdown_complete_broadcasts`);
/// - no other CPU disconnects it at the same time.
///
/// # Panics
///
/// If `cpu` is this CPU, or not below `SHOOTDOWN_CPUS_MAX`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_disconnect(cpu: u32) {
    assert!((cpu as usize) < CPUS_MAX, "shootdown_disconnect: there is no CPU {cpu}");
    // SAFETY: the caller's promises.
    unsafe { pin().disconnect(CpuId(cpu)) };
}

/// Waits for the broadcasts that this CPU has issued, for the handler that stops it before
/// `shootdown_disconnect`. Does nothing on a machine that does not broadcast.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 256.
#[unsafe(no_mangle)]
pub extern "C" fn shootdown_complete_broadcasts() {
    use shootdown::{Broadcaster as _, Machine as _};
    if let Some(broadcaster) = engine().machine().broadcaster() {
        broadcaster.complete();
    }
}
