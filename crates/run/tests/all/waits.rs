//! The time that a flush takes on the CPU that begins it, if many CPUs use the space.

use std::rc::Rc;

use shootdown_designs::Design;
use shootdown_program::Workload;
use shootdown_program::operation::{AreaId, Operation, ProgramId, Steps};
use shootdown_run::{Limits, Memory, Outcome, Settings};
use shootdown_sim::Machine;

/// Enough that the percentile is not the first flush, which finds the lines of the space's log in
/// no cache.
const ITERATIONS: u64 = 300;

/// A thread on CPU 0 discards some pages again and again, and as many threads as `targets` compute,
/// on CPUs of other cores.
#[derive(Debug)]
struct Targets {
    targets: u32,
    pages: u64,
}

impl Workload for Targets {
    fn name(&self) -> String {
        format!("flush-of-{}-pages-on-{}", self.pages, self.targets)
    }

    fn steps(&self, program: ProgramId) -> Steps {
        let (pages, others) = (self.pages, (1..=self.targets).map(ProgramId));
        if program != ProgramId(0) {
            let compute = Operation::Compute(60_000 * ITERATIONS);
            return Box::new([Operation::Migrate(program.0 as usize + 1), compute].into_iter());
        }
        let start = [Operation::Migrate(0), Operation::map_own(AreaId(0), pages)]
            .into_iter()
            .chain(others.clone().map(Operation::Spawn))
            // All threads have started by then.
            .chain([Operation::Sleep(600_000), Operation::Begin]);
        let turn = move |_| {
            [Operation::write(AreaId(0), 0..pages), Operation::discard(AreaId(0), 0..pages)]
        };
        let turns = (0..ITERATIONS).flat_map(turn);
        let end = [Operation::End { iterations: ITERATIONS }];
        Box::new(start.chain(turns).chain(end).chain(others.map(Operation::Join)))
    }
}

fn outcome(design: Design, targets: u32, pages: u64) -> Outcome {
    let text = include_str!("../../../../machines/xeon-2s.toml");
    let machine = Machine::from_toml(text).unwrap().with_cpus(96).unwrap();
    let settings = Settings {
        memory: Memory::of_frames(1 << 12),
        limits: Limits { threads: 128, ..Limits::DEFAULT },
        ..Settings::DEFAULT
    };
    let workload = Rc::new(Targets { targets, pages });
    let outcome = shootdown_run::run(machine, settings, workload, |sim| design.on(sim)).unwrap();
    assert_eq!((outcome.violations, outcome.hazards), (0, 0), "{design}");
    let expected = ITERATIONS * u64::from(targets);
    assert!(outcome.counts.interrupts_sent.abs_diff(expected) * 50 <= expected, "{design}");
    outcome
}

/// With the policy of Linux, so that both designs flush in each call.
///
/// The median and the 99th percentile are no longer than Linux's. With 64 targets and one page,
/// they are half as long: Linux takes the lines of 64 queues one after the other, and the engine
/// requests the lines of 64 bells before it rings the first.
#[test]
fn flush_takes_no_longer_than_linux() {
    let designs = [Design::LINUX_7_0, Design::SHOOTDOWN_ALONE, Design::SHOOTDOWN_EARLY_ANSWERS];
    for (targets, pages) in [(1, 1), (2, 1), (8, 1), (32, 1), (64, 1), (8, 16), (64, 16)] {
        let outcomes = designs.map(|design| outcome(design, targets, pages));
        for share in [0.5, 0.99] {
            let [linux, alone, early] =
                outcomes.each_ref().map(|outcome| outcome.waits.quantile(share).ns());
            println!(
                "{targets} targets, {pages} pages, {share}: {linux} ns, {alone} ns, \
                 early answers {early} ns"
            );
            let text = format!("{targets} targets, {pages} pages, {share}: {alone}, {linux} ns");
            assert!(alone <= linux, "{text}");
            assert!(targets < 64 || pages > 1 || alone * 2 <= linux, "{text}");
        }
    }
}
