//! The designs, compared with each other and checked by the oracle, on every generator.

use std::rc::Rc;

use shootdown::Rule;
use shootdown_designs::engine::{self, Counted, Handoff, Shoot, SpaceLifetime};
use shootdown_designs::{Design, Engine, Purpose, designs_for, linux};
use shootdown_program::Workload;
use shootdown_program::operation::{
    Access, AreaId, Mapping, Operation, Permission, ProgramId, Start, Steps,
};
use shootdown_run::programs::{ExitStorm, Kind, Loop, MadviseMigrate, PthreadMmap, Tasks, Touched};
use shootdown_run::{Classes, Limits, Memory, Outcome, Settings};
use shootdown_sim::{Counts, FlushWaits, Machine, Time, VainCause, Violation, ViolationKind};
use shootdown_vm::{Discards, Policy};

use crate::common::is_soak;

fn machine(name: &str, cpus: usize) -> Machine {
    let text = match name {
        "xeon-2s" => include_str!("../../../../machines/xeon-2s.toml"),
        _ => include_str!("../../../../machines/skylake-laptop-kvm.toml"),
    };
    let hasty = text.replace("timeslice_us = { value = 9000", "timeslice_us = { value = 20");
    let text = if name == "hasty" { &hasty } else { text };
    Machine::from_toml(text).unwrap().with_cpus(cpus).unwrap()
}

const SETTINGS: Settings = Settings {
    memory: Memory::of_frames(1 << 20),
    limits: Limits { threads: 512, time: Time::from_ms(60_000) },
    ..Settings::DEFAULT
};

fn run(design: Design, machine: &Machine, workload: &Rc<dyn Workload>) -> Outcome {
    let result =
        shootdown_run::run(machine.clone(), SETTINGS, Rc::clone(workload), |sim| design.on(sim));
    result.unwrap_or_else(|error| panic!("{} under {design}: {error}", workload.name()))
}

/// Returns every generator with as many tasks as CPUs and with twice as many.
fn workloads(cpus: usize, seed: u64) -> Vec<Rc<dyn Workload>> {
    let pthread_mmap = PthreadMmap {
        threads: 2 * cpus as u32,
        rounds: 2,
        mappings: 20,
        pages: 1 << 12,
        touched: Touched::First,
        seed,
    };
    let mut workloads: Vec<Rc<dyn Workload>> =
        vec![Rc::new(MadviseMigrate { cpus, iterations: 100 }), Rc::new(pthread_mmap)];
    for kind in Kind::ALL {
        for tasks in [Tasks::Threads, Tasks::Processes] {
            for count in [cpus as u32, 2 * cpus as u32] {
                workloads.push(Rc::new(Loop { kind, tasks, count, iterations: 50, seed }));
            }
        }
    }
    workloads
}

/// Returns the general designs and the research designs, which must all be sound.
fn sound() -> impl Iterator<Item = Design> {
    designs_for(Purpose::General).chain(designs_for(Purpose::Research))
}

/// The counts and the time of a design.
#[derive(Default)]
struct Cost {
    interrupts: u64,
    counts: Counts,
    time: Time,
    waits: FlushWaits,
}

impl Cost {
    fn add(&mut self, outcome: &Outcome) {
        self.interrupts += outcome.counts.interrupts_sent;
        self.counts += outcome.counts;
        self.time += outcome.time;
        self.waits.add(&outcome.waits);
    }
}

/// Asserts that shootdown has no violation and, on each generator, sends no more interrupts and
/// takes no more time than Linux, except for random differences.
///
/// A simulation is chaotic where threads compete. The waiting threads, the idle CPU that is found,
/// and the depth of its sleep depend on nanoseconds. Each result is therefore a sum over several
/// seeds, with an allowance. It is one interrupt in a hundred, and two per CPU and seed for the
/// start, when CPUs have not learned yet to announce kernel entries. It is 4 % of the time; most of
/// it is used where no interrupt is sent, and both designs do the same work on other CPUs. Over all
/// generators together there is no allowance: fewer interrupts, and less time in the geometric
/// mean; and 99 % of all waits end as soon.
fn shootdown_is_no_worse_than_linux(machine_name: &str, cpus: usize) {
    if !is_soak() && (cpus > 8 || (machine_name, cpus) == ("skylake", 4)) {
        println!("skipped: {cpus} CPUs of {machine_name}, which `cargo xtask soak` runs");
        return;
    }
    let machine = machine(machine_name, cpus);
    let (mut worse, mut log_sum, mut total) = (Vec::new(), 0.0, [0, 0]);
    let mut all = Counts::default();
    let (mut our_waits, mut linux_waits) = (FlushWaits::default(), FlushWaits::default());
    let count = workloads(cpus, 0).len();
    for index in 0..count {
        let (mut linux, mut ours) = (Cost::default(), Cost::default());
        let name = workloads(cpus, 0)[index].name();
        // Threads that only wake each other differ by 4 % over three seeds, and by 0.4 % over 24. A
        // few threads that take turns at one lock synchronise, either with or without sleep. The
        // two patterns differ by 30 % and last for the whole run.
        let synchronises = name.starts_with("mmap") && cpus <= 4;
        let seeds = match name.as_str() {
            _ if synchronises => 48,
            name if name.starts_with("context-switch") => 12,
            _ => 3,
        };
        for seed in 1..=seeds {
            let workload = workloads(cpus, seed).swap_remove(index);
            for (design, cost) in [(Design::LINUX_7_0, &mut linux), (Design::SHOOTDOWN, &mut ours)]
            {
                let outcome = run(design, &machine, &workload);
                assert_eq!((outcome.violations, outcome.hazards), (0, 0), "{name}, {design}");
                cost.add(&outcome);
            }
        }
        let ratio = ours.time.ps() as f64 / linux.time.ps() as f64;
        println!(
            "{ratio:.4} {name} on {cpus} CPUs of {machine_name}: sends {} against {}, bound {}{}; \
             99 % of waits end within {} against {} ns",
            ours.interrupts,
            linux.interrupts,
            ours.counts.bound(),
            in_vain(&ours.counts),
            ours.waits.quantile(0.99).ns(),
            linux.waits.quantile(0.99).ns(),
        );
        our_waits.add(&ours.waits);
        linux_waits.add(&linux.waits);
        all += ours.counts;
        log_sum += ratio.ln();
        total = [total[0] + ours.interrupts, total[1] + linux.interrupts];
        if ours.interrupts > linux.interrupts + linux.interrupts / 100 + 2 * seeds * cpus as u64
            || ratio > 1.04
        {
            worse.push(name);
        }
    }
    let classes = Classes::from(&all);
    let sent = all.interrupts_sent;
    let in_vain = in_vain(&all);
    println!("all on {cpus} CPUs of {machine_name}: {sent} interrupts{in_vain}; {classes:?}");
    let percentiles = [&our_waits, &linux_waits].map(|waits| waits.quantile(0.99));
    println!("99 % of waits on {cpus} CPUs of {machine_name}, and under Linux: {percentiles:?}");
    assert!(worse.is_empty(), "{cpus} CPUs of {machine_name}: {worse:?}");
    assert!(log_sum < 0.0 && total[0] <= total[1], "{log_sum}, {total:?}");
    assert!(percentiles[0] <= percentiles[1], "{percentiles:?}");
}

/// Returns the interrupts in vain by cause, for example ", no replicas yet 48".
fn in_vain(counts: &Counts) -> String {
    let causes = &counts.vain_causes;
    assert_eq!(causes.total(), counts.interrupts_in_vain);
    let nonzero = VainCause::ALL.into_iter().filter(|&cause| causes.of(cause) != 0);
    nonzero.map(|cause| format!(", {} {}", cause.name(), causes.of(cause))).collect()
}

macro_rules! no_worse {
    ($($name:ident: $machine:literal, $cpus:literal;)*) => {
        $(#[test] fn $name() { shootdown_is_no_worse_than_linux($machine, $cpus); })*
    };
}

no_worse! {
    no_worse_on_2_virtual_cpus: "skylake", 2;
    no_worse_on_4_virtual_cpus: "skylake", 4;
    no_worse_on_2_cpus: "xeon-2s", 2;
    no_worse_on_4_cpus: "xeon-2s", 4;
    no_worse_on_8_cpus: "xeon-2s", 8;
    no_worse_on_16_cpus: "xeon-2s", 16;
    no_worse_on_32_cpus: "xeon-2s", 32;
    no_worse_on_64_cpus: "xeon-2s", 64;
}

/// Threads are preempted all the time, in the kernel and on their way back to user mode.
#[test]
fn preempted_threads_are_still_flushed() {
    for design in sound() {
        for readers in [3, 30] {
            let workload: Rc<dyn Workload> = Rc::new(SharedPage { readers });
            let outcome = run(design, &machine("hasty", 4), &workload);
            assert!(readers < 4 || outcome.counts.switches > 500, "{}", outcome.counts.switches);
            let first = outcome.first_violations.first();
            assert_eq!(outcome.violations, 0, "{design}: {first:?}");
        }
    }
}

/// The addresses that the host's allocator returns do not change a simulation.
#[test]
fn host_addresses_do_not_change_simulation() {
    let workload: Rc<dyn Workload> = Rc::new(Loop {
        kind: Kind::Mmap,
        tasks: Tasks::Threads,
        count: 8,
        iterations: 20,
        seed: 1,
    });
    for design in sound() {
        let mut outcomes = Vec::new();
        let mut clutter: Vec<Vec<u8>> = Vec::new();
        for round in 0..6 {
            clutter.extend((0..50).map(|index| vec![0; 8 + (index * 37 + round * 24) % 700]));
            clutter.retain(|block| block.len() % 3 != round % 3);
            let outcome = run(design, &machine("xeon-2s", 8), &workload);
            outcomes.push((outcome.time, outcome.counts));
        }
        outcomes.dedup();
        assert_eq!(outcomes.len(), 1, "{design}");
    }
}

#[test]
fn general_and_research_designs_are_sound() {
    for workload in workloads(4, 1) {
        for design in sound() {
            let outcome = run(design, &machine("skylake", 4), &workload);
            let first = outcome.first_violations.first();
            assert_eq!(outcome.violations, 0, "{} under {design}: {first:?}", workload.name());
            // The bug of Linux 4.14: lazy CPUs can walk freed page tables.
            if design != Design::LINUX_4_14 {
                assert_eq!(outcome.hazards, 0, "{} under {design}: {first:?}", workload.name());
            }
        }
    }
}

/// Under LATR, an `munmap` notifies no CPU, but takes longer from eight CPUs on. Page faults sleep
/// for the lock of the space, and each switch reads the rings of all CPUs.
#[test]
fn latr_sends_fewest_interrupts_for_mmap() {
    let (cpu_counts, iterations): (&[usize], _) =
        if is_soak() { (&[2, 8, 16], 2000) } else { (&[2, 8], 500) };
    for &cpus in cpu_counts {
        for kind in [Kind::Mmap, Kind::Madvise] {
            let count = cpus as u32;
            let workload = Loop { kind, tasks: Tasks::Threads, count, iterations, seed: 1 };
            let workload: Rc<dyn Workload> = Rc::new(workload);
            let designs = [Design::LINUX_4_12, Design::LATR, Design::LINUX_7_0, Design::SHOOTDOWN];
            let [before, latr, _, ours] = designs.map(|design| {
                let outcome = run(design, &machine("xeon-2s", cpus), &workload);
                assert_eq!((outcome.violations, outcome.hazards), (0, 0), "{design}");
                let (interrupts, time) = (outcome.counts.interrupts_sent, outcome.time);
                println!("{} on {cpus} CPUs, {design}: {interrupts}, {time}", workload.name());
                interrupts
            });
            match kind {
                Kind::Mmap => assert!(latr < before),
                // LATR waits for `madvise`, like the design that it extends; chance decides.
                _ => assert!(latr <= before + before / 50 && ours < latr),
            }
        }
    }
}

#[test]
fn bug_of_x86_lazy_tlb_is_found() {
    for design in sound() {
        let workload: Rc<dyn Workload> = Rc::new(UnmapUnderLazy);
        let outcome = run(design, &machine("skylake", 4), &workload);
        assert_eq!(outcome.violations, 0, "{design}");
        // Only Linux 4.14 frees page tables that the lazy CPU can still walk.
        assert_eq!(outcome.hazards > 0, design == Design::LINUX_4_14, "{design}");
    }
}

/// Returns the first violation that the oracle finds in an engine without `rule`.
fn caught(rule: Rule, workload: Rc<dyn Workload>) -> Violation {
    // A discard in place removes no translation that could be used too long.
    caught_under(Policy { discards: Discards::Immediate, ..engine::POLICY }, rule, workload)
}

fn caught_under(policy: Policy, rule: Rule, workload: Rc<dyn Workload>) -> Violation {
    let machine = machine("skylake", 4);
    let design = |sim| Engine::<1>::with_broken_rule(sim, Some(rule)).with_policy(policy);
    let outcome = shootdown_run::run(machine, SETTINGS, Rc::clone(&workload), design);
    let outcome = outcome.unwrap_or_else(|error| panic!("{}: {error}", workload.name()));
    let first = outcome.first_violations.first().copied();
    let first =
        first.unwrap_or_else(|| panic!("the oracle does not detect the removal of {rule:?}"));
    assert!(
        first.at < Time::from_ms(1000),
        "the removal of {rule:?} was detected late: {}",
        first.at
    );
    first
}

/// One thread uses memory and sleeps. The other thread unmaps the memory with its page tables.
struct UnmapUnderLazy;

impl Workload for UnmapUnderLazy {
    fn name(&self) -> String {
        "unmap-under-lazy".to_owned()
    }
    fn processes(&self) -> Vec<Start> {
        vec![Start { program: ProgramId(0), cpu: Some(0) }]
    }
    fn steps(&self, program: ProgramId) -> Steps {
        let (area, sleeper) = (AreaId(0), ProgramId(1));
        let touch = Operation::Touch { area, pages: 0..1, access: Access::Write };
        if program == sleeper {
            let steps = [touch, Operation::Wake(ProgramId(0)), Operation::Block];
            return Box::new(steps.into_iter());
        }
        let (permission, mapping) = (Permission::ReadWrite, Mapping::Anonymous);
        Box::new(
            [
                Operation::Map { area, pages: 1 << 20, permission, mapping },
                Operation::Spawn(sleeper),
                Operation::Block,
                Operation::Compute(50_000),
                Operation::Unmap { area, pages: 0..1 << 20 },
                Operation::Wake(sleeper),
                Operation::Join(sleeper),
            ]
            .into_iter(),
        )
    }
}

/// More processes than tags, one after the other, that use the same addresses.
struct ShortLives;

impl Workload for ShortLives {
    fn name(&self) -> String {
        "short-lives".to_owned()
    }
    fn processes(&self) -> Vec<Start> {
        vec![Start { program: ProgramId(0), cpu: None }]
    }
    fn steps(&self, program: ProgramId) -> Steps {
        let area = AreaId(0);
        if program == ProgramId(0) {
            let fork = (1..60).map(|child| Operation::Fork(ProgramId(child)));
            let join = (1..60).map(|child| Operation::Join(ProgramId(child)));
            return Box::new(fork.chain(join));
        }
        let (permission, mapping) = (Permission::ReadWrite, Mapping::Anonymous);
        let map = Operation::Map { area, pages: 8, permission, mapping };
        Box::new([map, Operation::Touch { area, pages: 0..8, access: Access::Write }].into_iter())
    }
}

/// One thread discards a page again and again, and other threads read it.
struct SharedPage {
    readers: u32,
}

impl Workload for SharedPage {
    fn name(&self) -> String {
        "shared-page".to_owned()
    }
    fn processes(&self) -> Vec<Start> {
        vec![Start { program: ProgramId(0), cpu: None }]
    }
    fn steps(&self, program: ProgramId) -> Steps {
        let area = AreaId(0);
        let touch = move |access| Operation::Touch { area, pages: 0..1, access };
        if program != ProgramId(0) {
            let turn = move |_| [touch(Access::Read), Operation::Compute(200)];
            return Box::new((0..2000).flat_map(turn));
        }
        let (permission, mapping) = (Permission::ReadWrite, Mapping::Anonymous);
        let start = [Operation::Map { area, pages: 16, permission, mapping }];
        let turn = move |_| {
            let discard = Operation::Discard { area, pages: 0..1 };
            [touch(Access::Write), Operation::Compute(3000), discard]
        };
        let threads = 1..=self.readers;
        let spawn = threads.clone().map(|thread| Operation::Spawn(ProgramId(thread)));
        let join = threads.map(|thread| Operation::Join(ProgramId(thread)));
        Box::new(start.into_iter().chain(spawn).chain((0..200).flat_map(turn)).chain(join))
    }
}

#[test]
fn skipped_ring_is_detected() {
    assert_eq!(
        caught(Rule::RingPresent, Rc::new(SharedPage { readers: 3 })).kind,
        ViolationKind::FlushedTranslation
    );
}

#[test]
fn page_freed_before_wait_is_detected() {
    let kind = caught(Rule::Wait, Rc::new(SharedPage { readers: 3 })).kind;
    assert!(
        matches!(kind, ViolationKind::FlushedTranslation | ViolationKind::FreedPage),
        "{kind:?}"
    );
}

#[test]
fn unflushed_reused_tag_is_detected() {
    // The first violation is a use of a foreign page, a walk of a foreign table, or a table that is
    // freed while a CPU can walk it.
    let kind = caught(Rule::DiscardReusedTag, Rc::new(ShortLives)).kind;
    assert_ne!(kind, ViolationKind::FlushedTranslation);
}

#[test]
fn freed_table_of_dead_space_is_detected() {
    // When the last thread exits, the CPUs where the others ran are idle, with the space loaded.
    let tasks =
        Loop { kind: Kind::Madvise, tasks: Tasks::Threads, count: 4, iterations: 60, seed: 1 };
    let first = caught(Rule::MarkHazards, Rc::new(tasks));
    assert_eq!(first.kind, ViolationKind::WalkableTableFreed);
}

#[test]
fn freed_unlinked_table_is_detected() {
    // The policy of Linux frees a table as soon as it is unlinked, without quarantine.
    let first = caught_under(linux::POLICY, Rule::QuarantineTables, Rc::new(UnmapUnderLazy));
    assert_eq!(first.kind, ViolationKind::WalkableTableFreed);
}

/// All lifetimes of the engine are sound, and only one of them sends interrupts.
#[test]
fn every_lifetime_is_sound() {
    fn interrupts<L: SpaceLifetime>(workload: &Rc<dyn Workload>) -> u64 {
        let machine = machine("xeon-2s", 13);
        let design = Engine::<1, L>::new;
        let outcome = shootdown_run::run(machine, SETTINGS, Rc::clone(workload), design);
        let outcome = outcome.unwrap_or_else(|error| panic!("{}: {error}", workload.name()));
        assert_eq!((outcome.violations, outcome.hazards), (0, 0), "{}", workload.name());
        outcome.counts.interrupts_sent
    }
    // When a process ends, CPUs where its threads ran are idle, with the space loaded.
    let storm = ExitStorm { cpus: 13, processes: 6, threads: 3, seed: 1 };
    let storm: Rc<dyn Workload> = Rc::new(storm);
    assert_eq!((interrupts::<Handoff>(&storm), interrupts::<Counted>(&storm)), (0, 0));
    assert!(interrupts::<Shoot>(&storm) > 0);
}
