//! Resources that are used up: memory, tags, the room in a batch, or pages that can be reclaimed.
//!
//! The results are defined (`docs/reclaim.md`, "When something runs out"). In each case the run
//! ends, no CPU uses a stale translation or a freed page, and memory matches the model of contents.

mod batch;
mod counting;
mod memory;
mod progress;
mod tags;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use crate::memory_model::model::checked;
use shootdown_designs::Engine;
use shootdown_program::Workload;
use shootdown_program::operation::{
    Access, AreaId, Mapping, Operation, Permission, ProgramId, Start, Steps,
};
use shootdown_run::{Limits, Memory, Outcome, RunError, Settings, Supply, run};
use shootdown_sim::{Machine, Sim, Time};
use shootdown_vm::ErasedCoherence;

const SETTINGS: Settings = Settings {
    memory: Memory { frames: 256, nodes: 2, supply: Supply::Reclaimed },
    limits: Limits { threads: 64, time: Time::from_ms(10_000) },
    contents: Some(checked),
    ..Settings::DEFAULT
};

/// Programs by number, each a process of its own.
struct Programs(RefCell<BTreeMap<u32, Vec<Operation>>>);

impl Workload for Programs {
    fn name(&self) -> String {
        "programs".to_owned()
    }
    fn processes(&self) -> Vec<Start> {
        let start = |&program| Start { program: ProgramId(program), cpu: None };
        self.0.borrow().keys().map(start).collect()
    }
    fn steps(&self, program: ProgramId) -> Steps {
        Box::new(self.0.borrow_mut().remove(&program.0).unwrap_or_default().into_iter())
    }
}

/// Returns four CPUs with round times, and `more` of a machine's file.
fn machine(more: &str) -> Machine {
    let round = include_str!("../../../../sim/tests/round.toml");
    Machine::from_toml(&format!("{round}{more}")).unwrap().with_cpus(4).unwrap()
}

fn run_under<C: Into<ErasedCoherence>>(
    machine: Machine,
    settings: Settings,
    programs: impl IntoIterator<Item = Vec<Operation>>,
    design: impl FnOnce(Rc<Sim>) -> C,
) -> Result<Outcome, RunError> {
    let programs = Programs(RefCell::new((0..).zip(programs).collect()));
    run(machine, settings, Rc::new(programs), design)
}

#[track_caller]
fn must_be_right(outcome: &Outcome) {
    let first = outcome.first_violations.first();
    assert_eq!((outcome.violations, outcome.hazards), (0, 0), "{first:?}");
    let first = outcome.first_wrong_contents.first();
    assert_eq!(outcome.wrong_contents, 0, "{first:?}");
}

/// Runs programs under the engine. The run may fail, but must not violate the oracle or the model.
fn run_ours(
    machine: Machine,
    settings: Settings,
    programs: impl IntoIterator<Item = Vec<Operation>>,
) -> Result<Outcome, RunError> {
    let outcome = run_under(machine, settings, programs, Engine::<1>::new)?;
    must_be_right(&outcome);
    Ok(outcome)
}

fn map(area: u32, pages: u64, mapping: Mapping) -> Operation {
    let (area, permission) = (AreaId(area), Permission::ReadWrite);
    Operation::Map { area, pages, permission, mapping }
}

fn read(area: u32, pages: Range<u64>) -> Operation {
    Operation::Touch { area: AreaId(area), pages, access: Access::Read }
}

fn write(area: u32, pages: Range<u64>) -> Operation {
    Operation::Touch { area: AreaId(area), pages, access: Access::Write }
}
