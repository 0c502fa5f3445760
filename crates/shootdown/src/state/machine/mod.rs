//! The contract with the machine: the hardware and the kernel, as the engine sees them.
//!
//! A kernel implements [`Machine`] once per architecture. Its supertrait [`Memory`] is the contract
//! for memory alone, and [`Broadcaster`] the contract for hardware that broadcasts invalidations.

#![expect(unsafe_code, reason = "states the contract that all of the engine's safety rests on")]

mod choices;

use core::ptr::NonNull;

use crate::base::costs::FlushCosts;
use crate::base::ids::{CpuId, DeviceTicket, Root, Tag};
use crate::base::memory::{Memory, TagWords};
use crate::parts::cpu_set::{CpuBits, CpuSet};
use crate::parts::extent::Extent;
use crate::parts::trace_event::{FlushTrace, WaitTrace};
use crate::state::broadcaster::Broadcaster;
use crate::state::cpu_state::CpuState;
use crate::state::space::Space;
use crate::state::stall::StallReport;
use crate::state::tag::slots::TagSlots;

pub use choices::{Entries, Lifetime, Tagging};

/// The engine's view of the machine. A kernel implements it once per architecture.
///
/// The engine calls every method with the flush interrupt masked, and also from that interrupt's
/// handler. So no method may block, allocate, or take a lock that this CPU may already hold.
///
/// # Safety
///
/// The engine promises its callers that no CPU uses a translation after its flush. For that, an
/// implementation guarantees:
///
/// - [`cpu`](Machine::cpu) names the CPU that runs the call. [`state`](Machine::state) always
///   returns the same [`CpuState`] for the same number, and a different one for each number;
/// - when [`load`](Machine::load), [`load_kernel`](Machine::load_kernel) or one of the
///   `invalidate` methods returns, it has taken full effect on this CPU: no later access, and no
///   later speculative walk, uses what it drops. That includes the caches of upper page-table
///   levels for an extent that [frees tables](Extent::frees_tables), for a whole tag, and for
///   everything;
/// - an `invalidate` method takes effect after three kinds of earlier loads of this CPU:
///   - a load that decided whether the engine calls the method (a control dependency),
///   - a load from which the method's operands were computed (an address dependency),
///   - a load before the latest [`synchronize`](Machine::synchronize).
///
///   The method may take effect before any other earlier load, even an acquiring one with a full
///   barrier after it: Arm orders `TLBI` after a load only by a `DSB` or a dependency. The method
///   may also take effect before an earlier page-table write, unless
///   [`publish`](Machine::publish) or `synchronize` is between the two;
/// - a CPU in the set given to [`ring`](Machine::ring) enters the flush interrupt's handler after
///   finite time, unless it masks that interrupt for ever. The handler calls
///   [`PinnedCpu::handle_flush_ipi`](crate::PinnedCpu::handle_flush_ipi), and observes every store
///   that the sender made before `ring`. On most machines that requires a barrier before the send:
///   `dsb ishst` before an SGI on Arm; on Intel, `mfence; lfence` before an x2APIC register write,
///   because no fence or locked operation alone orders that write;
/// - [`tagging`](Machine::tagging), [`tag_count`](Machine::tag_count) and
///   [`broadcaster`](Machine::broadcaster) always return the same value, on every CPU.
pub unsafe trait Machine: Memory {
    /// One bit per possible CPU: `[u64; 1]` for up to 64 CPUs, `[u64; 64]` for 4096.
    type CpuBits: CpuBits;
    /// Room for the spaces whose translations a CPU's TLB may hold: `[TagSlot; 6]`, as Linux has on
    /// x86; `[TagSlot; 0]` for a machine that has no tags.
    type TagSlots: TagSlots;
    /// Room for the allocator of [global](Tagging::Global) tags: one bit per tag, and one more per
    /// tag for pins. `[AtomicU64; 2048]` for tags of 16 bits, `[AtomicU64; 8]` for 8 bits, and
    /// `[AtomicU64; 0]` where tags are not global.
    type TagWords: TagWords<Self::Word>;
    /// The hardware's method to invalidate on other CPUs; [`NoBroadcaster`](crate::NoBroadcaster)
    /// if it has none.
    type Broadcaster: Broadcaster;

    /// The method that keeps a space from being freed while a CPU is lazy on it.
    const LIFETIME: Lifetime = Lifetime::Handoff;

    /// `true` if the engine calls [`trace_flush`](Machine::trace_flush) for each flush and
    /// [`trace_wait`](Machine::trace_wait) for each wait. If `false`, the compiler removes the
    /// calls, and the paths of a flush are the same as without them.
    const TRACES: bool = false;

    /// `true` if each operation checks what its caller promises, as far as the engine has the
    /// means: that the CPU is online when it loads a space, that this engine has made the space and
    /// the space is not retired, and that no operation begins within another one of its CPU. A
    /// promise that is broken then panics with a sentence.
    ///
    /// Builds with debug assertions do most of these checks whatever this is. In other builds,
    /// `true` costs a flush 7 instructions, a switch to a space that is not loaded 17, and going
    /// lazy and back 16 (counted in C). The C interface sets it, because C has no types that keep
    /// promises.
    const CHECKS: bool = false;

    /// `true` if CPUs may [enter user mode](crate::PinnedCpu::enter_user), where flushes of the
    /// kernel's translations do not interrupt them. Such a flush then reads one more word of each
    /// CPU. If `false`, the compiler removes that.
    const ISOLATES: bool = false;

    /// `true` if the flush of clean pages may be [deferred](crate::CleanBatch::defer) until their
    /// frames are reused. A CPU that catches up then publishes that, in one store to its own line.
    /// If `false`, the compiler removes the store.
    const FLUSHES_AT_REUSE: bool = false;

    /// The engine's state of `cpu`, wherever the kernel has placed it: an array, a per-CPU area.
    fn state(&self, cpu: CpuId) -> &CpuState<Self>;

    /// The CPU that runs this call. The result may be outdated unless the caller is pinned.
    fn cpu(&self) -> CpuId;

    /// [`cpu`](Self::cpu) and its [`state`](Self::state), for a kernel that finds both at once,
    /// relative to a register.
    #[inline]
    fn this_cpu(&self) -> (CpuId, &CpuState<Self>) {
        let cpu = self.cpu();
        (cpu, self.state(cpu))
    }

    /// Returns `true` if the flush interrupt is masked on this CPU.
    ///
    /// If it is masked, a waiter polls its own bell, because no interrupt can arrive.
    fn interrupts_masked(&self) -> bool;

    /// Makes this CPU's earlier page-table writes visible to every page-table walker, before any
    /// later access or invalidation of this CPU (`dsb ishst` on Arm; nothing on x86).
    fn publish(&self);

    /// Completes every earlier load and store of this CPU, page-table writes included, before any
    /// later invalidation (`dsb ish` on Arm).
    ///
    /// The engine calls this where an invalidation must come after a load on which it does not
    /// depend: see [`invalidate_all`](Machine::invalidate_all).
    #[inline]
    fn synchronize(&self) {
        self.fence();
        self.publish();
    }

    /// Returns `true` if a CPU may have translations of two sizes for one address, as long as the
    /// CPU does not use that address.
    ///
    /// If `false`, [`flush_for_resize`](crate::PinnedCpu::flush_for_resize) also notifies CPUs that
    /// could only walk the page tables. `false` is the default, because Arm requires
    /// *break-before-make* on all CPUs that can walk the entry (Arm ARM, "Using break-before-make
    /// when updating translation table entries"). On x86-64 return `true`: Linux interrupts no lazy
    /// CPU when it splits or collapses a large page's entry (`flush_pmd_tlb_range` frees no
    /// tables).
    #[inline]
    fn tolerates_mixed_sizes(&self) -> bool {
        false
    }

    /// Returns `true` if a CPU that handles the flush interrupt answers *before* it invalidates,
    /// where no page table was freed. The CPU that waits then does not wait for the invalidations.
    ///
    /// The handler touches no user memory between the two, and invalidates before it returns. So no
    /// instruction uses a dead translation. These do go on for a moment:
    ///
    /// - speculation through the dead translation, which may read the page of its next owner;
    /// - an entry of another value in the page tables beside the old one in the TLB, which Arm
    ///   forbids (*break-before-make*).
    ///
    /// The default is `false`: the kernel decides whether its processors and threats allow this.
    /// (At least one holder of patents claims the technique: US 11,321,242.)
    #[inline]
    fn answers_early(&self) -> bool {
        false
    }

    /// The way in which spaces get tags.
    #[inline]
    fn tagging(&self) -> Tagging {
        Tagging::PerCpu
    }

    /// Number of tags for address spaces, found at run time.
    ///
    /// The engine uses tags 1 to `tag_count`, as far as there is room for them in
    /// [`TagSlots`](Machine::TagSlots) (if tags are [per CPU](Tagging::PerCpu)) or in
    /// [`TagWords`](Machine::TagWords) (if tags are [global](Tagging::Global)). 0 means that each
    /// load of a root discards the translations.
    fn tag_count(&self) -> usize;

    /// Upper limit of the number of CPUs. The default is the capacity of
    /// [`CpuBits`](Machine::CpuBits).
    #[inline]
    fn cpu_limit(&self) -> usize {
        CpuSet::<Self::CpuBits>::capacity()
    }

    /// Number of single-page invalidations above which the whole tag is discarded instead.
    ///
    /// The default is Linux's 33: about 100 ns per `INVLPG`, so 3.3 µs. To discard the tag instead
    /// costs 8 to 17 ns for each entry that the CPU needs again. The ceiling applies to one flush.
    /// A CPU that has missed several, and is interrupted for them, uses
    /// [`batch_ceiling`](Self::batch_ceiling).
    ///
    /// With more than [`Extent::MAX_PAGES`], the machine declares that its `invalidate` methods
    /// cover [long](Extent::long) extents as well: all addresses of the range, whatever the size of
    /// the pages. Other machines are never passed such an extent; they discard the tag.
    #[inline]
    fn flush_ceiling(&self) -> usize {
        33
    }

    /// Number of single-page invalidations above which a CPU that comes back to a space discards
    /// the whole tag, counting only pages that the program itself has changed.
    ///
    /// It is lower than [`flush_ceiling`](Self::flush_ceiling), because such a CPU needs fewer of
    /// its entries again, and would pay for every flush that did not interrupt it. 8 pages take
    /// 0.8 µs, as long as it takes to discard the tag (0.2 µs) and refill 40 to 70 entries. With 33
    /// on the simulated `xeon-2s`, four threads on two CPUs that map and unmap 16 pages take 8 %
    /// longer.
    ///
    /// Pages that a [`Batch`](crate::Batch) reclaimed from the program count towards
    /// [`flush_ceiling`](Self::flush_ceiling) alone. Such pages had not been used for a long time,
    /// and a program that loses pages uses more memory than a TLB covers: it needs all of its
    /// entries again.
    #[inline]
    fn catch_up_ceiling(&self) -> usize {
        self.flush_ceiling().min(8)
    }

    /// The costs of invalidation, from which [`batch_ceiling`](Self::batch_ceiling) is derived.
    #[inline]
    fn flush_costs(&self) -> FlushCosts {
        FlushCosts::default()
    }

    /// Number of pages of a [`Batch`](crate::Batch) above which a CPU that uses the space when the
    /// batch is sent discards the whole tag. Such a CPU is interrupted, or is the sender itself.
    /// The ceiling also applies to the sum over several flushes that such a CPU has missed.
    ///
    /// The default is 17. It is lower than [`flush_ceiling`](Self::flush_ceiling), because the
    /// senders wait for that CPU. (A CPU that comes back to a space, for which no CPU waits,
    /// invalidates up to `flush_ceiling` pages.) On simulated machines:
    ///
    /// - with 33 on `xeon-2s`, a migration of pages that other CPUs write to takes 24 % longer than
    ///   with Linux's one full flush for each batch of 32;
    /// - with 12, reclaim does 1.2 times as many full flushes as with 16 on `xeon-4s`, and 1.9
    ///   times as many on `desktop-1s`.
    #[inline]
    fn batch_ceiling(&self) -> usize {
        self.flush_costs().batch_ceiling(self.flush_ceiling())
    }

    /// Makes `root` current on this CPU under `tag`.
    ///
    /// # Safety
    ///
    /// `root` must be a valid page table that maps the kernel, and must remain one while it is
    /// loaded.
    unsafe fn load(&self, root: Root, tag: Tag, entries: Entries);

    /// Makes the kernel's own page table current, under [`Tag::KERNEL`].
    ///
    /// If [`tag_count`](Machine::tag_count) is 0, user translations are cached under the same
    /// tag. Discard them here, together with the caches of upper levels, because from now on no CPU
    /// notifies this one of freed tables. (x86 discards them by itself; RISC-V without ASIDs does
    /// not.)
    fn load_kernel(&self);

    /// Drops this CPU's translations of the pages of `extent` under `tag`, which is loaded now.
    ///
    /// If the extent [frees tables](Extent::frees_tables), also drops the cached entries of the
    /// upper levels above those pages. `extent` is never [whole](Extent::is_whole). Translations of
    /// smaller pages within the same addresses may stay.
    ///
    /// As each of the `invalidate` methods, it must act after this CPU's earlier stores that were
    /// [published](Machine::publish). The contract of this trait lists the earlier loads after
    /// which it must act: those on which the call or its operands depend, and those before
    /// [`synchronize`](Machine::synchronize).
    fn invalidate(&self, tag: Tag, extent: Extent);

    /// Drops all of this CPU's translations under `tag`, which is loaded now.
    fn invalidate_tag(&self, tag: Tag);

    /// Drops this CPU's translations of the kernel's pages in `extent`, global ones included,
    /// under every tag.
    fn invalidate_kernel(&self, extent: Extent);

    /// Drops every translation of this CPU, global ones included, under every tag.
    ///
    /// This method has no operand. Where the engine calls it unconditionally, no dependency orders
    /// it after earlier loads, so the engine calls [`synchronize`](Machine::synchronize) before it.
    fn invalidate_all(&self);

    /// Returns `true` if a CPU walks the page tables before it first writes to a page whose cached
    /// entry is not marked dirty, so that the write faults if the entry is gone.
    ///
    /// This is the case where the hardware sets dirty bits (x86, and Arm and RISC-V cores that do
    /// so), because it must find the entry to mark it. It is also the case where software sets
    /// them, and an entry that is not dirty is not writable.
    ///
    /// A [`Batch`](crate::Batch) may then defer the flush of such a page, and the kernel may
    /// conclude that a page whose entry was not dirty stays clean. Linux requires the same of every
    /// architecture that batches unmaps. If this is `false`, as by default, such pages are flushed
    /// one by one.
    #[inline]
    fn traps_stale_writes(&self) -> bool {
        false
    }

    /// Returns `true` if a CPU may use a kernel page of `extent` after it has [entered user
    /// mode](crate::PinnedCpu::enter_user), or before it has [entered the
    /// kernel](crate::PinnedCpu::enter_kernel): entry code, its stacks and tables, the state of its
    /// CPUs, handlers of NMIs. A flush of such a page interrupts CPUs in user mode as well. The
    /// default is `false`: such pages are never flushed.
    ///
    /// Called only if the machine [isolates](Self::ISOLATES) CPUs.
    #[inline]
    fn is_used_on_entry(&self, extent: Extent) -> bool {
        let _ = extent;
        false
    }

    /// Sends the flush interrupt to the CPUs of the set. The set contains either other CPUs only,
    /// or the calling CPU only, which takes the interrupt as soon as it unmasks it.
    ///
    /// The interrupt is usually masked during this call. It may be unmasked where [`Pending::wait`]
    /// or [`poll`](crate::Pending::poll) was called unmasked, and waits for the broadcast of
    /// another CPU. Therefore protect an interrupt controller that is written in two steps.
    ///
    /// [`Pending::wait`]: crate::Pending::wait
    fn ring(&self, cpus: &CpuSet<Self::CpuBits>);

    /// Returns `true` if a hypervisor does not run `cpu`, which then empties its TLB before it runs
    /// again. A flush asks this before it rings a CPU. It neither interrupts nor waits for a CPU
    /// that is away.
    ///
    /// The answer `true` is a request and a promise. The implementation guarantees:
    ///
    /// - `cpu` executes nothing, and walks no page table, from before this call returns until it
    ///   has emptied its TLB as [`invalidate_all`](Self::invalidate_all) does: every translation,
    ///   global ones included, under every tag, and the caches of upper levels;
    /// - the invalidation takes effect after the calling CPU's earlier stores, page-table writes
    ///   included;
    /// - the accesses of `cpu` before it stopped happen before this call returns.
    ///
    /// A CPU may be stopped while it walks page tables by software, with the interrupt masked, and
    /// goes on with the pointers that it has read. If your kernel walks so, mark each walk by
    /// [`PinnedCpu::begin_walk`](crate::PinnedCpu::begin_walk): the engine waits for a CPU that is
    /// away within a walk. If a handler cannot mark its walks, as the TLB refill handler of a CPU
    /// without hardware walks, which would also cache what it has read, then answer `false`.
    ///
    /// To know that a CPU is not running is not enough. The CPU may be running again, with its old
    /// TLB, by the time that this method returns. [`VcpuWord`](crate::VcpuWord) has a protocol that
    /// meets this contract.
    ///
    /// The engine still interrupts and waits for CPUs that are away where the CPU itself must act:
    /// to drop a dead space ([`reap`](crate::PinnedCpu::reap), [`Lifetime::Shoot`]), and to
    /// complete a broadcast that it has issued. And it waits for a CPU that was rung before it
    /// stopped.
    ///
    /// The default is `false`, at no cost.
    #[inline]
    fn is_away(&self, cpu: CpuId) -> bool {
        let _ = cpu;
        false
    }

    /// The hardware's method to invalidate on other CPUs; `None` if this machine has none, which
    /// x86 finds out at boot. Requires [global](Tagging::Global) tags.
    ///
    /// If this is `Some`, the engine compares the [costs](Broadcaster::costs) of broadcasts and
    /// interrupts, and uses the cheaper method.
    #[inline]
    fn broadcaster(&self) -> Option<&Self::Broadcaster> {
        None
    }

    /// Begins to drop the translations of the pages of `extents` on every device that is
    /// [attached](crate::Shootdown::attach_device) to `space`. Returns the ticket with which
    /// [`devices_are_done`](Self::devices_are_done) is asked for the end. (Linux does both in
    /// `arch_invalidate_secondary_tlbs`.)
    ///
    /// Each flush of the space calls this once, with all of its extents. Page-table writes of this
    /// CPU are [published](Self::publish) for the walkers of CPUs. If a device's walker requires
    /// more, as one that is not coherent with the CPUs' caches does, do that here. Do not wait for
    /// a device: write the commands into its queue, with one that reports when they are done
    /// (SMMU: `CMD_SYNC`; VT-d: an invalidation wait descriptor). A kernel whose devices are done
    /// at once returns [`DeviceTicket::DONE`].
    ///
    /// A flush of a space that is [pinned](crate::PinnedCpu::pin_tag) for a device also calls this
    /// if its broadcast, which the device would have observed, was [refused](crate::Refused).
    ///
    /// The extents may cover more pages than [`flush_ceiling`](Self::flush_ceiling). Choose here
    /// where a device drops everything instead.
    ///
    /// The flush interrupt is masked, and other CPUs may call this at the same time, also for the
    /// same space. A lock that this method takes must not be held by a CPU that waits for a
    /// [`Pending`](crate::Pending). If the queue is full, a wait here for its oldest command
    /// answers no flush.
    ///
    /// # Panics
    ///
    /// The default implementation panics, because it cannot invalidate. A kernel that attaches no
    /// device needs no other.
    fn issue_to_devices(&self, space: &Space<Self>, extents: &[Extent]) -> DeviceTicket {
        let _ = extents;
        panic!("a device is attached to {space:?}, which this kernel cannot invalidate on")
    }

    /// Returns `true` if the commands of `ticket` and of all lower tickets are done:
    ///
    /// - no device uses a translation of their pages that it read before the commands were issued.
    ///   That includes answers that the device has requested from its IOMMU, and not yet cached;
    /// - if an extent [frees tables](Extent::frees_tables) or is [whole](Extent::is_whole), no
    ///   device has cached, or is about to use, an entry of the upper levels above those pages;
    /// - the accesses of the devices with these translations happen before the return.
    ///
    /// Called in the turns of a wait, and by [`Pending::poll`](crate::Pending::poll): on any CPU,
    /// with the flush interrupt masked or not, and by several threads with one ticket. It must not
    /// wait. It returns `true` after finite time, also for a device that has failed: reset it then.
    ///
    /// A thread that [sleeps](crate::Pending::poll_or_wake) and finds `false` here relies on the
    /// driver to wake it when the commands are done.
    ///
    /// # Panics
    ///
    /// The default implementation panics, because it cannot ask. A kernel whose tickets are all
    /// [`DeviceTicket::DONE`] needs no other: this is not called for them.
    fn devices_are_done(&self, ticket: DeviceTicket) -> bool {
        panic!("this kernel issues {ticket:?}, and cannot ask whether devices are done")
    }

    /// Returns a [retired](crate::PinnedCpu::retire) space to the kernel, with its page tables. No
    /// CPU can walk them any more, and the engine will not access the space again.
    ///
    /// The engine calls this once for each retired space, in one of three places:
    ///
    /// - at the end of [`switch`](crate::PinnedCpu::switch),
    ///   [`leave_space`](crate::PinnedCpu::leave_space) or
    ///   [`offline`](crate::PinnedCpu::offline), on the last CPU that had the space loaded. The
    ///   flush interrupt is masked, and the scheduler may be in the middle of a switch;
    /// - in `retire`, [`reap`](crate::PinnedCpu::reap) or
    ///   [`disconnect`](crate::PinnedCpu::disconnect);
    /// - in a wait for the result of `retire` or `reap`, with the interrupt masked or not.
    ///
    /// [`handle_flush_ipi`](crate::PinnedCpu::handle_flush_ipi) never calls it.
    ///
    /// If your kernel cannot free memory in these places, put the space on a list, and free it when
    /// the switch is over. A CPU that holds the lock of that list must not switch, because `switch`
    /// may take the lock. This method must not call the engine; in builds with assertions, such a
    /// call panics.
    fn reclaim(&self, space: NonNull<Space<Self>>);

    /// One turn of a loop that waits for a lock. The lock's holder keeps it for some hundred
    /// instructions with its interrupts masked. This method must not unmask an interrupt.
    #[inline]
    fn spin_hint(&self) {
        core::hint::spin_loop();
    }

    /// One turn of the loop that waits until the CPUs of `waiting` have answered. The set may be
    /// empty, in a wait for devices.
    ///
    /// This is the place for a spin hint or the yield of a virtual CPU. An implementation may also
    /// measure the time, [report](crate::StallReport) CPUs that do not answer,
    /// [disconnect](crate::PinnedCpu::disconnect) CPUs that have stopped, and send the interrupt
    /// again if one may get lost. Where the waiter has the flush interrupt masked, it may unmask it
    /// for a moment.
    ///
    /// The wait cannot be abandoned, and this method must not unwind: the waiter may have published
    /// that it polls its bell.
    fn wait_hint(&self, waiting: &CpuSet<Self::CpuBits>);

    /// The time in nanoseconds since any fixed moment, for traces. Called only if the machine
    /// [traces](Machine::TRACES).
    #[inline]
    fn trace_clock_ns(&self) -> u64 {
        0
    }

    /// Called at the end of each flush, when it was sent, if the machine [traces](Machine::TRACES).
    /// A flush of nothing is not traced. [`CauseCounters`](crate::CauseCounters) sum up the events.
    #[inline]
    fn trace_flush(&self, trace: &FlushTrace) {
        let _ = trace;
    }

    /// Called at the end of each wait that had to wait, if the machine [traces](Machine::TRACES). A
    /// flush that is [polled](crate::Pending::poll) until it is done has no such event.
    #[inline]
    fn trace_wait(&self, trace: &WaitTrace) {
        let _ = trace;
    }

    /// Wakes the threads that [wait](crate::Pending::poll_or_wake) for the answer of `cpu`, which
    /// has answered: this CPU, or one that has stopped. The default does nothing.
    ///
    /// Called in the flush interrupt's handler, with the interrupt masked, or where a CPU goes
    /// offline. It may be called when nothing waits. It may make threads runnable, and may call
    /// `poll_or_wake` for a flush of which an earlier call has returned `false`; it must not use
    /// the engine otherwise. To let the last CPU that answers wake a waiter once, call
    /// `poll_or_wake` here and wake the waiter if that returns `true`.
    #[cold]
    fn wake_waiters(&self, cpu: CpuId) {
        let _ = cpu;
    }

    /// Reports that a wait has lasted some seconds. Called at most once in each wait, and only in
    /// builds with debug assertions.
    ///
    /// The default panics with the text of the report, so that a kernel without a watchdog of its
    /// own names the CPU instead of hanging. Override it where a wait may last long: under a
    /// hypervisor that stops virtual CPUs, or under a debugger.
    #[cold]
    fn report_stall(&self, report: &StallReport<'_, Self>) {
        panic!("{report}");
    }
}

/// Returns `true` if operations check what their callers promise. See [`Machine::CHECKS`].
pub(crate) const fn is_checked<M: Machine>() -> bool {
    M::CHECKS || cfg!(debug_assertions)
}

#[cfg(test)]
pub(crate) mod tests;
