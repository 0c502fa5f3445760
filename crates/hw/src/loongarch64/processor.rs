//! The processor's half of the machine.

#![expect(unsafe_code, reason = "fulfils the processor's half of the engine's contract")]

use core::sync::atomic::{self, AtomicU64, Ordering};

use crate::Processor;
use shootdown::{Entries, Extent, Memory, NoBroadcaster, Root, Tag, TagSlot};

use crate::loongarch64::encoding::{
    Invalidate, asid_bits, asid_of, asid_operand, interrupts_are_let_in, probes,
};
use crate::loongarch64::instructions::{
    complete_all, invtlb, read_asid, read_mode, write_asid, write_root,
};

/// A `LoongArch64` processor. Its methods are for PLV0.
///
/// # What the kernel must see to
///
/// - The lower half, of PGDL, is for user code; the kernel lives in direct mapping windows or in
///   the upper half, and touches no user address but with the space loaded.
/// - A page is not writable to the TLB (D) before its entry in memory is marked as written, and
///   whoever marks it, the handler of the exception PME or HPTW, does so by an atomic operation on
///   the entry that is there then. [`traps_stale_writes`](Processor::traps_stale_writes) says so.
/// - No page of the lower half has G set.
#[derive(Clone, Copy, Debug)]
pub struct LoongArch64 {
    tag_count: usize,
}

impl LoongArch64 {
    /// The processor that runs this, with its features found out. All CPUs are taken to be alike.
    #[must_use]
    pub fn detect() -> Self {
        Self { tag_count: (1 << asid_bits(read_asid())) - 1 }
    }

    /// Has this CPU drop_pair what it remembers of a page under the loaded tag, be it that there was
    /// none: for the handler of page faults, before the access is tried again.
    ///
    /// By the ASID that is loaded, so that it is the right one whoever loaded it.
    #[inline]
    pub fn drop_pair(&self, address: u64) {
        let asid = asid_operand(asid_of(read_asid()));
        invtlb::<{ Invalidate::AsidAndAddress as u32 }>(asid, address);
    }
}

// SAFETY: the barrier orders all before all.
unsafe impl Memory for LoongArch64 {
    type Word = AtomicU64;

    /// `DBAR 0b10000`, which orders all before all (Linux: `o_sync`); where the hint is unknown, a
    /// `DBAR 0`.
    #[inline]
    fn fence(&self) {
        atomic::fence(Ordering::SeqCst);
    }
}

// SAFETY: each method says why, where it is not what its instruction does.
unsafe impl Processor for LoongArch64 {
    /// Sixteen spaces: an ASID costs the hardware nothing, and a slot 24 bytes and a nanosecond at
    /// each switch. Of 2112 pairs, as the 3A5000 has them, 16 spaces get 132 each: with more, most
    /// of what a space left would be gone anyway when it comes back.
    type TagSlots = [TagSlot; 16];
    type TagWords = [AtomicU64; 0];
    type Broadcaster = NoBroadcaster;

    /// A walk loads the entries of its tables one after the other, on this CPU or on another: that
    /// it finds a table filled to which it finds an entry is what the release of that entry sees
    /// to. Here all stores are completed, and not only ordered: `LDDIR`, `LDPTE` and HPTW need not
    /// look where a load would (the store buffer), and the exception that comes of what they miss
    /// is dearer than the barrier. (Linux, after changes for the kernel: `DBAR(0b11000)`; for
    /// users, it takes that exception.)
    #[inline]
    fn publish(&self) {
        complete_all();
    }

    #[inline]
    fn interrupts_masked(&self) -> bool {
        !interrupts_are_let_in(read_mode())
    }

    #[inline]
    fn tag_count(&self) -> usize {
        self.tag_count
    }

    /// 64 pages: 32 `INVTLB`, where they lie side by side, against refills of 50 to 100 cycles for
    /// each pair that is wanted again, since software does them. Linux goes on up to an eighth of
    /// the TLB, 264 pairs.
    #[inline]
    fn flush_ceiling(&self) -> usize {
        64
    }

    /// Root and ASID are two registers. HPTW may walk at any time, and must not walk the old root
    /// under the new ASID, nor the new root under the old one (Linux's `atomic_update_pgd_asid`
    /// writes one right after the other, which an out-of-order walker need not respect). So the
    /// root changes under the kernel's ASID, whose entries of the lower half nobody uses or keeps:
    ///
    /// ```text
    ///   ASID:=0   PGDL:=root   ASID:=tag
    ///           ^            ^
    ///           walks here are cached under 0
    /// ```
    #[inline]
    unsafe fn load(&self, root: Root, tag: Tag, entries: Entries) {
        let asid = asid_operand(tag);
        // SAFETY: our caller promises that the root is a page table, which stays. Under ASID 0,
        // only user addresses are translated otherwise than before, and nobody uses those here.
        unsafe {
            write_asid(asid_operand(Tag::KERNEL));
            write_root(root.0);
        }
        // While no walk is cached under the tag. Under the kernel's own, some may have been.
        if entries == Entries::Discard || tag == Tag::KERNEL {
            invtlb::<{ Invalidate::Asid as u32 }>(asid, 0);
        }
        // SAFETY: as above; what is cached under the tag is that root's, as the engine has it.
        unsafe { write_asid(asid) };
    }

    /// With what [`load`](Processor::load) may have had walked under the kernel's tag: nobody tells
    /// this CPU of those tables any more.
    #[inline]
    unsafe fn load_kernel(&self, root: Root) {
        // SAFETY: our caller's promise is what `load` asks for.
        unsafe { self.load(root, Tag::KERNEL, Entries::Discard) };
    }

    /// The manual knows no cache but the TLB, of whole translations, so there is nothing more to
    /// drop where tables are freed; nor does Linux (`tlb_flush`).
    ///
    /// A large page is asked for twice: pairs of small pages that were not valid may lie over it,
    /// from before it came, and QEMU's later versions drop but the first match.
    #[inline]
    fn invalidate(&self, tag: Tag, extent: Extent) {
        let asid = asid_operand(tag);
        let times = if extent.page_size().shift() > 12 { 2 } else { 1 };
        for address in probes(extent) {
            for _ in 0..times {
                invtlb::<{ Invalidate::AsidAndAddress as u32 }>(asid, address);
            }
        }
    }

    #[inline]
    fn invalidate_tag(&self, tag: Tag) {
        invtlb::<{ Invalidate::Asid as u32 }>(asid_operand(tag), 0);
    }

    /// Everything: by an address, `INVTLB` finds what is global, and what is of *one* ASID. A pair
    /// of the kernel's of which one page is not mapped may not be global, and is then cached once
    /// for each ASID. (Linux gives such a page G, too, in `set_pte`, and uses op 6.)
    #[inline]
    fn invalidate_kernel(&self, extent: Extent) {
        let _ = extent;
        self.invalidate_all();
    }

    #[inline]
    fn invalidate_all(&self) {
        invtlb::<{ Invalidate::All as u32 }>(0, 0);
    }

    /// What is not yet written is not writable: the TLB refuses the write (PME), and whoever marks
    /// the entry looks for it in memory; see [`LoongArch64`].
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

    const ALL: u32 = Invalidate::All as u32;
    const ASID: u32 = Invalidate::Asid as u32;
    const PAGE: u32 = Invalidate::AsidAndAddress as u32;

    fn load(tag: u16, entries: Entries) -> Vec<Step> {
        // SAFETY: nothing is executed.
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
        // SAFETY: nothing is executed.
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
    }

    #[test]
    fn features_are_those_of_the_registers() {
        let processor = LoongArch64::detect();
        assert_eq!(processor.tag_count(), 1023);
        assert!(processor.interrupts_masked() && processor.traps_stale_writes());
    }

    #[test]
    fn forget_names_the_loaded_asid() {
        load(9, Entries::Keep);
        let steps = steps_of(|| LoongArch64::detect().drop_pair(0x1000));
        assert_eq!(steps, [Invtlb(PAGE, 9, 0x1000)]);
    }
}
