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
//!        command to drop   (FlushDevices)        …
//!        the translation                         last access of the device
//!   wait: it is done    (CompleteDevices)        devices −= 1           (DetachRelease)
//!   free the page
//! ```
//!
//! Either the flush observes the device, or the device's walks are at least as new as the flush.
//! The CPU that waits may differ from the CPU that flushes, and answers its bell while it waits.
//!
//! # Secondary tables
//!
//! A table that is filled from the page tables of a space refuses faults while these change:
//! `secondary` has the handshake.
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
//! # CPUs in user mode
//!
//! A CPU in user mode uses no page of the kernel that is ever flushed. A kernel flush does not
//! interrupt it, and it catches up when it enters the kernel:
//!
//! ```text
//!   flush of the kernel's pages                  enter the kernel
//!   ───────────────────────────                  ────────────────
//!   clear the entry                              in user := no
//!   kernel's generation += 1                     full fence             (EnterKernelFence)
//!   full fence             (FlushFence)          read the kernel's generation
//!   read in user           (InUserAcquire)       it has missed flushes → catch up
//!   no → ring                                                           (CatchUpOnEntry)
//!   yes → free the page                          …
//!                                                enter user mode
//!                                                ───────────────
//!                                                last use of the page
//!                                                in user := yes         (EnterUserRelease)
//! ```
//!
//! Speculation in user mode may still walk the kernel's tables, so a flush that frees tables rings
//! such CPUs as well ([`RingInUserForTables`](Rule::RingInUserForTables)). So does a flush of what
//! the entry path uses before the CPU has caught up
//! ([`RingInUserForEntry`](Rule::RingInUserForEntry)).
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
//! A flush that is [not counted](crate::PinnedCpu::flush) leaves out the generation, and fences by
//! [`UncountedFence`](Rule::UncountedFence).
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
//! # Pages that are flushed at reuse
//!
//! The flush of a clean page is counted when the page is unmapped. The CPUs are read when its
//! frame is reused, perhaps by another CPU:
//!
//! ```text
//!   defer                                          catch up
//!   ─────                                          ────────
//!   clear the entry                                last use of the page
//!   generation += 1            (CountUnflushed)    read generation; invalidate
//!   full fence                     (FlushFence)    seen := generation     (SeenRelease)
//!
//!   reuse                                          switch away, and back
//!   ─────                                          ─────────────────────
//!   read presence             (PresenceAcquire)    presence := Switching(other)
//!   not on the space → skip                        seen := the other's generation; Active
//!   Active, and seen is late   (SeenWhileActive)   presence := Switching(space)
//!     enough → skip                (SeenAcquire)   full fence             (SwitchFence)
//!   else ring; wait                (RingAtReuse)   read generation → catch up
//!   use the frame
//! ```
//!
//! The fence is that of the count: a CPU that is read as `Active` has come before it, or reads the
//! generation. If `seen` is already that of another space, the CPU has left this one, and catches
//! up when it comes back.
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
        /// A rule of the engine's protocols. The [module](crate::rules) shows how the rules work
        /// together.
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

mod list;

pub use list::Rule;
