//! Constants from Linux's headers, which are the same on every architecture with recordings, and
//! facts about its calls.

pub(super) use shootdown_designs::linux::version;
use shootdown_recording::record::Call;

pub(super) const PROT_WRITE: u32 = 2;
pub(super) const MAP_SHARED: u32 = 1;
pub(super) const MAP_ANONYMOUS: u32 = 0x20;
pub(super) const MAP_POPULATE: u32 = 0x8000;
pub(super) const MS_SYNC: u32 = 4;
pub(super) const MADV_DONTNEED: u32 = 4;
pub(super) const MADV_FREE: u32 = 8;
pub(super) const MADV_REMOVE: u32 = 9;
pub(super) const MADV_COLD: u32 = 20;
pub(super) const MADV_PAGEOUT: u32 = 21;
pub(super) const MADV_POPULATE_READ: u32 = 22;
pub(super) const MADV_POPULATE_WRITE: u32 = 23;
pub(super) const MADV_DONTNEED_LOCKED: u32 = 24;
pub(super) const MADV_GUARD_INSTALL: u32 = 102;

/// Returns `true` if a call holds the lock of the space exclusively from its flush to its end. No
/// other call that locks the space gathers at that time. `munmap` and others let readers in before
/// they flush (`mmap_write_downgrade`), and free what they have gathered afterwards.
pub(super) const fn flushes_exclusively(call: &Call) -> bool {
    matches!(call, Call::Protect { .. })
}

/// Returns `true` if a call gathers from its flush to its end. `msync` never does.
pub(super) const fn gathers_after_flush(call: &Call) -> bool {
    !flushes_exclusively(call) && !matches!(call, Call::Sync { .. })
}

/// Returns `true` if a call has locked the space exclusively when it flushes, or before.
pub(super) const fn locks_exclusively(call: &Call) -> bool {
    !gathers_from_beginning(call) && !matches!(call, Call::Sync { .. })
}

/// Returns `true` if a call gathers for nearly all of its time. Other calls that gather first wait
/// until they hold the lock of the space exclusively.
pub(super) const fn gathers_from_beginning(call: &Call) -> bool {
    discards(call) || matches!(call, Call::Advise { advice: MADV_COLD | MADV_PAGEOUT, .. })
}

/// Returns `true` if a call that gathers from its beginning takes the lock of its area in place of
/// the lock of the space, so that it does not wait for calls which change other areas.
///
/// (Linux: `get_lock_mode` in `mm/madvise.c`. The patch was discussed during the development of
/// 6.16, so 6.17 is taken for the first release with it. Recordings of 6.12 and 7.0 show the two
/// kinds; none of a release in between was made for this.)
pub(super) fn locks_area_only(call: &Call, release: Option<(u32, u32)>) -> bool {
    discards(call) && release.is_none_or(|release| release >= (6, 17))
}

const fn discards(call: &Call) -> bool {
    matches!(call, Call::Advise { advice: MADV_DONTNEED | MADV_DONTNEED_LOCKED | MADV_FREE, .. })
}
