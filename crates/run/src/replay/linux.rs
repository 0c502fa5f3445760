//! Constants from Linux's headers, which are the same on every architecture with recordings, and
//! what depends on the version.

use shootdown_designs::linux::version;
use shootdown_recording::record::Call;

/// The locks that `madvise` takes to discard pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum AdviseLock {
    /// That of the space, for reading.
    Space,
    /// That of the area, for reading. Calls that change other areas do not wait for it.
    #[default]
    Area,
}

impl AdviseLock {
    /// Returns the locks of a release. (Linux: `lock_vma_under_rcu` in `madvise_lock`, since 6.17.
    /// Recordings agree: `loop mprotect` has no nested gathers on 6.12, and some on 7.0.)
    pub(super) fn of(release: &str) -> Self {
        match version(release) {
            Some(version) if version < (6, 17) => Self::Space,
            _ => Self::Area,
        }
    }
}

pub(super) const PROT_WRITE: u32 = 2;
pub(super) const MAP_SHARED: u32 = 1;
pub(super) const MAP_ANONYMOUS: u32 = 0x20;
pub(super) const MAP_POPULATE: u32 = 0x8000;
pub(super) const MADV_DONTNEED: u32 = 4;
pub(super) const MADV_FREE: u32 = 8;
pub(super) const MADV_REMOVE: u32 = 9;
pub(super) const MADV_COLD: u32 = 20;
pub(super) const MADV_PAGEOUT: u32 = 21;
pub(super) const MADV_POPULATE_READ: u32 = 22;
pub(super) const MADV_POPULATE_WRITE: u32 = 23;
pub(super) const MADV_DONTNEED_LOCKED: u32 = 24;
pub(super) const MADV_GUARD_INSTALL: u32 = 102;

/// Returns `true` if a call still frees what it has gathered when its flush is complete.
/// `mprotect` frees nothing, and has ended its gather when another call gets the lock.
pub(super) const fn frees_after_flush(call: &Call) -> bool {
    !matches!(call, Call::Protect { .. })
}

/// Returns `true` if a call gathers for nearly all of its time. Other calls that gather first wait
/// for the lock of the space.
pub(super) const fn gathers_from_beginning(call: &Call) -> bool {
    matches!(
        call,
        Call::Advise {
            advice: MADV_DONTNEED | MADV_DONTNEED_LOCKED | MADV_FREE | MADV_COLD | MADV_PAGEOUT,
            ..
        }
    )
}
