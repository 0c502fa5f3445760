//! The hostile machine behind the engine's `Machine` trait.

#![expect(unsafe_code, reason = "implements `Machine`")]

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;

use shootdown::{
    Broadcast, Broadcaster, CpuBits, CpuId, CpuSet, CpuState, Entries, Extent, Lifetime, Machine,
    Memory, NotifyCosts, PageSize, Reach, Root, Rule, Space, Tag, TagSlot, Tagging, VcpuWord,
};

use super::{Config, Tags};
use crate::hardware::{OnLoad, PAGES, SLOTS};
use crate::history::LineKind;
use crate::machine::{
    CheckWord, HostileMachine, WalkCaches, complete_accesses, fence, publish, with_machine,
};
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
    /// The root of each retired space, and the CPU that retired it.
    retired_by: RefCell<Vec<(usize, usize)>>,
    /// Number of spaces that each CPU has freed.
    freed: Vec<Cell<usize>>,
}

pub(super) const HANDOFF: u8 = 0;
pub(super) const SHOOT: u8 = 1;
pub(super) const COUNTED: u8 = 2;

/// CPUs of one word of a set.
const WORD_BITS: usize = 64;

// SAFETY: a run and all its objects stay on one host thread.
unsafe impl<const LIFETIME: u8, const WORDS: usize> Sync for EngineMachine<LIFETIME, WORDS> {}

impl<const LIFETIME: u8, const WORDS: usize> EngineMachine<LIFETIME, WORDS> {
    pub(super) fn new(machine: &HostileMachine, config: Config, is_guest: bool) -> Self {
        let cpu = |number| {
            machine.with_names(CpuState::default, |place| {
                let name = CPU_WORDS.get(place).unwrap_or(&"other word");
                format!("{name} of CPU {number}")
            })
        };
        let cpus = (0..config.cpus).map(cpu).collect();
        let vcpu = |number| {
            machine.with_names(VcpuWord::default, |_| format!("hypervisor's word of CPU {number}"))
        };
        let vcpus = (0..config.cpus).filter(|_| is_guest).map(vcpu).collect();
        let freed = vec![Cell::new(0); config.cpus];
        let Config { tags, broken, .. } = config;
        Self { cpus, vcpus, tags, broken, retired_by: RefCell::default(), freed }
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
            vcpu.stop(self);
            let entries = vcpu.resume(self);
            if entries == Entries::Discard {
                self.synchronize();
                self.invalidate_all();
            }
            machine.set_stopped(false);
            machine.unmask();
            entries
        })
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
            Tags::Global(_) | Tags::Broadcast(_) => Tagging::Global,
            Tags::Renamed(_) => Tagging::Renamed,
        }
    }
    fn tag_count(&self) -> usize {
        match self.tags {
            Tags::PerCpu(count)
            | Tags::Global(count)
            | Tags::Broadcast(count)
            | Tags::Renamed(count) => count,
        }
    }
    fn catch_up_ceiling(&self) -> usize {
        self.flush_ceiling()
    }
    unsafe fn load(&self, root: Root, tag: Tag, entries: Entries) {
        let on_load = match entries {
            Entries::Keep => OnLoad::Keep,
            Entries::Discard => OnLoad::Flush,
        };
        with_machine(|machine| machine.load_root(Some(root.0 as usize), tag.0, on_load));
    }
    fn load_kernel(&self) {
        // Without tags, user translations are under the kernel's tag.
        let on_load = if self.tag_count() == 0 { OnLoad::Flush } else { OnLoad::Keep };
        with_machine(|machine| machine.load_root(None, Tag::KERNEL.0, on_load));
    }
    fn invalidate(&self, _: Tag, extent: Extent) {
        with_machine(|machine| {
            machine.invalidate_pages(|page| covers(extent, page), upper(extent));
        });
    }
    fn invalidate_tag(&self, tag: Tag) {
        with_machine(|machine| machine.invalidate_tag(Some(tag.0)));
    }
    fn invalidate_kernel(&self, extent: Extent) {
        with_machine(|machine| machine.invalidate_kernel_pages(|page| covers(extent, page)));
    }
    fn invalidate_all(&self) {
        with_machine(|machine| machine.invalidate_tag(None));
    }
    fn traps_stale_writes(&self) -> bool {
        with_machine(|machine| machine.profile().traps_stale_writes)
    }
    fn answers_early(&self) -> bool {
        with_machine(|machine| machine.profile().answers_early)
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
    fn invalidate_devices(&self, space: &Space<Self>, extents: &[Extent]) {
        let covered = |page| extents.iter().any(|&extent| covers(extent, page));
        let is_upper = extents.iter().any(|&extent| upper(extent) == WalkCaches::Invalidate);
        let upper = if is_upper { WalkCaches::Invalidate } else { WalkCaches::Keep };
        let root = space.root().0 as usize;
        with_machine(|machine| machine.invalidate_device(root, covered, upper));
    }
    fn broadcaster(&self) -> Option<&Self> {
        matches!(self.tags, Tags::Broadcast(_)).then_some(self)
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
        with_machine(HostileMachine::spin_hint);
    }
}

// SAFETY: a broadcast takes effect on every CPU before `complete` returns.
unsafe impl<const LIFETIME: u8, const WORDS: usize> Broadcaster for EngineMachine<LIFETIME, WORDS> {
    fn capabilities(&self) -> Broadcast {
        Broadcast { reach: Reach::Everyone, pages_per_operation: 1, operation_ceiling: 4 }
    }
    fn costs(&self) -> NotifyCosts {
        // With these costs, the engine broadcasts whenever it can.
        NotifyCosts { interrupt_ns: 1000, interrupt_each_ns: 1000, ..NotifyCosts::default() }
    }
    fn broadcast<B: CpuBits>(&self, _: &CpuSet<B>, tag: Tag, extent: Extent) {
        let covered = |page| covers(extent, page);
        with_machine(|machine| machine.broadcast_under(tag.0, covered, upper(extent)));
    }
    fn broadcast_kernel(&self, extent: Extent) {
        with_machine(|machine| machine.broadcast_kernel(|page| covers(extent, page)));
    }
    fn complete(&self) -> u64 {
        with_machine(HostileMachine::complete_broadcasts);
        0
    }
}

/// Names of a CPU's words, in the order in which the engine allocates them. Only histories use
/// them.
/// Names of the words of a space, in the order in which the engine makes them: the generation, the
/// log, and the words of [`SPACE_WORDS`] after it.
pub(super) fn space_word(place: usize) -> String {
    match place {
        0 => "generation".to_owned(),
        place if place <= LOG_WORDS => {
            let what = if place % 2 == 1 { "stamp" } else { "extent" };
            format!("{what} {}", (place - 1) / 2)
        }
        place => SPACE_WORDS.get(place - LOG_WORDS - 1).unwrap_or(&"other word").to_string(),
    }
}

/// The words of a log of 16 entries.
const LOG_WORDS: usize = 32;
const SPACE_WORDS: [&str; 9] = [
    "references",
    "ASID",
    "covered generation",
    "phase",
    "top of set 0",
    "set 0",
    "top of set 1",
    "set 1",
    "batches",
];

/// Names of the words of the engine that no space and no CPU has. Sets have one word of CPUs.
pub(super) fn engine_word(place: usize) -> String {
    let words = [
        "top of the online set",
        "online set",
        "last space",
        "ASID lock",
        "ASID epoch",
        "next ASID",
        "failures",
        "count of pins",
        "top of the pending set",
        "pending set",
        "allocated ASIDs",
        "pinned ASIDs",
    ];
    match place.checked_sub(LOG_WORDS + 1) {
        None => space_word(place),
        Some(place) => words.get(place).unwrap_or(&"other word").to_string(),
    }
}

const CPU_WORDS: [&str; 7] =
    ["presence", "hazard", "seen generation", "tag", "last tag", "bell", "acknowledgement"];

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
