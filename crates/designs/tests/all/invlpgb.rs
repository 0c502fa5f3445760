//! Linux with INVLPGB: the same results as without, if the machine lacks it; the choice of spaces
//! that get a global tag; and their flushes.

use std::rc::Rc;

use crate::rig::{Hardware, Rig};
use shootdown_designs::{ExitFlush, Linux70};
use shootdown_sim::{Machine, Sim, Time};
use shootdown_vm::Freed::{Pages, Tables};

type Linux = Linux70;

fn with(sim: Rc<Sim>) -> Linux {
    Linux70::invlpgb(sim, ExitFlush::Interrupts)
}

fn without(sim: Rc<Sim>) -> Linux {
    Linux70::counted(sim, ExitFlush::Interrupts)
}

/// Runs spaces one after the other, with a thread on each CPU, all of which flush. Each space lives
/// long enough for the clock to select every thread's number.
fn crowd(machine: Machine, spaces: u64, design: fn(Rc<Sim>) -> Linux) -> Rc<Rig<Linux>> {
    let cpus = machine.cpu_count();
    let rig = Rig::on(machine, spaces, design);
    for space in 0..spaces {
        let left = Rc::new(std::cell::Cell::new(cpus));
        for cpu in 0..cpus {
            let left = Rc::clone(&left);
            rig.thread(cpu, space, move |rig| {
                for turn in 0..200 {
                    rig.touch(0..8);
                    rig.sim.spend(Time::from_ns(200_000 + (space * 7 + turn * 13) % 31 * 1000));
                    if (turn + cpu as u64).is_multiple_of(4) {
                        let freed = if turn % 8 == 0 { Tables } else { Pages };
                        rig.flush(space, 0..turn % 40 + 1, freed);
                    }
                }
                rig.sim.set_space(None);
                left.set(left.get() - 1);
                if left.get() == 0 {
                    rig.retire(space);
                }
            });
        }
    }
    rig.run();
    rig
}

#[test]
fn invlpgb_equals_counted_without_hardware() {
    let outcomes = [with, without].map(|design| {
        let rig = crowd(Hardware::Plain.machine(6, 5), 3, design);
        (rig.sim.time(), rig.sim.counts())
    });
    assert_eq!(outcomes[0], outcomes[1]);
    assert!(outcomes[0].1.interrupts_sent > 0);
}

#[test]
fn space_on_over_three_cpus_gets_global_tag() {
    for (cpus, is_broadcast) in [(3, false), (4, true)] {
        let rig = crowd(Hardware::Broadcast.machine(15, cpus), 1, with);
        let counts = rig.sim.counts();
        assert_eq!(counts.broadcasts > 0, is_broadcast);
        assert_eq!(counts.tags_taken, u64::from(is_broadcast));
        let all = crowd(Hardware::Broadcast.machine(15, cpus), 1, without);
        let saved = all.sim.counts().interrupts_sent - counts.interrupts_sent;
        assert_eq!(saved > 0, is_broadcast);
    }
}

#[test]
fn freed_global_tags_are_reused_after_wrap() {
    // Each CPU has six tags of its own. The two global tags serve six spaces.
    let rig = crowd(Hardware::Broadcast.machine(8, 4), 6, with);
    let counts = rig.sim.counts();
    assert_eq!((counts.tags_taken, counts.rollovers), (6, 2));
}
