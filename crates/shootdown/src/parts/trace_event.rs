//! *Trace events*: the flushes and waits that a machine can [trace](crate::Machine::TRACES), and
//! their causes.

use crate::base::ids::SpaceId;

/// The operation of the kernel that caused a flush.
///
/// Name it with [`PinnedCpu::because`](crate::PinnedCpu::because). (Linux's `tlb_flush_reason`
/// separates local flushes from remote ones. Here, [`targets`](FlushTrace::targets) does.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum FlushCause {
    /// The kernel has named no cause.
    Unnamed,
    /// `munmap`, or a new mapping in place of another.
    Unmap,
    /// `madvise`, such as `MADV_DONTNEED`.
    Advise,
    /// `mprotect`.
    Protect,
    /// `mremap`.
    Move,
    /// `fork`, which removes the permission to write.
    Fork,
    /// A write to a page that is shared.
    CopyOnWrite,
    /// Small pages replaced by a large one.
    Collapse,
    /// A large page split into small ones.
    Split,
    /// Reclaim. The default of [batches](crate::Batch).
    Reclaim,
    /// A page moved to other memory: to another node, or by compaction.
    Migrate,
    /// A page written out, whose entry becomes clean or read-only.
    WriteBack,
    /// A change of the kernel's own mappings. The default of
    /// [`flush_kernel`](crate::PinnedCpu::flush_kernel).
    Kernel,
    /// Page tables that must be freed. The default of
    /// [`flush_walkers`](crate::PinnedCpu::flush_walkers).
    Walkers,
    /// The end of a space. The default of [`retire`](crate::PinnedCpu::retire) and
    /// [`reap`](crate::PinnedCpu::reap).
    Exit,
}

impl FlushCause {
    /// All causes.
    pub const ALL: [Self; 15] = [
        Self::Unnamed,
        Self::Unmap,
        Self::Advise,
        Self::Protect,
        Self::Move,
        Self::Fork,
        Self::CopyOnWrite,
        Self::Collapse,
        Self::Split,
        Self::Reclaim,
        Self::Migrate,
        Self::WriteBack,
        Self::Kernel,
        Self::Walkers,
        Self::Exit,
    ];
}

/// The address spaces that a flush covered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceScope {
    /// One space.
    Space(SpaceId),
    /// Several spaces, or unknown ones: a batch, or dead spaces.
    Spaces,
    /// The kernel's own translations.
    Kernel,
}

/// A flush that was sent: the event of [`Machine::trace_flush`](crate::Machine::trace_flush).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushTrace {
    /// The operation that caused the flush.
    pub cause: FlushCause,
    /// The spaces that the flush covered.
    pub scope: TraceScope,
    /// Number of pages; `None` for whole spaces.
    pub pages: Option<u64>,
    /// Number of CPUs that were rung, and must answer. 0 for a flush that is local, or broadcast.
    pub targets: u64,
    /// `true` if the flush was broadcast.
    pub is_broadcast: bool,
    /// Time that the flush took on this CPU, without the wait, by the machine's
    /// [clock](crate::Machine::trace_clock_ns).
    pub ns: u64,
}

/// A wait for CPUs: the event of [`Machine::trace_wait`](crate::Machine::trace_wait).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTrace {
    /// The operation that caused the flush; of the first flush, if others were joined to it.
    pub cause: FlushCause,
    /// Number of CPUs whose answers the wait began without.
    pub targets: u64,
    /// Duration of the wait.
    pub ns: u64,
}
