//! Random programs, with spaces that are created and ended.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use shootdown_vm::{Advice, QuarantineStats};

use crate::quarantine::fixture::{Fixture, LAZY, OurSpace, TABLES, page_of, unmap, write};

#[derive(Clone, Debug)]
enum Step {
    Write {
        table: u64,
    },
    Unmap {
        first: u64,
        count: u64,
    },
    Discard {
        table: u64,
    },
    GoLazy {
        cpu: usize,
    },
    LeaveSpace {
        cpu: usize,
    },
    /// The space exits, and another space replaces it.
    Exit,
    FreeDead,
}

fn steps() -> impl Strategy<Value = (usize, Step)> {
    // Tables on both sides of the border between two tables of level 1.
    let tables = || TABLES / 2 - 6..TABLES / 2 + 6;
    let cpus = || 0..LAZY.len();
    let step = prop_oneof![
        6 => tables().prop_map(|table| Step::Write { table }),
        4 => (tables(), 1..4u64).prop_map(|(first, count)| Step::Unmap { first, count }),
        2 => tables().prop_map(|table| Step::Discard { table }),
        3 => cpus().prop_map(|cpu| Step::GoLazy { cpu }),
        1 => cpus().prop_map(|cpu| Step::LeaveSpace { cpu }),
        1 => Just(Step::Exit),
        1 => Just(Step::FreeDead),
    ];
    (0..3usize, step)
}

/// The expected state, from the steps so far.
struct Model {
    spaces: [Arc<OurSpace>; 3],
    /// Spaces that have exited. They are kept until no CPU can have them loaded.
    dead: Vec<Arc<OurSpace>>,
    /// Written pages, by space and table.
    written: BTreeSet<(usize, u64)>,
}

impl Model {
    fn step(&mut self, fixture: &Fixture, which: usize, step: &Step) {
        let space = &self.spaces[which];
        match *step {
            Step::Write { table } => {
                write(space, table);
                self.written.insert((which, table));
            }
            Step::Unmap { first, count } => {
                unmap(space, first..first + count);
                let is_left = |&(of, table): &(usize, u64)| {
                    of != which || !(first..first + count).contains(&table)
                };
                self.written.retain(is_left);
            }
            Step::Discard { table } => {
                let was_mapped = space.advise(page_of(table), Advice::DontNeed).is_ok();
                assert!(was_mapped || !self.written.contains(&(which, table)));
                self.written.remove(&(which, table));
            }
            Step::GoLazy { cpu } => fixture.design.go_lazy(LAZY[cpu], space.root()),
            Step::LeaveSpace { cpu } => fixture.design.leave_space(LAZY[cpu]),
            Step::Exit => {
                space.exit();
                let next = Arc::new(OurSpace::new(&fixture.vm).unwrap());
                self.dead.push(std::mem::replace(&mut self.spaces[which], next));
                self.written.retain(|&(of, _)| of != which);
            }
            Step::FreeDead => fixture.vm.free_dead_tables(),
        }
    }
}

fn run(steps: &[(usize, Step)], quarantined_tables_max: u64) {
    let fixture = Fixture::with_quarantined_tables_max(0, quarantined_tables_max);
    let [second, third] = [0, 1].map(|_| Arc::new(OurSpace::new(&fixture.vm).unwrap()));
    let spaces = [Arc::clone(&fixture.space), second, third];
    let mut model = Model { spaces, dead: Vec::new(), written: BTreeSet::new() };
    let mut most = 0;
    for (which, step) in steps {
        model.step(&fixture, *which, step);
        let quarantined = fixture.quarantined(&model.spaces);
        assert!(quarantined <= quarantined_tables_max);
        assert_eq!(fixture.pages_in_use(), model.written.len());
        most = most.max(quarantined);
    }
    let QuarantineStats { peak, overflows, .. } = fixture.vm.quarantined_tables();
    assert!(
        peak == most || peak > most && overflows > 0,
        "the peak is {peak}, the model found {most}"
    );
    assert!(overflows <= (fixture.design.walker_flushes() + fixture.design.reaps()) as u64);
    fixture.end(&model.spaces);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Checks after every step that lazy CPUs can walk their tables, that each table is either in a
    /// tree or quarantined and counted, and that removed pages are free. At the end, all frames
    /// must be free.
    #[test]
    fn tables_are_quarantined_while_walkable(
        steps in prop::collection::vec(steps(), 1..80)
    ) {
        run(&steps, u64::MAX);
    }

    /// Does the same with a small quarantine.
    #[test]
    fn quarantine_stays_within_bound(
        steps in prop::collection::vec(steps(), 1..80),
        quarantined_tables_max in 0..16u64,
    ) {
        run(&steps, quarantined_tables_max);
    }
}
