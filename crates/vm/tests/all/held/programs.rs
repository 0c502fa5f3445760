//! Random programs, on spaces that come and go.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use shootdown_vm::{Advice, QuarantineStats};

use crate::held::world::{LAZY, OurSpace, TABLES, World, page_of, unmap, write};

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
    LetGo {
        cpu: usize,
    },
    /// And another space comes in its place.
    Exit,
    Bury,
}

fn steps() -> impl Strategy<Value = (usize, Step)> {
    // On both sides of the border between two middle tables.
    let tables = || TABLES / 2 - 6..TABLES / 2 + 6;
    let cpus = || 0..LAZY.len();
    let step = prop_oneof![
        6 => tables().prop_map(|table| Step::Write { table }),
        4 => (tables(), 1..4u64).prop_map(|(first, count)| Step::Unmap { first, count }),
        2 => tables().prop_map(|table| Step::Discard { table }),
        3 => cpus().prop_map(|cpu| Step::GoLazy { cpu }),
        1 => cpus().prop_map(|cpu| Step::LetGo { cpu }),
        1 => Just(Step::Exit),
        1 => Just(Step::Bury),
    ];
    (0..3usize, step)
}

/// What is there, by what has been done.
struct Model {
    spaces: [Arc<OurSpace>; 3],
    /// Kept until nobody can have them loaded.
    dead: Vec<Arc<OurSpace>>,
    /// Pages by space and table.
    written: BTreeSet<(usize, u64)>,
}

impl Model {
    fn step(&mut self, world: &World, which: usize, step: &Step) {
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
            Step::GoLazy { cpu } => world.design.go_lazy(LAZY[cpu], space.root()),
            Step::LetGo { cpu } => world.design.let_go_of_space(LAZY[cpu]),
            Step::Exit => {
                space.exit();
                let next = Arc::new(OurSpace::new(&world.vm).unwrap());
                self.dead.push(std::mem::replace(&mut self.spaces[which], next));
                self.written.retain(|&(of, _)| of != which);
            }
            Step::Bury => world.vm.free_dead_tables(),
        }
    }
}

fn run(steps: &[(usize, Step)], quarantined_tables_max: u64) {
    let world = World::with_quarantined_tables_max(0, quarantined_tables_max);
    let [second, third] = [0, 1].map(|_| Arc::new(OurSpace::new(&world.vm).unwrap()));
    let spaces = [Arc::clone(&world.space), second, third];
    let mut model = Model { spaces, dead: Vec::new(), written: BTreeSet::new() };
    let mut most = 0;
    for (which, step) in steps {
        model.step(&world, *which, step);
        let held = world.held(&model.spaces);
        assert!(held <= quarantined_tables_max);
        assert_eq!(world.pages_in_use(), model.written.len());
        most = most.max(held);
    }
    let QuarantineStats { peak, overflows, .. } = world.vm.quarantined_tables();
    assert!(peak == most || peak > most && overflows > 0, "{peak} is not {most}");
    assert!(overflows <= (world.design.expels() + world.design.reaps()) as u64);
    world.end(&model.spaces);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// After every step, lazy CPUs can walk, tables are in a tree or held back and counted so,
    /// pages are free when they are gone, and in the end everything is.
    #[test]
    fn tables_are_held_back_while_they_are_walked(
        steps in prop::collection::vec(steps(), 1..80)
    ) {
        run(&steps, u64::MAX);
    }

    /// The same, with few that may be held back.
    #[test]
    fn tables_are_held_back_within_the_bound(
        steps in prop::collection::vec(steps(), 1..80),
        quarantined_tables_max in 0..16u64,
    ) {
        run(&steps, quarantined_tables_max);
    }
}
