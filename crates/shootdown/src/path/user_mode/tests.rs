use crate::base::ids::{CpuId, Root};
use crate::parts::extent::{Extent, PageSize};
use crate::parts::flush_log::LOG_ENTRIES;
use crate::soft::{Config, Host, Soft};
use crate::state::engine::Shootdown;

/// An engine with three CPUs online, the last of them in user mode.
fn engine(config: Config) -> Shootdown<Soft<Host>> {
    let engine = Soft::engine(Config { cpus: 3, ..config });
    (0..3).for_each(|cpu| engine.enter(CpuId(cpu)).pin().online());
    engine.enter(CpuId(2)).pin().enter_user();
    engine
}

/// Flushes `extent` of the kernel on CPU 0, and returns the number of CPUs that must answer.
fn rung(engine: &Shootdown<Soft<Host>>, extent: Extent) -> usize {
    let cpus = [0, 1, 2].map(|cpu| engine.enter(CpuId(cpu)));
    let mut pending = cpus[0].pin().flush_kernel(extent);
    let before = engine.machine().total_stats().answers;
    for cpu in &cpus {
        cpu.interrupt_point();
    }
    assert!(pending.poll());
    (engine.machine().total_stats().answers - before) as usize
}

#[test]
fn cpu_in_user_mode_is_skipped_and_counted() {
    let engine = engine(Config::default());
    assert_eq!(rung(&engine, Extent::page(0)), 1);
    assert_eq!(engine.cpu(CpuId(0)).stats().skipped_in_user, 1);
    engine.enter(CpuId(2)).pin().enter_kernel();
    assert_eq!(rung(&engine, Extent::page(0)), 2);
    assert_eq!(engine.cpu(CpuId(0)).stats().skipped_in_user, 1);
}

#[test]
fn tables_and_entry_pages_ring_user_mode() {
    let engine = engine(Config { entry_page: Some(1), ..Config::default() });
    assert_eq!(rung(&engine, Extent::page(0).freeing_tables()), 2);
    assert_eq!(rung(&engine, Extent::page(0x1000)), 2);
    assert_eq!(rung(&engine, Extent::page(0x2000)), 1);
    assert_eq!(rung(&engine, Extent::pages(0, 4, PageSize::SIZE_4K)), 2);
    assert_eq!(rung(&engine, Extent::whole()), 2);
}

#[test]
fn cpu_enters_kernel_from_log_up_to_its_length() {
    for (missed, ranged, full) in
        [(0, 0, 0), (1, 1, 0), (LOG_ENTRIES, LOG_ENTRIES as u64, 0), (LOG_ENTRIES + 1, 0, 1)]
    {
        let engine = engine(Config::default());
        let before = engine.cpu(CpuId(2)).stats();
        for page in 0..missed as u64 {
            assert_eq!(rung(&engine, Extent::page(page << 12)), 1);
        }
        assert_eq!(engine.cpu(CpuId(2)).stats(), before);
        engine.enter(CpuId(2)).pin().enter_kernel();
        let after = engine.cpu(CpuId(2)).stats();
        assert_eq!(after.flushes_ranged - before.flushes_ranged, ranged, "{missed} missed");
        assert_eq!(after.flushes_full - before.flushes_full, full, "{missed} missed");
    }
}

#[test]
fn flush_of_loaded_space_rings_user_mode() {
    let engine = engine(Config::default());
    let space = engine.space(Root(0));
    let (zero, two) = (engine.enter(CpuId(0)), engine.enter(CpuId(2)));
    two.pin().enter_kernel();
    #[expect(unsafe_code, reason = "the space outlives its CPUs' use of it")]
    // SAFETY: the space outlives the CPU's use of it, and does not move.
    unsafe {
        two.pin().switch(&space);
    }
    two.pin().enter_user();
    let mut pending = zero.pin().flush(&space, Extent::page(0));
    assert!(!pending.poll());
    two.interrupt_point();
    assert!(pending.poll());
}

#[test]
fn stopped_cpu_comes_back_in_the_kernel() {
    let engine = engine(Config::default());
    let (zero, two) = (engine.enter(CpuId(0)), engine.enter(CpuId(2)));
    two.halt();
    #[expect(unsafe_code, reason = "the CPU has stopped")]
    // SAFETY: CPU 2 does nothing until it comes online, and runs on this thread.
    unsafe {
        zero.pin().disconnect(CpuId(2));
    }
    two.pin().online();
    drop((zero, two));
    assert_eq!(rung(&engine, Extent::page(0)), 2);
}

#[test]
#[should_panic(expected = "CPU 2 is in user mode: call `enter_kernel` first")]
fn flush_in_user_mode_panics() {
    let engine = engine(Config::default());
    let _ = engine.enter(CpuId(2)).pin().flush_kernel(Extent::page(0));
}

#[test]
#[should_panic(expected = "CPU 2 is in user mode: call `enter_kernel` first")]
fn handler_in_user_mode_panics() {
    let engine = engine(Config::default());
    engine.enter(CpuId(2)).pin().handle_flush_ipi();
}

#[test]
#[should_panic(expected = "CPU 2 is in user mode: call `enter_kernel` first")]
fn user_mode_in_user_mode_panics() {
    let engine = engine(Config::default());
    engine.enter(CpuId(2)).pin().enter_user();
}
