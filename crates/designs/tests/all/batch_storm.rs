//! Random tests of reclaim under Shootdown and each Linux with batches: threads block, fault and
//! unmap while other threads reclaim their pages. Broken rules must be detected by the oracle.

use std::cell::Cell;
use std::rc::Rc;

use crate::rig::{Batch, Hardware, Rig};
use shootdown::Rule;
use shootdown_designs::Engine;
use shootdown_designs::linux::arm64::Variant;
use shootdown_designs::{Arm64, ExitFlush, Linux70, Linux412, LinuxRule, Riscv};
use shootdown_sim::{Sim, Time};
use shootdown_vm::Coherence;

/// Number of tags that is enough for each design.
const TAGS: usize = 31;

fn invlpgb(sim: Rc<Sim>) -> Linux70 {
    Linux70::invlpgb(sim, ExitFlush::Interrupts)
}

/// Threads of three spaces run on four CPUs, and map the pages on which they fault. Two other
/// threads reclaim pages, and migrate while they have a batch. One more thread unmaps the page that
/// was reclaimed last.
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
                for page in rig.faults(page..page + 4) {
                    rig.fault_in(space, page);
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
    let last_reclaimed = Rc::new(Cell::new((0, 0)));
    for reclaimer in 0..2 {
        let last_reclaimed = Rc::clone(&last_reclaimed);
        rig.kernel_thread(4 + reclaimer, move |rig| {
            for turn in 0..150 {
                let mut batch = Batch::new();
                for step in 0..6 {
                    let page = (turn * 3 + step * 7 + reclaimer as u64) % 20;
                    let space = (turn + step) % SPACES;
                    rig.reclaim(&mut batch, space, page..page + 1);
                    last_reclaimed.set((space, page));
                    // Long enough for other threads to find the empty entry.
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
            let (space, page) = last_reclaimed.get();
            rig.unmap(space, page);
            rig.sim.sleep(Time::from_ns(turn * 53 % 3000));
        }
    });
    rig.run_unchecked();
    rig
}

fn violations<C: Coherence + 'static>(
    hardware: Hardware,
    design: impl FnOnce(Rc<Sim>) -> C,
) -> u64 {
    storm(hardware, design).sim.violations()
}

#[test]
fn storm_uses_no_reclaimed_page() {
    for hardware in [Hardware::Plain, Hardware::Broadcast, Hardware::Fence, Hardware::Renamed] {
        assert_eq!(violations(hardware, Engine::<1>::new), 0);
    }
    assert_eq!(violations(Hardware::Plain, Linux412::batched), 0);
    assert_eq!(violations(Hardware::Plain, Linux70::uncounted), 0);
    assert_eq!(violations(Hardware::Broadcast, invlpgb), 0);
    assert_eq!(violations(Hardware::Broadcast, Arm64::stock), 0);
    assert_eq!(violations(Hardware::Broadcast, Arm64::skip), 0);
    assert_eq!(violations(Hardware::Plain, Arm64::skip), 0);
    assert_eq!(violations(Hardware::Fence, Riscv::new), 0);
    assert_eq!(violations(Hardware::Plain, Riscv::new), 0);
}

#[test]
fn storm_detects_each_broken_rule() {
    use LinuxRule::{
        Complete, CompleteAtSwitch, CountUnmapped, FlushBatch, FlushIfStale, MarkBatched,
    };
    for rule in [Rule::MarkBatched, Rule::RingPresent, Rule::Wait] {
        let design = |sim| Engine::<1>::with_broken_rule(sim, Some(rule));
        assert!(violations(Hardware::Plain, design) > 0, "{rule:?}");
    }
    for rule in [FlushBatch, MarkBatched] {
        let design = |sim| Linux412::batched(sim).breaking(Some(rule));
        assert!(violations(Hardware::Plain, design) > 0, "{rule:?}");
    }
    for rule in [FlushBatch, CountUnmapped] {
        let design = |sim| Linux70::uncounted(sim).breaking(Some(rule));
        assert!(violations(Hardware::Plain, design) > 0, "{rule:?}");
    }
    for (variant, rule) in [
        (Variant::Stock, Complete),
        (Variant::Stock, CompleteAtSwitch),
        (Variant::Skip, FlushIfStale),
    ] {
        let design = |sim| Arm64::with_broken_rule(sim, variant, Some(rule));
        assert!(violations(Hardware::Broadcast, design) > 0, "{variant:?}, {rule:?}");
    }
    let design = |sim| Riscv::with_broken_rule(sim, Some(FlushBatch));
    assert!(violations(Hardware::Fence, design) > 0);
}
