//! The hostile machine behind the engine's `Machine` trait.

#![expect(unsafe_code, reason = "implements `Machine`")]

mod guests;
pub(super) mod words;
mod workarounds;

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;

use shootdown::{
    Broadcast, Broadcaster, CpuBits, CpuId, CpuSet, CpuState, DeviceTicket, DomainCosts, Entries,
    Extent, Lifetime, Machine, Memory, NotifyCosts, PageSize, Pending, Reach, Refused, Root, Rule,
    Space, Tag, TagSlot, Tagging, VcpuWord, Word as _,
};

use self::guests::GuestEntry;
use super::{Config, Fault, Tags};
use crate::hardware::{self, PAGES, SLOTS};
use crate::history::LineKind;
use crate::kernel_pages::ENTRY_PAGE;
use crate::machine::{
    CheckWord, HostileMachine, WalkCaches, complete_accesses, fence, publish, with_machine,
};
use crate::profile::{Erratum, Profile, Stages};
use crate::sometimes::Sometimes;

/// The hostile machine as the engine uses it, with a lifetime policy and a number of words of CPU
/// sets.
#[derive(Debug)]
pub struct EngineMachine<const LIFETIME: u8, const WORDS: usize> {
    cpus: Vec<CpuState<Self>>,
    /// The words that each CPU shares with a hypervisor; none if no program stops a CPU.
    vcpus: Vec<VcpuWord<Self>>,
    tags: Tags,
    broken: Option<Rule>,
    fault: Option<Fault>,
    /// The erratum that this processor works around.
    workaround: Option<Erratum>,
    stages: Stages,
    /// For each CPU, what the next entry of a guest invalidates.
    entries: Vec<Cell<GuestEntry>>,
    /// For each CPU, a number that changes when it enters and when it leaves user mode, and the tag
    /// that it uses there. Only with [`Erratum::UserAccessesLate`].
    users: Vec<CheckWord>,
    /// For each CPU, [`ASLEEP`] while a thread of it waits for a flush and was not woken.
    sleepers: Vec<CheckWord>,
    /// The tags that each CPU has broadcast since its last wait, one bit each.
    broadcast_tags: Vec<Cell<u64>>,
    /// The [answer](Answer) to the next broadcast of each CPU. Only with [`Tags::Refused`].
    answers: Vec<Cell<Answer>>,
    /// The ticket for which each CPU has asked the device once; 0 if none.
    asked: Vec<Cell<u64>>,
    /// The root of each retired space, and the CPU that retired it.
    retired_by: RefCell<Vec<(usize, usize)>>,
    /// Number of spaces that each CPU has freed.
    freed: Vec<Cell<usize>>,
}

/// The answer of the hardware or the firmware to a broadcast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Taken,
    /// It is refused, and reaches no CPU.
    NoneReached,
    /// It is refused, and reaches the CPU that issues it.
    OwnReached,
    /// It is refused, and reaches all CPUs.
    AllReached,
}

pub(super) const HANDOFF: u8 = 0;
pub(super) const SHOOT: u8 = 1;
pub(super) const COUNTED: u8 = 2;

/// CPUs of one word of a set.
const WORD_BITS: usize = 64;

/// A thread has registered itself to be woken.
const ASLEEP: u64 = 1;

// SAFETY: a run and all its objects stay on one host thread.
unsafe impl<const LIFETIME: u8, const WORDS: usize> Sync for EngineMachine<LIFETIME, WORDS> {}

impl<const LIFETIME: u8, const WORDS: usize> EngineMachine<LIFETIME, WORDS> {
    pub(super) fn new(machine: &HostileMachine, config: Config, is_guest: bool) -> Self {
        let cpu = |number| {
            let name = |place| format!("{} of CPU {number}", words::cpu_word(place));
            machine.with_names(CpuState::default, name)
        };
        let vcpu = |number| {
            machine.with_names(VcpuWord::default, |_| format!("hypervisor's word of CPU {number}"))
        };
        let Config { tags, broken, fault, .. } = config;
        let Profile { erratum, stages, .. } = machine.profile();
        let workaround = erratum.filter(|_| fault != Some(Fault::NoWorkaround));
        let are_late = workaround == Some(Erratum::UserAccessesLate);
        let user = |cpu| CheckWord::named(0, || format!("user mode of CPU {cpu}"));
        let sleeper = |cpu| CheckWord::named(0, || format!("sleeper of CPU {cpu}"));
        let first =
            if matches!(tags, Tags::Refused(_)) { Answer::NoneReached } else { Answer::Taken };
        Self {
            cpus: (0..config.cpus).map(cpu).collect(),
            vcpus: (0..config.cpus).filter(|_| is_guest).map(vcpu).collect(),
            tags,
            broken,
            fault,
            workaround,
            stages,
            entries: vec![Cell::default(); config.cpus],
            users: (0..config.cpus).filter(|_| are_late).map(user).collect(),
            sleepers: (0..config.cpus).map(sleeper).collect(),
            broadcast_tags: vec![Cell::new(0); config.cpus],
            answers: vec![Cell::new(first); config.cpus],
            asked: vec![Cell::new(0); config.cpus],
            retired_by: RefCell::default(),
            freed: vec![Cell::new(0); config.cpus],
        }
    }

    /// Returns the tag that the kernel assigns to a space. Spaces share tags if there are too few.
    pub(super) fn assigned_tag(&self, space: usize) -> Option<Tag> {
        let Tags::Assigned(count) = self.tags else { return None };
        Some(Tag(1 + (space % count) as u16))
    }

    /// Returns the engine's number of a CPU: CPUs are assigned to the words of sets in turn.
    pub(super) const fn id(cpu: usize) -> CpuId {
        CpuId((cpu % WORDS * WORD_BITS + cpu / WORDS) as u32)
    }

    /// Returns the CPU with this number of the engine's.
    const fn cpu_of(id: CpuId) -> usize {
        id.index() % WORD_BITS * WORDS + id.index() / WORD_BITS
    }

    /// Returns the number of spaces that the calling CPU has freed so far.
    pub(super) fn freed(&self) -> usize {
        self.freed[with_machine(HostileMachine::cpu)].get()
    }

    /// A hypervisor stops the calling CPU for a while. Returns what the hypervisor did with the
    /// CPU's TLB.
    pub(super) fn stop(&self) -> Entries {
        with_machine(|machine| {
            let vcpu = &self.vcpus[machine.cpu()];
            // A CPU that does not run takes no interrupt.
            machine.mask();
            machine.set_stopped(true);
            // SAFETY: the CPU does nothing else here, and its TLB is emptied below.
            let entries = unsafe {
                vcpu.stop(self);
                // A scheduler may record it twice.
                vcpu.stop(self);
                vcpu.resume(self)
            };
            if entries == Entries::Discard {
                self.synchronize();
                self.invalidate_all();
            }
            machine.set_stopped(false);
            machine.unmask();
            entries
        })
    }

    /// The answer to a broadcast of the calling CPU. If some are refused, the answers take turns,
    /// so that the choice adds no state to a search.
    fn next_answer(&self) -> Answer {
        let answer = &self.answers[with_machine(HostileMachine::cpu)];
        let next = match answer.get() {
            Answer::NoneReached => Answer::OwnReached,
            Answer::OwnReached => Answer::AllReached,
            Answer::Taken if !matches!(self.tags, Tags::Refused(_)) => Answer::Taken,
            Answer::AllReached => Answer::Taken,
            Answer::Taken => Answer::NoneReached,
        };
        answer.replace(next)
    }

    /// Waits for a flush by sleeping.
    pub(super) fn sleep_until_done(&self, mut pending: Pending<'_, Self>) {
        let sleeper = &self.sleepers[with_machine(HostileMachine::cpu)];
        loop {
            // Relaxed: the engine orders this before the answer.
            sleeper.store(ASLEEP, Relaxed);
            if pending.poll_or_wake() {
                return;
            }
            while sleeper.load(Relaxed) == ASLEEP {
                self.spin_hint();
            }
        }
    }

    /// Records that `cpu` is about to retire the space with this root.
    pub(super) fn note_retired(&self, root: usize, cpu: usize) {
        self.retired_by.borrow_mut().push((root, cpu));
    }
}

// SAFETY: a fence takes effect before the method returns. `breaks` only returns `true` in runs that
// expect the engine to fail.
unsafe impl<const LIFETIME: u8, const WORDS: usize> Memory for EngineMachine<LIFETIME, WORDS> {
    type Word = CheckWord;

    fn fence(&self) {
        fence();
    }
    fn breaks(&self, rule: Rule) -> bool {
        with_machine(|machine| machine.record_as(LineKind::Rule, || format!("{rule:?}")));
        self.broken == Some(rule)
    }
}

// SAFETY: every operation takes effect before its method returns. Interrupts arrive, because every
// CPU takes them whenever they are not masked, and no CPU masks them for ever.
unsafe impl<const LIFETIME: u8, const WORDS: usize> Machine for EngineMachine<LIFETIME, WORDS> {
    type CpuBits = [u64; WORDS];
    type TagSlots = [TagSlot; 2];
    type TagWords = [CheckWord; 2];
    type Broadcaster = Self;

    const LIFETIME: Lifetime = match LIFETIME {
        HANDOFF => Lifetime::Handoff,
        SHOOT => Lifetime::Shoot,
        COUNTED => Lifetime::Counted,
        _ => panic!("there are three lifetime policies"),
    };
    const ISOLATES: bool = true;
    const FLUSHES_AT_REUSE: bool = true;

    fn state(&self, cpu: CpuId) -> &CpuState<Self> {
        &self.cpus[Self::cpu_of(cpu)]
    }
    fn cpu(&self) -> CpuId {
        Self::id(with_machine(HostileMachine::cpu))
    }
    fn cpu_limit(&self) -> usize {
        let ids = (0..self.cpus.len()).map(|cpu| Self::id(cpu).index());
        ids.max().map_or(0, |last| last + 1)
    }
    fn interrupts_masked(&self) -> bool {
        with_machine(HostileMachine::is_masked)
    }
    fn publish(&self) {
        publish();
    }
    fn synchronize(&self) {
        complete_accesses();
    }
    fn tagging(&self) -> Tagging {
        match self.tags {
            Tags::PerCpu(_) => Tagging::PerCpu,
            Tags::Global(_) | Tags::Broadcast(_) | Tags::Refused(_) | Tags::Domains(_) => {
                Tagging::Global
            }
            Tags::Renamed(_) => Tagging::Renamed,
            Tags::Assigned(_) => Tagging::Assigned,
        }
    }
    fn tag_count(&self) -> usize {
        match self.tags {
            // INVLPG works without PCIDs.
            _ if self.workaround == Some(Erratum::GlobalPagesKept) => 0,
            Tags::PerCpu(count)
            | Tags::Global(count)
            | Tags::Broadcast(count)
            | Tags::Refused(count)
            | Tags::Domains(count)
            | Tags::Renamed(count)
            | Tags::Assigned(count) => count,
        }
    }
    fn catch_up_ceiling(&self) -> usize {
        self.flush_ceiling()
    }
    unsafe fn load(&self, root: Root, tag: Tag, entries: Entries) {
        self.load_root(Some(root.0 as usize), tag, entries);
    }
    fn load_kernel(&self) {
        // Without tags, user translations are under the kernel's tag.
        let entries = if self.tag_count() == 0 { Entries::Discard } else { Entries::Keep };
        self.load_root(None, Tag::KERNEL, entries);
    }
    fn invalidate(&self, tag: Tag, extent: Extent) {
        if self.names_nothing() {
            return self.invalidate_all();
        }
        if self.has_entries() {
            return self.invalidate_guest(tag);
        }
        let pages = || {
            with_machine(|machine| {
                machine.invalidate_pages(|page| covers(extent, page), upper(extent));
            });
        };
        let combined = || with_machine(HostileMachine::invalidate_combined);
        match (self.stages, self.fault) {
            (Stages::One, _) | (_, Some(Fault::CombinedKept)) => pages(),
            (_, Some(Fault::CombinedEarly)) => {
                combined();
                pages();
            }
            _ => {
                pages();
                combined();
            }
        }
    }
    fn invalidate_tag(&self, tag: Tag) {
        if self.has_entries() {
            return self.invalidate_guest(tag);
        }
        let tag = Some(tag.0).filter(|_| !self.names_nothing());
        with_machine(|machine| machine.invalidate_tag(tag));
    }
    fn invalidate_kernel(&self, extent: Extent) {
        if self.names_nothing() {
            return self.invalidate_all();
        }
        let covered = |page| covers(extent, page);
        with_machine(|machine| machine.invalidate_kernel_pages(covered, upper(extent)));
    }
    fn invalidate_all(&self) {
        if self.stages == Stages::TwoAtEntry {
            return self.invalidate_all_at_entry();
        }
        with_machine(|machine| machine.invalidate_tag(None));
    }
    fn traps_stale_writes(&self) -> bool {
        with_machine(|machine| machine.profile().traps_stale_writes)
    }
    fn answers_early(&self) -> bool {
        with_machine(|machine| machine.profile().answers_early)
    }
    fn is_used_on_entry(&self, extent: Extent) -> bool {
        // A flush that frees tables interrupts these CPUs anyway, so that only that rule is tested.
        covers(extent, ENTRY_PAGE) && !extent.frees_tables()
    }
    fn ring(&self, cpus: &CpuSet<Self::CpuBits>) {
        for cpu in cpus.iter() {
            if cpu.index() >= WORD_BITS {
                with_machine(|machine| machine.reach(Sometimes::RangInSecondWord));
            }
            with_machine(|machine| machine.send_interrupt(Self::cpu_of(cpu)));
        }
    }
    fn is_away(&self, cpu: CpuId) -> bool {
        self.vcpus.get(Self::cpu_of(cpu)).is_some_and(|vcpu| vcpu.defer_flush(self))
    }
    fn issue_to_devices(&self, space: &Space<Self>, extents: &[Extent]) -> DeviceTicket {
        let covered = |page| extents.iter().any(|&extent| covers(extent, page));
        let is_upper = extents.iter().any(|&extent| upper(extent) == WalkCaches::Invalidate);
        let upper = if is_upper { WalkCaches::Invalidate } else { WalkCaches::Keep };
        let root = space.root().0 as usize;
        DeviceTicket(with_machine(|machine| machine.issue_to_device(root, covered, upper)))
    }
    /// Not at the first question of a CPU, and then as late as possible.
    fn devices_are_done(&self, DeviceTicket(ticket): DeviceTicket) -> bool {
        let cpu = with_machine(HostileMachine::cpu);
        if self.asked[cpu].replace(ticket) != ticket {
            // The driver wakes the thread, which is about to sleep.
            self.sleepers[cpu].store(0, Relaxed);
            return false;
        }
        self.asked[cpu].set(0);
        with_machine(|machine| {
            machine.complete_on_device(ticket);
            machine.reach(Sometimes::WaitedForDevice);
        });
        true
    }
    fn broadcaster(&self) -> Option<&Self> {
        matches!(self.tags, Tags::Broadcast(_) | Tags::Refused(_) | Tags::Domains(_))
            .then_some(self)
    }
    fn wake_waiters(&self, _: CpuId) {
        for sleeper in &self.sleepers {
            if sleeper.load(Relaxed) == ASLEEP {
                sleeper.store(0, Relaxed);
            }
        }
    }
    fn reclaim(&self, space: NonNull<Space<Self>>) {
        // SAFETY: the engine has given the space back, and spaces live as long as the run.
        let root = unsafe { space.as_ref() }.root().0 as usize;
        with_machine(|machine| {
            machine.free_root(root);
            self.freed[machine.cpu()].update(|count| count + 1);
            if !self.retired_by.borrow().contains(&(root, machine.cpu())) {
                machine.reach(Sometimes::HandedOff);
            }
        });
    }
    fn spin_hint(&self) {
        with_machine(HostileMachine::spin_hint);
    }
    fn wait_hint(&self, _: &CpuSet<Self::CpuBits>) {
        // A device is done soon, whether a CPU writes a word or not.
        with_machine(|machine| {
            if self.asked[machine.cpu()].get() == 0 {
                machine.spin_hint();
            }
        });
    }
}

// SAFETY: a broadcast takes effect on every CPU before `complete` returns.
unsafe impl<const LIFETIME: u8, const WORDS: usize> Broadcaster for EngineMachine<LIFETIME, WORDS> {
    fn capabilities(&self) -> Broadcast {
        Broadcast {
            reach: match self.tags {
                Tags::Domains(_) => Reach::Domains,
                _ => Reach::Everyone,
            },
            pages_per_operation: 1,
            operation_ceiling: 4,
            completes_at_issue: false,
        }
    }
    fn costs(&self) -> NotifyCosts {
        // With these costs, the engine broadcasts whenever it can, and in domains if it can.
        NotifyCosts {
            interrupt_ns: 1000,
            interrupt_each_ns: 1000,
            broadcast_ns: 1,
            ..NotifyCosts::default()
        }
    }
    fn broadcast<B: CpuBits>(
        &self,
        _: &CpuSet<B>,
        tag: Tag,
        extent: Extent,
    ) -> Result<(), Refused> {
        let covered = |page| covers(extent, page);
        let answer = self.next_answer();
        let reach = match answer {
            Answer::NoneReached => return Err(Refused),
            Answer::OwnReached => hardware::Reach::Own,
            Answer::Taken | Answer::AllReached => hardware::Reach::Everybody,
        };
        with_machine(|machine| {
            self.broadcast_tags[machine.cpu()].update(|tags| tags | 1 << tag.0);
            machine.broadcast_under(reach, tag.0, covered, upper(extent));
        });
        if answer != Answer::Taken {
            return Err(Refused);
        }
        if self.stages == Stages::Two && self.fault != Some(Fault::CombinedKept) {
            if self.fault != Some(Fault::CombinedEarly) {
                self.wait();
            }
            with_machine(|machine| machine.broadcast_combined(tag.0));
        }
        Ok(())
    }
    fn costs_in_domains<B: CpuBits>(&self, cpus: &CpuSet<B>) -> Option<DomainCosts> {
        (cpus.len() <= 2).then_some(DomainCosts { broadcast_ns: 0, refill_ns: 0 })
    }
    fn broadcast_in_domains<B: CpuBits>(&self, cpus: &CpuSet<B>, tag: Tag) -> Result<(), Refused> {
        let taken_for = |cpu| match self.fault {
            Some(Fault::WrongDomains) => (cpu + 1) % self.cpus.len(),
            _ => cpu,
        };
        let reached = cpus.iter().fold(0, |all, id| all | 1 << taken_for(Self::cpu_of(id)));
        with_machine(|machine| {
            self.broadcast_tags[machine.cpu()].update(|tags| tags | 1 << tag.0);
            machine.issue_tag(hardware::Reach::Cpus(reached), tag.0);
            machine.reach(Sometimes::BroadcastInDomains);
        });
        Ok(())
    }
    fn broadcast_kernel(&self, extent: Extent) -> Result<(), Refused> {
        let covered = |page| covers(extent, page);
        let answer = self.next_answer();
        if matches!(answer, Answer::Taken | Answer::AllReached) {
            with_machine(|machine| machine.broadcast_kernel(covered, upper(extent)));
        }
        if answer == Answer::Taken { Ok(()) } else { Err(Refused) }
    }
    fn complete(&self) -> u64 {
        self.wait();
        if self.workaround == Some(Erratum::UserAccessesLate) {
            self.interrupt_users();
        }
        0
    }
}

/// Returns `true` if an extent covers a page of a table, by its number, or the large page of an
/// entry of the root, whose number comes after those of the tables' pages. An extent of large pages
/// may leave out small pages.
pub(super) fn covers(extent: Extent, page: usize) -> bool {
    let is_covered = |page: usize| extent.covers((page as u64) << 12);
    match page.checked_sub(SLOTS * PAGES) {
        _ if extent.is_whole() => true,
        None => extent.page_size() == PageSize::SIZE_4K && is_covered(page),
        Some(slot) => (slot * PAGES..(slot + 1) * PAGES).any(is_covered),
    }
}

fn upper(extent: Extent) -> WalkCaches {
    if extent.frees_tables() || extent.is_whole() {
        WalkCaches::Invalidate
    } else {
        WalkCaches::Keep
    }
}
