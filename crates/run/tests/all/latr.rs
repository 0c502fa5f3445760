//! LATR under a memory manager: unmapped memory returns to the system when all CPUs have swept
//! their states, or when it is needed. A `madvise` must not be deferred in the same way.

use std::rc::Rc;

use crate::memory_model::model::checked;
use shootdown_designs::linux::v4_12::latr::RING_STATES;
use shootdown_designs::{Latr, LatrRule, Linux412};
use shootdown_program::Workload;
use shootdown_program::operation::{
    Access, AreaId, Mapping, Operation, Permission, ProgramId, Start, Steps,
};
use shootdown_run::programs::Tasks;
use shootdown_run::{Limits, Memory, Outcome, RunError, Settings, run};
use shootdown_sim::{Machine, Sim, Time};
use shootdown_vm::ErasedCoherence;

use crate::programs::{Case, WillItScale};

const CPUS: usize = 4;
const SETTINGS: Settings = Settings {
    memory: Memory::of_frames(4096),
    limits: Limits { threads: 64, time: Time::from_ms(60_000) },
    contents: Some(checked),
    ..Settings::DEFAULT
};

fn try_to_run<C: Into<ErasedCoherence>>(
    settings: Settings,
    workload: impl Workload + 'static,
    design: impl FnOnce(Rc<Sim>) -> C,
) -> Result<Outcome, RunError> {
    let round = include_str!("../../../sim/tests/round.toml");
    let machine = Machine::from_toml(round).unwrap().with_cpus(CPUS).unwrap();
    run(machine, settings, Rc::new(workload), design)
}

fn outcome<C: Into<ErasedCoherence>>(
    settings: Settings,
    workload: impl Workload + 'static,
    design: impl FnOnce(Rc<Sim>) -> C,
) -> Outcome {
    let outcome = try_to_run(settings, workload, design).unwrap();
    let first = outcome.first_violations.first();
    assert_eq!((outcome.violations, outcome.hazards), (0, 0), "{first:?}");
    let first = outcome.first_wrong_contents.first();
    assert_eq!(outcome.wrong_contents, 0, "{first:?}");
    outcome
}

/// Two threads on two CPUs. Both use an area, and the first one gives it up, repeatedly.
#[derive(Clone, Copy)]
struct GiveUp {
    /// `true`: the first thread unmaps the area and maps another one. `false`: it discards the
    /// area.
    unmaps: bool,
    pages: u64,
    rounds: u32,
}

const FIRST: ProgramId = ProgramId(0);
const SECOND: ProgramId = ProgramId(1);

impl Workload for GiveUp {
    fn name(&self) -> String {
        "give up".to_owned()
    }
    fn processes(&self) -> Vec<Start> {
        vec![Start { program: FIRST, cpu: Some(0) }]
    }
    fn steps(&self, program: ProgramId) -> Steps {
        let Self { unmaps, pages, rounds } = *self;
        let map = move |area| {
            let (permission, mapping) = (Permission::ReadWrite, Mapping::Anonymous);
            Operation::Map { area, pages, permission, mapping }
        };
        let area_of = move |round| AreaId(if unmaps { round } else { 0 });
        let touch =
            move |round, access| Operation::Touch { area: area_of(round), pages: 0..pages, access };
        if program == SECOND {
            let place = std::iter::once(Operation::Migrate(1));
            let read =
                move |round| [Operation::Block, touch(round, Access::Read), Operation::Wake(FIRST)];
            return Box::new(place.chain((0..=rounds).flat_map(read)));
        }
        let start = [map(area_of(0)), Operation::Spawn(SECOND)];
        let round = move |round| {
            let area = area_of(round);
            let used = [touch(round, Access::Write), Operation::Wake(SECOND), Operation::Block];
            let given_up = if unmaps {
                vec![Operation::Unmap { area, pages: 0..pages }, map(area_of(round + 1))]
            } else {
                vec![Operation::Discard { area, pages: 0..pages }]
            };
            used.into_iter().chain(given_up)
        };
        let end = [touch(rounds, Access::Write), Operation::Wake(SECOND), Operation::Join(SECOND)];
        Box::new(start.into_iter().chain((0..rounds).flat_map(round)).chain(end))
    }
}

#[test]
fn unmap_is_deferred_and_discard_is_not() {
    let unmapped = GiveUp { unmaps: true, pages: 4, rounds: 12 };
    // Each thread switches away and back while it waits, and sweeps. One interrupt is for the end
    // of the space.
    assert_eq!(outcome(SETTINGS, unmapped, Latr::new).counts.interrupts_sent, 1);
    let before = outcome(SETTINGS, unmapped, Linux412::new).counts.interrupts_sent;
    assert!(before >= 12, "{before}");
    let discarded = GiveUp { unmaps: false, ..unmapped };
    let interrupts = outcome(SETTINGS, discarded, Latr::new).counts.interrupts_sent;
    assert!(interrupts >= 12, "{interrupts}");
}

/// The example of LATR's authors: the second thread reads pages that the first thread has discarded
/// and written again, and finds the old words.
#[test]
fn deferred_discard_lets_threads_read_old_words() {
    let discarded = GiveUp { unmaps: false, pages: 4, rounds: 12 };
    // The second thread computes all the time, and so does not sweep before its tick.
    let broken = |sim| Latr::with_broken_rule(sim, Some(LatrRule::WaitForAdvice));
    let found = try_to_run(SETTINGS, Computing(discarded), broken).unwrap();
    assert!(found.wrong_contents > 0 && found.violations > 0);
    outcome(SETTINGS, Computing(discarded), Latr::new);
}

/// [`GiveUp`], but the threads compute instead of sleeping.
struct Computing(GiveUp);

impl Workload for Computing {
    fn name(&self) -> String {
        self.0.name()
    }
    fn processes(&self) -> Vec<Start> {
        self.0.processes()
    }
    fn steps(&self, program: ProgramId) -> Steps {
        // The time that both threads need together.
        let wait_ns = 20_000 + 5_000 * self.0.pages;
        let steps = self.0.steps(program).map(move |step| match step {
            Operation::Wake(_) | Operation::Block => Operation::Compute(wait_ns),
            step => step,
        });
        Box::new(steps)
    }
}

/// Memory is so small that deferred frames would use it up.
#[test]
fn memory_shortage_reclaims_deferred_frames() {
    let unmapped = GiveUp { unmaps: true, pages: 40, rounds: 30 };
    let interrupts = |frames| {
        let settings = Settings { memory: Memory { frames, ..SETTINGS.memory }, ..SETTINGS };
        outcome(settings, Fast(unmapped), Latr::new).counts.interrupts_sent
    };
    let (enough, short) = (interrupts(4096), interrupts(100));
    assert!(enough <= 1 && short > 1, "{enough}, {short}");
}

#[test]
fn will_it_scale_loops_read_correct_words() {
    for case in Case::ALL {
        let workload = WillItScale { case, tasks: Tasks::Threads, count: 4, pages: 24, rounds: 3 };
        let [latr, before] = [
            outcome(SETTINGS, workload, Latr::new).counts.interrupts_sent,
            outcome(SETTINGS, workload, Linux412::new).counts.interrupts_sent,
        ];
        // The cases with unmaps have no other flush of other CPUs.
        let unmaps = matches!(case, Case::PageFault1 | Case::PageFault2 | Case::PageFault3);
        assert!(!unmaps || (latr == 0 && before > 0), "{case:?}: {latr}, {before}");
    }
}

#[test]
fn full_rings_interrupt_cpus() {
    let quick = GiveUp { unmaps: true, pages: 1, rounds: 4 * RING_STATES as u32 };
    let few = outcome(SETTINGS, Fast(quick), Latr::new).counts.interrupts_sent;
    let all = outcome(SETTINGS, Fast(quick), Linux412::new).counts.interrupts_sent;
    assert!(few > 0 && few < all, "{few} of {all}");
}

/// [`GiveUp`], but the first thread only maps and unmaps, while the second computes.
struct Fast(GiveUp);

impl Workload for Fast {
    fn name(&self) -> String {
        self.0.name()
    }
    fn processes(&self) -> Vec<Start> {
        self.0.processes()
    }
    fn steps(&self, program: ProgramId) -> Steps {
        if program == SECOND {
            return Box::new([Operation::Migrate(1), Operation::Compute(9_000_000)].into_iter());
        }
        let is_not_wait = |step: &Operation| !matches!(step, Operation::Wake(_) | Operation::Block);
        Box::new(self.0.steps(program).filter(is_not_wait))
    }
}
