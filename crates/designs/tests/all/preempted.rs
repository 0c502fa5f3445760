//! Virtual CPUs that their hypervisor stops for a millisecond at random times, while another CPU
//! flushes pages that they use.
//!
//! The simulator stops CPUs only where their interrupts are unmasked.

use std::cell::Cell;
use std::rc::Rc;

use shootdown::Rule;
use shootdown_designs::{Engine, Linux70};
use shootdown_sim::{Rng, Sim, Time};
use shootdown_vm::Coherence;
use shootdown_vm::Freed::{Pages, Tables};

use crate::rig::Rig;

const CPUS: usize = 4;
const END_US: u64 = 30_000;
const STOP_US: u64 = 1000;
/// A flush takes a few microseconds if every CPU runs.
const LONG_US: u64 = 100;

/// Flushes that took [`LONG_US`] or more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Long {
    /// A CPU was stopped when the flush began, and none was stopped after that.
    waited_for_stopped: u64,
    /// A CPU was stopped after the flush had begun.
    stopped_meanwhile: u64,
    /// Flushes that began while a CPU was stopped, of any duration.
    began_while_stopped: u64,
}

fn us(time: u64) -> Time {
    Time::from_ns(time * 1000)
}

/// Runs a thread of space 0 on each CPU. CPU 0 flushes; the hypervisor stops all others at random.
fn run<C: Coherence + 'static>(seed: u64, design: impl FnOnce(Rc<Sim>) -> C) -> Long {
    let rig = Rig::new(CPUS, design);
    let mut rng = Rng::new(seed);
    let mut stops = Vec::new();
    for cpu in 1..CPUS {
        let mut at = 100;
        while at < END_US {
            at += rng.below(5 * STOP_US);
            stops.push((cpu, us(at)));
            rig.sim.stop_cpu(cpu, us(at), us(at + STOP_US));
            at += STOP_US + 100;
        }
        rig.thread(cpu, 0, |rig| {
            while rig.sim.now() < us(END_US) {
                rig.touch(0..16);
                rig.sim.spend(us(1));
            }
        });
    }
    let long = Rc::new(Cell::new(Long::default()));
    let result = Rc::clone(&long);
    rig.thread(0, 0, move |rig| {
        rig.touch(0..16);
        rig.until(50);
        for number in 0.. {
            if rig.sim.now() > us(END_US) {
                break;
            }
            let (began, mut seen) = (rig.sim.now(), long.get());
            let is_stopped = (1..CPUS).any(|cpu| rig.sim.is_stopped(cpu));
            let page = number % 16;
            rig.flush(0, page..page + 1, if number % 8 == 0 { Tables } else { Pages });
            let ended = rig.sim.now();
            let meanwhile = |&(_, at): &(usize, Time)| at >= began && at <= ended;
            seen.began_while_stopped += u64::from(is_stopped);
            if ended - began >= us(LONG_US) {
                let excused = stops.iter().any(meanwhile);
                seen.stopped_meanwhile += u64::from(excused);
                seen.waited_for_stopped += u64::from(is_stopped && !excused);
                assert!(is_stopped || excused, "all CPUs were running");
            }
            long.set(seen);
            rig.sim.spend(us(7));
        }
    });
    rig.run();
    result.get()
}

#[test]
fn flush_never_waits_for_stopped_cpu() {
    let mut began = 0;
    for seed in 0..3 {
        let long = run(seed, Engine::<1>::new);
        assert_eq!(long.waited_for_stopped, 0, "seed {seed}: {long:?}");
        began += long.began_while_stopped;
    }
    assert!(began > 1000, "{began} flushes began while a CPU was stopped");
}

#[test]
fn flush_that_does_not_ask_waits_for_stopped_cpus() {
    let deaf = |sim| Engine::<1>::with_broken_rule(sim, Some(Rule::SkipAway));
    for waited in [run(0, deaf).waited_for_stopped, run(0, Linux70::uncounted).waited_for_stopped] {
        assert!(waited > 5, "{waited}");
    }
}
