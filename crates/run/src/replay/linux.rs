//! Constants from Linux's headers, which are the same on every architecture with recordings.

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
