//! Errors under designs that do what Linux does, as far as we know.
//!
//! Reclaim has cleared the entry of a file's page, and not yet flushed it. A thread writes there:
//! it gets a copy of its own, and writes to the copy, while another CPU still reads the file's page
//! through its TLB (`docs/reclaim.md`, "Code that maps another page there"). A fault handler that
//! checks whether the space is batched flushes the address first, and prevents the error.

use std::rc::Rc;

use crate::memory_model::model::checked;
use shootdown_designs::{Engine, Linux70, Linux412};
use shootdown_program::Workload;
use shootdown_program::operation::{
    Access, AreaId, FileId, Mapping, Operation, Permission, ProgramId, Start, Steps,
};
use shootdown_run::{Limits, Memory, Outcome, Settings, Supply, run};
use shootdown_sim::{Machine, Sim, Time};
use shootdown_vm::ErasedCoherence;

use crate::memory_model::faulty::FlushedRefault;

const WRITER: ProgramId = ProgramId(0);
const READER: ProgramId = ProgramId(1);
const OTHER: ProgramId = ProgramId(2);
const AREA: AreaId = AreaId(0);
const PAGES: u64 = 48;
const FRAMES: usize = 130;

/// One thread writes pages of a private mapping of a file, and discards them. Another thread reads
/// them on another CPU. A process on a third CPU needs the memory.
struct WriteDuringReclaim {
    /// Delay of the writer.
    delay_ns: u64,
}

impl Workload for WriteDuringReclaim {
    fn name(&self) -> String {
        "write during reclaim".to_owned()
    }
    fn processes(&self) -> Vec<Start> {
        vec![Start { program: WRITER, cpu: Some(0) }, Start { program: OTHER, cpu: Some(2) }]
    }
    fn steps(&self, program: ProgramId) -> Steps {
        let touch = |pages, access| Operation::Touch { area: AREA, pages, access };
        let map = |pages, mapping| {
            let permission = Permission::ReadWrite;
            Operation::Map { area: AREA, pages, permission, mapping }
        };
        let private = map(PAGES, Mapping::PrivateFile(FileId(0)));
        let large = map(2 * FRAMES as u64, Mapping::SharedFile(FileId(1)));
        match program {
            WRITER => {
                let start = [private, Operation::Spawn(READER), Operation::Compute(self.delay_ns)];
                Box::new(start.into_iter().chain((0..12).flat_map(move |page| {
                    [
                        touch(page..page + 1, Access::Write),
                        Operation::Compute(20_000 + 370 * (page % 7)),
                        Operation::Discard { area: AREA, pages: page..page + 1 },
                    ]
                })))
            }
            READER => {
                let read = (0..3000).map(move |_| touch(0..PAGES, Access::Read));
                Box::new([Operation::Migrate(1)].into_iter().chain(read))
            }
            _ => {
                let read = (0..3).map(move |_| touch(0..2 * FRAMES as u64, Access::Read));
                Box::new([large].into_iter().chain(read))
            }
        }
    }
}

fn outcome<C: Into<ErasedCoherence>>(delay_ns: u64, design: impl FnOnce(Rc<Sim>) -> C) -> Outcome {
    let round = include_str!("../../../../sim/tests/round.toml");
    let mut machine = Machine::from_toml(round).unwrap().with_cpus(3).unwrap();
    // As on virtual CPUs, which do not always run.
    machine.interrupt.deliver_socket = machine.interrupt.deliver_socket * 25;
    let settings = Settings {
        memory: Memory { frames: FRAMES, supply: Supply::Reclaimed, ..Memory::DEFAULT },
        limits: Limits { threads: 16, time: Time::from_ms(10_000) },
        contents: Some(checked),
        ..Settings::DEFAULT
    };
    run(machine, settings, Rc::new(WriteDuringReclaim { delay_ns }), design).unwrap()
}

/// Delays after which the writer may access a page that reclaim has just unmapped. The designs
/// whose fault handler does not flush fail after 15 to 16.5 µs.
fn delays_ns() -> impl Iterator<Item = u64> {
    (10_000..30_000).step_by(500)
}

/// Returns `true` if, after any delay, a read found a wrong word without a violation of the oracle.
fn reads_wrong_word<C: Into<ErasedCoherence>>(design: impl Fn(Rc<Sim>) -> C) -> bool {
    delays_ns().any(|delay_ns| {
        let outcome = outcome(delay_ns, &design);
        let first = outcome.first_wrong_contents.first();
        first.is_some_and(|first| {
            assert_eq!(outcome.violations, 0);
            // The reader found the file's word, and not the written one.
            assert!(first.contains(": 0 was found by a read"), "{first}");
            true
        })
    })
}

#[test]
fn write_during_reclaim_is_unflushed_under_linux() {
    assert!(reads_wrong_word(Linux412::batched));
    assert!(reads_wrong_word(Linux70::uncounted));
}

/// Page by page, Linux flushes with the page table locked, and the fault waits for the lock.
#[test]
fn flush_under_table_lock_prevents_the_error() {
    assert!(!reads_wrong_word(Linux412::new));
}

/// The same designs with another fault handler, and the engine.
#[test]
fn fault_handler_that_flushes_prevents_the_error() {
    assert!(!reads_wrong_word(|sim| FlushedRefault::boxed(Linux412::batched(sim))));
    assert!(!reads_wrong_word(|sim| FlushedRefault::boxed(Linux70::uncounted(sim))));
    assert!(!reads_wrong_word(Engine::<1>::new));
}
