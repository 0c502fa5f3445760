//! Guests as spaces on RISC-V: the second stage of the hypervisor extension (H), in HS-mode.
//!
//! See [`Stage2`](crate::Stage2) for the contract. "Manual" is volume II, chapter "H Extension for
//! Hypervisor Support". The instructions, on the hart that executes them:
//!
//! | instruction | drops |
//! |---|---|
//! | `HFENCE.GVMA` address, VMID | stage 2: leaves at a guest physical address; combined |
//! | `HFENCE.GVMA` all, VMID | stage 2: all of a guest; combined |
//! | `HFENCE.VVMA` all, all | stage 1: all under the VMID *that is loaded*; combined |
//!
//! - A hart that caches combined entries drops them by `HFENCE.GVMA`: "any entry whose guest
//!   virtual address maps to a guest physical address that matches" (manual, "Hypervisor
//!   Memory-Management Fence Instructions"). So no second instruction follows, unlike on Arm. Most
//!   harts drop all of the VMID instead.
//! - `HFENCE.GVMA` "need not flush" a cache of the first stage alone. Where a VMID gets a new
//!   guest, this cache must be dropped under the VMID, which is loaded with an empty table for
//!   that. A VMID can be named only in this way, so the number of VMIDs in use is small: when all
//!   are dropped at a rollover, each is loaded once.
//! - The address is shifted right by two bits, because guest physical addresses have 41 to 59 bits.
//! - With an address, leaves alone are dropped. An extent that frees tables drops the guest.
//!
//! Other harts are notified by an interrupt, or by SBI's `sbi_remote_hfence_gvma_vmid`.
//!
//! `hgatp` is active in HS-mode as well: a CPU that has left a guest may walk its tables, as a lazy
//! CPU does. The [kernel's root](crate::Kernel::root) is therefore an empty table, under VMID 0.
//!
//! # Limits
//!
//! Guests with guests, and Svinval's `HINVAL`. Harts that must not be sent fences with operands
//! (SiFive CIP-1200) have no H. The sequences were tested on the host, as recorded instructions,
//! and run in HS-mode under QEMU.

#![expect(unsafe_code, reason = "implements the contract, and loads roots")]

use core::sync::atomic::AtomicU64;

use shootdown::{
    Broadcast, Broadcaster, CpuBits, CpuSet, Entries, Extent, Memory, NotifyCosts, Refused, Root,
    Tag, TagSlot,
};

use super::encoding::{ADDRESSES_MAX, Mode, addresses, vmid_of};
use super::instructions as run;
use super::processor::RiscV64;
use super::sbi;
use crate::{Processor, VcpuNames, forward, forward_memory, forward_processor};

/// Number of VMIDs that are used, at most.
const VMIDS: u16 = 255;

/// A RISC-V processor whose spaces are guests.
#[derive(Clone, Copy, Debug)]
pub struct Stage2 {
    common: RiscV64,
    mode: Mode,
    vmids: u16,
    empty: Root,
}

impl Stage2 {
    /// The second stage of a processor whose own pages `common` drops. `mode` is the format of
    /// guests' tables, `vmid_bits` the number of bits of a VMID that all harts have, and `empty`
    /// the root of an empty table.
    ///
    /// # Safety
    ///
    /// All harts have H, the mode and the bits. They are in HS-mode, and `hgatp` holds `empty`
    /// before a CPU comes online. The table stays valid and empty for ever. As for
    /// [`RiscV64::new`].
    #[must_use]
    pub const unsafe fn new(common: RiscV64, mode: Mode, vmid_bits: u32, empty: Root) -> Self {
        let most = if vmid_bits < 8 { (1 << vmid_bits) - 1 } else { VMIDS };
        Self { common, mode, vmids: most, empty }
    }

    fn set(&self, root: Root, tag: Tag) {
        // SAFETY: `empty` is valid for ever; other roots are promised by the caller of `load`.
        unsafe { run::set_hgatp(self.mode.hgatp(root, tag)) };
    }

    /// Drops both stages under a VMID, with which another guest may have run. The VMID stays
    /// loaded, with the empty table.
    fn drop_both(&self, tag: Tag) {
        self.set(self.empty, tag);
        run::drop_guest(tag.0.into());
        run::drop_guests_own();
    }
}

// SAFETY: all methods are those of the host's processor.
unsafe impl Memory for Stage2 {
    forward_memory! { self => self.common, RiscV64 }
}

// SAFETY: each method executes the instructions of the module's table. `HFENCE.GVMA` orders earlier
// stores before later walks, as `SFENCE.VMA` does.
unsafe impl Processor for Stage2 {
    type TagSlots = [TagSlot; 64];
    type TagWords = [AtomicU64; 8];
    type Broadcaster = Self;

    forward_processor! { self => self.common;
        workarounds, publish, synchronize, interrupts_masked, tagging, invalidate_kernel,
        publish_kernel, traps_stale_writes, tolerates_mixed_sizes, spin_hint,
    }

    #[inline]
    fn tag_count(&self) -> usize {
        self.vmids.into()
    }

    #[inline]
    fn flush_ceiling(&self) -> usize {
        ADDRESSES_MAX
    }

    /// A write of `hgatp` drops nothing, and walks that began with the old value may go on, as with
    /// `satp`: what they cache is dropped after it, because a CPU that has left a guest is not
    /// notified of its freed tables.
    unsafe fn load(&self, root: Root, tag: Tag, entries: Entries) {
        let old = vmid_of(run::hgatp());
        if entries == Entries::Discard {
            self.drop_both(tag);
        }
        self.set(root, tag);
        if old != tag && old != Tag::KERNEL {
            run::drop_guest(old.0.into());
        }
    }

    unsafe fn load_kernel(&self, root: Root) {
        // SAFETY: the caller's promise.
        unsafe { self.load(root, Tag::KERNEL, Entries::Keep) };
    }

    fn invalidate(&self, Tag(vmid): Tag, extent: Extent) {
        match addresses(extent) {
            Some(addresses) => {
                addresses.for_each(|address| run::drop_guest_page(address >> 2, vmid.into()));
            }
            None => run::drop_guest(vmid.into()),
        }
    }

    fn invalidate_tag(&self, Tag(vmid): Tag) {
        run::drop_guest(vmid.into());
    }

    /// Both stages of each VMID, and the hypervisor's own entries.
    fn invalidate_all(&self) {
        let loaded = run::hgatp();
        run::drop_all_guests();
        for vmid in 1..=self.vmids {
            self.set(self.empty, Tag(vmid));
            run::drop_guests_own();
        }
        // SAFETY: the value was loaded before.
        unsafe { run::set_hgatp(loaded) };
        self.common.invalidate_all();
    }

    #[inline]
    fn broadcaster(&self) -> Option<&Self> {
        self.common.broadcaster().map(|_| self)
    }
}

// SAFETY: the second stage is dropped with what was combined from it. Where a VMID may become
// another guest's, both stages are dropped.
unsafe impl crate::Stage2 for Stage2 {
    const VCPU_NAMES: VcpuNames = VcpuNames::Shared;

    /// `HFENCE.VVMA`, for the guest whose VMID is loaded.
    fn invalidate_vcpu(&self, _: u16) {
        run::drop_guests_own();
    }
}

// SAFETY: as for `RiscV64`: a remote fence has reached its harts when its call returns.
unsafe impl Broadcaster for Stage2 {
    forward! { self => self.common;
        fn capabilities() -> Broadcast;
        fn costs() -> NotifyCosts;
    }

    fn broadcast<B: CpuBits>(
        &self,
        cpus: &CpuSet<B>,
        tag: Tag,
        extent: Extent,
    ) -> Result<(), Refused> {
        let hart = self.common.harts().ok_or(Refused)?;
        let mut result = Ok(());
        sbi::for_each_mask(cpus.iter().map(hart), |harts| {
            result = result.and_then(|()| sbi::remote_guest_fence(harts, tag, extent));
        });
        result
    }

    fn broadcast_kernel(&self, extent: Extent) -> Result<(), Refused> {
        self.common.broadcast_kernel(extent)
    }

    #[inline]
    fn complete(&self) -> u64 {
        0
    }
}

#[cfg(test)]
#[path = "tests/stage2.rs"]
mod tests;
