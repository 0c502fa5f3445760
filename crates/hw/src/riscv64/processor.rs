//! The processor's half of the engine's machine, by its instructions.

#![expect(unsafe_code, reason = "implements the contract, and loads roots")]

use core::sync::atomic::{AtomicU64, Ordering, fence};

use crate::Processor;
use shootdown::{
    Broadcast, Broadcaster, CpuBits, CpuId, CpuSet, Entries, Extent, Memory, NotifyCosts, Reach,
    Refused, Root, Tag, TagSlot, Tagging,
};

use crate::errata::Workarounds;
use crate::riscv64::encoding::{ADDRESSES_MAX, addresses, asid_of};
use crate::riscv64::features::Features;
use crate::riscv64::instructions as run;
use crate::riscv64::sbi::{self, HartMask};

/// A RISC-V processor with 64 bits. Its methods need S-mode.
///
/// # Requirements for the kernel
///
/// - All CPUs have the same [`Features`], and `satp` has their mode.
/// - Every root maps the kernel at the same addresses. The kernel's leaves have G set, and no other
///   entry has. (G in an entry that points to a table makes all leaves below it global.)
/// - The [kernel's root](crate::Kernel::root) maps no user page.
/// - The handler of page faults calls [`forget_refused`](Processor::forget_refused).
#[derive(Clone, Copy, Debug)]
pub struct RiscV64 {
    features: Features,
    costs: NotifyCosts,
    /// `true` if a walk may go on after `satp` was overwritten: see
    /// [`Self::assuming_satp_ends_walks`].
    leaves_walks_running: bool,
    /// `true` if the kernel's exit path loads roots: see [`Self::loaded_by_kernel`].
    is_loaded_by_kernel: bool,
    /// `false` if there is no firmware to ask for the identity of a hart.
    has_firmware: bool,
    /// The number of a CPU's hart, if remote fences are used.
    harts: Option<fn(CpuId) -> u64>,
}

/// Estimates from the lab's machine `riscv-64`, which has the source of each number.
///
/// An interrupt is a call of the firmware (400 ns), its way through M-mode (1000), and its handler
/// (370), with three cache lines (330). A remote fence is a call (400) and the target's trap into
/// M-mode and back (1000), without the handler.
const COSTS: NotifyCosts = NotifyCosts {
    interrupt_ns: 2100,
    interrupt_each_ns: 906,
    broadcast_ns: 1450,
    broadcast_each_ns: 750,
    operation_ns: 1450,
};

impl RiscV64 {
    /// A processor with these features. CPUs are notified by interrupts.
    ///
    /// # Safety
    ///
    /// - The features are those that all CPUs have in [common](Features::common), or fewer.
    ///   [`set_up_cpu`](Processor::set_up_cpu) panics on a CPU of which this is not true, so call
    ///   it on each CPU before the CPU comes online. Each CPU has Svinval if the features have it.
    /// - The kernel keeps the [requirements](Self#requirements-for-the-kernel).
    #[must_use]
    pub const unsafe fn new(features: Features) -> Self {
        Self {
            features,
            costs: COSTS,
            leaves_walks_running: true,
            is_loaded_by_kernel: false,
            has_firmware: true,
            harts: None,
        }
    }

    /// Lets the engine notify CPUs by SBI's remote fences, where they cost less than interrupts.
    /// `hart` returns the number of a CPU's hart, which the firmware names CPUs by.
    ///
    /// # Safety
    ///
    /// The firmware has the extension [`REMOTE_FENCES`](sbi::Call::REMOTE_FENCES), and its calls
    /// return when the fences are complete. (SBI does not say so; OpenSBI and KVM wait, and Linux
    /// relies on it.) `hart` always returns the same number for a CPU, and the right one.
    #[must_use]
    pub const unsafe fn with_remote_fences(self, hart: fn(CpuId) -> u64) -> Self {
        Self { harts: Some(hart), ..self }
    }

    /// Declares that a write of `satp` ends the walks that began with the old value, so that
    /// translations under the old tag can be kept.
    ///
    /// The manual promises less: "Executions of the address-translation algorithm may only begin
    /// using a given value of satp when satp is active", and it is `SFENCE.VMA` that ends those
    /// that have begun. But the page tables that such a walk reads are freed without another
    /// notification of this CPU. So without this declaration, a CPU that loads another root also
    /// drops what it has cached under the old tag, and tags save nothing. (Linux keeps a CPU in
    /// `mm_cpumask` after it has left, and fences it again when it frees tables.)
    ///
    /// # Safety
    ///
    /// The processor's manufacturer promises it, or it is an emulator that walks within the
    /// instruction that needs it, as QEMU does.
    #[must_use]
    pub const unsafe fn assuming_satp_ends_walks(self) -> Self {
        Self { leaves_walks_running: false, ..self }
    }

    /// Leaves the loads of `satp` to the kernel, whose user roots do not map it (xv6): a trampoline
    /// loads the root of [`PinnedCpu::loaded_root`](shootdown::PinnedCpu::loaded_root), as
    /// [`satp`].
    ///
    /// A switch then only drops what must not be found under the tag. Without
    /// [`assuming_satp_ends_walks`](Self::assuming_satp_ends_walks), it drops everything, because
    /// `satp` does not show the tag whose walks may go on.
    ///
    /// # Safety
    ///
    /// - The kernel runs on its own root under ASID 0, and calls the engine on no other.
    /// - Its exit path keeps the [rule](shootdown::LoadedRoot), and if the tag is 0, executes
    ///   `sfence.vma` for everything after both of its writes of `satp`.
    /// - No entry has G, except those of pages that each root maps alike. (This replaces the
    ///   requirement that every root maps the kernel.)
    ///
    /// [`satp`]: Self::satp
    #[must_use]
    pub const unsafe fn loaded_by_kernel(self) -> Self {
        Self { is_loaded_by_kernel: true, ..self }
    }

    /// Declares that there is no firmware (SBI). [`set_up_cpu`](Processor::set_up_cpu) then does
    /// not ask for the identity of a hart; use [`Features::detect_as`] for the features.
    ///
    /// # Safety
    ///
    /// The features have each workaround that a hart needs.
    #[must_use]
    pub const unsafe fn without_firmware(self) -> Self {
        Self { has_firmware: false, ..self }
    }

    /// The value of `satp` for a root and its tag.
    #[must_use]
    pub const fn satp(&self, root: Root, tag: Tag) -> u64 {
        self.features.mode.satp(root, tag)
    }

    /// Prepares a tag for a root that the kernel loads later. No user root is loaded now.
    fn prepare(&self, tag: Tag, entries: Entries) {
        if self.leaves_walks_running {
            run::drop_all();
        } else if entries == Entries::Discard {
            self.drop_tag(tag);
        }
    }

    /// The number of a CPU's hart, if remote fences are used.
    pub(super) const fn harts(&self) -> Option<fn(CpuId) -> u64> {
        self.harts
    }

    /// Sets the measured costs of notification.
    #[must_use]
    pub const fn with_costs(self, costs: NotifyCosts) -> Self {
        Self { costs, ..self }
    }

    /// `true` if a fence must not name an address or an ASID.
    const fn has_whole_fences(&self) -> bool {
        self.features.workarounds.contains(Workarounds::WHOLE_FENCES)
    }

    /// Drops everything under a tag on this CPU.
    #[inline]
    fn drop_tag(&self, tag: Tag) {
        if self.has_whole_fences() {
            run::drop_all();
        } else {
            run::drop_asid(u64::from(tag.0));
        }
    }

    /// Drops an extent on this CPU, under a tag or under all.
    #[inline]
    fn drop_extent(&self, tag: Option<Tag>, extent: Extent) {
        if self.has_whole_fences() {
            return run::drop_all();
        }
        let asid = tag.map(|tag| u64::from(tag.0));
        match (addresses(extent), asid) {
            (Some(addresses), _) if self.features.has_svinval && addresses.len() > 1 => {
                run::begin_invalidations();
                addresses.for_each(|address| run::invalidate_page(address, asid));
                run::end_invalidations();
            }
            (Some(addresses), _) => addresses.for_each(|address| run::drop_page(address, asid)),
            (None, Some(asid)) => run::drop_asid(asid),
            (None, None) => run::drop_all(),
        }
    }
}

// SAFETY: `fence rw, rw` is a full barrier.
unsafe impl Memory for RiscV64 {
    type Word = AtomicU64;

    /// Without Zicbop, there is no instruction to prefetch.
    const PREFETCHES: bool = false;

    /// `fence rw, rw`.
    #[inline]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

// SAFETY: each method executes the instructions that the contract requires, or explains the
// difference. `SFENCE.VMA` orders "any previous stores already visible to the current RISC-V hart"
// before later walks, which includes the stores that its earlier loads have observed.
unsafe impl Processor for RiscV64 {
    /// Slots for the spaces whose generation a CPU records, as on `AArch64`: 8 KiB for each CPU.
    type TagSlots = [TagSlot; 256];
    /// For each tag of 16 bits, a bit and a pin bit: 16 KiB.
    type TagWords = [AtomicU64; 2048];
    type Broadcaster = Self;

    /// Checks that the processor is right on this CPU, which must have a root loaded.
    ///
    /// # Panics
    ///
    /// If the CPU needs a workaround, or lacks a feature, that the engine's features do not have.
    unsafe fn set_up_cpu(&self) {
        let detected = if self.has_firmware {
            Features::detect()
        } else {
            let workarounds = self.features.workarounds;
            Features { workarounds, ..Features::detect_as(None) }
        };
        let cpu = Features { has_svinval: self.features.has_svinval, ..detected };
        assert!(
            self.features.common(cpu) == self.features && cpu.mode == self.features.mode,
            "the engine's features are not right on this CPU: the engine uses {:?}, and the CPU \
             has {cpu:?}. Create the processor with Features::common of all CPUs",
            self.features,
        );
    }

    #[inline]
    fn workarounds(&self) -> Workarounds {
        self.features.workarounds
    }

    /// Orders the stores before all later accesses, so before those by which another CPU finds out
    /// that it has to execute its own `SFENCE.VMA`, and that orders its walks after them. On this
    /// CPU, the engine's invalidation does.
    ///
    /// A walk that comes earlier may miss an entry that was made valid, and the access is then
    /// refused once: see [`forget_refused`](Processor::forget_refused).
    #[inline]
    fn publish(&self) {
        run::fence_stores();
    }

    #[inline]
    fn synchronize(&self) {
        run::fence_memory();
    }

    #[inline]
    fn interrupts_masked(&self) -> bool {
        run::interrupts_masked()
    }

    #[inline]
    fn tagging(&self) -> Tagging {
        Tagging::Global
    }

    #[inline]
    fn tag_count(&self) -> usize {
        (1 << self.features.asid_bits) - 1
    }

    #[inline]
    fn flush_ceiling(&self) -> usize {
        ADDRESSES_MAX
    }

    /// A write of `satp` drops nothing. Entries to discard are dropped before, because nothing is
    /// cached under a tag that is not loaded; in the other order, a walk could begin in between at
    /// an entry of an upper level whose table has been freed. If the tag *is* loaded, its entries
    /// are dropped afterwards: until then, they are entries of a root that is still valid.
    #[inline]
    unsafe fn load(&self, root: Root, tag: Tag, entries: Entries) {
        let old = asid_of(run::satp());
        // A kernel that loads roots by itself runs under the kernel's tag.
        if old == Tag::KERNEL && self.is_loaded_by_kernel {
            return self.prepare(tag, entries);
        }
        let is_loaded = old == tag;
        if entries == Entries::Discard && !is_loaded {
            self.drop_tag(tag);
        }
        // SAFETY: the caller promises that the root is valid. The engine promises that the entries
        // under the tag are those of the root.
        unsafe { run::set_satp(self.satp(root, tag)) };
        if is_loaded && entries == Entries::Discard {
            self.drop_tag(tag);
        } else if !is_loaded && old != Tag::KERNEL && self.leaves_walks_running {
            self.drop_tag(old);
        }
    }

    /// Without ASIDs, this drops the user's entries, which have the kernel's tag. With ASIDs, only
    /// entries of the kernel's root are cached under that tag, and they stay valid.
    #[inline]
    unsafe fn load_kernel(&self, root: Root) {
        let has_tags = self.features.asid_bits != 0;
        let entries = if has_tags { Entries::Keep } else { Entries::Discard };
        // SAFETY: the caller's promise is the contract of `load`.
        unsafe { self.load(root, Tag::KERNEL, entries) };
    }

    #[inline]
    fn invalidate(&self, tag: Tag, extent: Extent) {
        self.drop_extent(Some(tag), extent);
    }

    #[inline]
    fn invalidate_tag(&self, tag: Tag) {
        self.drop_tag(tag);
    }

    #[inline]
    fn invalidate_kernel(&self, extent: Extent) {
        self.drop_extent(None, extent);
    }

    #[inline]
    fn invalidate_all(&self) {
        run::drop_all();
    }

    /// Under every ASID.
    #[inline]
    fn forget_refused(&self, address: u64) {
        if self.has_whole_fences() {
            run::drop_all();
        } else {
            run::drop_page(address, None);
        }
    }

    /// Also drops the pages, because an entry that was not valid may be cached.
    #[inline]
    fn publish_kernel(&self, extent: Extent) {
        self.publish();
        self.invalidate_kernel(extent);
    }

    /// To set D, the MMU compares the entry in memory and marks it, atomically (Svadu), or it
    /// refuses the write (Svade).
    #[inline]
    fn traps_stale_writes(&self) -> bool {
        true
    }

    /// "It is unpredictable whether the old non-leaf PTE or the new leaf PTE is used, but the
    /// behavior is otherwise well defined" (manual, "Supervisor Memory-Management Fence
    /// Instruction").
    #[inline]
    fn tolerates_mixed_sizes(&self) -> bool {
        true
    }

    /// Returns `None` with [`Workarounds::WHOLE_FENCES`], because a remote fence names addresses.
    #[inline]
    fn broadcaster(&self) -> Option<&Self> {
        (self.harts.is_some() && !self.has_whole_fences()).then_some(self)
    }
}

// SAFETY: a remote fence reaches the harts that it names, and returns when they have executed
// `SFENCE.VMA`, which `with_remote_fences` has been promised. So there is nothing to wait for.
unsafe impl Broadcaster for RiscV64 {
    /// One call names one range. The firmware may drop all of the tag instead.
    #[inline]
    fn capabilities(&self) -> Broadcast {
        Broadcast {
            reach: Reach::Targets,
            pages_per_operation: Extent::MAX_PAGES,
            operation_ceiling: 1,
            completes_at_issue: true,
        }
    }

    #[inline]
    fn costs(&self) -> NotifyCosts {
        self.costs
    }

    /// A hart whose CPU has gone offline since the caller found it present may have stopped. The
    /// firmware may then refuse the whole call.
    fn broadcast<B: CpuBits>(
        &self,
        cpus: &CpuSet<B>,
        tag: Tag,
        extent: Extent,
    ) -> Result<(), Refused> {
        let hart = self.harts.ok_or(Refused)?;
        let mut result = Ok(());
        sbi::for_each_mask(cpus.iter().map(hart), |harts| {
            result = result.and_then(|()| sbi::remote_fence(harts, Some(tag), extent));
        });
        result
    }

    fn broadcast_kernel(&self, extent: Extent) -> Result<(), Refused> {
        sbi::remote_fence(HartMask::ALL, None, extent)
    }

    /// Returns 0: the calls have waited, and their time is not measured.
    #[inline]
    fn complete(&self) -> u64 {
        0
    }
}

#[cfg(test)]
#[path = "tests/processor.rs"]
mod tests;
