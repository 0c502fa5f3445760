//! Guests on Intel's extended page tables: named by the root itself (EPTP), and virtual CPUs by
//! VPIDs.

#![expect(unsafe_code, reason = "implements the contract of a hypervisor's processor")]

use core::sync::atomic::AtomicU64;

use shootdown::{Entries, Extent, Memory, NoBroadcaster, Root, Tag, TagSlot};

use super::entry::GuestEntries;
#[cfg(not(test))]
use crate::x86_64::instructions;
use crate::x86_64::invept::{Invept, Invvpid};
use crate::x86_64::processor::X86_64;
#[cfg(test)]
use crate::x86_64::recorded as instructions;
use crate::{Processor, Stage2, VcpuNames, forward_memory, forward_processor};

/// The features of extended page tables, from `IA32_VMX_EPT_VPID_CAP` (SDM 3D, appendix "VPID and
/// EPT Capabilities").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EptFeatures {
    /// `true` if `INVEPT` can name an EPTP (bit 25).
    pub has_single_invept: bool,
    /// `true` if `INVVPID` can name a VPID (bit 41).
    pub has_single_invvpid: bool,
    /// `true` if entries are marked as accessed and written (bit 21).
    pub marks_writes: bool,
    /// Number of levels of tables: 4, or 5 if the hypervisor chooses them (bits 6 and 7).
    pub levels: u8,
}

const INVEPT: u64 = 1 << 20 | 1 << 26;
const INVVPID: u64 = 1 << 32 | 1 << 42;
const FOUR_LEVELS: u64 = 1 << 6;
const WRITE_BACK: u64 = 1 << 14;

impl EptFeatures {
    /// The number of `IA32_VMX_EPT_VPID_CAP`, which exists if the processor has EPT or VPIDs.
    pub const REGISTER: u32 = 0x48c;

    /// Decodes the register; `None` if the processor lacks what [`Ept`] needs: `INVEPT` and
    /// `INVVPID` of everything, four levels, and tables in write-back memory.
    #[must_use]
    pub const fn of(register: u64) -> Option<Self> {
        const NEEDED: u64 = INVEPT | INVVPID | FOUR_LEVELS | WRITE_BACK;
        if register & NEEDED != NEEDED {
            return None;
        }
        Some(Self {
            has_single_invept: register >> 25 & 1 == 1,
            has_single_invvpid: register >> 41 & 1 == 1,
            marks_writes: register >> 21 & 1 == 1,
            levels: 4,
        })
    }

    /// The EPT pointer of a root (SDM, "Extended-Page-Table Pointer"): memory type in bits 2:0, the
    /// number of levels minus 1 in bits 5:3, marks in bit 6.
    #[must_use]
    pub const fn pointer(self, root: Root) -> u64 {
        let write_back = 6;
        let marks = if self.marks_writes { 1 << 6 } else { 0 };
        root.0 | write_back | (self.levels as u64 - 1) << 3 | marks
    }
}

/// Number of guests whose mappings a CPU keeps. Mappings are cached under the address of the root,
/// so the number is only that of the slots in which the engine remembers guests.
const TAGS: usize = 8;

/// An Intel processor whose spaces are guests.
///
/// A tag is not seen by the hardware. It stands for the root: the engine discards what is cached
/// under the root when the root first gets a slot on the CPU, and so when another guest has had the
/// same page for its root.
#[derive(Clone, Copy, Debug)]
pub struct Ept<G> {
    common: X86_64,
    features: EptFeatures,
    entries: G,
}

impl<G: GuestEntries> Ept<G> {
    /// The second stage of a processor whose own pages `common` drops.
    ///
    /// # Safety
    ///
    /// All CPUs have the features, and are in VMX operation (`VMXON`). Each virtual CPU has a VPID
    /// other than 0. As for [`X86_64::new`].
    #[must_use]
    pub const unsafe fn new(common: X86_64, features: EptFeatures, entries: G) -> Self {
        Self { common, features, entries }
    }

    fn drop_guest(&self, eptp: u64) {
        let is_single = self.features.has_single_invept;
        instructions::invept(if is_single { Invept::single(eptp) } else { Invept::ALL });
    }

    fn drop_loaded(&self) {
        self.drop_guest(self.entries.of_this_cpu().root());
    }
}

// SAFETY: all methods are those of the host's processor.
unsafe impl<G: GuestEntries> Memory for Ept<G> {
    forward_memory! { self => self.common, X86_64 }
}

// SAFETY: `INVEPT` drops guest-physical and combined mappings, and is serialising. EPT is walked
// coherently, and only while a guest runs.
unsafe impl<G: GuestEntries> Processor for Ept<G> {
    type TagSlots = [TagSlot; TAGS];
    type TagWords = [AtomicU64; 0];
    type Broadcaster = NoBroadcaster;

    forward_processor! { self => self.common;
        workarounds, publish, interrupts_masked, invalidate_kernel, tolerates_mixed_sizes,
        spin_hint,
    }

    #[inline]
    fn tag_count(&self) -> usize {
        TAGS
    }

    /// Pages are not dropped one by one.
    #[inline]
    fn flush_ceiling(&self) -> usize {
        1
    }

    /// Discards by the root: also combined mappings under VPIDs, which name it as well. Linear
    /// mappings exist only where a guest runs without EPT.
    #[inline]
    unsafe fn load(&self, root: Root, tag: Tag, entries: Entries) {
        let eptp = self.features.pointer(root);
        if entries == Entries::Discard {
            self.drop_guest(eptp);
        }
        self.entries.of_this_cpu().set(eptp, tag);
    }

    /// No guest is entered.
    #[inline]
    unsafe fn load_kernel(&self, _: Root) {
        self.entries.of_this_cpu().set(0, Tag::KERNEL);
    }

    fn invalidate(&self, _: Tag, _: Extent) {
        self.drop_loaded();
    }

    fn invalidate_tag(&self, _: Tag) {
        self.drop_loaded();
    }

    /// The mappings of all guests, and the hypervisor's.
    fn invalidate_all(&self) {
        instructions::invept(Invept::ALL);
        instructions::invvpid(Invvpid::ALL);
        self.common.invalidate_all();
    }
}

// SAFETY: `INVVPID` drops linear and combined mappings.
unsafe impl<G: GuestEntries> Stage2 for Ept<G> {
    const VCPU_NAMES: VcpuNames = VcpuNames::Own;

    /// # Panics
    ///
    /// If the name is 0, which is the hypervisor's.
    fn invalidate_vcpu(&self, name: u16) {
        assert_ne!(name, 0, "VPID 0 is the hypervisor's");
        let is_single = self.features.has_single_invvpid;
        instructions::invvpid(if is_single { Invvpid::single(name) } else { Invvpid::ALL });
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
