//! Guests on AMD's nested paging: an ASID for each guest on each CPU, which names all entries.

#![expect(unsafe_code, reason = "implements the contract of a hypervisor's processor")]

use core::sync::atomic::AtomicU64;

use shootdown::{Entries, Extent, Memory, NoBroadcaster, Root, Tag, TagSlot};

use super::entry::GuestEntries;
use crate::x86_64::identity::Source;
use crate::x86_64::processor::X86_64;
use crate::{Processor, Stage2, VcpuNames, forward_memory, forward_processor};

/// The features of nested paging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NptFeatures {
    /// Number of ASIDs, the host's included (CPUID 8000_000A, EBX).
    pub asid_count: u32,
    /// `true` if a `VMRUN` can drop the entries of its ASID alone (`FlushByAsid`, EDX bit 6).
    pub flushes_by_asid: bool,
}

/// Leaf 8000_000A, EDX.
const NESTED_PAGING: u32 = 1 << 0;
const FLUSH_BY_ASID: u32 = 1 << 6;

impl NptFeatures {
    /// The features of a processor; `None` if it has no nested paging.
    #[must_use]
    pub fn of(source: &impl Source) -> Option<Self> {
        const LEAF: u32 = 0x8000_000a;
        if source.cpuid(0x8000_0000).eax < LEAF {
            return None;
        }
        let leaf = source.cpuid(LEAF);
        (leaf.edx & NESTED_PAGING != 0).then_some(Self {
            asid_count: leaf.ebx,
            flushes_by_asid: leaf.edx & FLUSH_BY_ASID != 0,
        })
    }

    /// The features that two processors have in common.
    #[must_use]
    pub fn common(self, other: Self) -> Self {
        Self {
            asid_count: self.asid_count.min(other.asid_count),
            flushes_by_asid: self.flushes_by_asid && other.flushes_by_asid,
        }
    }
}

/// Number of guests whose entries a CPU keeps. More seldom take turns on a CPU, and a switch
/// searches the slots.
const TAGS: usize = 8;

/// An AMD processor whose spaces are guests.
#[derive(Clone, Copy, Debug)]
pub struct Npt<G> {
    common: X86_64,
    features: NptFeatures,
    entries: G,
}

impl<G: GuestEntries> Npt<G> {
    /// The second stage of a processor whose own pages `common` drops.
    ///
    /// # Safety
    ///
    /// All CPUs have the features, and `EFER.SVME` is set. Guests have ASIDs from this processor
    /// alone. As for [`X86_64::new`].
    #[must_use]
    pub const unsafe fn new(common: X86_64, features: NptFeatures, entries: G) -> Self {
        Self { common, features, entries }
    }

    /// The hypervisor's entries.
    #[must_use]
    pub const fn entries(&self) -> &G {
        &self.entries
    }

    /// The next entry of this CPU drops what is cached under the tag. Until then, no guest runs.
    fn drop_tag(&self, tag: Tag) {
        self.entries.of_this_cpu().mark_stale(tag);
    }
}

// SAFETY: all methods are those of the host's processor.
unsafe impl<G: GuestEntries> Memory for Npt<G> {
    forward_memory! { self => self.common, X86_64 }
}

// SAFETY: entries of a guest are used by accesses of the guest alone, and the `VMRUN` before them
// drops what was marked. Nested tables are walked coherently.
unsafe impl<G: GuestEntries> Processor for Npt<G> {
    type TagSlots = [TagSlot; TAGS];
    type TagWords = [AtomicU64; 0];
    type Broadcaster = NoBroadcaster;

    forward_processor! { self => self.common;
        workarounds, publish, interrupts_masked, invalidate_kernel, tolerates_mixed_sizes,
        spin_hint,
    }

    /// ASID 0 is the host's.
    #[inline]
    fn tag_count(&self) -> usize {
        TAGS.min(self.features.asid_count.saturating_sub(1) as usize)
    }

    /// Pages are not dropped one by one.
    #[inline]
    fn flush_ceiling(&self) -> usize {
        1
    }

    #[inline]
    unsafe fn load(&self, root: Root, tag: Tag, entries: Entries) {
        if entries == Entries::Discard {
            self.drop_tag(tag);
        }
        self.entries.of_this_cpu().set(root.0, tag);
    }

    /// No guest is entered.
    #[inline]
    unsafe fn load_kernel(&self, _: Root) {
        self.entries.of_this_cpu().set(0, Tag::KERNEL);
    }

    fn invalidate(&self, tag: Tag, _: Extent) {
        self.drop_tag(tag);
    }

    fn invalidate_tag(&self, tag: Tag) {
        self.drop_tag(tag);
    }

    /// The entries of all guests, and the hypervisor's.
    fn invalidate_all(&self) {
        self.entries.of_this_cpu().mark_all_stale();
        self.common.invalidate_all();
    }
}

// SAFETY: an ASID names entries of both stages.
unsafe impl<G: GuestEntries> Stage2 for Npt<G> {
    const VCPU_NAMES: VcpuNames = VcpuNames::Shared;

    fn invalidate_vcpu(&self, _: u16) {
        self.drop_tag(self.entries.of_this_cpu().tag());
    }
}
