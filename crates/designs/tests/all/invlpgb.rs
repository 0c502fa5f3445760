//! Linux with INVLPGB: what it is without the hardware, when a space is given a global tag, and
//! what its flushes are then.

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

/// Spaces one after the other, with a thread on each CPU, of which all flush. Each lives for longer
/// than it takes until the clock has come to each thread's number.
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
fn without_the_hardware_it_is_linux_that_counts() {
    let outcomes = [with, without].map(|design| {
        let rig = crowd(Hardware::Plain.machine(6, 5), 3, design);
        (rig.sim.time(), rig.sim.counts())
    });
    assert_eq!(outcomes[0], outcomes[1]);
    assert!(outcomes[0].1.interrupts_sent > 0);
}

#[test]
fn a_space_that_runs_on_more_than_three_cpus_is_broadcast_for_and_others_are_not() {
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
fn the_global_tags_of_the_dead_are_used_again_when_all_have_been() {
    // Six of each CPU's own, and two global ones for six spaces.
    let rig = crowd(Hardware::Broadcast.machine(8, 4), 6, with);
    let counts = rig.sim.counts();
    assert_eq!((counts.tags_taken, counts.rollovers), (6, 2));
}
