//! What a machine chooses: how its spaces get tags, and how long they live.

/// The effect of loading a root on the translations that this CPU already caches under its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entries {
    /// The translations are gone before the first one through the new root (x86: CR3 bit 63 clear).
    Discard,
    /// The translations stay usable (x86: CR3 bit 63 set).
    Keep,
}

/// The way in which spaces get tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tagging {
    /// Each CPU gives its few tags to the spaces that it ran last (x86: PCIDs). A space may have a
    /// different tag on each CPU, and no CPU reads the tags of another.
    PerCpu,
    /// A space has the same tag on all CPUs (Arm, RISC-V, and AMD with `INVLPGB`), so that hardware
    /// can broadcast invalidations. When tags run out, every tag that is not loaded on a CPU
    /// becomes free again, and each CPU empties its TLB before it uses a tag of the new epoch.
    Global,
    /// Each CPU counts tags up (ARC: 8 bits). To drop a space's translations, the CPU gives the
    /// space the next tag. When tags run out, the CPU empties its TLB and starts again.
    Renamed,
    /// The kernel [assigns](crate::Space::assign_tag) a tag to each space, the same on all CPUs, as
    /// where tags are objects of their own (seL4's ASID pools). The engine drops a tag on each CPU
    /// that loads a space under it after another one. So the kernel may assign the tag of a dead
    /// space again at once, without a flush, and may even let two living spaces share one. CPUs
    /// must not share TLB entries (Arm: `CnP` = 0). The engine does not broadcast.
    Assigned,
}

/// The method that keeps a space from being freed while a CPU is lazy on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// The last CPU that drops the space frees it. No CPU is interrupted, no CPU waits, and going
    /// lazy and coming back writes no shared line. The space's page tables stay allocated until
    /// then, possibly for as long as a CPU idles in a state that keeps its translations. The kernel
    /// can [reap](crate::PinnedCpu::reap) them earlier.
    Handoff,
    /// The CPU that retires the space interrupts the CPUs that are lazy on it, and waits for them.
    /// (Linux: `MMU_LAZY_TLB_SHOOTDOWN`, which interrupts every CPU that ever ran the space.)
    Shoot,
    /// Each CPU that goes lazy takes a reference to the space, and drops it when it comes back.
    /// (Linux: `MMU_LAZY_TLB_REFCOUNT`.) This is the baseline for the other two: it costs one
    /// locked operation on a cache line of the space when a CPU goes lazy, and another when it
    /// comes back.
    Counted,
}
