//! The rules that make it correct: every barrier, every ordering and every step that must not be
//! left out, by name, in one place. (What is ordered more than it must be says so where it is.)
//!
//! The code names the rule wherever it obeys one, so each entry here can be looked up at both ends
//! of its pair. A test's memory can break a rule (`Memory::breaks`), and for each rule a test
//! shows that an engine that breaks it lets a CPU use a dead translation, lose an answer, or wait
//! for ever (`tests/rules`; a rule without an entry there does not compile). loom runs the programs
//! of all rules but four. For three of these, an enumeration of all executions that C++20's memory
//! model allows shows the same of a part of the engine that is reduced by hand
//! (`crates/check/tests/axiomatic`); for the publication of page tables, of which C++ knows
//! nothing, the hostile machine does (`crates/check/tests/engine.rs`).
//! On real machines the question is a constant `false`, and the compiler removes it.
//!
//! # The handshake
//!
//! A flush and a CPU that starts to use the space must not miss each other. Both write, fence, and
//! read what the other wrote:
//!
//! ```text
//!   flush                                      switch in, or come back from lazy
//!   ─────                                      ─────────────────────────────────
//!   write page table
//!   generation += 1        (BumpRelease)       presence := Switching / Active
//!   full fence             (FlushFence)        full fence      (SwitchFence, ResumeFence)
//!   read cpumask                                read cpumask; register if missing (RegisterFence)
//!   log, if others are there; read presence
//!                                              read generation (GenerationAcquire)
//! ```
//!
//! Either the flush sees the CPU present, and rings it; or the CPU sees the new generation, and
//! does not use what it kept from before; or both. Without either fence, both may read the old
//! values, and the CPU goes on with the old translation. The fence comes *after* the bump: with
//! tags, a CPU keeps translations across switches, and a bump that is still on its way when
//! presence is read lets a returning CPU find its tag "current". And the switching side fences
//! also when it is in the cpumask already (Linux took the barrier to be implied by setting a bit,
//! and skipped both when the bit was set: fixed by 83b0177a6c48).
//!
//! # The bell
//!
//! Rings and answers meet in one word by read-modify-writes, which are totally ordered, so the
//! question "was the bell quiet?" needs no fence. A waiter that can answer while it waits attends
//! to its bell from the beginning:
//!
//! ```text
//!   ring                                         answer
//!   ────                                         ──────
//!   bell: rung := 1              (FlushFence)    bell: rung := 0, attended := 1,
//!   it was rung or attended → no interrupt             round += 1       (LookAcquire)
//!                                                catch up
//!   wait: read bell; quiet → done (QuietAcquire) answered := round      (AnswerRelease)
//!         else ticket: the round, or the next    bell: attended := 0    (QuietRelease)
//!         answered ≥ ticket?      (WaitAcquire)  unless rung meanwhile: again (LookAgain)
//!
//!   it was disconnected → done                   offline: disconnected := 1, round += 1
//!                      (DisconnectAcquire)                          (DisconnectRelease)
//!                                                answered := round      (AnswerRelease)
//! ```
//!
//! # The CPUs that are online
//!
//! A flush of the kernel's translations reads the set of online CPUs. A CPU that enters the set
//! fences, as one that switches in does. A CPU that leaves the set has used the kernel's pages for
//! the last time before, because a flush that does not find it there frees them at once:
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
//! Entry `n % 16` of a space's log belongs to the writer of generation `n`, who may be late, or
//! overtaken by the writer of `n + 16`, or both:
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
//! Trimming a CPU mask (`cpumask.rs` has the reason) moves it to a fresh set. It is a handshake
//! between the flush that trims the mask and CPUs that register:
//!
//! ```text
//!   trim                                         register
//!   ────                                         ────────
//!   clear the new set      (ClearRelease)        presence := Switching
//!   phase := moving        (MovingRelease)       full fence             (SwitchFence)
//!   full fence             (MoveFence)           read phase; in its set? (PhaseAcquire)
//!   read old set, presence (KeepPresent)         no: set the bit
//!   present → new set      (KeepHolders)             full fence         (RegisterFence)
//!   phase := stable        (MoveRelease)             read phase again   (RecheckPhase)
//! ```
//!
//! A flush reads the sets that the phase names, and then the phase again: a set is cleared only in
//! a later phase than those in which it is read ([`ScanAcquire`](Rule::ScanAcquire),
//! [`RecheckScan`](Rule::RecheckScan)).
//!
//! # Tables that are held back
//!
//! A flush that unhooks tables does not ring a lazy CPU. It reads the generation that the CPU has
//! seen: tables that were unhooked up to that generation can be freed. The flush reads the CPU's
//! presence first. That load acquires the hazard pointer and the seen generation that the CPU had
//! published by then:
//!
//! ```text
//!   flush                                        lazy, and away
//!   ─────                                        ──────────────
//!   unhook table                                 catch up with the space
//!   generation += 1; full fence (FlushFence)     seen := generation     (SeenRelease)
//!   read presence: in use → ring                 presence := Lazy
//!   else hazard is the space? (HeldAcquire)      …
//!        up to seen: free   (SeenAcquire)        load another root; seen := its generation
//!        beyond: hold back  (HoldBackTables)     hazard := another space (HeldRelease)
//! ```
//!
//! Where there is no room to hold tables back, the flush rings two more kinds of CPU: those whose
//! hazard pointer names the space, and that have not published that they have seen the last flush;
//! and those that are switching in, which may have read an older generation, and whose hazard
//! pointer does not name the space yet ([`FlushWalkersFence`](Rule::FlushWalkersFence)).
//!
//! # Global tags
//!
//! A flush that is broadcast names the space's ASID. While the flush reads it, a CPU may be
//! giving the space another one:
//!
//! ```text
//!   flush                                        switch in, and the ASID is of an old epoch
//!   ─────                                        ──────────────────────────────────────────
//!   write page table                             allocate an ASID, under the lock
//!   generation += 1; full fence (FlushFence)     space's ASID := it, without an epoch
//!   read the space's ASID                        full fence             (RenumberFence)
//!   broadcast it                                 space's ASID := it, with this epoch
//!                                                load the root under it; walk page tables
//! ```
//!
//! Either the flush names the new ASID, or the CPU walks page tables as new as the flush. The same
//! holds for a third CPU that finds the ASID with its epoch ([`AsidAcquire`]). No fence keeps two
//! spaces from having one ASID: a CPU that goes back to a space, and a rollover that takes the ASID
//! of the space away, do so by read-modify-writes of one word ([`ReserveTags`]). A CPU that
//! finds the word empty empties its TLB before it goes on ([`FlushOnRollover`]).
//!
//! A broadcast is complete when its issuer has waited for it ([`CompleteBroadcasts`]). A CPU that
//! waits elsewhere rings the issuer, and is answered when the broadcast is complete
//! ([`CompleteForOthers`]).
//!
//! [`AsidAcquire`]: Rule::NumberAcquire
//! [`ReserveTags`]: Rule::ReserveTags
//! [`FlushOnRollover`]: Rule::FlushOnRollover
//! [`CompleteBroadcasts`]: Rule::CompleteBroadcasts
//! [`CompleteForOthers`]: Rule::CompleteForOthers
//!
//! # Pages of a batch
//!
//! Reclaim unmaps pages of many spaces, and flushes them together, later. Until then, code that
//! finds an entry empty must not conclude that no CPU uses its page:
//!
//! ```text
//!   batch                                        munmap, mprotect, mremap, madvise
//!   ─────                                        ─────────────────────────────────
//!   held back += 1             (MarkHeldBack)    read the entry (the kernel's, with acquire)
//!   clear the entry (the kernel's, with release)   it is clear: nothing to flush
//!   flush all; wait                              held back?            (HeldBackAcquire)
//!   held back −= 1          (HeldBackRelease)      0 → no CPU uses the page any more
//!   free the pages                                 else flush what it covers; wait
//! ```
//!
//! # The hand-off
//!
//! A space that is retired is freed by the CPU that drops the last reference to it. A mark and the
//! drop of a hazard pointer meet in one word per CPU, by read-modify-writes. Each CPU that is
//! marked drops one reference, and one of these drops is the last.
//!
//! ```text
//!   retire                                       drop (switch, leave)
//!   ──────                                       ────────────────────
//!   refs: ALIVE since the beginning              load another root
//!   for all in the CPU mask:     (MarkHazards)   hazard: swap for the next (HazardRelease)
//!     hazard: space → marked     (HeldAcquire)   it was marked?          (LookForDebt)
//!   refs += marked − ALIVE    (SettleRelease)      refs −= 1           (PayRelease)
//!   0 → reclaim               (SettleAcquire)      0 → reclaim         (PayAcquire)
//!
//!   reap                                         answer, lazy on a dead space
//!   ────                                         ────────────────────────────
//!   hazard is marked → ring; wait                load the kernel's root  (LeaveDeadSpace)
//!   hazard: orphaned → nothing                   refs −= 1
//!     by compare-and-swap      (HeldAcquire)       0 → hazard := orphaned  (BequestRelease)
//!     → reclaim                                    else hazard := nothing  (HeldRelease)
//! ```

use core::sync::atomic::Ordering;

/// What kind of thing a [`Rule`] asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A full barrier. Broken: none.
    Fence,
    /// An ordering of one access. Broken: relaxed.
    Ordering(Ordering),
    /// A step of a protocol. Broken: left out.
    Step,
}

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident: $kind:expr,)*) => {
        /// One rule of the engine's protocols. See the [module](self) for how they fit together.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Rule { $($(#[$doc])* $name,)* }

        impl Rule {
            /// Every rule, in the order of the chapter above.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// What the rule asks for.
            #[must_use]
            pub const fn kind(self) -> Kind {
                match self { $(Self::$name => $kind),* }
            }
        }
    };
}

use Kind::{Fence, Step};
use Ordering::{AcqRel, Acquire, Release};

rules! {
    /// After the generation is bumped, before cpumask and presence are read. Pairs with
    /// [`SwitchFence`](Self::SwitchFence), [`ResumeFence`](Self::ResumeFence),
    /// [`RegisterFence`](Self::RegisterFence) and [`OnlineSync`](Self::OnlineSync).
    FlushFence: Fence,
    /// After presence is written, before cpumask and generation are read. Pairs with
    /// [`FlushFence`](Self::FlushFence), [`TrimFence`](Self::TrimFence) and
    /// [`FlushWalkersFence`](Self::FlushWalkersFence).
    SwitchFence: Fence,
    /// On the way back from lazy: after presence is written, before the generation is read. Pairs
    /// with [`FlushFence`](Self::FlushFence).
    ResumeFence: Fence,
    /// After a CPU has put itself into the cpumask, before it reads phase and generation. Pairs
    /// with [`FlushFence`](Self::FlushFence) and [`TrimFence`](Self::TrimFence).
    RegisterFence: Fence,
    /// Who has tables forgotten that were held back: after the generation is read, before cpumask
    /// and presence are. Pairs with [`SwitchFence`](Self::SwitchFence).
    FlushWalkersFence: Fence,
    /// A space may have got another number: after that is written, before the version that lets
    /// others use it is, before its root is loaded, or a device is told. Pairs with
    /// [`FlushFence`](Self::FlushFence) and [`FlushWalkersFence`](Self::FlushWalkersFence), after which the
    /// number is read that is broadcast.
    NewAsidFence: Fence,
    /// A CPU's last use of the kernel's translations comes before it leaves the set of online CPUs.
    /// Pairs with [`ScanAcquire`](Self::ScanAcquire) of a kernel flush, which neither rings nor
    /// waits for a CPU outside of the set. Without: the CPU's last accesses hit a kernel page that
    /// has been given away.
    LeaveOnlineRelease: Kind::Ordering(Release),

    /// The bump publishes the page-table writes before it. Pairs with
    /// [`GenerationAcquire`](Self::GenerationAcquire): a CPU that has seen generation n walks
    /// page tables at least as new as n. Without: it walks the old entry and calls it current.
    BumpRelease: Kind::Ordering(Release),
    /// The other end of [`BumpRelease`](Self::BumpRelease).
    GenerationAcquire: Kind::Ordering(Acquire),
    /// A CPU's last use of a space comes before its presence says that it left. Pairs with
    /// [`PresenceAcquire`](Self::PresenceAcquire): a flush that skips the CPU may free the pages.
    /// Without: the CPU's last accesses hit a page that has been given away.
    LeaveRelease: Kind::Ordering(Release),
    /// The other end of [`LeaveRelease`](Self::LeaveRelease).
    PresenceAcquire: Kind::Ordering(Acquire),

    /// Who answers a ring sees the bump that came before it. Pairs with
    /// [`FlushFence`](Self::FlushFence), which lies between the bump and the ring, so that safety
    /// asks no ordering of the ring itself. The interrupt carries order, too, but not every ring
    /// sends one, and a CPU that polls its bell takes none. Without: whoever answers finds the old
    /// generation, takes itself to be current, and answers.
    BellAcquire: Kind::Ordering(Acquire),
    /// All uses of the old translations come before the answer. Pairs with
    /// [`WaitAcquire`](Self::WaitAcquire). Without: the waiter frees a page that is being read.
    AnswerRelease: Kind::Ordering(Release),
    /// The other end of [`AnswerRelease`](Self::AnswerRelease).
    WaitAcquire: Kind::Ordering(Acquire),
    /// As [`AnswerRelease`](Self::AnswerRelease), for the waiter who finds the bell quiet. Pairs
    /// with [`QuietAcquire`](Self::QuietAcquire).
    QuietRelease: Kind::Ordering(AcqRel),
    /// The other end of [`QuietRelease`](Self::QuietRelease).
    QuietAcquire: Kind::Ordering(Acquire),
    /// A CPU that goes offline has used its last translation before its bell is disconnected.
    /// Pairs with [`DisconnectAcquire`](Self::DisconnectAcquire).
    DisconnectRelease: Kind::Ordering(AcqRel),
    /// The other end of [`DisconnectRelease`](Self::DisconnectRelease): the ringer who finds the
    /// bell disconnected. (It is released, too, so that the answer finds the log entry.)
    DisconnectAcquire: Kind::Ordering(AcqRel),

    /// The writer of a log entry comes after the earlier writer of the same entry. Without: the
    /// two stores of the extent may take effect in either order, and the entry then pairs the new
    /// stamp with the old extent. loom executes stores to one word in one order only; the axiomatic
    /// checker enumerates both (`log_entry` in `crates/check/tests/axiomatic`).
    StampClaim: Kind::Ordering(Acquire),
    /// An extent is written after its entry is marked as being written. Pairs with
    /// [`ExtentAcquire`](Self::ExtentAcquire): who reads the extent finds the stamp changed.
    ExtentRelease: Kind::Ordering(Release),
    /// The other end of [`ExtentRelease`](Self::ExtentRelease).
    ExtentAcquire: Kind::Ordering(Acquire),
    /// An extent is there before its stamp says so. Pairs with
    /// [`StampAcquire`](Self::StampAcquire). Without: the reader invalidates another range.
    StampRelease: Kind::Ordering(Release),
    /// The other end of [`StampRelease`](Self::StampRelease).
    StampAcquire: Kind::Ordering(Acquire),

    /// After the cpumask is moving, before the old set and presence are read. Pairs with
    /// [`SwitchFence`](Self::SwitchFence) and [`RegisterFence`](Self::RegisterFence).
    TrimFence: Fence,
    /// The new set holds all who are present before the cpumask says so. Pairs with
    /// [`PhaseAcquire`](Self::PhaseAcquire).
    TrimRelease: Kind::Ordering(Release),
    /// The other end of [`TrimRelease`](Self::TrimRelease).
    PhaseAcquire: Kind::Ordering(Acquire),
    /// The fresh set is empty before the phase says that it is registered in. Pairs with
    /// [`PhaseAcquire`](Self::PhaseAcquire). Without: a CPU finds its bit of two epochs ago and
    /// takes itself to be registered.
    TrimmingRelease: Kind::Ordering(Release),
    /// A set is cleared after the phase in which it was read has ended. Pairs with
    /// [`ScanAcquire`](Self::ScanAcquire): a reader who finds it cleared finds the phase changed.
    ClearRelease: Kind::Ordering(Release),
    /// The other end of [`ClearRelease`](Self::ClearRelease), and of
    /// [`LeaveOnlineRelease`](Self::LeaveOnlineRelease).
    ScanAcquire: Kind::Ordering(Acquire),

    /// A CPU's last walk of a space's tables comes before its hazard pointer names another space.
    /// Pairs with [`HazardAcquire`](Self::HazardAcquire). Without: a table is freed while it is walked.
    HazardRelease: Kind::Ordering(Release),
    /// The other end of [`HazardRelease`](Self::HazardRelease), and of
    /// [`OrphanRelease`](Self::OrphanRelease).
    HazardAcquire: Kind::Ordering(Acquire),
    /// A CPU's last walk of tables that it has caught up with comes before it publishes that. Pairs
    /// with
    /// [`SeenAcquire`](Self::SeenAcquire).
    SeenRelease: Kind::Ordering(Release),
    /// The other end of [`SeenRelease`](Self::SeenRelease).
    SeenAcquire: Kind::Ordering(Acquire),
    /// A CPU that drops its reference to a space has walked the space's tables for the last time.
    /// Pairs with [`DropRefAcquire`](Self::DropRefAcquire) and [`RetireAcquire`](Self::RetireAcquire) of
    /// the CPU that drops the last one.
    DropRefRelease: Kind::Ordering(Release),
    /// The other end of [`DropRefRelease`](Self::DropRefRelease) and of
    /// [`RetireRelease`](Self::RetireRelease): a CPU that was the last.
    DropRefAcquire: Kind::Ordering(Acquire),
    /// What was done to a space comes before it is retired. Pairs with
    /// [`DropRefAcquire`](Self::DropRefAcquire).
    RetireRelease: Kind::Ordering(Release),
    /// The other end of [`DropRefRelease`](Self::DropRefRelease): the CPU that retires the space dropped
    /// the last reference.
    RetireAcquire: Kind::Ordering(Acquire),
    /// The accesses of the CPU that dropped the last reference come before it orphans its hazard
    /// pointer, for another CPU to reclaim the space. Pairs with
    /// [`HazardAcquire`](Self::HazardAcquire).
    OrphanRelease: Kind::Ordering(Release),

    /// A CPU that finds an ASID of the current epoch comes after the fence of the CPU that wrote
    /// it. Pairs with [`NewAsidFence`](Self::NewAsidFence). Without: it uses the ASID with page
    /// tables older than a flush that has named another ASID.
    AsidAcquire: Kind::Ordering(Acquire),
    /// The CPU that gives a space another ASID publishes, along with the ASID, the presence of
    /// each CPU that a rollover found on its way out of the space. Pairs with
    /// [`BroadcastAsidAcquire`](Self::BroadcastAsidAcquire). Without: a flush that frees tables broadcasts
    /// the new ASID, takes such a CPU to be on the space, and does not interrupt it. The CPU
    /// walks the freed tables under the old ASID until it has loaded the next root.
    ///
    /// Four CPUs take part, more than loom can explore. The axiomatic checker shows the need
    /// (`renumbered_space` and `pinned_space` in `crates/check/tests/axiomatic`) at two of three
    /// stores: the ASID without its epoch, and the pin. The ASID with its epoch is stored after
    /// [`NewAsidFence`](Self::NewAsidFence), which releases it.
    AsidRelease: Kind::Ordering(Release),
    /// The other end of [`AsidRelease`](Self::AsidRelease): a flush that is going to broadcast
    /// the ASID. The axiomatic checker shows the need, by the same two programs.
    BroadcastAsidAcquire: Kind::Ordering(Acquire),
    /// A CPU that changes the ASID allocator reads what the previous one wrote.
    TagLockAcquire: Kind::Ordering(Acquire),
    /// The other end of [`TagLockAcquire`](Self::TagLockAcquire).
    TagLockRelease: Kind::Ordering(Release),

    /// Nobody uses what a batch had taken from a space before it says that it holds back nothing
    /// there. Pairs with [`BatchedAcquire`](Self::BatchedAcquire).
    BatchedRelease: Kind::Ordering(Release),
    /// The other end of [`BatchedRelease`](Self::BatchedRelease): who found nothing to flush, for
    /// a batch had taken it, and finds that nothing is held back. Without: it gives away, as
    /// unused, what another CPU is using.
    BatchedAcquire: Kind::Ordering(Acquire),

    /// A flush publishes this CPU's page-table writes before it invalidates, here or by broadcast
    /// ([`publish`](crate::Machine::publish)). A full barrier is not enough. Without: a walker
    /// reads the old entry again after the invalidation.
    PublishTables: Step,
    /// A CPU that comes online: after it is in the set of those online, and after it has loaded the
    /// kernel's generation, before it empties its TLB
    /// ([`synchronize`](crate::Machine::synchronize)). Pairs with
    /// [`FlushFence`](Self::FlushFence) of a kernel flush. Without: the flush does not find the CPU
    /// online, and the CPU walks the old page table; or, as no dependency orders the load and the
    /// invalidation, the TLB is emptied first, the CPU loads a generation whose flush it has
    /// missed, and takes itself to be current.
    OnlineSync: Step,
    /// A flush rings those who are present.
    RingPresent: Step,
    /// A CPU on its way in counts as present.
    RingSwitching: Step,
    /// When tables are freed, a CPU that is on its way out of the space counts as present, too.
    RingLeaving: Step,
    /// When tables are freed, lazy CPUs count as present.
    RingLazy: Step,
    /// Unless the tables are held back for as long as such a CPU may walk them.
    QuarantineTables: Step,
    /// A flush invalidates on its own CPU.
    FlushLocally: Step,
    /// A flush is done only when those it rang have answered.
    Wait: Step,
    /// A waiter whose interrupts are masked answers its own bell. Without: two CPUs wait for each
    /// other for ever.
    AnswerWhileWaiting: Step,
    /// A ring while the bell is attended sends no interrupt, so its owner looks again before it
    /// leaves it.
    RecheckBell: Step,
    /// A CPU that switches in with a kept tag compares generations.
    CatchUpOnSwitch: Step,
    /// A CPU that comes back from lazy compares generations.
    CatchUpOnResume: Step,
    /// A CPU catches up range by range only if it knows every range that it missed.
    KnowEveryRange: Step,
    /// A tag that belonged to another space is discarded when it is loaded.
    DiscardReusedTag: Step,
    /// A CPU that missed the freeing of tables discards its tag before it loads the root.
    DiscardFreedTables: Step,
    /// A CPU that has registered looks whether the cpumask has moved meanwhile.
    RecheckPhase: Step,
    /// A cpumask on the move takes along who is present.
    KeepPresent: Step,
    /// It also takes along who has said that it is elsewhere, and still holds the space.
    KeepHazards: Step,
    /// A reader of the cpumask looks whether it has moved meanwhile.
    RecheckScan: Step,
    /// Where there is no room to hold tables back, CPUs that could walk them are rung after all.
    InterruptWalkers: Step,
    /// Who retires a space marks every CPU that holds it.
    MarkHazards: Step,
    /// Who lets go of a space looks whether it was marked. Without: it is never freed.
    CheckMark: Step,
    /// Who answers its bell, and is lazy on a dead space, lets go of it.
    LeaveDeadSpace: Step,
    /// A rollover leaves out the numbers that CPUs have loaded.
    ReserveTags: Step,
    /// A CPU empties its TLB before it uses a number of the new version.
    FlushOnRollover: Step,
    /// A CPU whose own count of tags has come round empties its TLB.
    FlushOnWrap: Step,
    /// A flush that was broadcast is done when its issuer has completed it.
    CompleteBroadcasts: Step,
    /// A CPU that answers its bell, or goes offline, completes the broadcasts that it has issued,
    /// so that a flush can be waited for on another CPU.
    CompleteForOthers: Step,
    /// A flush that broadcasts covers devices, too: it is sent whoever is present.
    BroadcastForDevices: Step,
    /// What was not broadcast is made up for, even by a CPU that missed nothing else.
    KeepGaps: Step,
    /// A batch says that it holds something back before it takes it. Without: who finds it gone
    /// takes it to be flushed.
    MarkBatched: Step,
    /// A CPU coming online drops whatever its TLB holds from before.
    FlushOnOnline: Step,
    /// A kernel flush reaches every CPU online.
    RingOnline: Step,
}
