//! The functions that the kernel defines: their contract is the one of the engine's machine.

#![expect(unsafe_code, reason = "declares functions of C")]

use crate::storage::{CpuStorage, SpaceStorage};
#[cfg(feature = "trace")]
use crate::trace::{FlushEvent, WaitEvent};

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
    /// register, `dsb ishst` before an SGI of Arm's GIC. `shootdown_send_ipi` has these barriers.
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

#[cfg(feature = "percpu-gs")]
unsafe extern "C" {
    /// Defined by the kernel, like the three variables below, if the library was built with the
    /// feature `percpu-gs`: for each CPU, what must be added to the address of a CPU's variable to
    /// have that CPU's own. In GS on that CPU. (Linux: `__per_cpu_offset`.)
    pub static shootdown_os_percpu_base: u64;
    /// Defined by the kernel: the CPU's element of `shootdown_os_percpu_base`, a variable of each
    /// CPU. (Linux: `this_cpu_off`.)
    pub static shootdown_os_percpu_offset: u64;
    /// Defined by the kernel: the number of the CPU, a variable of each CPU.
    pub static shootdown_os_percpu_number: u32;
    /// Defined by the kernel: the engine's state of the CPU (`struct shootdown_cpu`), a variable of
    /// each CPU.
    pub static shootdown_os_percpu_state: u8;
}

#[cfg(feature = "away")]
unsafe extern "C" {
    /// Defined by the kernel, if the library was built with the feature `away`: returns true if a
    /// hypervisor does not run `cpu`, which then empties its TLB before it runs again. A flush asks
    /// this before it rings the CPU. It neither interrupts nor waits for a CPU that is away.
    ///
    /// The answer true is a request and a promise. The kernel guarantees:
    ///
    /// - the CPU executes nothing, and walks no page table, from before this call returns until it
    ///   has dropped all translations, global ones included, under every tag;
    /// - it drops them after all earlier stores of the calling CPU;
    /// - its accesses before it stopped happen before this call returns.
    ///
    /// So it is not enough to know that the CPU does not run: it may run again, with its old TLB,
    /// before this call returns. `shootdown_vcpu_defer_flush` fulfils this contract. If your kernel
    /// walks page tables by software, mark each walk with `shootdown_begin_walk`; if it also fills
    /// the TLB by software, return false.
    pub fn shootdown_os_is_away(cpu: u32) -> bool;
}

#[cfg(feature = "isolation")]
unsafe extern "C" {
    /// Defined by the kernel, if the library was built with the feature `isolation`: returns true
    /// if a CPU may use one of `count` kernel pages of 2^`page_shift` bytes from `address` on (all
    /// pages, if `count` is 0) after `shootdown_enter_user`, or before `shootdown_enter_kernel`:
    /// entry code, its stacks and tables, handlers of NMIs. A flush of these pages interrupts CPUs
    /// in user mode as well. Return false if such pages are never flushed.
    pub fn shootdown_os_is_used_on_entry(address: u64, count: usize, page_shift: u8) -> bool;
}

#[cfg(feature = "devices")]
unsafe extern "C" {
    /// Defined by the kernel, like the next function, if the library was built with the feature
    /// `devices`: begins to invalidate `count` pages of 2^`page_shift` bytes from `address` on (all
    /// of the space, if `count` is 0) on the devices that are attached to `space`. `frees_tables`:
    /// caches of page tables too. Called masked; must not wait. Returns a ticket: when its commands
    /// are done, so are those of all lower ones. 0 if they are done already.
    pub fn shootdown_os_issue_to_devices(
        space: *const SpaceStorage,
        address: u64,
        count: usize,
        page_shift: u8,
        frees_tables: bool,
    ) -> u64;

    /// Defined by the kernel: returns true if the commands of this ticket are done. Called in each
    /// turn of a wait, on any CPU. It must become true for a device that has failed: reset it.
    pub fn shootdown_os_devices_are_done(ticket: u64) -> bool;
}

#[cfg(feature = "trace")]
unsafe extern "C" {
    /// Defined by the kernel, like the two functions below, if the library was built with the
    /// feature `trace`: the time in nanoseconds since any fixed moment.
    pub fn shootdown_os_trace_clock_ns() -> u64;

    /// Defined by the kernel: called at the end of each flush, when it was sent. `event` is valid
    /// during the call. The function must not call the library, nor wait for a lock that its CPU
    /// may hold.
    pub fn shootdown_os_trace_flush(event: *const FlushEvent);

    /// Defined by the kernel: called at the end of each wait that had to wait. The same holds as
    /// for `shootdown_os_trace_flush`.
    pub fn shootdown_os_trace_wait(event: *const WaitEvent);
}

#[cfg(all(feature = "processor", feature = "broadcast", target_arch = "riscv64"))]
unsafe extern "C" {
    /// Defined by the kernel, on RISC-V, if the library was built with the features `processor` and
    /// `broadcast`: the number of a CPU's hart, by which the firmware names it. Always the same
    /// number for a CPU.
    pub fn shootdown_os_hart(cpu: u32) -> u64;
}

#[cfg(feature = "panic-handler")]
unsafe extern "C" {
    /// Defined by the kernel: a defect was found, in the engine or in the way in which the
    /// kernel uses it. `message` has `length` bytes of text, without a final 0. TLBs may be
    /// inconsistent from here on, so stop the machine. The function must not return,
    /// and must not call the engine.
    pub fn shootdown_os_panic(message: *const core::ffi::c_char, length: usize) -> !;
}

#[cfg(any(not(feature = "processor"), docsrs))]
unsafe extern "C" {
    /// Defined by the kernel, like all functions `shootdown_mmu_…`, unless the library was built
    /// with the feature `processor`: returns true if the flush interrupt is masked on this CPU.
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
    /// and no speculative walk uses what it drops. It also ends the walks of the root that was
    /// loaded before: where a load does not (RISC-V's manual promises nothing), drop the old tag's
    /// entries after it.
    ///
    /// In a kernel whose user roots do not map the kernel, it loads nothing, and only drops what
    /// `keeps_entries` demands: the exit path loads what `shootdown_loaded` returns. The functions
    /// below then drop entries under a tag that is not loaded, so they must name it.
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

#[cfg(all(feature = "broadcast", any(not(feature = "processor"), docsrs)))]
unsafe extern "C" {
    /// Defined by the kernel, like the three functions below, if the library was built with the
    /// feature `broadcast` and without `processor`: begins to drop the translations of these pages
    /// under `tag` on other CPUs, as `shootdown_mmu_invalidate` does on this one. A `count` of 0
    /// means all translations under the tag.
    ///
    /// With `SHOOTDOWN_REACH_TARGETS`, `cpus` has the numbers of `cpu_count` CPUs (at most 64; for
    /// more, the engine calls it several times). With `SHOOTDOWN_REACH_EVERYONE`, it reaches all
    /// CPUs, this one included, and `cpus` is null.
    ///
    /// Returns false if the hardware or the firmware refuses, so that a CPU may keep a translation.
    /// The engine then interrupts the CPUs.
    pub fn shootdown_mmu_broadcast(
        cpus: *const u32,
        cpu_count: usize,
        tag: u16,
        address: u64,
        count: usize,
        page_shift: u8,
        frees_tables: bool,
    ) -> bool;

    /// Defined by the kernel: begins to drop the translations of these pages of the kernel on all
    /// CPUs, as `shootdown_mmu_invalidate_kernel` does on this one. A `count` of 0 means
    /// everything. Returns false if it is refused, as `shootdown_mmu_broadcast` does.
    /// Called only with `SHOOTDOWN_REACH_EVERYONE`.
    pub fn shootdown_mmu_broadcast_kernel(
        address: u64,
        count: usize,
        page_shift: u8,
        frees_tables: bool,
    ) -> bool;

    /// Defined by the kernel: waits until all broadcasts that *this* CPU has issued have taken full
    /// effect on every CPU that they reach, and until those CPUs have completed each access that
    /// used a dropped translation (`dsb ish` on Arm). Returns the duration of the wait in
    /// nanoseconds, or 0 if it is not measured.
    pub fn shootdown_mmu_complete_broadcasts() -> u64;

    /// Defined by the kernel: a clock of this CPU in nanoseconds, with which the engine measures
    /// how long other CPUs take to answer. Returns always 0 if it must not measure.
    pub fn shootdown_mmu_clock_ns() -> u64;
}
