//! The properties of the kernel's machine, as values.

/// `tagging`: each CPU gives its few tags to the spaces that it ran last (x86: PCIDs).
pub const SHOOTDOWN_TAGS_PER_CPU: u32 = 0;
/// `tagging`: a space has the same tag on all CPUs (Arm, RISC-V).
pub const SHOOTDOWN_TAGS_GLOBAL: u32 = 1;
/// `tagging`: each CPU counts tags up, and gives a space the next one instead of invalidating
/// (ARC).
pub const SHOOTDOWN_TAGS_RENAMED: u32 = 2;

/// The properties of the machine, for `shootdown_init`.
///
/// Set `layout`, and leave all other members 0 for which the default is right.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Config {
    /// Must be `SHOOTDOWN_LAYOUT`: shows that this header belongs to the library.
    pub layout: u64,
    /// Upper limit of the number of CPUs; 0 for `SHOOTDOWN_CPUS_MAX`.
    pub cpu_limit: u32,
    /// True if the processor walks the page tables before the first write to
    /// a page that it has cached as not dirty. Batches then defer writable pages as well.
    pub traps_stale_writes: bool,
    /// True if a CPU may have translations of two sizes for one address.
    pub tolerates_mixed_sizes: bool,
    /// One of `SHOOTDOWN_TAGS_…`.
    pub tagging: u32,
    /// Number of tags (PCIDs, ASIDs) for spaces; 0 if the TLB has none.
    pub tag_count: u32,
    /// Number of pages above which a CPU drops a whole tag instead of single
    /// pages; 0 for 33.
    pub flush_ceiling: u32,
}
