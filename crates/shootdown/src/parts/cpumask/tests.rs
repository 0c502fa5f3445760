use super::*;
use crate::base::ids::Root;
use crate::parts::hazard::Hazard;
use crate::parts::presence::Presence;
use crate::soft::{Config, Host, Soft};
use crate::state::engine::Shootdown;
use crate::state::space::Space;
use std::format;
use std::vec::Vec;

type Machine = Soft<Host>;

fn engine() -> Shootdown<Machine> {
    let engine = Soft::engine(Config { cpus: 5, ..Config::default() });
    (0..5).for_each(|cpu| engine.enter(CpuId(cpu)).pin().online());
    engine
}

fn switch(engine: &Shootdown<Machine>, cpu: u32, space: &Space<Machine>) {
    #[expect(unsafe_code, reason = "the spaces outlive their CPUs")]
    // SAFETY: the spaces outlive their CPUs.
    unsafe {
        engine.enter(CpuId(cpu)).pin().switch(space);
    }
}

fn members(engine: &Shootdown<Machine>, cpumask: &CpuMask<Machine, [u64; 1]>) -> Vec<u32> {
    let mut members = CpuSet::new();
    cpumask.read_into(engine.machine(), &mut members);
    members.iter().map(|cpu| cpu.0).collect()
}

#[test]
fn trim_removes_cpus_that_are_not_present() {
    let engine = engine();
    let (space, other) = (engine.space(Root(0)), engine.space(Root(1)));
    for epoch in 1..5 {
        (1..5).for_each(|cpu| switch(&engine, cpu, &space));
        assert_eq!(members(&engine, &space.cpumask), [1, 2, 3, 4]);
        engine.enter(CpuId(2)).pin().enter_lazy();
        switch(&engine, 3, &other);
        engine.enter(CpuId(4)).pin().leave_space();
        assert!(engine.enter(CpuId(0)).pin().trim_cpumask(&space));
        assert_eq!(members(&engine, &space.cpumask), [1, 2]);
        assert_eq!(space.cpumask.phase.load(Relaxed), epoch << 10);
    }
    assert_eq!(format!("{:?}", space.cpumask), "[[6], [30]]");
}

#[test]
fn notifications_are_bounded_by_mask() {
    let engine = engine();
    let space = engine.space(Root(0));
    let max = |cpu| engine.enter(CpuId(cpu)).pin().notifications_max(&space);
    let is_used = |cpu| engine.enter(CpuId(cpu)).pin().is_used_elsewhere(&space);
    assert_eq!((max(0), is_used(0)), (Some(0), false));
    (1..4).for_each(|cpu| switch(&engine, cpu, &space));
    engine.enter(CpuId(3)).pin().leave_space();
    assert_eq!([max(0), max(1)], [Some(3), Some(2)], "CPU 3 is still in the mask");
    engine.enter(CpuId(1)).pin().enter_lazy();
    assert_eq!(max(2), Some(2), "CPU 1 may return at any time");
    assert_eq!([is_used(1), is_used(2)], [true, false], "CPU 2 is in user mode");
    engine.enter(CpuId(1)).pin().leave_space();
    assert_eq!(max(2), Some(0));
    engine.attach_device(&space).unwrap();
    assert_eq!(max(0), None);
}

#[test]
fn trim_keeps_cpus_entering_and_leaving() {
    let engine = engine();
    let (space, other) = (engine.space(Root(0)), engine.space(Root(1)));
    let cpumask = &space.cpumask;
    for cpu in 1..4 {
        cpumask.register(engine.machine(), CpuId(cpu));
    }
    let (entering, leaving) = (engine.enter(CpuId(1)), engine.enter(CpuId(2)));
    entering.pin().set_presence(Presence::Switching(space.id()).into());
    leaving.pin().set_presence(Presence::Switching(other.id()).into());
    leaving.pin().set_hazard(Hazard::space(&raw const space));
    assert!(leaving.pin().trim_cpumask(&space));
    assert_eq!(members(&engine, cpumask), [1, 2]);
}

#[test]
fn trimming_mask_reads_both_sets_and_excludes_trim() {
    let engine = engine();
    let (machine, space) = (engine.machine(), engine.space(Root(0)));
    let cpumask = &space.cpumask;
    for epoch in 0..3 {
        for state in [Phase::CLEARING, Phase::TRIMMING] {
            cpumask.sets.iter().for_each(|set| set.clear(machine));
            let phase = Phase((epoch << 10) | (3 * Phase::DEVICE) | state);
            assert_eq!((phase.epoch(), phase.device_count()), (epoch, 3));
            assert!(!phase.is_stable() && !phase.is_plain());
            cpumask.phase.store(phase.0, Relaxed);
            assert!(!cpumask.trim(machine, |_| true));
            assert_eq!(cpumask.phase.load(Relaxed), phase.0);

            let both = epoch + u64::from(phase.is_trimming());
            cpumask.set(epoch).insert(CpuId(1));
            cpumask.set(epoch + 1).insert(CpuId(2));
            let expected: &[u32] = if state == Phase::TRIMMING { &[1, 2] } else { &[1] };
            assert_eq!(members(&engine, cpumask), expected);
            cpumask.register(machine, CpuId(3));
            assert!(cpumask.set(both).contains(CpuId(3)));
            assert!(!cpumask.set(both + 1).contains(CpuId(3)));
        }
    }
}

#[test]
fn eight_wasted_probes_per_cpu_make_mask_stale() {
    assert!(CpuMask::<Machine, [u64; 1]>::is_stale(24, 3));
    assert!(!CpuMask::<Machine, [u64; 1]>::is_stale(23, 3));
}
