use super::*;
use crate::base::ids::{CpuId, Root};
use crate::parts::flush_log::LOG_ENTRIES;
use crate::parts::presence::Presence;
use crate::parts::stats::CpuStats;
use crate::soft::{Config, Host, Soft};
use crate::state::broadcaster::Reach;
use crate::state::engine::Shootdown;

use std::boxed::Box;

type Machine = Soft<Host>;

/// An engine with four CPUs online.
fn engine() -> Shootdown<Machine> {
    let engine = Soft::engine(Config { cpus: 4, ..Config::default() });
    (0..4).for_each(|cpu| engine.enter(CpuId(cpu)).pin().online());
    engine
}

#[test]
fn cpu_offline_before_its_ring_is_a_wasted_probe() {
    let engine = engine();
    let space = engine.space(Root(0));
    let machine = engine.machine();
    for cpu in 1..4 {
        space.cpumask.register(machine, CpuId(cpu));
        let cpu = engine.enter(CpuId(cpu));
        cpu.pin().set_presence(Presence::Active(space.id()).into());
    }
    for cpu in [1, 3] {
        engine.cpu(CpuId(cpu)).bell.disconnect(machine, || ());
    }
    engine.enter(CpuId(2)).pin().set_presence(Presence::Out.into());
    let zero = engine.enter(CpuId(0));
    assert!(zero.pin().flush(&space, Extent::page(0)).poll(), "there is no CPU to wait for");
    let stats = engine.cpu(CpuId(0)).stats();
    assert_eq!((stats.interrupts_sent, stats.skipped_elsewhere), (0, 3));
    assert_eq!(space.stats(machine).skipped_elsewhere, 3);
}

/// The CPU has missed no other flush, and does not read the log.
#[test]
fn local_flush_invalidates_by_page_and_logs_nothing() {
    check_local_flush(Config::default());
    check_local_flush(Config::default().with_broadcasts(15));
}

fn check_local_flush(config: Config) {
    let engine: Shootdown<Machine> = Soft::engine(config);
    engine.enter(CpuId(0)).pin().online();
    let space = engine.space(Root(0));
    let zero = engine.enter(CpuId(0));
    let pin = zero.pin();
    #[expect(unsafe_code, reason = "the space outlives its CPU's use of it")]
    // SAFETY: the space outlives the CPUs' use of it, and does not move.
    unsafe {
        pin.switch(&space);
    }
    let before = engine.cpu(CpuId(0)).stats();
    for page in 1..4 {
        pin.flush(&space, Extent::page(page << 12)).wait();
    }
    let after = engine.cpu(CpuId(0)).stats();
    assert_eq!(after.pages_invalidated - before.pages_invalidated, 3);
    assert_eq!(after.flushes_ranged - before.flushes_ranged, 3);
    assert_eq!(after.flushes_local - before.flushes_local, 3);
    assert_eq!(after.flushes_full, before.flushes_full);
    let everything = space.log.missed(engine.machine(), 2, 3, pin.ceiling_at_work());
    assert_eq!(everything, crate::parts::flush_log::Missed::Everything);
    // More pages than the ceiling.
    pin.flush(&space, Extent::pages(0, 34, crate::parts::extent::PageSize::SIZE_4K)).wait();
    assert_eq!(engine.cpu(CpuId(0)).stats().flushes_full, before.flushes_full + 1);
}

#[test]
fn gathered_kernel_flush_interrupts_each_cpu_once() {
    let engine = engine();
    let zero = engine.enter(CpuId(0));
    let mut extents = ExtentSet::new();
    assert!(zero.pin().flush_kernel_gathered(&extents).poll(), "there is nothing to flush");
    extents.add(Extent::page(0x1000));
    extents.add(Extent::page(0x9000));
    let flush = |extents: &ExtentSet| {
        let mut pending = zero.pin().flush_kernel_gathered(extents);
        assert!(!pending.poll());
        (1..4).for_each(|cpu| engine.enter(CpuId(cpu)).pin().handle_flush_ipi());
        assert!(pending.poll());
    };
    flush(&extents);
    let stats = |cpu| engine.cpu(CpuId(cpu)).stats();
    assert_eq!(stats(0).interrupts_sent, 3);
    for cpu in 0..4 {
        let CpuStats { flushes_ranged, pages_invalidated, flushes_full, .. } = stats(cpu);
        assert_eq!((flushes_ranged, pages_invalidated, flushes_full), (2, 2, 0));
    }
    // More pages than the ceiling: everything, in one flush.
    extents.add(Extent::pages(0x10_0000, 33, crate::parts::extent::PageSize::SIZE_4K));
    flush(&extents);
    assert_eq!(engine.kernel().generation(engine.machine()), 3);
    assert!((0..4).all(|cpu| stats(cpu).flushes_full == 1));
}

#[test]
fn trim_cpumask_removes_absent_cpus() {
    let engine = engine();
    let space = engine.space(Root(0));
    let machine = engine.machine();
    space.cpumask.register(machine, CpuId(1));
    let zero = engine.enter(CpuId(0));
    assert!(zero.pin().flush(&space, Extent::page(0)).poll());
    assert!(zero.pin().trim_cpumask(&space));
    let mut members = CpuSet::new();
    space.cpumask.read_into(machine, &mut members);
    assert!(members.is_empty());
    assert_eq!((space.stats(machine).cpumask_trims, space.wasted_at_trim.read()), (1, 1));
}

/// The machine cannot invalidate ranges: neither on a CPU nor on a device.
#[test]
fn long_extent_drops_the_tag_without_ranges() {
    let engine = engine();
    let space = engine.space(Root(0));
    let zero = engine.enter(CpuId(0));
    #[expect(unsafe_code, reason = "the space outlives its CPU's use of it")]
    // SAFETY: the space outlives the CPUs' use of it, and does not move.
    unsafe {
        zero.pin().switch(&space);
    }
    let flushes = || engine.cpu(CpuId(0)).stats().flushes_full;
    let before = flushes();
    let mut extents = ExtentSet::new();
    // Eight larger pages.
    let long = Extent::long(0..4096 << 12, crate::parts::extent::PageSize::SIZE_4K);
    zero.pin().flush(&space, long).wait();
    extents.add(Extent::page(1 << 40));
    extents.add(long);
    assert_eq!(extents.as_slice().len(), 2);
    zero.pin().flush_gathered(&space, &extents).wait();
    let mut pending = zero.pin().flush_kernel(long);
    (1..4).for_each(|cpu| engine.enter(CpuId(cpu)).pin().handle_flush_ipi());
    assert!(pending.poll());
    assert_eq!(flushes() - before, 3);
}

#[test]
fn users_have_the_space_loaded() {
    let engine = engine();
    let space = engine.space(Root(0));
    for cpu in 0..3 {
        #[expect(unsafe_code, reason = "the space outlives its CPUs' use of it")]
        // SAFETY: the space outlives the CPUs' use of it, and does not move.
        unsafe {
            engine.enter(CpuId(cpu)).pin().switch(&space);
        }
    }
    engine.enter(CpuId(1)).pin().enter_lazy();
    engine.enter(CpuId(2)).pin().leave_space();
    for cpu in [0, 3] {
        let mut users = std::vec::Vec::new();
        engine.enter(CpuId(cpu)).pin().for_each_user(&space, |user| users.push(user.0));
        assert_eq!(users, [0, 1]);
    }
}

/// An engine with two CPUs on a space, whose broadcasts have a gap: as many flushes as `missed`
/// were not broadcast, and neither CPU has caught up with them.
fn behind_a_gap(reach: Reach, missed: usize) -> (Shootdown<Machine>, Box<Space<Machine>>) {
    let config = match reach {
        Reach::Domains => Config::default().with_domains(15),
        _ => Config { broadcast: Some(reach), ..Config::default().with_broadcasts(15) },
    };
    let engine: Shootdown<Machine> = Soft::engine(config);
    let space = Box::new(engine.space(Root(0)));
    for cpu in 0..2 {
        let entered = engine.enter(CpuId(cpu));
        entered.pin().online();
        #[expect(unsafe_code, reason = "the space outlives its CPUs' use of it")]
        // SAFETY: the space outlives the CPUs' use of it, and its box does not move it.
        unsafe {
            entered.pin().switch(&space);
        }
    }
    space.log.bump(engine.machine(), missed as u64);
    (engine, space)
}

/// What CPU 0 counts during flushes of these extents.
fn counted(engine: &Shootdown<Machine>, space: &Space<Machine>, extents: &[Extent]) -> CpuStats {
    let before = engine.cpu(CpuId(0)).stats();
    let mut set = ExtentSet::new();
    for &extent in extents {
        set.add(extent);
    }
    engine.enter(CpuId(0)).pin().flush_gathered(space, &set).wait();
    let after = engine.cpu(CpuId(0)).stats();
    CpuStats {
        broadcasts_sent: after.broadcasts_sent - before.broadcasts_sent,
        flushes_full: after.flushes_full - before.flushes_full,
        pages_invalidated: after.pages_invalidated - before.pages_invalidated,
        ..CpuStats::default()
    }
}

const PAGES: [Extent; 2] = [Extent::page(0), Extent::page(0x4000)];

/// The CPU's own translations are dropped by the broadcast, and no CPU reads the log.
#[test]
fn broadcast_to_everyone_keeps_the_tag_and_logs_nothing() {
    let (engine, space) = behind_a_gap(Reach::Everyone, LOG_ENTRIES);
    for (extents, flushes) in [(&PAGES[..1], 1), (&PAGES, 2)] {
        let expected = CpuStats { broadcasts_sent: 1, ..CpuStats::default() };
        assert_eq!(counted(&engine, &space, extents), expected);
        let now = space.log.generation(engine.machine());
        assert!((now - flushes + 1..=now).all(|it| space.log.read(engine.machine(), it).is_none()));
    }
}

/// A broadcast by firmware or in domains does not reach this CPU, and CPUs that come back need the
/// log. Flushes of other CPUs have invalidated on this CPU; if the log does not reach back to them,
/// the CPU does not discard its tag again and again.
#[test]
fn broadcast_to_some_is_logged_and_its_cpu_invalidates_its_own_pages() {
    for reach in [Reach::Targets, Reach::Domains] {
        for (extents, pages) in [(&PAGES[..1], 1), (&PAGES, 2)] {
            // The oldest flush that was missed may be in the log.
            for missed in [LOG_ENTRIES - pages, LOG_ENTRIES - pages + 1] {
                let (engine, space) = behind_a_gap(reach, missed);
                let stays_behind = missed + pages > LOG_ENTRIES;
                let counted = counted(&engine, &space, extents);
                assert_eq!(counted.broadcasts_sent, 1);
                // The entries that were missed were never written, so catching up discards the tag.
                assert_eq!(counted.flushes_full == 0, stays_behind, "{reach:?}, {missed} missed");
                assert_eq!(counted.pages_invalidated, if stays_behind { pages as u64 } else { 0 });
                let now = space.log.generation(engine.machine());
                assert!(space.log.read(engine.machine(), now).is_some());
            }
        }
    }
}

/// A flush that the ceiling does not allow page by page catches up.
#[test]
fn long_flush_behind_a_gap_discards_the_tag() {
    let (engine, space) = behind_a_gap(Reach::Targets, LOG_ENTRIES);
    let long = Extent::pages(0, 34, crate::parts::extent::PageSize::SIZE_4K);
    assert_eq!(counted(&engine, &space, &[long]).flushes_full, 1);
}
