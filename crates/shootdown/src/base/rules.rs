//! The rules of correctness: a name for every barrier, every ordering and every step that must not
//! be left out. (An ordering that is stronger than correctness requires has a comment in the code.)
//!
//! The code names the rule wherever it obeys one, so both ends of a pair can be found from here. A
//! test's memory can break a rule (`Memory::breaks`). For each rule, a test shows the consequence:
//! an engine that breaks the rule lets a CPU use a dead translation, loses an answer, or waits for
//! ever (`tests/rules`; a rule without an entry there does not compile). On real machines `breaks`
//! is a constant `false`, and the compiler removes the test.
//!
//! loom runs the programs of all rules but six:
//!
//! - five are outside of what loom explores: [`StampClaim`](Rule::StampClaim),
//!   [`AsidRelease`](Rule::AsidRelease), [`BroadcastAsidAcquire`](Rule::BroadcastAsidAcquire),
//!   [`ChosenTagAcquire`](Rule::ChosenTagAcquire) and [`ListFence`](Rule::ListFence). For these, an
//!   axiomatic checker enumerates all executions of C++20's memory model, of a reduced part of the
//!   engine (`crates/check/tests/axiomatic`);
//! - C++'s memory model has no page tables, which [`PublishTables`](Rule::PublishTables) is about.
//!   The hostile machine shows the need for it (`crates/check/tests/engine.rs`).
//!
//! # The handshake
//!
//! A flush and a CPU that starts to use the space must not miss each other. Each of them writes,
//! fences, and reads the word that the other one wrote:
//!
//! ```text
//!   flush                                      switch in, or come back from lazy
//!   ─────                                      ─────────────────────────────────
//!   write page table
//!   generation += 1        (BumpRelease)       presence := Switching / Active
//!   full fence             (FlushFence)        full fence      (SwitchFence, ResumeFence)
//!   read cpumask                               read cpumask; register if missing (RegisterFence)
//!   read presence      (PresenceAcquire)       read generation (GenerationAcquire)
//!   log, if others are there
//! ```
//!
//! Either the flush observes that the CPU is present, and rings it; or the CPU observes the new
//! generation, and invalidates what it cached before; or both. Without either fence, both may read
//! the old values, and the CPU continues to use the old translation.
//!
//! The fence comes *after* the bump. With tags, a CPU keeps translations across switches: if the
//! bump is still in a store buffer when presence is read, a returning CPU finds its tag "current".
//!
//! The switching side also fences when it is in the cpumask already. Linux considered the barrier
//! to be implied by the setting of the bit, and skipped both when the bit was set (fixed by
//! 83b0177a6c48).
//!
//! # The bell
//!
//! Rings and answers meet in one word by read-modify-writes, which are totally ordered. The
//! question "was the bell quiet?" therefore needs no fence. A waiter whose interrupt is masked
//! polls its own bell from the beginning of the wait:
//!
//! ```text
//!   ring                                         answer
//!   ────                                         ──────
//!   bell: rung := 1              (FlushFence)    bell: rung := 0, attended := 1,
//!   it was rung or attended → no interrupt             round += 1       (BellAcquire)
//!                                                catch up
//!   wait: read bell; quiet → done (QuietAcquire) answered := round      (AnswerRelease)
//!         else ticket: the round, or the next    bell: attended := 0    (QuietRelease)
//!         answered ≥ ticket?      (WaitAcquire)  unless rung since: again (RecheckBell)
//!
//!   it was disconnected → done                   offline: disconnected := 1, round += 1
//!                      (DisconnectAcquire)                          (DisconnectRelease)
//!                                                answered := round      (AnswerRelease)
//! ```
//!
//! # Devices
//!
//! A device with a TLB of its own reads the page tables at any time, and publishes nothing. The
//! kernel attaches it to the space before its first walk, and detaches it after its last access:
//!
//! ```text
//!   flush                                        kernel, and its device
//!   ─────                                        ──────────────────────
//!   clear the entry                              devices += 1
//!   full fence             (FlushFence)          full fence             (AttachFence)
//!   devices > 0 →          (PhaseAcquire)        the device walks page tables, and uses pages
//!        the device drops  (FlushDevices)        …
//!        the translation                         last access of the device
//!   free the page                                devices −= 1           (DetachRelease)
//! ```
//!
//! Either the flush observes the device, or the device's walks are at least as new as the flush.
//!
//! # Virtual CPUs that are away
//!
//! The flush and the hypervisor meet in read-modify-writes of one word: see `vcpu.rs`. `walk.rs` is
//! about CPUs that are stopped within a walk by software.
//!
//! # The CPUs that are online
//!
//! A flush of the kernel's translations reads the set of online CPUs. A CPU that enters the set
//! fences, as a CPU that switches in does. A CPU that leaves the set must have used the kernel's
//! pages for the last time before, because a flush that does not find the CPU in the set frees the
//! pages without waiting for it:
//!
//! ```text
//!   flush of the kernel's pages                  online
//!   ───────────────────────────                  ──────
//!   clear the entry                              set the bit
//!   kernel's generation += 1                     read the kernel's generation
//!   full fence             (FlushFence)          full barrier           (OnlineSync)
//!   read the online set    (ScanAcquire)         empty the TLB
//!   in the set → ring      (RingOnline)
//!   not in the set → free the page               offline
//!                                                ───────
//!                                                last use of the page
//!                                                clear the bit          (LeaveOnlineRelease)
//! ```
//!
//! # The log
//!
//! Entry `n % 16` of a space's log belongs to the CPU that logs generation `n`. That CPU may be
//! late, or be overtaken by the CPU that logs `n + 16`, or both:
//!
//! ```text
//!   log                                          read entry n
//!   ───                                          ────────────
//!   stamp: older → n, writing   (StampClaim)     stamp is n?            (StampAcquire)
//!   extent := …                 (ExtentRelease)  read extent            (ExtentAcquire)
//!   stamp := n                  (StampRelease)   stamp is still n?
//! ```
//!
//! # The CPU mask
//!
//! To trim a CPU mask is to move it to a fresh set (`cpumask.rs` gives the reason). The move is a
//! handshake between the flush that trims the mask and the CPUs that register in it:
//!
//! ```text
//!   trim                                         register
//!   ────                                         ────────
//!   clear the new set      (ClearRelease)        presence := Switching
//!   phase := trimming      (TrimmingRelease)     full fence             (SwitchFence)
//!   full fence             (TrimFence)           read phase; in its set? (PhaseAcquire)
//!   read old set, presence (KeepPresent)         no: set the bit
//!   present → new set      (KeepHazards)             full fence         (RegisterFence)
//!   phase := stable        (TrimRelease)             read phase again   (RecheckPhase)
//! ```
//!
//! A flush reads the sets that the phase names, and then the phase again. That is enough, because a
//! set is cleared only in a later phase than those in which it is read
//! ([`ScanAcquire`](Rule::ScanAcquire), [`RecheckScan`](Rule::RecheckScan)).
//!
//! # Quarantined tables
//!
//! A flush that unhooks tables does not ring a lazy CPU. It reads the generation that the CPU has
//! caught up with (`seen`): tables that were unhooked up to that generation can be freed. The flush
//! reads the CPU's presence first. That load acquires the hazard pointer and the seen generation
//! that the CPU published before its presence:
//!
//! ```text
//!   flush                                          go lazy, and later to another space
//!   ─────                                          ───────────────────────────────────
//!   unhook table                                   catch up with the space
//!   generation += 1; full fence (FlushFence)       seen := generation     (SeenRelease)
//!   read presence: in use → ring                   presence := Lazy
//!   else hazard is the space?   (HazardAcquire)    …
//!        up to seen: free       (SeenAcquire)      load another root; seen := its generation
//!        later: wait            (QuarantineTables) hazard := another space (HazardRelease)
//! ```
//!
//! If there is no room left in quarantine, [`flush_walkers`](crate::PinnedCpu::flush_walkers) also
//! rings CPUs whose hazard pointer names the space, and that have not published that they have
//! caught up with the last flush; and CPUs that are switching in. Such a CPU may have read an older
//! generation, and its hazard pointer does not name the space yet
//! ([`FlushWalkersFence`](Rule::FlushWalkersFence)).
//!
//! # Global tags
//!
//! While a flush reads the ASID that it broadcasts, another CPU may give the space a different one:
//!
//! ```text
//!   flush                                        switch in; the ASID is of an old epoch
//!   ─────                                        ──────────────────────────────────────
//!   write page table                             take an ASID from the stock
//!   generation += 1; full fence (FlushFence)     space's ASID := it, proposed    (AsidRelease)
//!   read the space's ASID                        full fence                      (NewAsidFence)
//!                      (BroadcastAsidAcquire)    space's ASID := it, confirmed
//!   broadcast it                                 load the root under it; walk page tables
//! ```
//!
//! Either the flush names the new ASID, or the CPU walks page tables at least as new as the flush.
//! So does a third CPU that finds the ASID confirmed ([`AsidAcquire`](Rule::AsidAcquire)). That two
//! spaces never have one ASID follows from read-modify-writes (`tag/reserved.rs`).
//!
//! A broadcast is complete when its issuer has waited for it
//! ([`CompleteBroadcasts`](Rule::CompleteBroadcasts)). A CPU that waits for the broadcast of
//! another CPU rings the issuer, which completes its broadcasts before it answers
//! ([`CompleteForOthers`](Rule::CompleteForOthers)).
//!
//! # Pages of a batch
//!
//! Reclaim unmaps pages of many spaces, and flushes them together, later. Until that flush, code
//! that finds an entry clear must not conclude that no CPU uses its page:
//!
//! ```text
//!   batch                                        munmap, mprotect, mremap, madvise
//!   ─────                                        ─────────────────────────────────
//!   batched += 1                (MarkBatched)    read the entry (the kernel's, with acquire)
//!   clear the entry (the kernel's, with release)   it is clear: nothing to flush
//!   flush all; wait                              batched?              (BatchedAcquire)
//!   batched −= 1             (BatchedRelease)      0 → no CPU uses the page any more
//!   free the pages                                 else flush what it covers; wait
//! ```
//!
//! # The hand-off
//!
//! A retired space is freed by the CPU that drops the last reference to it. The mark of the CPU
//! that retires the space, and the drop by a CPU that still has it loaded, meet in that CPU's
//! hazard pointer by read-modify-writes. Each marked CPU drops one reference, the CPU that
//! retires the space drops the users' reference, and one of these drops is the last.
//!
//! ```text
//!   retire                                       drop (switch, leave_space)
//!   ──────                                       ──────────────────────────
//!   refs: ALIVE since the beginning              load another root
//!   for all in the CPU mask:     (MarkHazards)   hazard: swap for the next (HazardRelease)
//!     hazard: space → marked   (HazardAcquire)   it was marked?            (CheckMark)
//!   refs += marked − ALIVE     (RetireRelease)     refs −= 1           (DropRefRelease)
//!   0 → reclaim                (RetireAcquire)     0 → reclaim         (DropRefAcquire)
//!
//!   reap                                         answer, lazy on a dead space
//!   ────                                         ────────────────────────────
//!   hazard is marked → ring; wait                load the kernel's root  (LeaveDeadSpace)
//!   hazard: orphaned → nothing                   refs −= 1             (DropRefRelease)
//!     by compare-and-swap      (HazardAcquire)     0 → hazard := orphaned (OrphanRelease)
//!     → reclaim                                    else hazard := nothing (HazardRelease)
//! ```
//!
//! Spaces may wait on a list to be freed. A push ([`PushDeadRelease`](Rule::PushDeadRelease))
//! continues the release of earlier ones; to take the list acquires
//! ([`TakeDeadAcquire`](Rule::TakeDeadAcquire)).

use core::sync::atomic::Ordering;

/// The kind of a [`Rule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A full barrier. An engine that breaks the rule has none.
    Fence,
    /// An ordering of one access. An engine that breaks the rule uses a relaxed access.
    Ordering(Ordering),
    /// A step of a protocol. An engine that breaks the rule leaves the step out.
    Step,
}

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident: $kind:expr,)*) => {
        /// A rule of the engine's protocols. The [module](self) shows how the rules work together.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Rule { $($(#[$doc])* $name,)* }

        impl Rule {
            /// Every rule, in the order of the chapter above.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The kind of the rule.
            #[must_use]
            #[inline]
            pub const fn kind(self) -> Kind {
                match self { $(Self::$name => $kind),* }
            }
        }
    };
}

use Kind::{Fence, Step};
use Ordering::{AcqRel, Acquire, Release};

rules! {
    /// A flush fences after it bumps the generation, before it reads the cpumask and presence.
    /// Pairs with [`SwitchFence`](Self::SwitchFence), [`ResumeFence`](Self::ResumeFence),
    /// [`RegisterFence`](Self::RegisterFence) and [`OnlineSync`](Self::OnlineSync). Without: the
    /// flush does not find the CPU present, and the CPU reads the old generation.
    FlushFence: Fence,
    /// A CPU that switches in fences after it writes its presence, before it reads the cpumask and
    /// the generation. Pairs with [`FlushFence`](Self::FlushFence), [`TrimFence`](Self::TrimFence)
    /// and [`FlushWalkersFence`](Self::FlushWalkersFence).
    SwitchFence: Fence,
    /// A CPU that returns from lazy fences after it writes its presence, before it reads the
    /// generation. Pairs with [`FlushFence`](Self::FlushFence).
    ResumeFence: Fence,
    /// A CPU fences after it puts itself into the cpumask, before it reads the phase and the
    /// generation. Pairs with [`FlushFence`](Self::FlushFence) and [`TrimFence`](Self::TrimFence).
    RegisterFence: Fence,
    /// [`flush_walkers`](crate::PinnedCpu::flush_walkers) fences after it reads the generation,
    /// before it reads the cpumask and presence. Pairs with [`SwitchFence`](Self::SwitchFence).
    FlushWalkersFence: Fence,
    /// A CPU that gives a space another ASID writes the ASID, and then fences before it does any of
    /// three things: write the epoch that lets other CPUs use the ASID; load the space's root; hand
    /// the ASID to a device. Pairs with [`FlushFence`](Self::FlushFence) and
    /// [`FlushWalkersFence`](Self::FlushWalkersFence), after which a flush reads the ASID that it
    /// broadcasts.
    NewAsidFence: Fence,
    /// The kernel counts a device of a space, and fences before the device walks page tables. Pairs
    /// with [`FlushFence`](Self::FlushFence). Without: a flush does not find the device, and the
    /// device caches the old entry.
    AttachFence: Fence,
    /// A device's last access comes before it is detached from the space. Pairs with
    /// [`PhaseAcquire`](Self::PhaseAcquire) of a flush that does not find the device, and frees the
    /// pages. Without: the device's last access hits a page that has been freed.
    DetachRelease: Kind::Ordering(Release),
    /// A CPU's last use of the kernel's translations comes before it leaves the set of online CPUs.
    /// Pairs with [`ScanAcquire`](Self::ScanAcquire) of a kernel flush, which neither rings nor
    /// waits for a CPU outside of the set. Without: the CPU's last accesses hit a kernel page that
    /// has been freed.
    LeaveOnlineRelease: Kind::Ordering(Release),

    /// The bump publishes the page-table writes before it. Pairs with
    /// [`GenerationAcquire`](Self::GenerationAcquire): a CPU that has read generation n walks page
    /// tables at least as new as n. Without: the CPU walks the old entry, and takes it to be
    /// current.
    BumpRelease: Kind::Ordering(Release),
    /// The other end of [`BumpRelease`](Self::BumpRelease).
    GenerationAcquire: Kind::Ordering(Acquire),
    /// A CPU's last use of a space comes before it publishes that it has left. Pairs with
    /// [`PresenceAcquire`](Self::PresenceAcquire): a flush that skips the CPU may free the pages.
    /// Without: the CPU's last accesses hit a page that has been freed.
    LeaveRelease: Kind::Ordering(Release),
    /// The other end of [`LeaveRelease`](Self::LeaveRelease).
    PresenceAcquire: Kind::Ordering(Acquire),

    /// A CPU that answers a ring observes the bump that came before the ring. Pairs with
    /// [`FlushFence`](Self::FlushFence), which lies between the bump and the ring, so that safety
    /// requires no ordering of the ring itself. The interrupt orders as well, but not every ring
    /// sends one, and a CPU that polls its bell takes none. Without: the CPU reads the old
    /// generation, takes its TLB to be current, and answers.
    BellAcquire: Kind::Ordering(Acquire),
    /// All uses of the old translations come before the answer. Pairs with
    /// [`WaitAcquire`](Self::WaitAcquire). Without: the waiter frees a page that is being read.
    AnswerRelease: Kind::Ordering(Release),
    /// The other end of [`AnswerRelease`](Self::AnswerRelease).
    WaitAcquire: Kind::Ordering(Acquire),
    /// As [`AnswerRelease`](Self::AnswerRelease), for a waiter that finds the bell quiet. Pairs
    /// with [`QuietAcquire`](Self::QuietAcquire).
    QuietRelease: Kind::Ordering(AcqRel),
    /// The other end of [`QuietRelease`](Self::QuietRelease).
    QuietAcquire: Kind::Ordering(Acquire),
    /// A CPU that goes offline has used its last translation before its bell is disconnected.
    /// Pairs with [`DisconnectAcquire`](Self::DisconnectAcquire).
    DisconnectRelease: Kind::Ordering(AcqRel),
    /// The other end of [`DisconnectRelease`](Self::DisconnectRelease): a ring that finds the bell
    /// disconnected. (The ring also releases, so that the answer finds the log entry.)
    DisconnectAcquire: Kind::Ordering(AcqRel),
    /// A waiter is in the kernel's list before it requests to be woken. Pairs with `QuietRelease`
    /// and `DisconnectRelease`, which also acquire. Without: the CPU that answers does not find it.
    WakeRelease: Kind::Ordering(Release),

    /// A CPU that writes a log entry comes after the earlier writer of the same entry. Without: the
    /// two stores of the extent may take effect in either order, and the entry then pairs the new
    /// stamp with the old extent. loom executes the stores to one word in one order only. The
    /// axiomatic checker enumerates both (`log_entry` in `crates/check/tests/axiomatic`).
    StampClaim: Kind::Ordering(Acquire),
    /// A virtual CPU's last access comes before its hypervisor records that it has stopped. Pairs
    /// with [`DeferAcquire`](Self::DeferAcquire). Without: a flush that does not wait for the CPU
    /// frees a page that the CPU is using.
    StopRelease: Kind::Ordering(Release),
    /// The other end of [`StopRelease`](Self::StopRelease): a flush that finds the CPU away, and
    /// leaves its request.
    DeferAcquire: Kind::Ordering(Acquire),
    /// A walk by software ends before its mark is removed. Pairs with
    /// [`WalkAcquire`](Self::WalkAcquire). Without: a table is freed while it is read.
    WalkRelease: Kind::Ordering(Release),
    /// The other end of [`WalkRelease`](Self::WalkRelease): a flush that skips a CPU that is away.
    WalkAcquire: Kind::Ordering(Acquire),
    /// A virtual CPU that returns observes the page-table writes of the flushes that have left a
    /// request. Pairs with [`FlushFence`](Self::FlushFence), which lies between the writes and the
    /// request. Without: the CPU empties its TLB, and then walks the old entry.
    ReturnAcquire: Kind::Ordering(Acquire),

    /// An extent is written after its entry is marked as being written. Pairs with
    /// [`ExtentAcquire`](Self::ExtentAcquire): a CPU that reads the extent then finds the stamp
    /// changed.
    ExtentRelease: Kind::Ordering(Release),
    /// The other end of [`ExtentRelease`](Self::ExtentRelease).
    ExtentAcquire: Kind::Ordering(Acquire),
    /// An extent is written before its stamp is complete. Pairs with
    /// [`StampAcquire`](Self::StampAcquire). Without: the reader invalidates another range.
    StampRelease: Kind::Ordering(Release),
    /// The other end of [`StampRelease`](Self::StampRelease).
    StampAcquire: Kind::Ordering(Acquire),

    /// A trim fences after the phase is `TRIMMING`, before it reads the old set and presence. Pairs
    /// with [`SwitchFence`](Self::SwitchFence) and [`RegisterFence`](Self::RegisterFence). Without:
    /// the trim misses a CPU that registers in the old set, which no flush reads any more.
    TrimFence: Fence,
    /// The new set holds every CPU that is present before the phase makes it the only set. Pairs
    /// with [`PhaseAcquire`](Self::PhaseAcquire).
    TrimRelease: Kind::Ordering(Release),
    /// The other end of [`TrimRelease`](Self::TrimRelease),
    /// [`TrimmingRelease`](Self::TrimmingRelease) and [`DetachRelease`](Self::DetachRelease).
    PhaseAcquire: Kind::Ordering(Acquire),
    /// The fresh set is empty before the phase lets CPUs register in it. Pairs with
    /// [`PhaseAcquire`](Self::PhaseAcquire). Without: a CPU finds its bit of two epochs ago, and
    /// takes itself to be registered.
    TrimmingRelease: Kind::Ordering(Release),
    /// A set is cleared after the phase in which it was read has ended. Pairs with
    /// [`ScanAcquire`](Self::ScanAcquire): a flush that reads the cleared set then reads the
    /// changed phase.
    ClearRelease: Kind::Ordering(Release),
    /// The other end of [`ClearRelease`](Self::ClearRelease), and of
    /// [`LeaveOnlineRelease`](Self::LeaveOnlineRelease).
    ScanAcquire: Kind::Ordering(Acquire),

    /// A CPU's last walk of a space's tables comes before its hazard pointer names another space.
    /// Pairs with [`HazardAcquire`](Self::HazardAcquire). Without: a table is freed while it is
    /// walked.
    HazardRelease: Kind::Ordering(Release),
    /// The other end of [`HazardRelease`](Self::HazardRelease), and of
    /// [`OrphanRelease`](Self::OrphanRelease).
    HazardAcquire: Kind::Ordering(Acquire),
    /// A CPU's last walk of the tables that a flush unhooked comes before the CPU publishes that it
    /// has caught up with that flush. Pairs with [`SeenAcquire`](Self::SeenAcquire).
    SeenRelease: Kind::Ordering(Release),
    /// The other end of [`SeenRelease`](Self::SeenRelease).
    SeenAcquire: Kind::Ordering(Acquire),
    /// A CPU that drops its reference to a space has walked the space's tables for the last time.
    /// Pairs with [`DropRefAcquire`](Self::DropRefAcquire) and
    /// [`RetireAcquire`](Self::RetireAcquire) of the CPU that drops the last reference.
    DropRefRelease: Kind::Ordering(Release),
    /// The other end of [`DropRefRelease`](Self::DropRefRelease) and of
    /// [`RetireRelease`](Self::RetireRelease), on the CPU that drops the last reference.
    DropRefAcquire: Kind::Ordering(Acquire),
    /// Every access to a space by its users comes before the space is retired. Pairs with
    /// [`DropRefAcquire`](Self::DropRefAcquire).
    RetireRelease: Kind::Ordering(Release),
    /// The other end of [`DropRefRelease`](Self::DropRefRelease), where the CPU that retires the
    /// space drops the last reference.
    RetireAcquire: Kind::Ordering(Acquire),
    /// The accesses of the CPU that dropped the last reference come before it orphans its hazard
    /// pointer, for another CPU to reclaim the space. Pairs with
    /// [`HazardAcquire`](Self::HazardAcquire).
    OrphanRelease: Kind::Ordering(Release),

    /// A dead space is not accessed any more before it is on the list of [dead
    /// spaces](crate::DeadSpaces). Pairs with [`TakeDeadAcquire`](Self::TakeDeadAcquire). Without:
    /// the CPU that takes the space frees what another CPU is still using.
    PushDeadRelease: Kind::Ordering(Release),
    /// The other end of [`PushDeadRelease`](Self::PushDeadRelease).
    TakeDeadAcquire: Kind::Ordering(Acquire),

    /// A CPU that finds an ASID comes after [`NewAsidFence`](Self::NewAsidFence) of the CPU that
    /// wrote it. Without: its page tables are older than a flush that has named another ASID.
    AsidAcquire: Kind::Ordering(Acquire),
    /// A CPU stores what it reserves in an epoch before it chooses an ASID of that epoch. Without:
    /// another CPU hands out an ASID that its space keeps.
    ActiveTagRelease: Kind::Ordering(Release),
    /// The other end of [`ActiveTagRelease`](Self::ActiveTagRelease).
    ActiveTagAcquire: Kind::Ordering(Acquire),
    /// A CPU acquires the presence of one that has chosen its next ASID. Without: as `AsidRelease`.
    ChosenTagAcquire: Kind::Ordering(Acquire),
    /// A CPU that pins an ASID fences before it reads the epoch again.
    PinFence: Fence,
    /// A CPU reads the epoch, and fences before it reads which CPUs and pins have ASIDs. Pairs with
    /// [`PinFence`](Self::PinFence), [`OnlineSync`](Self::OnlineSync). Without: two spaces get one.
    ReserveFence: Fence,
    /// The list of unavailable ASIDs is marked incomplete before its words are written. Without: a
    /// CPU that has not noticed that its epoch is over takes a reserved ASID to be free.
    ListFence: Fence,
    /// The list is complete before it is marked so, and before a pin that it has is removed.
    ListRelease: Kind::Ordering(Release),
    /// The other end of [`ListRelease`](Self::ListRelease) and of [`ListFence`](Self::ListFence).
    ListAcquire: Kind::Ordering(Acquire),
    /// The CPU that gives a space another ASID publishes, along with the ASID, the presence of
    /// each CPU that it found on its way out of the space. Pairs with
    /// [`BroadcastAsidAcquire`](Self::BroadcastAsidAcquire). Without: a flush that frees tables
    /// broadcasts the new ASID, takes such a CPU to be on the space, and does not interrupt it. The
    /// CPU walks the freed tables under the old ASID until it has loaded the next root.
    ///
    /// The axiomatic checker shows the need for the proposal, which other exchanges continue.
    AsidRelease: Kind::Ordering(Release),
    /// The other end of [`AsidRelease`](Self::AsidRelease): a flush that will broadcast the ASID.
    BroadcastAsidAcquire: Kind::Ordering(Acquire),
    /// A device's last use of a space comes before its ASID is unpinned. Without: a flush finds no
    /// pin, does not broadcast, and a page is reused before the device's last access to it.
    UnpinRelease: Kind::Ordering(Release),
    /// The other end of [`UnpinRelease`](Self::UnpinRelease).
    UnpinAcquire: Kind::Ordering(Acquire),
    /// A CPU that takes the ASID allocator's lock observes the changes of the previous holder.
    TagLockAcquire: Kind::Ordering(Acquire),
    /// The other end of [`TagLockAcquire`](Self::TagLockAcquire).
    TagLockRelease: Kind::Ordering(Release),

    /// No CPU uses the pages that a batch unmapped from a space by the time that the batch unmarks
    /// the space. Pairs with [`BatchedAcquire`](Self::BatchedAcquire).
    BatchedRelease: Kind::Ordering(Release),
    /// The other end of [`BatchedRelease`](Self::BatchedRelease): a CPU that finds the entry clear,
    /// because a batch cleared it, and then finds the space unmarked. Without: the CPU frees a page
    /// as unused that another CPU is using.
    BatchedAcquire: Kind::Ordering(Acquire),

    /// A flush publishes this CPU's page-table writes before it invalidates, here or by broadcast
    /// ([`publish`](crate::Machine::publish)). A full barrier is not enough. Without: a walker
    /// reads the old entry again after the invalidation.
    PublishTables: Step,
    /// A CPU that comes online [synchronizes](crate::Machine::synchronize) after it enters the set
    /// of online CPUs and has loaded the kernel's generation, before it empties its TLB. Pairs with
    /// [`FlushFence`](Self::FlushFence) of a kernel flush.
    ///
    /// Without, one of two things goes wrong. The flush does not find the CPU online, and the CPU
    /// walks the old page table. Or, because no dependency orders the load before the invalidation,
    /// the TLB is emptied first: the CPU then loads a generation whose flush it has missed, and
    /// takes itself to be current.
    OnlineSync: Step,
    /// A flush rings the CPUs that are active on the space.
    RingPresent: Step,
    /// A flush also rings the CPUs that are switching to the space.
    RingSwitching: Step,
    /// A flush neither rings nor waits for a CPU that is [away](crate::Machine::is_away). Without:
    /// the flush waits until the hypervisor runs the CPU.
    SkipAway: Step,
    /// A CPU that is stopped again before it has run keeps its request (KVM: b043138246a4).
    KeepRequest: Step,
    /// A flush waits for a CPU that is away [within a walk](crate::PinnedCpu::begin_walk).
    WaitForWalks: Step,
    /// A flush that frees tables also rings the CPUs that are leaving the space.
    RingLeaving: Step,
    /// A flush that frees tables also rings the CPUs that are lazy on the space.
    RingLazy: Step,
    /// A flush that does not ring lazy and leaving CPUs keeps the tables in quarantine for as long
    /// as such a CPU may walk them.
    QuarantineTables: Step,
    /// A flush invalidates on its own CPU.
    FlushLocally: Step,
    /// A flush is done only when the CPUs that it rang have answered.
    Wait: Step,
    /// A waiter whose interrupts are masked answers its own bell. Without: two CPUs wait for each
    /// other for ever.
    AnswerWhileWaiting: Step,
    /// A CPU that [answers before it invalidates](crate::Machine::answers_early) does so only if it
    /// knows that no flush that it has missed freed page tables. Without: the CPU walks a freed
    /// table between the two.
    AnswerTablesLate: Step,
    /// While a CPU may have answered and not invalidated, its NMIs may not touch user memory.
    /// Without: an NMI between the two uses the dead translation.
    DenyNmi: Step,
    /// A CPU reads its bell again when it leaves it, because a ring sends no interrupt while the
    /// bell is attended.
    RecheckBell: Step,
    /// A waiter does not sleep if the CPU has left its bell. Without: no CPU wakes it.
    RecheckAnswer: Step,
    /// A CPU that switches in with a kept tag compares generations.
    CatchUpOnSwitch: Step,
    /// A CPU that returns from lazy compares generations.
    CatchUpOnResume: Step,
    /// A CPU catches up range by range only if it knows every range that it missed.
    KnowEveryRange: Step,
    /// A tag that belonged to another space is discarded when it is loaded.
    DiscardReusedTag: Step,
    /// A CPU that missed the freeing of tables discards its tag before it loads the root.
    DiscardFreedTables: Step,
    /// A CPU that has registered checks that the phase of the cpumask has not changed.
    RecheckPhase: Step,
    /// A trim keeps the CPUs that are present.
    KeepPresent: Step,
    /// A trim also keeps the CPUs that have left, and whose hazard pointer still names the space.
    KeepHazards: Step,
    /// A CPU that has read the cpumask's sets checks that the phase has not changed.
    RecheckScan: Step,
    /// [`flush_walkers`](crate::PinnedCpu::flush_walkers) rings the CPUs that could walk unhooked
    /// tables.
    InterruptWalkers: Step,
    /// The CPU that retires a space marks every hazard pointer that names it.
    MarkHazards: Step,
    /// A CPU that drops a space checks whether its hazard pointer was marked. Without: the space is
    /// never freed.
    CheckMark: Step,
    /// A CPU that answers its bell, and is lazy on a dead space, leaves the space.
    LeaveDeadSpace: Step,
    /// A rollover does not free the ASIDs that CPUs have loaded.
    ReserveTags: Step,
    /// A CPU empties its TLB before it uses an ASID of the new epoch.
    FlushOnRollover: Step,
    /// A CPU that takes ASIDs of an epoch reads this epoch before it looks for CPUs with ASIDs.
    ReadEpoch: Step,
    /// A CPU takes back the ASID of a dead space only if no other CPU has run it.
    RecycleOwnTag: Step,
    /// A CPU empties its TLB when its own count of tags wraps around.
    FlushOnWrap: Step,
    /// A flush that was broadcast is done only when its issuer has completed the broadcast.
    CompleteBroadcasts: Step,
    /// A CPU that answers its bell, or goes offline, completes the broadcasts that it has issued,
    /// so that another CPU can wait for them.
    CompleteForOthers: Step,
    /// A flush whose broadcast is refused rings the CPUs that the broadcast was for.
    RingIfRefused: Step,
    /// A flush of a space that devices use is broadcast even if no CPU is present.
    BroadcastForDevices: Step,
    /// A flush invalidates on the devices that are attached to the space.
    FlushDevices: Step,
    /// A CPU catches up with a flush that was not broadcast, even if every later flush was.
    KeepGaps: Step,
    /// A batch marks a space before it unmaps a page of it.
    MarkBatched: Step,
    /// A CPU that comes online discards everything that its TLB holds from before.
    FlushOnOnline: Step,
    /// A kernel flush rings every CPU that is online.
    RingOnline: Step,
}
