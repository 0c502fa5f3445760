//! The processor's half of the machine.

#![expect(unsafe_code, reason = "implements the processor's half of the engine's contract")]

use core::sync::atomic::{self, AtomicU64, Ordering};

use crate::Processor;
use shootdown::{Entries, Extent, Memory, NoBroadcaster, Root, Tag, TagSlot};

use crate::loongarch64::encoding::{
    InvtlbOp, asid_bits, asid_of, asid_operand, interrupts_enabled, pair_addresses,
};
use crate::loongarch64::instructions::{
    complete_all, invtlb, read_asid, read_mode, write_asid, write_root,
};

/// A `LoongArch64` processor. Its methods need PLV0.
///
/// # Requirements for the kernel
///
/// - The lower half (PGDL) is for user addresses. The kernel runs in direct mapping windows or in
///   the upper half, and accesses a user address only with the space loaded.
/// - A page must not be writable in the TLB (D) before its page-table entry is marked as written.
///   The PME exception handler or HPTW, which marks it, must do so by an atomic operation on the
///   entry that is then in memory. [`traps_stale_writes`](Processor::traps_stale_writes) promises
///   this.
/// - No page of the lower half has G set.
#[derive(Clone, Copy, Debug)]
pub struct LoongArch64 {
    tag_count: usize,
}

impl LoongArch64 {
    /// Detects the features of this CPU. All CPUs are assumed to be alike.
    #[must_use]
    pub fn detect() -> Self {
        Self { tag_count: (1 << asid_bits(read_asid())) - 1 }
    }
}

// SAFETY: the barrier orders all earlier accesses before all later ones.
unsafe impl Memory for LoongArch64 {
    type Word = AtomicU64;

    /// `DBAR 0b10000`, a full barrier (Linux: `o_sync`). Processors that do not know this hint
    /// execute `DBAR 0`.
    #[inline]
    fn fence(&self) {
        atomic::fence(Ordering::SeqCst);
    }
}

// SAFETY: each method executes the instruction that the contract requires, or explains the
// difference.
unsafe impl Processor for LoongArch64 {
    /// Slots for sixteen spaces. An ASID costs the hardware nothing. A slot costs 24 bytes, and a
    /// nanosecond at each switch. The 3A5000 has 2112 pairs, so each of 16 spaces has 132. With
    /// more spaces, most pairs of a space would be evicted before it runs again.
    type TagSlots = [TagSlot; 16];
    type TagWords = [AtomicU64; 0];
    type Broadcaster = NoBroadcaster;

    /// Completes all stores. A walk loads the entries of its tables one after the other, on this
    /// CPU or another. The release store of an entry ensures that a walk that finds the entry finds
    /// its table filled. Completing the stores, and not only ordering them, has another reason:
    /// `LDDIR`, `LDPTE` and HPTW may not look in the store buffer, as a load would. The exception
    /// after a missed entry costs more than the barrier. (Linux executes `DBAR(0b11000)` after
    /// changes of kernel entries, and takes that exception for user entries.)
    #[inline]
    fn publish(&self) {
        complete_all();
    }

    #[inline]
    fn interrupts_masked(&self) -> bool {
        !interrupts_enabled(read_mode())
    }

    #[inline]
    fn tag_count(&self) -> usize {
        self.tag_count
    }

    /// 64 pages: 32 `INVTLB` if the pages are adjacent. The alternative costs a refill of 50 to 100
    /// cycles for each pair that is used again, because software refills the TLB. Linux's limit is
    /// an eighth of the TLB, 264 pairs.
    #[inline]
    fn flush_ceiling(&self) -> usize {
        64
    }

    /// Root and ASID are two registers. HPTW may walk at any time, and must neither walk the old
    /// root under the new ASID nor the new root under the old ASID. (Linux's
    /// `atomic_update_pgd_asid` writes the two registers directly after each other, which does not
    /// constrain an out-of-order walker.) So the root changes under the kernel's ASID, whose
    /// entries of the lower half are neither used nor kept:
    ///
    /// ```text
    ///   ASID:=0   PGDL:=root   ASID:=tag
    ///           ^            ^
    ///           walks here are cached under 0
    /// ```
    #[inline]
    unsafe fn load(&self, root: Root, tag: Tag, entries: Entries) {
        let asid = asid_operand(tag);
        // SAFETY: the caller promises that the root is a valid page table. Under ASID 0, only the
        // translation of user addresses changes, and no code here uses them.
        unsafe {
            write_asid(asid_operand(Tag::KERNEL));
            write_root(root.0);
        }
        // No walk is cached under the tag now. Under the kernel's own, some may have been.
        if entries == Entries::Discard || tag == Tag::KERNEL {
            invtlb::<{ InvtlbOp::Asid as u32 }>(asid, 0);
        }
        // SAFETY: the engine promises that the entries under the tag are those of the root.
        unsafe { write_asid(asid) };
    }

    /// Also drops the walks that [`load`](Processor::load) may have cached under the kernel's tag:
    /// this CPU is not notified when those tables change.
    #[inline]
    unsafe fn load_kernel(&self, root: Root) {
        // SAFETY: the caller's promise is the contract of `load`.
        unsafe { self.load(root, Tag::KERNEL, Entries::Discard) };
    }

    /// The manual describes no cache of upper levels, only the TLB with whole translations. So
    /// freeing tables needs no further invalidation; Linux has none either (`tlb_flush`).
    ///
    /// A large page is invalidated twice. Pairs of small pages that were not valid may still
    /// overlap it, and QEMU's later versions drop only the first match.
    #[inline]
    fn invalidate(&self, tag: Tag, extent: Extent) {
        let asid = asid_operand(tag);
        let times = if extent.page_size().shift() > 12 { 2 } else { 1 };
        for address in pair_addresses(extent) {
            for _ in 0..times {
                invtlb::<{ InvtlbOp::AsidAndAddress as u32 }>(asid, address);
            }
        }
    }

    #[inline]
    fn invalidate_tag(&self, tag: Tag) {
        invtlb::<{ InvtlbOp::Asid as u32 }>(asid_operand(tag), 0);
    }

    /// Drops everything. With an address, `INVTLB` drops only global pairs and those of *one* ASID.
    /// A kernel pair with an unmapped page may not be global, and is then cached once for each
    /// ASID. (Linux sets G for such a page in `set_pte`, and uses op 6.)
    #[inline]
    fn invalidate_kernel(&self, extent: Extent) {
        let _ = extent;
        self.invalidate_all();
    }

    #[inline]
    fn invalidate_all(&self) {
        invtlb::<{ InvtlbOp::All as u32 }>(0, 0);
    }

    /// Drops the page's pair under the loaded ASID, valid or not.
    #[inline]
    fn forget_refused(&self, address: u64) {
        let asid = asid_operand(asid_of(read_asid()));
        invtlb::<{ InvtlbOp::AsidAndAddress as u32 }>(asid, address);
    }

    /// Also drops the pages' pairs, because a page that was not valid may be cached.
    #[inline]
    fn publish_kernel(&self, extent: Extent) {
        self.publish();
        self.invalidate_kernel(extent);
    }

    /// A page that is not marked as written is not writable in the TLB. A write raises PME, and its
    /// handler marks the entry in memory; see [`LoongArch64`].
    #[inline]
    fn traps_stale_writes(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loongarch64::instructions::Step::{self, CompleteAll, Invtlb, WriteAsid, WriteRoot};
    use crate::loongarch64::instructions::steps_of;
    use shootdown::PageSize;
    use std::vec::Vec;

    const ALL: u32 = InvtlbOp::All as u32;
    const ASID: u32 = InvtlbOp::Asid as u32;
    const PAGE: u32 = InvtlbOp::AsidAndAddress as u32;

    fn load(tag: u16, entries: Entries) -> Vec<Step> {
        // SAFETY: the instructions are only recorded.
        steps_of(|| unsafe { LoongArch64::detect().load(Root(0x5000), Tag(tag), entries) })
    }

    /// The hardware's walker may run between any two steps.
    #[test]
    fn root_changes_under_the_kernels_asid() {
        let root = [WriteAsid(0), WriteRoot(0x5000)];
        assert_eq!(load(7, Entries::Keep), [&root[..], &[WriteAsid(7)]].concat());
        let discarded = [Invtlb(ASID, 7, 0), WriteAsid(7)];
        assert_eq!(load(7, Entries::Discard), [&root[..], &discarded].concat());
    }

    #[test]
    fn loading_the_kernel_drops_walks_under_its_asid() {
        let processor = LoongArch64::detect();
        // SAFETY: the instructions are only recorded.
        let steps = steps_of(|| unsafe { processor.load_kernel(Root(0x9000)) });
        assert_eq!(steps, [WriteAsid(0), WriteRoot(0x9000), Invtlb(ASID, 0, 0), WriteAsid(0)]);
    }

    #[test]
    fn invalidation_names_pairs_once_and_large_pages_twice() {
        let processor = LoongArch64::detect();
        let steps = |extent| steps_of(|| processor.invalidate(Tag(3), extent));
        let three = Extent::pages(0x4000, 3, PageSize::SIZE_4K);
        assert_eq!(steps(three), [Invtlb(PAGE, 3, 0x4000), Invtlb(PAGE, 3, 0x6000)]);
        let large = Extent::pages(0x20_0000, 1, PageSize::SIZE_2M);
        assert_eq!(steps(large), [Invtlb(PAGE, 3, 0x20_0000); 2]);
        assert_eq!(steps_of(|| processor.invalidate_tag(Tag(3))), [Invtlb(ASID, 3, 0)]);
    }

    #[test]
    fn kernel_pages_are_dropped_with_everything() {
        let processor = LoongArch64::detect();
        let page = Extent::page(0xffff_8000_0000_0000);
        assert_eq!(steps_of(|| processor.invalidate_kernel(page)), [Invtlb(ALL, 0, 0)]);
        assert_eq!(steps_of(|| processor.publish()), [CompleteAll]);
        assert_eq!(steps_of(|| processor.publish_kernel(page)), [CompleteAll, Invtlb(ALL, 0, 0)]);
    }

    #[test]
    fn features_match_registers() {
        let processor = LoongArch64::detect();
        assert_eq!(processor.tag_count(), 1023);
        assert!(processor.interrupts_masked() && processor.traps_stale_writes());
    }

    #[test]
    fn refused_access_is_forgotten_under_loaded_asid() {
        load(9, Entries::Keep);
        let steps = steps_of(|| LoongArch64::detect().forget_refused(0x1000));
        assert_eq!(steps, [Invtlb(PAGE, 9, 0x1000)]);
    }
}
