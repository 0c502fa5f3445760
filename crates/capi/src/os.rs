//! The functions that the kernel defines: their contract is the one of the engine's machine.

#![expect(unsafe_code, reason = "declares functions of C")]

use crate::storage::{CpuStorage, SpaceStorage};

unsafe extern "C" {
    /// Defined by the kernel: the engine's state of a CPU. Always the same address for the
    /// same number, and another one for each number. Called at each flush for each CPU that may use
    /// the space.
    pub fn shootdown_os_cpu(number: u32) -> *mut CpuStorage;

    /// Defined by the kernel: the number of the CPU that runs this call, from 0 on, without
    /// large gaps.
    pub fn shootdown_os_this_cpu() -> u32;

    /// Defined by the kernel: sends the flush interrupt to `count` CPUs (at most 64; for more,
    /// the engine calls it several times). They are either other CPUs, or only the calling one.
    ///
    /// Each of them must enter the handler after finite time, unless it masks the interrupt for
    /// ever. The handler must observe all stores that this CPU made before the call, which most
    /// machines guarantee only after a barrier: `mfence; lfence` before a write to an x2APIC
    /// register, `dsb ishst` before an SGI of Arm's GIC.
    pub fn shootdown_os_ring(cpus: *const u32, count: usize);

    /// Defined by the kernel: returns a retired space. No CPU can walk its page tables any
    /// more, and the engine will not access it again.
    ///
    /// Called in the middle of `shootdown_switch`, `shootdown_leave_space`, `shootdown_offline`,
    /// `shootdown_retire` or `shootdown_reap`, with the flush interrupt masked. It must not call
    /// the engine. If memory cannot be freed there, put the space on a list.
    pub fn shootdown_os_reclaim(space: *mut SpaceStorage);

    /// Defined by the kernel: one turn of the loop that waits for other CPUs. `cpu` is the
    /// first one that has not answered. A place to count, to report a CPU that does not answer, or
    /// to yield a virtual CPU. It may be empty.
    pub fn shootdown_os_wait_hint(cpu: u32);
}

#[cfg(feature = "panic-handler")]
unsafe extern "C" {
    /// Defined by the kernel: a defect was found, in the engine or in the way in which the
    /// kernel uses it. `message` has `length` bytes of text, without a final 0. TLBs may be
    /// inconsistent from here on, so stop the machine. The function must not return,
    /// and must not call the engine.
    pub fn shootdown_os_panic(message: *const core::ffi::c_char, length: usize) -> !;
}

unsafe extern "C" {
    /// Defined by the kernel: returns true if the flush interrupt is masked on this CPU.
    pub fn shootdown_mmu_interrupts_masked() -> bool;

    /// Defined by the kernel: makes this CPU's earlier stores to page tables visible to all
    /// page-table walkers, before any later access or invalidation (nothing on x86; `dsb ishst` on
    /// Arm).
    pub fn shootdown_mmu_publish();

    /// Defined by the kernel: completes all earlier loads and stores of this CPU before any
    /// later invalidation (`mfence` on x86, `dsb ish` on Arm).
    pub fn shootdown_mmu_synchronize();

    /// Defined by the kernel: makes the page table at `root` current under `tag`. If
    /// `keeps_entries` is false, translations under this tag that the CPU has cached before must be
    /// gone.
    ///
    /// Like all functions below, it must have taken full effect when it returns: no later access
    /// and no speculative walk uses what it drops.
    pub fn shootdown_mmu_load(root: u64, tag: u16, keeps_entries: bool);

    /// Defined by the kernel: makes the kernel's own page table current, under tag 0. If the
    /// TLB has no tags, all translations of user pages must be gone.
    pub fn shootdown_mmu_load_kernel();

    /// Defined by the kernel: drops this CPU's translations of `count` pages of
    /// 2^`page_shift` bytes from `address` on, under `tag`, which is loaded. If `frees_tables`,
    /// also drops the cached entries of upper levels above them.
    pub fn shootdown_mmu_invalidate(
        tag: u16,
        address: u64,
        count: usize,
        page_shift: u8,
        frees_tables: bool,
    );

    /// Defined by the kernel: drops all of this CPU's translations under `tag`, which is
    /// loaded.
    pub fn shootdown_mmu_invalidate_tag(tag: u16);

    /// Defined by the kernel: drops this CPU's translations of these pages of the kernel,
    /// global ones included, under every tag. A `count` of 0 means all pages.
    pub fn shootdown_mmu_invalidate_kernel(
        address: u64,
        count: usize,
        page_shift: u8,
        frees_tables: bool,
    );

    /// Defined by the kernel: drops all translations of this CPU, global ones included, under
    /// every tag.
    pub fn shootdown_mmu_invalidate_all();
}
