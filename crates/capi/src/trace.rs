//! Events of flushes and waits, for a kernel that traces them.

#![expect(unsafe_code, reason = "the C interface: the kernel promises what Rust's types enforce")]

use shootdown::{FlushCause, FlushTrace, TraceScope, WaitTrace};

use crate::engine::pin;

/// Cause of a flush: the kernel has named none.
pub const SHOOTDOWN_CAUSE_UNNAMED: u32 = 0;
/// Cause of a flush: `munmap`, or a new mapping in place of another.
pub const SHOOTDOWN_CAUSE_UNMAP: u32 = 1;
/// Cause of a flush: `madvise`.
pub const SHOOTDOWN_CAUSE_ADVISE: u32 = 2;
/// Cause of a flush: `mprotect`.
pub const SHOOTDOWN_CAUSE_PROTECT: u32 = 3;
/// Cause of a flush: `mremap`.
pub const SHOOTDOWN_CAUSE_MOVE: u32 = 4;
/// Cause of a flush: `fork`.
pub const SHOOTDOWN_CAUSE_FORK: u32 = 5;
/// Cause of a flush: a write to a page that is shared.
pub const SHOOTDOWN_CAUSE_COPY_ON_WRITE: u32 = 6;
/// Cause of a flush: small pages are replaced by a large one.
pub const SHOOTDOWN_CAUSE_COLLAPSE: u32 = 7;
/// Cause of a flush: a large page is split.
pub const SHOOTDOWN_CAUSE_SPLIT: u32 = 8;
/// Cause of a flush: reclaim. The default of batches.
pub const SHOOTDOWN_CAUSE_RECLAIM: u32 = 9;
/// Cause of a flush: a page is moved to other memory.
pub const SHOOTDOWN_CAUSE_MIGRATE: u32 = 10;
/// Cause of a flush: a page is written out.
pub const SHOOTDOWN_CAUSE_WRITE_BACK: u32 = 11;
/// Cause of a flush: the kernel's own mappings. The default of `shootdown_flush_kernel`.
pub const SHOOTDOWN_CAUSE_KERNEL: u32 = 12;
/// Cause of a flush: page tables must be freed. The default of `shootdown_flush_walkers`.
pub const SHOOTDOWN_CAUSE_WALKERS: u32 = 13;
/// Cause of a flush: the end of a space. The default of `shootdown_retire` and `shootdown_reap`.
pub const SHOOTDOWN_CAUSE_EXIT: u32 = 14;

/// A flush that was sent.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct FlushEvent {
    /// One of `SHOOTDOWN_CAUSE_…`.
    pub cause: u32,
    /// True if the flush was broadcast.
    pub is_broadcast: bool,
    /// The id of the space; 0 for the kernel's pages, for several spaces, and for unknown ones.
    pub space: u64,
    /// Number of pages; 0 for whole spaces.
    pub pages: u64,
    /// Number of CPUs that were rung, and must answer. 0 for a flush that is local, or broadcast.
    pub targets: u64,
    /// Time that the flush took on this CPU, without the wait, in nanoseconds.
    pub duration_ns: u64,
}

/// A wait for CPUs.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct WaitEvent {
    /// One of `SHOOTDOWN_CAUSE_…`, of the first flush if others were joined to it.
    pub cause: u32,
    /// Number of CPUs whose answers the wait began without.
    pub targets: u64,
    /// Duration of the wait in nanoseconds.
    pub duration_ns: u64,
}

impl From<&FlushTrace> for FlushEvent {
    fn from(trace: &FlushTrace) -> Self {
        Self {
            cause: trace.cause as u32,
            is_broadcast: trace.is_broadcast,
            space: match trace.scope {
                TraceScope::Space(id) => id.number(),
                TraceScope::Spaces | TraceScope::Kernel => 0,
            },
            pages: trace.pages.unwrap_or(0),
            targets: trace.targets,
            duration_ns: trace.ns,
        }
    }
}

impl From<&WaitTrace> for WaitEvent {
    fn from(trace: &WaitTrace) -> Self {
        Self { cause: trace.cause as u32, targets: trace.targets, duration_ns: trace.ns }
    }
}

/// Names the cause of the next flush on this CPU, one of `SHOOTDOWN_CAUSE_…`, for
/// `shootdown_os_trace_flush`. Does nothing in a library without the feature `trace`.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 128.
///
/// # Safety
///
/// Masked, until the flush.
///
/// # Panics
///
/// If there is no such cause.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_because(cause: u32) {
    let Some(cause) = FlushCause::ALL.get(cause as usize) else {
        panic!("shootdown_because: there is no cause {cause}");
    };
    // SAFETY: the caller's promise.
    unsafe { pin() }.because(*cause);
}

/// The constants are the numbers of the engine's causes.
const _: () = {
    assert!(FlushCause::Unnamed as u32 == SHOOTDOWN_CAUSE_UNNAMED);
    assert!(FlushCause::Unmap as u32 == SHOOTDOWN_CAUSE_UNMAP);
    assert!(FlushCause::Advise as u32 == SHOOTDOWN_CAUSE_ADVISE);
    assert!(FlushCause::Protect as u32 == SHOOTDOWN_CAUSE_PROTECT);
    assert!(FlushCause::Move as u32 == SHOOTDOWN_CAUSE_MOVE);
    assert!(FlushCause::Fork as u32 == SHOOTDOWN_CAUSE_FORK);
    assert!(FlushCause::CopyOnWrite as u32 == SHOOTDOWN_CAUSE_COPY_ON_WRITE);
    assert!(FlushCause::Collapse as u32 == SHOOTDOWN_CAUSE_COLLAPSE);
    assert!(FlushCause::Split as u32 == SHOOTDOWN_CAUSE_SPLIT);
    assert!(FlushCause::Reclaim as u32 == SHOOTDOWN_CAUSE_RECLAIM);
    assert!(FlushCause::Migrate as u32 == SHOOTDOWN_CAUSE_MIGRATE);
    assert!(FlushCause::WriteBack as u32 == SHOOTDOWN_CAUSE_WRITE_BACK);
    assert!(FlushCause::Kernel as u32 == SHOOTDOWN_CAUSE_KERNEL);
    assert!(FlushCause::Walkers as u32 == SHOOTDOWN_CAUSE_WALKERS);
    assert!(FlushCause::Exit as u32 == SHOOTDOWN_CAUSE_EXIT);
    assert!(FlushCause::ALL.len() == 15);
};
