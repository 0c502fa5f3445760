//! What the next entry of a guest on a CPU uses.

#![expect(unsafe_code, reason = "declares a hook with promises")]

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use shootdown::{Root, Tag};

/// The root and the tag of the guest that is entered next on a CPU, and the flushes that its entry
/// must do. Only its own CPU accesses it.
#[derive(Debug, Default)]
pub struct GuestEntry {
    root: AtomicU64,
    tag: AtomicU64,
    /// One bit for each tag whose mappings must be dropped before a guest uses them.
    stale: AtomicU64,
}

/// The fields of a VMCB that the engine decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NestedEntry {
    /// `N_CR3` (offset 0xb0).
    pub root: Root,
    /// The guest's ASID (offset 0x58, bits 31:0).
    pub asid: u32,
    /// `TLB_CONTROL` (offset 0x58, bits 39:32).
    pub control: TlbControl,
}

/// `TLB_CONTROL` of a VMCB (APM, "TLB Control").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TlbControl {
    /// Drops nothing.
    Keep = 0,
    /// Drops all entries of all ASIDs.
    Everything = 1,
    /// Drops all entries of the guest's ASID. Needs
    /// [`NptFeatures::flushes_by_asid`](super::NptFeatures::flushes_by_asid).
    ThisGuest = 3,
}

/// The hypervisor's [`GuestEntry`] of each CPU.
///
/// # Safety
///
/// [`of_this_cpu`](Self::of_this_cpu) always returns the same entry on a CPU, and another one on
/// each CPU. A guest is entered as the [module](super#what-is-entered) describes, with the fields
/// of this entry, and never without.
pub unsafe trait GuestEntries: Sync {
    /// The entry of the CPU that runs this call.
    fn of_this_cpu(&self) -> &GuestEntry;
}

impl GuestEntry {
    /// No guest is entered.
    #[must_use]
    pub const fn new() -> Self {
        Self { root: AtomicU64::new(0), tag: AtomicU64::new(0), stale: AtomicU64::new(0) }
    }

    /// The root that was loaded last; for [`Ept`](super::Ept), the EPT pointer.
    #[must_use]
    pub fn root(&self) -> u64 {
        // Relaxed, as all accesses here: only this CPU accesses the words.
        self.root.load(Relaxed)
    }

    pub(super) fn tag(&self) -> Tag {
        Tag(self.tag.load(Relaxed) as u16)
    }

    pub(super) fn set(&self, root: u64, tag: Tag) {
        self.root.store(root, Relaxed);
        self.tag.store(tag.0.into(), Relaxed);
    }

    /// Has the mappings of a tag dropped before the next guest that uses the tag is entered.
    ///
    /// The bit stays set while other guests are entered: their entries name another ASID.
    pub(super) fn mark_stale(&self, tag: Tag) {
        self.stale.store(self.stale.load(Relaxed) | 1 << tag.0, Relaxed);
    }

    pub(super) fn mark_all_stale(&self) {
        self.stale.store(u64::MAX, Relaxed);
    }

    /// Returns the fields for the next `VMRUN`, which must follow, and forgets the flushes that it
    /// does. `by_asid` is [`NptFeatures::flushes_by_asid`](super::NptFeatures::flushes_by_asid).
    ///
    /// # Panics
    ///
    /// If no guest is loaded, whose ASID would be the host's.
    #[must_use]
    pub fn take(&self, by_asid: bool) -> NestedEntry {
        let (Tag(tag), stale) = (self.tag(), self.stale.load(Relaxed));
        assert_ne!(tag, 0, "no guest is loaded");
        let own = 1 << tag;
        let (control, left) = match (stale & own != 0, by_asid) {
            (false, _) => (TlbControl::Keep, stale),
            (true, true) => (TlbControl::ThisGuest, stale & !own),
            (true, false) => (TlbControl::Everything, 0),
        };
        self.stale.store(left, Relaxed);
        NestedEntry { root: Root(self.root()), asid: tag.into(), control }
    }
}
