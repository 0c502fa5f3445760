//! The contract with the machine: what the engine needs of the hardware, and of its memory.
//!
//! [`Machine`] is what a kernel implements, once per architecture. [`Word`] is the shared memory
//! that the engine's protocols run on; a kernel says `type Word = AtomicU64` and is done. It is a
//! parameter so that the very same source also runs under a model checker, where every load may
//! return any value that the memory model allows, and on a simulated machine, where every access
//! costs what its cache line costs.

#![expect(
    unsafe_code,
    reason = "the contract that all of the engine's safety rests on is stated here"
)]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::broadcast::Broadcast;
use crate::costs::FlushCosts;
use crate::cpu::Cpu;
use crate::cpu_set::{CpuBits, CpuSet};
use crate::extent::Extent;
use crate::method::TellingCosts;
use crate::retire::Lifetime;
use crate::rules::Rule;
use crate::space::Space;
use crate::tag::Tagging;
use crate::tag::global::TagWords;
use crate::tag::slots::TagSlots;

/// Soundness rests on the traits for sizes, so they have no implementations but ours.
pub(crate) mod sealed {
    /// Implemented for arrays.
    pub trait Sealed {}
}

/// A CPU's number, dense from 0, as the kernel counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuId(pub u32);

impl CpuId {
    /// The number as an index into per-CPU arrays.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What the machine loads to make a page table current: the physical address of its top level
/// (CR3, TTBR0, satp). The engine only hands it back to [`Machine::load`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Root(pub u64);

/// The number by which the hardware tells one address space's translations from another's (x86
/// PCID, Arm and RISC-V ASID). Who gives it, and for how long, is told in [`Tagging`].
///
/// Tag 0 belongs to the kernel's own root and to machines without tags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u16);

impl Tag {
    /// The tag under which the kernel's own root is loaded; the only one on a machine without tags.
    pub const KERNEL: Self = Self(0);
}

/// What loading a root does to the translations that this CPU already holds under its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entries {
    /// They are gone before the first translation through the new root (x86: CR3 bit 63 clear).
    Discard,
    /// They stay usable (x86: CR3 bit 63 set).
    Keep,
}

/// A 64-bit word of shared memory, laid out exactly like [`AtomicU64`].
///
/// The methods mean what those of [`AtomicU64`] mean.
pub trait Word: Send + Sync {
    /// A word that holds `value`.
    fn new(value: u64) -> Self;
    /// Reads the word.
    fn load(&self, order: Ordering) -> u64;
    /// Writes the word.
    fn store(&self, value: u64, order: Ordering);
    /// Writes the word and returns what it held.
    fn swap(&self, value: u64, order: Ordering) -> u64;
    /// Adds, wrapping, and returns what the word held.
    fn fetch_add(&self, value: u64, order: Ordering) -> u64;
    /// Sets bits and returns what the word held.
    fn fetch_or(&self, value: u64, order: Ordering) -> u64;
    /// Clears the bits that `value` lacks and returns what the word held.
    fn fetch_and(&self, value: u64, order: Ordering) -> u64;
    /// Writes `new` if the word holds `current`.
    ///
    /// # Errors
    ///
    /// What the word held instead.
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64>;
}

/// Implements [`Word`] by the methods of the same names of an atomic type.
///
/// For [`AtomicU64`] and for the stand-ins of model checkers; `$inner` reaches the atomic from
/// `self`.
#[macro_export]
macro_rules! word_by_atomic {
    ($word:ty, |$value:ident| $new:expr, |$this:ident| $inner:expr) => {
        impl $crate::Word for $word {
            #[inline]
            fn new($value: u64) -> Self {
                $new
            }
            #[inline]
            fn load(&self, order: ::core::sync::atomic::Ordering) -> u64 {
                let $this = self;
                $inner.load(order)
            }
            #[inline]
            fn store(&self, value: u64, order: ::core::sync::atomic::Ordering) {
                let $this = self;
                $inner.store(value, order);
            }
            #[inline]
            fn swap(&self, value: u64, order: ::core::sync::atomic::Ordering) -> u64 {
                let $this = self;
                $inner.swap(value, order)
            }
            #[inline]
            fn fetch_add(&self, value: u64, order: ::core::sync::atomic::Ordering) -> u64 {
                let $this = self;
                $inner.fetch_add(value, order)
            }
            #[inline]
            fn fetch_or(&self, value: u64, order: ::core::sync::atomic::Ordering) -> u64 {
                let $this = self;
                $inner.fetch_or(value, order)
            }
            #[inline]
            fn fetch_and(&self, value: u64, order: ::core::sync::atomic::Ordering) -> u64 {
                let $this = self;
                $inner.fetch_and(value, order)
            }
            #[inline]
            fn compare_exchange(
                &self,
                current: u64,
                new: u64,
                success: ::core::sync::atomic::Ordering,
                failure: ::core::sync::atomic::Ordering,
            ) -> ::core::result::Result<u64, u64> {
                let $this = self;
                $inner.compare_exchange(current, new, success, failure)
            }
        }
    };
}

word_by_atomic!(AtomicU64, |value| Self::new(value), |this| this);

/// What the engine needs of the machine. One implementation per kernel and architecture.
///
/// Every method may be called with the flush interrupt masked and from its handler, so none may
/// block, allocate, or take a lock that this CPU may already hold.
///
/// # Safety
///
/// The engine promises its callers that no CPU uses a translation after its flush. It can keep
/// that promise only if:
///
/// - [`cpu`](Machine::cpu) names the CPU that runs the call, and [`state`](Machine::state) always
///   returns the same [`Cpu`] for the same number, and another for another;
/// - [`fence`](Machine::fence) orders every earlier load and store of this CPU before every later
///   one, as all CPUs see them, and so do the three combined operations built on it;
/// - when [`load`](Machine::load), [`load_kernel`](Machine::load_kernel) or one of the
///   `invalidate` methods returns, it has taken full effect on this CPU: no later access, and no
///   later speculative walk, uses what was to go. That includes the caches of upper page-table
///   levels for an extent that [frees tables](Extent::frees_tables), for a whole tag, and for all;
/// - none of the `invalidate` methods, and no broadcast, takes effect before a load of this CPU
///   that decided whether the engine calls the method (a control dependency), that its operands
///   were computed from (an address dependency), or that came before
///   [`synchronize`](Machine::synchronize). It may take effect before any other earlier load, even
///   an acquiring one with a full barrier behind it: Arm orders `TLBI` after a load by no less than
///   a `DSB` or a dependency. It may take effect before an earlier page-table write, too, unless
///   [`publish`](Machine::publish) or `synchronize` is between the two;
/// - a CPU in the set given to [`ring`](Machine::ring) enters the flush interrupt's handler after
///   finite time, unless it masks that interrupt for ever; the handler calls
///   [`Here::answer`](crate::Here::answer), and finds the memory there as the sender left it: on
///   most machines that takes a barrier before the send (`dsb ishst` before an SGI; on Intel
///   `lfence` before an x2APIC register write, which no fence or locked operation alone holds
///   back);
/// - [`Word`](Machine::Word)'s methods do what those of `AtomicU64` do;
/// - [`tagging`](Machine::tagging), [`tag_count`](Machine::tag_count) and
///   [`broadcast`](Machine::broadcast) always return the same, on every CPU;
/// - when [`complete_broadcasts`](Machine::complete_broadcasts) returns, every broadcast that this
///   CPU issued before has taken full effect on every CPU that it reaches, as the `invalidate`
///   methods would have there; and what those CPUs did by the translations that are gone, they have
///   done;
/// - [`breaks`](Machine::breaks) returns `false`.
pub unsafe trait Machine: Sync + Sized {
    /// The engine's shared words: `AtomicU64` on hardware.
    type Word: Word;
    /// One bit per possible CPU: `[u64; 1]` for up to 64 CPUs, `[u64; 64]` for 4096.
    type CpuBits: CpuBits;
    /// For how many spaces a CPU remembers what its TLB may hold: `[TagSlot; 6]` is what Linux uses
    /// on x86; `[TagSlot; 0]` for a machine that has no tags.
    type TagSlots: TagSlots;
    /// Room for the book of [global](Tagging::Global) tags, one bit each, and as many for pins:
    /// `[AtomicU64; 2048]` for 16 bits; `[AtomicU64; 8]` for 8; `[AtomicU64; 0]` where tags are not
    /// global.
    type TagWords: TagWords<Self::Word>;

    /// The engine's state of a CPU, wherever the kernel has placed it: an array, a per-CPU area.
    fn state(&self, cpu: CpuId) -> &Cpu<Self>;

    /// The CPU that runs this call. The answer need be stable only while the caller is pinned.
    fn cpu(&self) -> CpuId;

    /// Whether the flush interrupt is masked on this CPU.
    ///
    /// A waiter asks, so that it can answer its own bell where no interrupt can.
    fn interrupts_masked(&self) -> bool;

    /// A full barrier: no load passes an earlier store (`mfence`, `dmb ish`, `fence rw,rw`).
    fn fence(&self);

    /// How the memory of address spaces is kept from being freed under CPUs that are lazy on them.
    const LIFETIME: Lifetime = Lifetime::Handoff;

    /// Stores, then a full barrier. For x86 to override with one `xchg`.
    #[inline]
    fn store_then_fence(&self, word: &Self::Word, value: u64, order: Ordering) {
        word.store(value, order);
        self.fence();
    }

    /// Adds, then a full barrier. For x86 to override with one `lock xadd`.
    #[inline]
    fn fetch_add_then_fence(&self, word: &Self::Word, value: u64, order: Ordering) -> u64 {
        let held = word.fetch_add(value, order);
        self.fence();
        held
    }

    /// Sets bits, then a full barrier. For x86 to override with one locked operation.
    #[inline]
    fn fetch_or_then_fence(&self, word: &Self::Word, value: u64, order: Ordering) -> u64 {
        let held = word.fetch_or(value, order);
        self.fence();
        held
    }

    /// Whether [`prefetch`](Machine::prefetch) does anything: if not, no code is left for it.
    const PREFETCHES: bool = true;

    /// A hint that `word` is about to be read: its cache line may be fetched meanwhile.
    ///
    /// A flush hints at the state of every CPU in the roster before it looks at the first, so that
    /// the misses overlap. On x86 they do so by themselves for as far ahead as the CPU looks; where
    /// acquiring loads are kept in order (Arm's `ldar`), they do not.
    #[inline]
    fn prefetch(&self, word: &Self::Word) {
        let _ = word;
    }

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
    /// Where it may not, [`flush_for_resize`](crate::Here::flush_for_resize) also notifies CPUs
    /// that could only walk the page tables. Arm requires *break-before-make* of all CPUs that can
    /// walk the entry (Arm ARM, "Using break-before-make when updating translation table entries"),
    /// and so the default is `false`. On x86-64 it is `true`: Linux interrupts no lazy CPU when it
    /// splits or collapses a large page's entry (`flush_pmd_tlb_range` frees no tables).
    #[inline]
    fn tolerates_mixed_sizes(&self) -> bool {
        false
    }

    /// A clock of this CPU's, in ns, by which the engine measures what it waits for; always 0 where
    /// it is not to be measured. Only asked for where the machine [broadcasts](Machine::broadcast).
    #[inline]
    fn clock_ns(&self) -> u64 {
        0
    }

    /// How tags are given to spaces. Per CPU, unless the machine says otherwise.
    #[inline]
    fn tagging(&self) -> Tagging {
        Tagging::PerCpu
    }

    /// How many tags there are for address spaces, found at run time: 1 to `tag_count` are used, as
    /// far as there is room for them in [`TagSlots`](Machine::TagSlots) (if they are
    /// [per CPU](Tagging::PerCpu)) or in [`TagWords`](Machine::TagWords) (if they are
    /// [global](Tagging::Global)). 0 means that each load of a root discards.
    fn tag_count(&self) -> usize;

    /// How many CPUs there can be at most: as many as [`CpuBits`](Machine::CpuBits) has room for,
    /// if that is not known better.
    #[inline]
    fn cpu_limit(&self) -> usize {
        CpuSet::<Self>::capacity()
    }

    /// Above how many single-page invalidations the whole tag is discarded instead.
    ///
    /// The default is Linux's 33: about 100 ns per `INVLPG`, so 3.3 µs, where refilling what a
    /// discarded tag held costs some 8–17 ns per entry that is wanted again. It bounds the sum
    /// over all flushes that a CPU in the middle of its work makes up for at once.
    #[inline]
    fn flush_ceiling(&self) -> usize {
        33
    }

    /// The same, for a CPU that comes back to a space, of what the program has changed itself.
    ///
    /// Lower, for it wants fewer of its entries again, and would pay for every flush that it was
    /// not told of: 8 pages are 0.8 µs, as long as to discard the tag (0.2 µs) and refill 40 to 70
    /// entries. On the simulated `xeon-2s`, 33 would have four threads on two CPUs that map and
    /// unmap 16 pages take 8 % longer.
    ///
    /// What a [`Batch`](crate::Batch) took from the program counts towards
    /// [`flush_ceiling`](Self::flush_ceiling) alone. Such pages had not been used for long, and a
    /// program from which they are taken uses more of memory than a TLB holds: it wants all of its
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

    /// Above how many pages of a [`Batch`](crate::Batch) a CPU discards the whole tag, if it uses
    /// the space when the batch is sent: a CPU that is interrupted, or the sender itself.
    ///
    /// Lower than [`flush_ceiling`](Self::flush_ceiling), because the sender of the batch waits
    /// meanwhile: 17 by default. On the simulated `xeon-2s`, 33 has a migration of pages that
    /// others write to take 24 % longer than one full flush for each batch of 32, as Linux has it;
    /// and 12 has reclaim do 1.2 times as many full flushes as 16 on `xeon-4s`, and 1.9 times as
    /// many on `desktop-1s`. A CPU that comes back to a space, for which nobody waits, invalidates
    /// up to [`flush_ceiling`](Self::flush_ceiling).
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
    /// tag, and must be discarded along with what is cached of upper levels: nobody tells this CPU
    /// of freed tables from now on. (x86 does so by itself; RISC-V without ASIDs does not.)
    fn load_kernel(&self);

    /// Drops this CPU's translations of the pages of `extent` under `tag`, which is loaded now.
    ///
    /// As all invalidations, it acts after this CPU's earlier stores that were
    /// [published](Machine::publish). After earlier loads, it need act only where these decide
    /// whether it happens, or of what (a branch, an address), or where
    /// [`synchronize`](Machine::synchronize) is in between.
    ///
    /// Translations of smaller pages within the same addresses need not be found. Where
    /// [`Extent::frees_tables`], also what is cached of the upper levels above those pages.
    /// `extent` is never [whole](Extent::is_whole).
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

    /// Whether a CPU walks the page tables before it first writes to a page that it remembers as
    /// not yet written, and so takes a fault where the entry is gone.
    ///
    /// So it is where the hardware marks entries as written (x86, Arm and RISC-V where they do),
    /// for it must find the entry to mark; and where it does not, and what is not yet written is
    /// not writable. A [`Batch`](crate::Batch) may then put off the flush of such a page, and who
    /// found it unmarked may take it to be clean for good. Linux asks as much of every architecture
    /// that batches unmaps. Where it is `false`, as by default, such pages are flushed one by one.
    #[inline]
    fn traps_stale_writes(&self) -> bool {
        false
    }

    /// Sends the flush interrupt to the CPUs of the set: to others, or to the calling CPU alone,
    /// which takes it as soon as it no longer masks it.
    ///
    /// Usually called with the interrupt masked; but not where [`Pending::wait`] or
    /// [`poll`](crate::Pending::poll) was, and the broadcast of another CPU is to be completed: an
    /// interrupt controller that is written to in two steps must be guarded here.
    ///
    /// [`Pending::wait`]: crate::Pending::wait
    fn ring(&self, cpus: &CpuSet<Self>);

    /// How hardware, or firmware, has other CPUs invalidate without interrupting their kernels;
    /// `None` if it cannot. Needs [global](Tagging::Global) tags.
    #[inline]
    fn broadcast(&self) -> Option<Broadcast> {
        None
    }

    /// What it costs to tell others, for the choice between interrupts and broadcasts.
    #[inline]
    fn telling_costs(&self) -> TellingCosts {
        TellingCosts::default()
    }

    /// Begins to drop the translations of `extent` under `tag` as
    /// [`invalidate`](Machine::invalidate) does, or all of the tag if the extent is
    /// [whole](Extent::is_whole), on every CPU or on those of `cpus`: as
    /// [`broadcast`](Machine::broadcast) says how far it reaches. Everyone includes this CPU.
    fn issue_broadcast(&self, cpus: &CpuSet<Self>, tag: Tag, extent: Extent) {
        let _ = (cpus, tag, extent);
        unreachable!("this machine said that it cannot broadcast");
    }

    /// The same for the kernel's pages in `extent`, or for everything if it is whole, as
    /// [`invalidate_kernel`](Machine::invalidate_kernel) does. Only asked for where broadcasts
    /// reach everyone.
    fn issue_kernel_broadcast(&self, extent: Extent) {
        let _ = extent;
        unreachable!("this machine said that it cannot broadcast");
    }

    /// Waits for all broadcasts that *this* CPU has issued (`dsb ish`, `TLBSYNC`). Those of other
    /// CPUs are theirs to complete (Linux took them to be anybody's: 4b634918384c).
    ///
    /// Returns how long that took, in ns; 0 if the machine does not measure it.
    fn complete_broadcasts(&self) -> u64 {
        0
    }

    /// A space that was [retired](crate::Here::retire) is the caller's again, with its page tables:
    /// no CPU can walk them any more, and the engine will not touch the space again.
    ///
    /// Called once for each space that was retired, on the CPU that let go of it last, at the end
    /// of that CPU's [`switch`](crate::Here::switch), [`leave`](crate::Here::leave) or
    /// [`offline`](crate::Here::offline), where the flush interrupt is masked and the scheduler may
    /// be in the middle of a switch; or by `retire` or [`reap`](crate::Here::reap); or by who waits
    /// for these, with the interrupt masked or not. Never by [`answer`](crate::Here::answer).
    ///
    /// Where memory cannot be freed, put the space on a list, and free it when the switch is over.
    /// A lock of that list must keep the scheduler from switching on this CPU. It must not call
    /// the engine.
    fn reclaim(&self, space: NonNull<Space<Self>>);

    /// One turn of a loop that waits for a lock, which its holder keeps for some hundred
    /// instructions with its interrupts masked. No interrupt may come in meanwhile.
    #[inline]
    fn spin(&self) {
        core::hint::spin_loop();
    }

    /// Called over and over while waiting for `waiting` to answer: a spin hint, a yield of a
    /// virtual CPU; a place to count, to report, or to send the interrupt again if one may get
    /// lost; where the waiter has the flush interrupt masked, a place to let it in for a moment. To
    /// give up is no choice, and it must not unwind: the waiter may have told others that it looks
    /// at its bell.
    fn relax(&self, waiting: &CpuSet<Self>);

    /// Whether this machine gets `rule` wrong. Always `false` but in the tests that show that the
    /// rule is needed.
    ///
    /// The caller's [`Location`](core::panic::Location) is the place in the engine's source that
    /// follows the rule, so that a test can break the rule at that place alone.
    #[inline]
    #[track_caller]
    fn breaks(&self, rule: Rule) -> bool {
        let _ = rule;
        false
    }
}

#[cfg(test)]
pub(crate) mod tests;
