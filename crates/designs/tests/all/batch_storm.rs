//! Reclaim under ours and each Linux that puts its flush off, at random: threads come and go,
//! fault and unmap, while pages are taken from them; and each rule broken once, so that the oracle
//! is seen to notice.

use std::cell::Cell;
use std::rc::Rc;

use crate::rig::{Batch, Hardware, Rig};
use shootdown::Rule;
use shootdown_designs::Engine;
use shootdown_designs::linux::arm64::Variant;
use shootdown_designs::{Arm64, ExitFlush, Linux70, Linux412, LinuxRule, Riscv};
use shootdown_sim::{Sim, Time};
use shootdown_vm::Coherence;

/// Enough for each design to use them.
const TAGS: usize = 31;

fn invlpgb(sim: Rc<Sim>) -> Linux70 {
    Linux70::invlpgb(sim, ExitFlush::Interrupts)
}

/// Threads of three spaces come and go on four CPUs, and fault in what they miss. Two others take
/// pages meanwhile, and move about while they hold a batch; and one unmaps what was taken just now.
fn storm<C: Coherence + 'static>(
    hardware: Hardware,
    design: impl FnOnce(Rc<Sim>) -> C,
) -> Rc<Rig<C>> {
    const SPACES: u64 = 3;
    let rig = Rig::on(hardware.machine(TAGS, 6), SPACES, design);
    for thread in 0..4 * SPACES {
        let (space, cpu) = (thread % SPACES, (thread / SPACES) as usize);
        rig.thread(cpu, space, move |rig| {
            for turn in 0..400 {
                rig.return_to_user(space);
                let page = (thread * 7 + turn * 5) % 16;
                for gone in rig.faults(page..page + 4) {
                    rig.fault_in(space, gone);
                }
                rig.sim.spend(Time::from_ns((thread * 31 + turn * 17) % 23 * 100));
                match turn % 8 {
                    0 => rig.sim.sleep(Time::from_ns(turn % 11 * 1000)),
                    3 => rig.sim.yield_now(),
                    _ => {}
                }
            }
        });
    }
    let last_taken = Rc::new(Cell::new((0, 0)));
    for taker in 0..2 {
        let last_taken = Rc::clone(&last_taken);
        rig.kernel_thread(4 + taker, move |rig| {
            for turn in 0..150 {
                let mut batch = Batch::new();
                for step in 0..6 {
                    let page = (turn * 3 + step * 7 + taker as u64) % 20;
                    let space = (turn + step) % SPACES;
                    rig.take(&mut batch, space, page..page + 1);
                    last_taken.set((space, page));
                    // Long enough for others to come upon what is gone.
                    rig.sim.spend(Time::from_ns(1500));
                    if step == 3 && turn % 4 == 0 {
                        rig.sim.migrate((turn / 4) as usize % 6);
                    }
                }
                rig.flush_batch(batch);
                rig.sim.sleep(Time::from_ns(turn * 37 % 5000));
            }
        });
    }
    rig.kernel_thread(5, move |rig| {
        for turn in 0..600 {
            let (space, page) = last_taken.get();
            rig.unmap(space, page);
            rig.sim.sleep(Time::from_ns(turn * 53 % 3000));
        }
    });
    rig.run_whatever_happens();
    rig
}

fn count_wrongs<C: Coherence + 'static>(
    hardware: Hardware,
    design: impl FnOnce(Rc<Sim>) -> C,
) -> u64 {
    storm(hardware, design).sim.violations()
}

#[test]
fn in_a_storm_nobody_uses_what_was_taken() {
    for hardware in [Hardware::Plain, Hardware::Broadcast, Hardware::Fence, Hardware::Renamed] {
        assert_eq!(count_wrongs(hardware, Engine::<1>::new), 0);
    }
    assert_eq!(count_wrongs(Hardware::Plain, Linux412::batched), 0);
    assert_eq!(count_wrongs(Hardware::Plain, Linux70::new), 0);
    assert_eq!(count_wrongs(Hardware::Broadcast, invlpgb), 0);
    assert_eq!(count_wrongs(Hardware::Broadcast, Arm64::stock), 0);
    assert_eq!(count_wrongs(Hardware::Broadcast, Arm64::skip), 0);
    assert_eq!(count_wrongs(Hardware::Plain, Arm64::skip), 0);
    assert_eq!(count_wrongs(Hardware::Fence, Riscv::new), 0);
    assert_eq!(count_wrongs(Hardware::Plain, Riscv::new), 0);
}

#[test]
fn in_a_storm_whatever_is_forgotten_is_caught() {
    use LinuxRule::{
        Complete, CompleteAtSwitch, CountUnmapped, FlushBatch, FlushIfStale, MarkBatched,
    };
    for rule in [Rule::MarkBatched, Rule::RingPresent, Rule::Wait] {
        let design = |sim| Engine::<1>::with_broken_rule(sim, Some(rule));
        assert!(count_wrongs(Hardware::Plain, design) > 0, "{rule:?}");
    }
    for rule in [FlushBatch, MarkBatched] {
        let design = |sim| Linux412::batched(sim).breaking(Some(rule));
        assert!(count_wrongs(Hardware::Plain, design) > 0, "{rule:?}");
    }
    for rule in [FlushBatch, CountUnmapped] {
        let design = |sim| Linux70::new(sim).breaking(Some(rule));
        assert!(count_wrongs(Hardware::Plain, design) > 0, "{rule:?}");
    }
    for (variant, rule) in [
        (Variant::Stock, Complete),
        (Variant::Stock, CompleteAtSwitch),
        (Variant::Skip, FlushIfStale),
    ] {
        let design = |sim| Arm64::with_broken_rule(sim, variant, Some(rule));
        assert!(count_wrongs(Hardware::Broadcast, design) > 0, "{variant:?}, {rule:?}");
    }
    let design = |sim| Riscv::with_broken_rule(sim, Some(FlushBatch));
    assert!(count_wrongs(Hardware::Fence, design) > 0);
}
