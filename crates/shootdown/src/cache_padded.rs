//! A cache line of one's own.

/// What others write shall not take this one's line away.
///
/// 64 bytes: the line of x86-64, and of most Arm and RISC-V cores.
#[repr(align(64))]
pub(crate) struct CachePadded<T>(pub(crate) T);
