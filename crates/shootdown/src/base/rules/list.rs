//! Every rule, with its kind.

use core::sync::atomic::Ordering;

use super::Kind;

use Kind::{Fence, Step};
use Ordering::{AcqRel, Acquire, Release};

rules! {
    /// A flush fences after it bumps the generation, before it reads the cpumask and presence.
    /// Pairs with [`SwitchFence`](Self::SwitchFence), [`ResumeFence`](Self::ResumeFence),
    /// [`RegisterFence`](Self::RegisterFence), [`OnlineSync`](Self::OnlineSync) and
    /// [`EnterKernelFence`](Self::EnterKernelFence). Without: the flush does not find the CPU
    /// present, and the CPU reads the old generation.
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
    /// the ASID to a device. Pairs with [`FlushFence`](Self::FlushFence),
    /// [`UncountedFence`](Self::UncountedFence) and
    /// [`FlushWalkersFence`](Self::FlushWalkersFence), after which a flush reads the ASID that it
    /// broadcasts.
    NewAsidFence: Fence,
    /// The kernel counts a device of a space, and fences before the device walks page tables. Pairs
    /// with [`FlushFence`](Self::FlushFence). Without: a flush does not find the device, and the
    /// device caches the old entry.
    AttachFence: Fence,
    /// A flush that is broadcast and not counted fences before it reads the ASID that it
    /// broadcasts, and the devices of the space. Pairs with [`NewAsidFence`](Self::NewAsidFence)
    /// and [`AttachFence`](Self::AttachFence). Without: the flush names the old ASID, and a CPU
    /// caches the old entry under the new one.
    UncountedFence: Fence,
    /// A device's last access comes before it is detached from the space. Pairs with
    /// [`PhaseAcquire`](Self::PhaseAcquire) of a flush that does not find the device, and frees the
    /// pages. Without: the device's last access hits a page that has been freed.
    DetachRelease: Kind::Ordering(Release),
    /// A CPU's last use of the kernel's translations comes before it leaves the set of online CPUs.
    /// Pairs with [`ScanAcquire`](Self::ScanAcquire) of a kernel flush, which neither rings nor
    /// waits for a CPU outside of the set. Without: the CPU's last accesses hit a kernel page that
    /// has been freed.
    LeaveOnlineRelease: Kind::Ordering(Release),
    /// A CPU that enters the kernel fences after it publishes so, before it reads the kernel's
    /// generation. Pairs with [`FlushFence`](Self::FlushFence) of a kernel flush. Without: the
    /// flush finds the CPU in user mode, and the CPU reads the old generation.
    EnterKernelFence: Fence,
    /// A CPU's last use of the kernel's pages comes before it publishes that it is in user mode.
    /// Pairs with [`InUserAcquire`](Self::InUserAcquire): a kernel flush that skips the CPU may
    /// free the pages. Without: the CPU's last accesses hit a page that has been freed.
    EnterUserRelease: Kind::Ordering(Release),
    /// The other end of [`EnterUserRelease`](Self::EnterUserRelease).
    InUserAcquire: Kind::Ordering(Acquire),

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

    /// Primary entries have changed before the change ends. Pairs with
    /// [`BeginFaultAcquire`](Self::BeginFaultAcquire). Without: a fault of a secondary table that
    /// begins after the end reads the old primary entry, and installs it.
    EndChangeRelease: Kind::Ordering(Release),
    /// The other end of [`EndChangeRelease`](Self::EndChangeRelease).
    BeginFaultAcquire: Kind::Ordering(Acquire),

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
    /// A flush sends commands to the devices that are attached to the space.
    FlushDevices: Step,
    /// A flush is done only when the devices have completed its commands. Without: a page is reused
    /// while a slow device still accesses it.
    CompleteDevices: Step,
    /// A fault of a [secondary table](crate::PrimaryChanges) that begins while a primary entry
    /// changes installs nothing. Without: it installs the old entry, after the change has removed
    /// the entries of the secondary table.
    RefuseDuringChange: Step,
    /// A fault of a secondary table installs its entry only if no change has started since it
    /// began. Without: as above.
    RecheckChange: Step,
    /// A CPU catches up with a flush that was not broadcast, even if every later flush was.
    KeepGaps: Step,
    /// A broadcast that does not reach every CPU, because it names CPUs or domains, leaves the
    /// other CPUs to catch up. So does a CPU that joins the space during the flush, after the flush
    /// has read its presence ([`SwitchFence`](Self::SwitchFence)). Without: a CPU outside of the
    /// domains comes back to the space, and takes its tag for clean.
    CatchUpUnreached: Step,
    /// A batch marks a space before it unmaps a page of it.
    MarkBatched: Step,
    /// To defer the flush of unmapped pages until their frames are reused counts a generation of
    /// the space. Without: a CPU that comes back takes its tag for clean.
    CountUnflushed: Step,
    /// Before frames are [reused](crate::Unflushed::reuse), the CPUs are rung that use the space
    /// and have not published that they have caught up.
    RingAtReuse: Step,
    /// The generation that a CPU has published counts only if the CPU is active on the space.
    /// Without: a CPU that is switching in has published that of another space, and is not rung.
    SeenWhileActive: Step,
    /// A CPU that comes online discards everything that its TLB holds from before.
    FlushOnOnline: Step,
    /// A kernel flush rings every CPU that is online.
    RingOnline: Step,
    /// A CPU that enters the kernel compares the kernel's generation.
    CatchUpOnEntry: Step,
    /// A kernel flush that frees tables also rings the CPUs that are in user mode. Without: such a
    /// CPU walks a freed table.
    RingInUserForTables: Step,
    /// A kernel flush of pages that are [used on entry](crate::Machine::is_used_on_entry) also
    /// rings the CPUs that are in user mode. Without: the CPU's entry path uses a page that has
    /// been freed, before it catches up.
    RingInUserForEntry: Step,
}
