//! The contract with the machine: the hardware and the kernel, as the engine sees them.
//!
//! A kernel implements [`Machine`] once per architecture. What the engine needs of memory alone is
//! in its supertrait [`Memory`]; what it needs of hardware that broadcasts, in [`Broadcaster`].

#![expect(
    unsafe_code,
    reason = "the contract that all of the engine's safety rests on is stated here"
)]

use core::ptr::NonNull;

use crate::broadcaster::Broadcaster;
use crate::costs::FlushCosts;
use crate::cpu_set::{CpuBits, CpuSet};
use crate::cpu_state::CpuState;
use crate::extent::Extent;
use crate::ids::{CpuId, Root, Tag};
use crate::memory::{Memory, TagWords};
use crate::rules::Rule;
use crate::space::Space;
use crate::tag::slots::TagSlots;

/// What loading a root does to the translations that this CPU already holds under its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entries {
    /// They are gone before the first translation through the new root (x86: CR3 bit 63 clear).
    Discard,
    /// They stay usable (x86: CR3 bit 63 set).
    Keep,
}

/// The way in which spaces get tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tagging {
    /// Each CPU gives its few tags to the spaces that it ran last (x86: PCIDs). A space has a
    /// different tag on each CPU, and no other CPU knows which.
    PerCpu,
    /// A space has the same tag on all CPUs (Arm, RISC-V, and AMD with `INVLPGB`), so that hardware
    /// can broadcast invalidations. When tags run out, all but those that are loaded on a CPU are
    /// taken back, and each CPU empties its TLB before it uses a new one.
    Global,
    /// Each CPU counts tags up (ARC: 8 bits). To drop a space's translations, the CPU gives the
    /// space the next tag. When tags run out, the CPU empties its TLB and starts again.
    Renamed,
}

/// The way in which a space is kept from being freed under CPUs that are lazy on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// The last CPU that drops the space frees it. No CPU is interrupted, no CPU waits, and going
    /// lazy and coming back writes no shared line. The space's page tables stay allocated until
    /// then: for as long as a CPU idles in a state that keeps its translations, unless the kernel
    /// [reaps](crate::PinnedCpu::reap) them.
    Handoff,
    /// The CPU that retires the space interrupts the CPUs that are lazy on it, and waits for them.
    /// (Linux: `MMU_LAZY_TLB_SHOOTDOWN`, which interrupts every CPU that ever ran the space.)
    Shoot,
    /// Each CPU that goes lazy takes a reference to the space, and drops it when it comes back.
    /// (Linux: `MMU_LAZY_TLB_REFCOUNT`.) The baseline for the other two: one locked operation on a
    /// line of the space whenever a CPU goes lazy, and another when it comes back.
    Counted,
}

/// The engine's view of the machine. A kernel implements it once per architecture.
///
/// The engine calls every method with the flush interrupt masked and from its handler, so none may
/// block, allocate, or take a lock that this CPU may already hold.
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
/// - none of the `invalidate` methods takes effect before a load of this CPU
///   that decided whether the engine calls the method (a control dependency), that its operands
///   were computed from (an address dependency), or that came before
///   [`synchronize`](Machine::synchronize). It may take effect before any other earlier load, even
///   an acquiring one with a full barrier after it: Arm orders `TLBI` after a load by no less than
///   a `DSB` or a dependency. It may also take effect before an earlier page-table write, unless
///   [`publish`](Machine::publish) or `synchronize` is between the two;
/// - a CPU in the set given to [`ring`](Machine::ring) enters the flush interrupt's handler after
///   finite time, unless it masks that interrupt for ever. The handler calls
///   [`PinnedCpu::handle_flush_ipi`](crate::PinnedCpu::handle_flush_ipi), and observes memory as the sender left it. On
///   most machines that takes a barrier before the send: `dsb ishst` before an SGI; on Intel
///   `lfence` before an x2APIC register write, which no fence or locked operation alone holds
///   back;
/// - [`tagging`](Machine::tagging), [`tag_count`](Machine::tag_count) and
///   [`broadcaster`](Machine::broadcaster) always return the same, on every CPU.
pub unsafe trait Machine: Memory {
    /// One bit per possible CPU: `[u64; 1]` for up to 64 CPUs, `[u64; 64]` for 4096.
    type CpuBits: CpuBits;
    /// Room for the spaces whose translations a CPU's TLB may hold: `[TagSlot; 6]`, as Linux has on
    /// x86; `[TagSlot; 0]` for a machine that has no tags.
    type TagSlots: TagSlots;
    /// Room for the allocator of [global](Tagging::Global) tags, one bit each, and as many for
    /// pins: `[AtomicU64; 2048]` for 16 bits; `[AtomicU64; 8]` for 8; `[AtomicU64; 0]` where tags
    /// are not global.
    type TagWords: TagWords<Self::Word>;
    /// The hardware's way to invalidate on other CPUs; [`NoBroadcaster`](crate::NoBroadcaster) if
    /// it has none.
    type Broadcaster: Broadcaster;

    /// The way in which the memory of a space is kept from being freed under lazy CPUs.
    const LIFETIME: Lifetime = Lifetime::Handoff;

    /// The engine's state of a CPU, wherever the kernel has placed it: an array, a per-CPU area.
    fn state(&self, cpu: CpuId) -> &CpuState<Self>;

    /// The CPU that runs this call. The result need be stable only while the caller is pinned.
    fn cpu(&self) -> CpuId;

    /// Whether the flush interrupt is masked on this CPU.
    ///
    /// If it is, a waiter polls its own bell, because no interrupt can get in.
    fn interrupts_masked(&self) -> bool;

    /// Makes this CPU's earlier page-table writes visible to every page-table walker, before
    /// anything that follows (`dsb ishst` on Arm; nothing on x86).
    fn publish(&self);

    /// Completes every earlier load and store of this CPU, page-table writes included, before any
    /// later invalidation (`dsb ish` on Arm).
    ///
    /// The engine calls this where an invalidation must come after a load and depends on no load:
    /// see [`invalidate_all`](Machine::invalidate_all).
    #[inline]
    fn synchronize(&self) {
        self.fence();
        self.publish();
    }

    /// Whether a CPU may have translations of two sizes for one address, as long as it does not use
    /// that address.
    ///
    /// If not, [`flush_for_resize`](crate::PinnedCpu::flush_for_resize) also notifies CPUs
    /// that could only walk the page tables. Arm requires *break-before-make* of all CPUs that can
    /// walk the entry (Arm ARM, "Using break-before-make when updating translation table entries"),
    /// and so the default is `false`. On x86-64 it is `true`: Linux interrupts no lazy CPU when it
    /// splits or collapses a large page's entry (`flush_pmd_tlb_range` frees no tables).
    #[inline]
    fn tolerates_mixed_sizes(&self) -> bool {
        false
    }

    /// The way in which spaces get tags.
    #[inline]
    fn tagging(&self) -> Tagging {
        Tagging::PerCpu
    }

    /// Number of tags for address spaces, found at run time. The engine uses tags 1 to `tag_count`,
    /// as far as there is room for them in [`TagSlots`](Machine::TagSlots) (if they are
    /// [per CPU](Tagging::PerCpu)) or in [`TagWords`](Machine::TagWords) (if they are
    /// [global](Tagging::Global)). 0 means that each load of a root discards.
    fn tag_count(&self) -> usize;

    /// Upper limit of the number of CPUs. By default, the room that [`CpuBits`](Machine::CpuBits)
    /// has.
    #[inline]
    fn cpu_limit(&self) -> usize {
        CpuSet::<Self::CpuBits>::capacity()
    }

    /// Number of single-page invalidations above which the whole tag is discarded instead.
    ///
    /// The default is Linux's 33: about 100 ns per `INVLPG`, so 3.3 µs, where refilling what a
    /// discarded tag held costs some 8–17 ns per entry that is wanted again. It bounds the sum
    /// over all flushes that a CPU catches up with at one time in the middle of its work.
    #[inline]
    fn flush_ceiling(&self) -> usize {
        33
    }

    /// Number of single-page invalidations above which a CPU that comes back to a space discards
    /// the whole tag, counting only pages that the program itself has changed.
    ///
    /// It is lower than [`flush_ceiling`](Self::flush_ceiling), because such a CPU wants fewer of
    /// its entries again, and would pay for every flush that did not interrupt it: 8 pages are
    /// 0.8 µs, as long as it takes to discard the tag (0.2 µs) and refill 40 to 70
    /// entries. On the simulated `xeon-2s`, with 33, four threads on two CPUs that map and
    /// unmap 16 pages take 8 % longer.
    ///
    /// Pages that a [`Batch`](crate::Batch) took from the program count towards
    /// [`flush_ceiling`](Self::flush_ceiling) alone. Such pages had not been used for long, and a
    /// program that loses pages uses more memory than a TLB holds: it wants all of its
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

    /// Number of pages of a [`Batch`](crate::Batch) above which a CPU discards the whole tag, if it
    /// uses the space when the batch is sent: a CPU that is interrupted, or the sender itself.
    ///
    /// Lower than [`flush_ceiling`](Self::flush_ceiling), because the sender of the batch waits
    /// for that CPU: 17 by default. On the simulated `xeon-2s`, with 33, a migration of pages that
    /// other CPUs write to takes 24 % longer than with one full flush for each batch of 32, as
    /// Linux has it. With 12, reclaim does 1.2 times as many full flushes as with 16 on `xeon-4s`,
    /// and 1.9 times as many on `desktop-1s`. A CPU that comes back to a space, for which no CPU
    /// waits, invalidates up to [`flush_ceiling`](Self::flush_ceiling).
    #[inline]
    fn batch_ceiling(&self) -> usize {
        self.flush_costs().batch_ceiling(self.flush_ceiling())
    }

    /// Makes `root` current on this CPU under `tag`.
    ///
    /// # Safety
    ///
    /// `root` must be a valid page table that maps the kernel, and stay one while it is loaded.
    unsafe fn load(&self, root: Root, tag: Tag, entries: Entries);

    /// Makes the kernel's own page table current, under [`Tag::KERNEL`].
    ///
    /// Where [`tag_count`](Machine::tag_count) is 0, user translations are cached under the same
    /// tag. Discard them here, together with the caches of upper levels, because from now on no
    /// CPU notifies this one of freed tables. (x86 does so by itself; RISC-V without ASIDs does
    /// not.)
    fn load_kernel(&self);

    /// Drops this CPU's translations of the pages of `extent` under `tag`, which is loaded now.
    ///
    /// As all invalidations, it acts after this CPU's earlier stores that were
    /// [published](Machine::publish). It need act after earlier loads only where these decide
    /// whether it happens, or of what (a branch, an address), or where
    /// [`synchronize`](Machine::synchronize) is in between.
    ///
    /// It need not find translations of smaller pages within the same addresses. Where
    /// [`Extent::frees_tables`], it also drops what is cached of the upper levels above those
    /// pages. `extent` is never [whole](Extent::is_whole).
    fn invalidate(&self, tag: Tag, extent: Extent);

    /// Drops all of this CPU's translations under `tag`, which is loaded now.
    fn invalidate_tag(&self, tag: Tag);

    /// Drops this CPU's translations of the kernel's pages in `extent`, global ones included,
    /// under every tag.
    fn invalidate_kernel(&self, extent: Extent);

    /// Drops every translation of this CPU, global ones included, under every tag.
    ///
    /// It has no operand. Where the engine calls it unconditionally, no dependency orders it after
    /// earlier loads, and [`synchronize`](Machine::synchronize) does.
    fn invalidate_all(&self);

    /// Whether a CPU walks the page tables before it first writes to a page whose cached entry is
    /// not marked as written, and so takes a fault if the entry is gone.
    ///
    /// That is so where the hardware marks entries as written (x86, Arm and RISC-V where they do),
    /// because it must find the entry to mark it. It is also so where software marks them, and an
    /// entry that is not marked is not writable. A [`Batch`](crate::Batch) may then defer the flush
    /// of such a page, and the kernel may take a page whose entry was unmarked to be clean for
    /// good. Linux asks as much of every architecture that batches unmaps. If this is `false`, as
    /// by default, such pages are flushed one by one.
    #[inline]
    fn traps_stale_writes(&self) -> bool {
        false
    }

    /// Sends the flush interrupt to the CPUs of the set: to other CPUs, or to the calling CPU
    /// alone, which takes it as soon as it unmasks it.
    ///
    /// Usually the interrupt is masked here. It may be unmasked where [`Pending::wait`] or
    /// [`poll`](crate::Pending::poll) was called unmasked, and the broadcast of another CPU is to
    /// be completed. So guard an interrupt controller that is written to in two steps.
    ///
    /// [`Pending::wait`]: crate::Pending::wait
    fn ring(&self, cpus: &CpuSet<Self::CpuBits>);

    /// The hardware's way to invalidate on other CPUs, if this machine has one that it can use:
    /// x86 finds out when it boots. Needs [global](Tagging::Global) tags.
    ///
    /// Where this is `Some`, the engine compares the [costs](Broadcaster::costs) of broadcasts and
    /// interrupts, and takes the cheaper method.
    #[inline]
    fn broadcaster(&self) -> Option<&Self::Broadcaster> {
        None
    }

    /// Returns a space that was [retired](crate::PinnedCpu::retire) to the kernel, with its page tables:
    /// no CPU can walk them any more, and the engine will not touch the space again.
    ///
    /// The engine calls this once for each space that was retired, in one of three places:
    ///
    /// - at the end of [`switch`](crate::PinnedCpu::switch), [`leave`](crate::PinnedCpu::leave_space) or
    ///   [`offline`](crate::PinnedCpu::offline) of the last CPU that had the space loaded. The flush
    ///   interrupt is masked, and the scheduler may be in the middle of a switch;
    /// - in `retire` or [`reap`](crate::PinnedCpu::reap);
    /// - in a wait for the result of one of these, with the interrupt masked or not.
    ///
    /// It is never called by [`answer`](crate::PinnedCpu::handle_flush_ipi).
    ///
    /// If memory cannot be freed there, put the space on a list, and free it when the switch is
    /// over. A lock of that list must keep the scheduler from switching on this CPU. This method
    /// must not call the engine.
    fn reclaim(&self, space: NonNull<Space<Self>>);

    /// One turn of a loop that waits for a lock, which its holder keeps for some hundred
    /// instructions with its interrupts masked. This method must not let an interrupt in.
    #[inline]
    fn spin_hint(&self) {
        core::hint::spin_loop();
    }

    /// Called over and over while waiting for `waiting` to answer: a spin hint, a yield of a
    /// virtual CPU; a place to count, to report, or to send the interrupt again if one may get
    /// lost; where the waiter has the flush interrupt masked, a place to let it in for a moment.
    ///
    /// The wait cannot be given up, and this method must not unwind: the waiter may have published
    /// that it polls its bell.
    fn wait_hint(&self, waiting: &CpuSet<Self::CpuBits>);
}

/// The publication of page-table writes that `rule` demands.
#[inline]
#[track_caller]
pub(crate) fn publish<M: Machine>(machine: &M, rule: Rule) {
    if !machine.breaks(rule) {
        machine.publish();
    }
}

#[cfg(test)]
pub(crate) mod tests;
