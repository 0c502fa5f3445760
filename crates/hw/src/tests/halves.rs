//! The engine on processors whose user mode runs on a root that the kernel's exit path loads: two
//! tags for each space, or a trampoline. Against a model of TLBs with tags.
//!
//! One thread plays all CPUs. Recorded instructions act on a model of each CPU's TLB, which keeps
//! everything that no instruction drops, and fills itself at each access. Random programs switch
//! spaces, change pages, and read pages in user mode (under the user half's tag) and in the kernel
//! (under the kernel half's). Each word that is read must be the current one.
//!
//! No emulator shows this: QEMU and Bochs keep nothing under a tag that is not loaded. The model
//! cannot show: entries of upper levels, walks ahead of time, and CPUs that run simultaneously. The
//! hostile machine and loom have these, for one tag.

#![expect(unsafe_code, reason = "plays a kernel")]

use core::cell::{Cell, RefCell};
use core::ptr::NonNull;
use std::boxed::Box;
use std::collections::BTreeMap;
use std::vec::Vec;

use shootdown::{CpuId, CpuSet, CpuState, Extent, LoadedRoot, PageSize, Root, Shootdown, Space};

use crate::{Bare, Kernel, Processor};

const CPUS: u32 = 3;
const SPACES: u64 = 8;
const PAGES: u64 = 48;
const OPERATIONS: usize = 600;
const SEEDS: u64 = 24;

std::thread_local! {
    /// The CPU that the test plays.
    static CPU: Cell<u32> = const { Cell::new(0) };
    /// The CPUs that were rung and have not answered.
    static RUNG: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// The effect of an instruction on the TLB: the tag and the page that it drops; `None` for all.
struct Dropped {
    tag: Option<u16>,
    page: Option<u64>,
    /// `true` if it acts on all CPUs.
    is_shared: bool,
}

/// An architecture with two halves.
trait Isa: Sized {
    type Processor: Processor + Send + Sync;
    fn processor() -> Self::Processor;
    /// Sets the register with root and tag, without an instruction: another CPU runs.
    fn set_register(value: u64);
    fn register() -> u64;
    fn tag(register: u64) -> u16;
    fn space(register: u64) -> u64;
    fn is_user(tag: u16) -> bool;
    /// The entries that `f` drops.
    fn drops(f: &mut dyn FnMut()) -> Vec<Dropped>;
    /// The values to load before and after user mode.
    fn halves(processor: &Self::Processor, loaded: LoadedRoot) -> [u64; 2];
    fn load(value: u64);
    /// Number of other spaces that get their tags after half of the spaces of the programs.
    const OTHER_SPACES: u64 = 0;
    /// Forgets that this CPU's user half must be dropped.
    fn unmark() {}
}

mod x86_64 {
    use super::{CPU, CPUS, Cell, Dropped, Isa, LoadedRoot, Root, SPACES};
    use crate::x86_64::hyperv::call::InputPage;
    use crate::x86_64::hyperv::{HyperV, Hypercalls};
    use crate::x86_64::recorded::{Step, read_cr3, set_cr3, steps_of, write_cr3};
    use crate::x86_64::{Features, KernelPages, Kpti, UserMarks, X86_64, cr3};
    use shootdown::CpuId;
    use std::boxed::Box;
    use std::vec::Vec;

    const USER_ROOT: u64 = 0x1000;

    pub(super) struct Pcids;

    fn marks() -> &'static UserMarks {
        std::thread_local! {
            static MARKS: Cell<&'static [UserMarks; CPUS as usize]> =
                Cell::new(Box::leak(Box::default()));
        }
        &MARKS.get()[CPU.get() as usize]
    }

    impl Isa for Pcids {
        type Processor = Kpti;
        fn processor() -> Kpti {
            let features = Features { has_pcid: true, has_invpcid: true, ..Features::NONE };
            // SAFETY: instructions are only recorded.
            unsafe { Kpti::new(X86_64::new(features, KernelPages::PerTag), marks as fn() -> _) }
        }
        fn set_register(value: u64) {
            set_cr3(value);
        }
        fn register() -> u64 {
            read_cr3()
        }
        fn tag(register: u64) -> u16 {
            cr3::parts(register).1.0
        }
        fn space(register: u64) -> u64 {
            cr3::parts(register).0.0 & !USER_ROOT
        }
        fn is_user(tag: u16) -> bool {
            tag & 1 << 11 != 0
        }
        fn drops(f: &mut dyn FnMut()) -> Vec<Dropped> {
            let mut tag = Self::tag(read_cr3());
            let mut drops = Vec::new();
            for step in steps_of(f) {
                let (dropped, page) = match step {
                    Step::WriteCr3(value) => {
                        tag = Self::tag(value);
                        if value >> 63 == 1 {
                            continue;
                        }
                        (Some(tag), None)
                    }
                    Step::ReloadCr3 => (Some(tag), None),
                    Step::Invlpg(address) => (Some(tag), Some(address)),
                    Step::InvpcidAll => (None, None),
                    Step::Fence => continue,
                    other => panic!("{other:?}"),
                };
                drops.push(Dropped { tag: dropped, page, is_shared: false });
            }
            drops
        }
        fn halves(processor: &Kpti, _: LoadedRoot) -> [u64; 2] {
            let root = cr3::parts(read_cr3()).0.0 | USER_ROOT;
            // SAFETY: the caller loads the value at once.
            let halves = unsafe { processor.halves(Root(root)) };
            [halves.user, halves.kernel]
        }
        fn load(value: u64) {
            // SAFETY: the instruction is only recorded.
            unsafe { write_cr3(value) };
        }
        fn unmark() {
            marks().take(cr3::parts(read_cr3()).1);
        }
    }

    /// A hypervisor that refuses every call, so that the engine interrupts.
    pub(super) struct Refusing;

    // SAFETY: one thread has the page, and no call is done.
    unsafe impl Hypercalls for Refusing {
        fn input(&self) -> *mut InputPage {
            Box::into_raw(Box::new(InputPage::new()))
        }
        fn call(&self, _: u64) -> u64 {
            5
        }
        fn virtual_processor(&self, cpu: CpuId) -> u32 {
            cpu.0
        }
    }

    /// [`Pcids`] under Hyper-V, where tags are global.
    pub(super) struct GuestPcids;

    impl Isa for GuestPcids {
        type Processor = HyperV<Kpti, Refusing>;
        /// The tags of the last spaces would be those of the first user halves, if a tag could have
        /// any PCID.
        const OTHER_SPACES: u64 = (1 << 11) - SPACES / 2;
        fn processor() -> Self::Processor {
            HyperV::new(Pcids::processor(), Refusing)
        }
        fn set_register(value: u64) {
            Pcids::set_register(value);
        }
        fn register() -> u64 {
            Pcids::register()
        }
        fn tag(register: u64) -> u16 {
            Pcids::tag(register)
        }
        fn space(register: u64) -> u64 {
            Pcids::space(register)
        }
        fn is_user(tag: u16) -> bool {
            Pcids::is_user(tag)
        }
        fn drops(f: &mut dyn FnMut()) -> Vec<Dropped> {
            Pcids::drops(f)
        }
        fn halves(processor: &Self::Processor, loaded: LoadedRoot) -> [u64; 2] {
            Pcids::halves(processor.processor(), loaded)
        }
        fn load(value: u64) {
            Pcids::load(value);
        }
        fn unmark() {
            Pcids::unmark();
        }
    }
}

mod aarch64 {
    use super::{Dropped, Isa, LoadedRoot};
    use crate::aarch64::features::tests::V8_0;
    use crate::aarch64::instruction::{Step, set_ttbr0, steps_of, ttbr0};
    use crate::aarch64::operation::{Domain, Operation, Scope};
    use crate::aarch64::{Aarch64, Kpti};
    use std::vec::Vec;

    pub(super) struct Asids;

    impl Isa for Asids {
        type Processor = Kpti;
        fn processor() -> Kpti {
            // SAFETY: instructions are only recorded.
            unsafe { Kpti::new(Aarch64::new(V8_0)) }
        }
        fn set_register(value: u64) {
            Self::load(value);
        }
        fn register() -> u64 {
            ttbr0()
        }
        fn tag(register: u64) -> u16 {
            (register >> 48) as u16
        }
        fn space(register: u64) -> u64 {
            register & 0xffff_ffff_ffff
        }
        fn is_user(tag: u16) -> bool {
            tag & 1 != 0
        }
        fn drops(f: &mut dyn FnMut()) -> Vec<Dropped> {
            let dropped = |step| {
                let Step::Tlbi(operation, domain) = step else { return None };
                let (tag, page) = match operation {
                    Operation::All => (None, None),
                    Operation::Tag(tag) => (Some(tag.0), None),
                    Operation::Page(Scope::Tag(tag), _, page) => (Some(tag.0), Some(page.address)),
                    other => panic!("{other:?}"),
                };
                Some(Dropped { tag, page, is_shared: domain == Domain::InnerShareable })
            };
            steps_of(f).into_iter().filter_map(dropped).collect()
        }
        fn halves(_: &Kpti, _: LoadedRoot) -> [u64; 2] {
            let halves = Kpti::halves();
            [halves.user, halves.kernel]
        }
        fn load(value: u64) {
            // SAFETY: the instruction is only recorded.
            unsafe { set_ttbr0(value) };
        }
    }
}

mod riscv64 {
    use super::{Dropped, Isa, LoadedRoot};
    use crate::errata::Workarounds;
    use crate::riscv64::encoding::{Mode, asid_of};
    use crate::riscv64::instructions::{Step, satp, set_satp, set_up, steps_of};
    use crate::riscv64::{Features, RiscV64};
    use shootdown::{Root, Tag};
    use std::vec::Vec;

    /// Fewer ASIDs than spaces: a switch may give a space another one.
    const ASID_BITS: u32 = 3;
    const KERNEL: u64 = Mode::Sv39.satp(Root(0), Tag(0));

    pub(super) struct Trampoline;

    impl Isa for Trampoline {
        type Processor = RiscV64;
        fn processor() -> RiscV64 {
            let features = Features {
                mode: Mode::Sv39,
                asid_bits: ASID_BITS,
                has_svinval: false,
                workarounds: Workarounds::NONE,
            };
            // SAFETY: instructions are only recorded, and there are no walks.
            unsafe { RiscV64::new(features).assuming_satp_ends_walks().loaded_by_kernel() }
        }
        fn set_register(value: u64) {
            set_up(ASID_BITS, if value == 0 { KERNEL } else { value });
        }
        fn register() -> u64 {
            satp()
        }
        fn tag(register: u64) -> u16 {
            asid_of(register).0
        }
        fn space(register: u64) -> u64 {
            register << 20 >> 8
        }
        fn is_user(tag: u16) -> bool {
            tag != 0
        }
        fn drops(f: &mut dyn FnMut()) -> Vec<Dropped> {
            let dropped = |step| {
                let (tag, page) = match step {
                    Step::DropAll => (None, None),
                    Step::DropAsid(tag) => (Some(tag), None),
                    Step::DropPage(page, tag) => (tag, Some(page)),
                    _ => return None,
                };
                Some(Dropped { tag: tag.map(|tag| tag as u16), page, is_shared: false })
            };
            steps_of(f).into_iter().filter_map(dropped).collect()
        }
        fn halves(processor: &RiscV64, LoadedRoot { root, tag, .. }: LoadedRoot) -> [u64; 2] {
            assert_eq!(satp(), KERNEL, "a switch loads no root");
            [processor.satp(root, tag), KERNEL]
        }
        fn load(value: u64) {
            // SAFETY: the instruction is only recorded.
            unsafe { set_satp(value) };
        }
    }
}

struct Toy<I: Isa> {
    states: Vec<CpuState<Bare<Self>>>,
}

// SAFETY: one thread plays all CPUs, one after the other.
unsafe impl<I: Isa> Sync for Toy<I> {}

// SAFETY: as above. Rung CPUs answer before the flush is complete.
unsafe impl<I: Isa> Kernel for Toy<I> {
    type Processor = I::Processor;
    type CpuBits = [u64; 1];

    fn state(&self, cpu: CpuId) -> &CpuState<Bare<Self>> {
        &self.states[cpu.index()]
    }
    fn cpu(&self) -> CpuId {
        CpuId(CPU.get())
    }
    fn root(&self) -> Root {
        Root(0)
    }
    fn ring(&self, cpus: &CpuSet<Self::CpuBits>) {
        RUNG.with_borrow_mut(|rung| rung.extend(cpus.iter().map(|cpu| cpu.0)));
    }
    fn reclaim(&self, _: NonNull<Space<Bare<Self>>>) {}
}

/// A part of the kernel's work, which a fault can break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Switch,
    Flush,
    ReturnToUser,
    /// Breaks the rule of the exit path: it loads what it has read before the last switch.
    ReadLoaded,
}

/// The TLBs and the page tables.
struct World<I: Isa> {
    engine: Shootdown<Bare<Toy<I>>>,
    spaces: Box<[Space<Bare<Toy<I>>>]>,
    registers: [u64; CPUS as usize],
    /// For each CPU, the word that each tag's page shows.
    tlbs: [BTreeMap<(u16, u64), u64>; CPUS as usize],
    /// The word that each page of a space has.
    pages: BTreeMap<(u64, u64), u64>,
    active: [bool; CPUS as usize],
    /// The root that each CPU loads for user mode.
    loaded: [Option<LoadedRoot>; CPUS as usize],
    /// The work in which the user half is not invalidated.
    fault: Option<Work>,
}

fn root(space: u64) -> u64 {
    (space + 1) << 13
}

impl<I: Isa> World<I> {
    fn new(fault: Option<Work>) -> Self {
        let states = (0..CPUS).map(|_| CpuState::new()).collect();
        let engine = Shootdown::new(Bare::new(Toy { states }, I::processor()));
        let all = SPACES + I::OTHER_SPACES;
        let spaces = (0..all).map(|space| engine.space(Root(root(space)))).collect();
        let (registers, tlbs) = ([0; CPUS as usize], [const { BTreeMap::new() }; CPUS as usize]);
        let (pages, active) = (BTreeMap::new(), [false; CPUS as usize]);
        let loaded = [None; CPUS as usize];
        let mut world = Self { engine, spaces, registers, tlbs, pages, active, loaded, fault };
        for cpu in 0..CPUS {
            // SAFETY: the thread plays this CPU until it plays another.
            world.on(cpu, Work::Switch, |world| unsafe { world.engine.pin() }.online());
        }
        if I::OTHER_SPACES != 0 {
            (0..SPACES / 2).chain(SPACES..all).for_each(|space| world.switch(0, space));
        }
        world
    }

    /// Plays a CPU while `f` runs, and drops from TLBs what `f` has dropped.
    fn on<R>(&mut self, cpu: u32, work: Work, f: impl FnOnce(&Self) -> R) -> R {
        CPU.set(cpu);
        I::set_register(self.registers[cpu as usize]);
        let (mut f, mut result) = (Some(f), None);
        let drops = I::drops(&mut || result = f.take().map(|f| f(self)));
        for Dropped { tag, page, is_shared } in drops {
            if self.fault == Some(work) && tag.is_some_and(I::is_user) {
                continue;
            }
            for (other, tlb) in (0..).zip(&mut self.tlbs) {
                let is_dropped = |key: &(u16, u64)| {
                    tag.is_none_or(|tag| tag == key.0) && page.is_none_or(|page| page == key.1)
                };
                if is_shared || other == cpu {
                    tlb.retain(|key, _| !is_dropped(key));
                }
            }
        }
        if self.fault == Some(work) {
            I::unmark();
        }
        self.registers[cpu as usize] = I::register();
        result.expect("`f` ran")
    }

    /// Returns `true` if the CPU reads the current word of the page.
    fn reads_current(&mut self, cpu: u32, page: u64) -> bool {
        let register = self.registers[cpu as usize];
        let current = self.pages.get(&(I::space(register), page)).copied().unwrap_or_default();
        // Words of two spaces differ.
        let current = current << 32 | I::space(register);
        let tlb = &mut self.tlbs[cpu as usize];
        *tlb.entry((I::tag(register), page)).or_insert(current) == current
    }

    fn reads_current_in_user_mode(&mut self, cpu: u32, page: u64) -> bool {
        if self.fault != Some(Work::ReadLoaded) {
            self.read_loaded(cpu);
        }
        // With the fault, there is nothing before the first switch.
        let Some(loaded) = self.loaded[cpu as usize] else { return true };
        let enter = |world: &Self| {
            let [user, kernel] = I::halves(world.engine.machine().processor(), loaded);
            I::load(user);
            kernel
        };
        let kernel = self.on(cpu, Work::ReturnToUser, enter);
        let is_current = self.reads_current(cpu, page);
        self.on(cpu, Work::Switch, |_| I::load(kernel));
        is_current
    }

    fn read_loaded(&mut self, cpu: u32) {
        // SAFETY: the thread plays this CPU.
        let read = |world: &Self| unsafe { world.engine.pin() }.loaded_root();
        self.loaded[cpu as usize] = self.on(cpu, Work::ReadLoaded, read);
    }

    fn switch(&mut self, cpu: u32, space: u64) {
        self.read_loaded(cpu);
        self.on(cpu, Work::Switch, |world| {
            // SAFETY: the thread plays this CPU. Spaces stay in place, and none is retired.
            unsafe { world.engine.pin().switch(&world.spaces[space as usize]) };
        });
        self.active[cpu as usize] = true;
    }

    fn change(&mut self, cpu: u32, space: u64, first: u64, count: u64) {
        for page in first..first + count {
            *self.pages.entry((root(space), page << 12)).or_default() += 1;
        }
        let extent = Extent::pages(first << 12, count as usize, PageSize::SIZE_4K);
        self.on(cpu, Work::Flush, |world| {
            // SAFETY: the thread plays this CPU.
            let pending =
                unsafe { world.engine.pin() }.flush(&world.spaces[space as usize], extent);
            // The other CPUs answer below, before the test reads anything. A broadcast completes
            // here.
            if RUNG.with_borrow(Vec::is_empty) {
                let mut pending = pending;
                pending.wait();
            } else {
                core::mem::forget(pending);
            }
        });
        for rung in RUNG.take() {
            // SAFETY: the thread plays this CPU.
            self.on(rung, Work::Flush, |world| unsafe { world.engine.pin() }.handle_flush_ipi());
        }
    }
}

/// Runs a random program. Returns `true` if every word that was read was current.
fn is_coherent<I: Isa>(seed: u64, fault: Option<Work>) -> bool {
    let mut world = World::<I>::new(fault);
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = |limit: u64| {
        // Xorshift (Marsaglia).
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % limit
    };
    for _ in 0..OPERATIONS {
        let (cpu, page) = (below(CPUS.into()) as u32, below(4) << 12);
        let is_active = world.active[cpu as usize];
        let is_current = match below(10) {
            0..2 => {
                world.switch(cpu, below(SPACES));
                true
            }
            2..5 if is_active => world.reads_current_in_user_mode(cpu, page),
            5..6 if is_active => world.reads_current(cpu, page),
            6 if is_active => {
                // SAFETY: the thread plays this CPU.
                world.on(cpu, Work::Switch, |world| unsafe { world.engine.pin() }.enter_lazy());
                world.active[cpu as usize] = false;
                true
            }
            // One page, or so many that the whole tag is dropped.
            7..9 => {
                world.change(cpu, below(SPACES), below(4), 1);
                true
            }
            9 => {
                world.change(cpu, below(SPACES), 0, PAGES);
                true
            }
            _ => true,
        };
        if !is_current {
            return false;
        }
    }
    true
}

fn check<I: Isa>(faults: &[Work]) {
    for seed in 0..SEEDS {
        assert!(is_coherent::<I>(seed, None), "seed {seed}");
    }
    for &fault in faults {
        let is_detected = (0..SEEDS).any(|seed| !is_coherent::<I>(seed, Some(fault)));
        assert!(is_detected, "a user half that {fault:?} does not invalidate");
    }
}

#[test]
fn pcid_pairs_stay_coherent_and_faults_show() {
    check::<x86_64::Pcids>(&[Work::Switch, Work::Flush, Work::ReturnToUser]);
}

#[test]
fn pcid_pairs_stay_coherent_under_hypervisor() {
    check::<x86_64::GuestPcids>(&[]);
}

#[test]
fn asid_pairs_stay_coherent_and_faults_show() {
    check::<aarch64::Asids>(&[Work::Switch, Work::Flush]);
}

#[test]
fn trampoline_stays_coherent_and_faults_show() {
    check::<riscv64::Trampoline>(&[Work::Switch, Work::Flush, Work::ReadLoaded]);
}
