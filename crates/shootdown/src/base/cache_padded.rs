//! Cache padding: a value in cache lines of its own.

/// A value in cache lines of its own, so that writes to its neighbours do not evict it.
///
/// 64 bytes: the line of x86-64, and of most Arm and RISC-V cores.
#[repr(align(64))]
pub(crate) struct CachePadded<T>(pub(crate) T);
