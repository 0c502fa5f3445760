//! The engine's interrupts, flushes and statistics, on one thread; and random programs.

#![expect(unsafe_code, reason = "switching is unsafe")]

mod costs;
mod devices;
mod measured;
mod random;
mod steps;

use std::ptr::NonNull;

use shootdown::soft::{Config, Host, OnCpu, Soft, Touch};
use shootdown::{
    Batch, CpuId, CpuSet, CpuStats, Extent, ExtentSet, Gather, Horizon, NotifyCosts, PageSize,
    Presence, Quarantine, Root, Shootdown, Space, StaleWrites, StallReport, VcpuWord,
};

type Machine<const WORDS: usize = 1> = Soft<Host, WORDS>;

const CONFIG: Config = Config { cpus: 3, tables: 8, pages: 64, tags: 6, ..Config::DEFAULT };

/// An engine with all CPUs online, and spaces with all pages mapped.
struct System<const WORDS: usize = 1> {
    engine: Shootdown<Machine<WORDS>>,
    spaces: Vec<Space<Machine<WORDS>>>,
}

impl<const WORDS: usize> System<WORDS> {
    fn new(config: Config) -> Self {
        let engine = Machine::engine(config);
        let spaces: Vec<_> =
            (0..config.tables).map(|table| engine.space(Root(table as u64))).collect();
        for page in 0..config.pages {
            spaces.iter().for_each(|space| engine.machine().map(space, page));
            engine.machine().map_kernel(page);
        }
        let system = Self { engine, spaces };
        (0..config.cpus).for_each(|cpu| system.cpu(cpu).pin().online());
        system
    }

    fn cpu(&self, cpu: u32) -> OnCpu<'_, Host, WORDS> {
        self.engine.enter(CpuId(cpu))
    }

    fn switch(&self, cpu: u32, space: usize) {
        // SAFETY: the spaces live as long as the engine, and do not move.
        unsafe { self.cpu(cpu).pin().switch(&self.spaces[space]) };
    }

    /// Flushes on `cpu`, handles the interrupts on all CPUs that are interrupted, and waits.
    fn flush(&self, cpu: u32, space: usize, extent: Extent) {
        let mut pending = self.cpu(cpu).pin().flush(&self.spaces[space], extent);
        for rung in pending.waiting().iter() {
            self.cpu(rung.0).interrupt_point();
        }
        // The wait is on `cpu`, which must complete its broadcast.
        let _ = self.cpu(cpu).pin();
        pending.wait();
    }

    fn stats(&self, cpu: u32) -> CpuStats {
        self.engine.cpu(CpuId(cpu)).stats()
    }

    fn presence(&self, cpu: u32) -> Presence {
        self.engine.cpu(CpuId(cpu)).presence(self.engine.machine())
    }
}

fn page_at(page: u64) -> Extent {
    Extent::page(page << 12)
}

/// Invariant 4: only CPUs that use the space are interrupted for a flush of pages.
#[test]
fn only_active_cpus_are_interrupted() {
    let system: System = System::new(CONFIG);
    system.switch(1, 0);
    system.switch(2, 0);
    system.cpu(1).pin().enter_lazy();
    system.switch(2, 1);
    system.flush(0, 0, page_at(0));
    system.flush(0, 0, Extent::whole());
    let stats = system.spaces[0].stats(system.engine.machine());
    let sender = system.stats(0);
    assert_eq!((sender.interrupts_sent, sender.skipped_lazy, sender.skipped_elsewhere), (0, 2, 2));
    assert_eq!(stats.skipped_elsewhere, 2);
    assert_eq!((stats.flushes_ranged, stats.flushes_full), (1, 1));
    assert_eq!(system.stats(0).flushes_local, 2);
    assert_eq!(system.stats(1).answers + system.stats(2).answers, 0);

    system.switch(1, 0);
    system.flush(0, 0, page_at(0));
    assert_eq!(system.stats(0).interrupts_sent, 1);
    assert_eq!(system.stats(1).answers, 1);
}

#[test]
fn present_cpus_are_notified_in_the_cheaper_way() {
    for (interrupt_ns, broadcast_ns) in [(9, 100), (100, 9)] {
        let costs = NotifyCosts { interrupt_ns, broadcast_ns, ..CONFIG.costs };
        let system: System = System::new(Config { costs, ..CONFIG.with_broadcasts(15) });
        system.switch(1, 0);
        system.flush(0, 0, page_at(0));
        let stats = system.stats(0);
        let interrupts = u64::from(interrupt_ns < broadcast_ns);
        assert_eq!((stats.interrupts_sent, stats.broadcasts_sent), (interrupts, 1 - interrupts));
    }
}

/// A broadcast interrupts no CPU, and a CPU that comes back from idle does not catch up with it.
#[test]
fn broadcast_leaves_nothing_to_catch_up() {
    let system: System = System::new(CONFIG.with_broadcasts(15));
    system.switch(1, 0);
    let before = system.stats(1);
    system.flush(0, 0, page_at(0));
    system.cpu(1).pin().enter_lazy();
    system.switch(1, 0);
    assert_eq!(system.stats(1), before);
    let mut kernel = system.cpu(0).pin().flush_kernel(page_at(0));
    kernel.wait();
    let stats = system.stats(0);
    assert_eq!((stats.interrupts_sent, stats.broadcasts_sent), (0, 2));
}

#[test]
fn two_rings_share_one_interrupt() {
    let system: System = System::new(CONFIG);
    system.switch(2, 0);
    let mut first = system.cpu(0).pin().flush(&system.spaces[0], page_at(0));
    first.join(system.cpu(1).pin().flush(&system.spaces[0], page_at(1)));
    system.cpu(2).interrupt_point();
    first.wait();
    let stats = system.engine.machine().total_stats();
    assert_eq!((stats.interrupts_sent, stats.rings_coalesced), (1, 1));
    assert_eq!((system.stats(2).answers, system.stats(2).pages_invalidated), (1, 2));
}

#[test]
fn interrupted_cpu_invalidates_the_range_it_missed() {
    let system: System = System::new(CONFIG);
    system.switch(1, 0);
    let before = system.stats(1);
    system.flush(0, 0, Extent::pages(0, 3, PageSize::SIZE_4K));
    let after = system.stats(1);
    assert_eq!(after.flushes_full, before.flushes_full);
    assert_eq!(after.flushes_ranged - before.flushes_ranged, 1);
    assert_eq!(after.pages_invalidated - before.pages_invalidated, 3);
}

#[test]
fn batch_without_others_is_local() {
    let system: System = System::new(CONFIG);
    let (machine, zero) = (system.engine.machine(), system.cpu(0));
    let before = system.stats(0);
    let mut batch: Batch<_, Vec<u64>> = Batch::new();
    for space in &system.spaces[..2] {
        let entry = batch.space(machine, &space).unwrap();
        entry.unmapped(&zero.pin(), page_at(4), StaleWrites::Impossible).wait();
    }
    batch.send(&zero.pin()).wait();
    assert_eq!(system.stats(0).flushes_local - before.flushes_local, 2);
}

#[test]
fn gathered_flush_without_others_is_local() {
    for config in [CONFIG, CONFIG.with_broadcasts(15)] {
        let system: System = System::new(config);
        system.switch(0, 0);
        let before = system.stats(0);
        let mut extents = ExtentSet::new();
        let flush = |extents: &ExtentSet| {
            system.cpu(0).pin().flush_gathered(&system.spaces[0], extents).wait();
        };
        [page_at(1), page_at(9)].into_iter().for_each(|extent| extents.add(extent));
        flush(&extents);
        let after = system.stats(0);
        assert_eq!(after.flushes_local - before.flushes_local, 1);
        assert_eq!(after.flushes_full, before.flushes_full);
        assert_eq!(after.flushes_ranged - before.flushes_ranged, 2);
        assert_eq!(after.pages_invalidated - before.pages_invalidated, 2);
        // More pages than the ceiling: everything.
        extents.add(Extent::pages(0x2_0000, 33, PageSize::SIZE_4K));
        flush(&extents);
        assert_eq!(system.stats(0).flushes_full - before.flushes_full, 1);
        assert_eq!(system.stats(0).pages_invalidated, after.pages_invalidated);
    }
}

#[test]
fn cpu_catches_up_range_by_range() {
    let system: System = System::new(CONFIG);
    system.switch(1, 0);
    for _ in 0..2 {
        system.cpu(1).pin().enter_lazy();
        let before = system.stats(1);
        for page in 0..16 {
            system.flush(0, 0, Extent::pages(page << 12, 2, PageSize::SIZE_4K));
        }
        system.switch(1, 0);
        let after = system.stats(1);
        assert_eq!(after.flushes_full, before.flushes_full);
        assert_eq!(after.caught_up_from_log - before.caught_up_from_log, 16);
        assert_eq!(after.pages_invalidated - before.pages_invalidated, 32);
    }
}

#[test]
fn repeated_flushes_of_a_page_invalidate_once() {
    let system: System = System::new(CONFIG);
    system.switch(1, 0);
    system.cpu(1).pin().enter_lazy();
    let before = system.stats(1);
    let pages = |count| Extent::pages(0x1000, count, PageSize::SIZE_4K);
    // No earlier extent contains the last one.
    for extent in [pages(2), pages(2), page_at(2), pages(1), pages(3)] {
        system.flush(0, 0, extent);
    }
    system.switch(1, 0);
    let after = system.stats(1);
    assert_eq!(after.flushes_full, before.flushes_full);
    assert_eq!(after.caught_up_from_log - before.caught_up_from_log, 5);
    assert_eq!(after.pages_invalidated - before.pages_invalidated, 2 + 3);
}

/// Invariant 5: a CPU catches up range by range only if it knows all ranges. The cases are more
/// flushes than log entries, more pages than the ceiling, and a whole flush among the missed ones.
#[test]
fn incomplete_or_large_log_flushes_whole_tag() {
    let missed: [&[Extent]; 3] = [
        &[page_at(1); 17],
        &[Extent::pages(0, 17, PageSize::SIZE_4K), Extent::pages(0x11000, 17, PageSize::SIZE_4K)],
        &[page_at(1), Extent::whole(), page_at(2)],
    ];
    for missed in missed {
        for leave in [false, true] {
            let system: System = System::new(CONFIG);
            system.switch(1, 0);
            if leave {
                system.switch(1, 1);
            } else {
                system.cpu(1).pin().enter_lazy();
            }
            let before = system.stats(1);
            missed.iter().for_each(|&extent| system.flush(0, 0, extent));
            system.switch(1, 0);
            assert_eq!(system.stats(1).flushes_full - before.flushes_full, 1, "{missed:?}");
            assert_eq!(system.stats(1).pages_invalidated, before.pages_invalidated);
        }
    }
}

#[test]
fn tags_keep_translations_across_switches() {
    let system: System = System::new(CONFIG);
    for space in 0..6 {
        system.switch(1, space);
    }
    let before = system.stats(1);
    for space in 0..6 {
        system.switch(1, space);
    }
    let after = system.stats(1);
    assert_eq!(after.switches_without_flush - before.switches_without_flush, 6);
    assert_eq!(after.flushes_full, before.flushes_full);
    assert_eq!(after.tags_taken, 6);
    system.flush(0, 3, page_at(0));
    system.switch(1, 3);
    system.switch(1, 4);
    assert_eq!(system.stats(1).switches_flushed - after.switches_flushed, 1);

    let untagged: System = System::new(Config { tags: 0, ..CONFIG });
    untagged.switch(1, 0);
    untagged.switch(1, 1);
    untagged.switch(1, 0);
    assert_eq!(untagged.stats(1).switches_without_flush, 0);
}

#[test]
fn lazy_cpu_leaves_space_with_freed_tables() {
    let system: System = System::new(CONFIG);
    system.switch(1, 0);
    system.cpu(1).pin().enter_lazy();
    assert!(matches!(system.presence(1), Presence::Lazy(_)));
    for _ in 0..3 {
        system.flush(0, 0, Extent::whole().freeing_tables());
        assert_eq!(system.presence(1), Presence::Out);
    }
    assert_eq!(system.stats(1).answers, 1);
}

/// A lazy CPU could walk to an entry of the new size while it has the old one cached.
#[test]
fn lazy_cpu_leaves_for_resize_unless_tolerated() {
    for tolerates_mixed_sizes in [false, true] {
        let system: System = System::new(Config { tolerates_mixed_sizes, ..CONFIG });
        system.switch(1, 0);
        system.cpu(1).pin().enter_lazy();
        let mut pending = system.cpu(0).pin().flush_for_resize(&system.spaces[0], page_at(0));
        assert_eq!(pending.waiting().contains(CpuId(1)), !tolerates_mixed_sizes);
        system.cpu(1).interrupt_point();
        pending.wait();
        assert_eq!(system.presence(1) == Presence::Out, !tolerates_mixed_sizes);
    }
}

/// The CPU was rung before it went lazy, and handles the interrupt while it is lazy.
#[test]
fn lazy_cpu_stays_on_flush_of_pages() {
    let system: System = System::new(CONFIG);
    system.switch(1, 0);
    let mut pending = system.cpu(0).pin().flush(&system.spaces[0], page_at(0));
    system.cpu(1).pin().enter_lazy();
    system.cpu(1).interrupt_point();
    pending.wait();
    assert!(matches!(system.presence(1), Presence::Lazy(_)));
}

/// Invariant 8: an offline CPU misses no flush, and no CPU waits for it.
#[test]
fn offline_cpu_is_not_waited_for() {
    let system: System = System::new(CONFIG);
    system.switch(1, 0);
    assert_eq!(system.cpu(1).touch(0), Touch::Ok);
    assert_eq!(system.cpu(1).touch_kernel(0), Touch::Ok);
    system.cpu(1).pin().offline();

    let machine = system.engine.machine();
    machine.unmap(&system.spaces[0], 0);
    machine.unmap_kernel(0);
    system.cpu(0).pin().flush(&system.spaces[0], page_at(0)).wait();
    system.flush_kernel_alone();
    machine.free(&system.spaces[0], 0);
    machine.free_kernel(0);

    system.cpu(1).pin().online();
    system.switch(1, 0);
    assert_eq!(system.cpu(1).touch(0), Touch::Fault);
    assert_eq!(system.cpu(1).touch_kernel(0), Touch::Fault);
}

#[test]
fn flush_of_the_whole_kernel_drops_its_pages() {
    let system: System = System::new(CONFIG);
    let machine = system.engine.machine();
    assert_eq!(system.cpu(1).touch_kernel(0), Touch::Ok);
    machine.unmap_kernel(0);
    let pending = system.cpu(0).pin().flush_kernel(Extent::whole());
    [1, 2].into_iter().for_each(|cpu| system.cpu(cpu).interrupt_point());
    drop(pending);
    machine.free_kernel(0);
    assert_eq!(system.cpu(1).touch_kernel(0), Touch::Fault);
}

impl System {
    fn flush_kernel_alone(&self) {
        let mut pending = self.cpu(0).pin().flush_kernel(page_at(0));
        // CPU 2 is online and runs the kernel, as every CPU does.
        assert_eq!(pending.waiting().iter().collect::<Vec<_>>(), [CpuId(2)]);
        self.cpu(2).interrupt_point();
        pending.wait();
    }
}

/// Machines that fill their words, with one CPU more, and with one CPU alone.
#[test]
#[cfg_attr(miri, ignore = "4097 CPUs are too many for miri")]
fn flush_and_retire_reach_all_cpus_of_any_machine() {
    fn check<const WORDS: usize>(cpus: u32) {
        let config = Config { cpus, tables: 1, pages: 1, tags: 1, ..CONFIG };
        let system: System<WORDS> = System::new(config);
        (0..cpus).for_each(|cpu| system.switch(cpu, 0));
        let others = u64::from(cpus) - 1;
        system.flush(0, 0, page_at(0));
        assert_eq!(system.stats(0).interrupts_sent, others, "{cpus} CPUs use the space");
        let answers = |cpu| system.stats(cpu).answers;
        assert!((1..cpus).all(|cpu| answers(cpu) == 1) && answers(0) == 0);
        system.cpu(0).pin().flush_kernel(page_at(0)).waiting().iter().for_each(|cpu| {
            system.cpu(cpu.0).interrupt_point();
        });
        assert!((1..cpus).all(|cpu| answers(cpu) == 2));
        (0..cpus).for_each(|cpu| system.cpu(cpu).pin().enter_lazy());
        system.flush(0, 0, page_at(0));
        assert_eq!(system.stats(0).skipped_lazy, others);
        // SAFETY: no CPU uses the space, which outlives the engine's use of it.
        unsafe { system.cpu(0).pin().retire(NonNull::from(&system.spaces[0])) }.wait();
        let reaping = system.cpu(cpus - 1).pin().reap();
        (0..cpus).for_each(|cpu| system.cpu(cpu).interrupt_point());
        reaping.wait();
        assert!((0..cpus).all(|cpu| system.presence(cpu) == Presence::Out));
    }
    check::<1>(1);
    check::<1>(64);
    check::<2>(65);
    check::<8>(512);
    check::<9>(513);
    check::<64>(4096);
    check::<65>(4097);
}

/// On a machine of 4096 CPUs, a flush probes only CPUs that have run the space; and a CPU that has
/// long been elsewhere is trimmed from the mask.
#[test]
#[cfg_attr(miri, ignore = "4096 CPUs are too many for miri")]
fn flush_probes_only_cpus_in_the_mask() {
    const WORDS: usize = 64;
    let system: System<WORDS> = System::new(Config { cpus: 4096, tables: 2, pages: 1, ..CONFIG });
    let stats = || system.spaces[0].stats(system.engine.machine());
    for cpu in [0, 63, 64, 4095] {
        system.switch(cpu, 0);
    }
    system.flush(0, 0, page_at(0));
    assert_eq!((system.stats(0).interrupts_sent, stats().skipped_elsewhere), (3, 0));

    for cpu in [63, 64, 4095] {
        system.switch(cpu, 1);
    }
    for _ in 0..40 {
        system.flush(0, 0, page_at(0));
    }
    // Each flush wastes three probes, and eight wasted probes of each of the three CPUs are
    // allowed. So the CPU mask is trimmed after eight flushes.
    assert_eq!((stats().cpumask_trims, stats().skipped_elsewhere), (1, 24));
    assert_eq!(system.stats(0).interrupts_sent, 3);

    system.switch(4095, 0);
    system.flush(0, 0, page_at(0));
    assert_eq!(system.stats(0).interrupts_sent, 4);
}

/// Of the four CPUs in the mask, each flush skips one that is lazy and one that is elsewhere.
#[test]
fn mask_is_trimmed_after_eight_wasted_probes_per_member() {
    let system: System = System::new(Config { cpus: 5, ..CONFIG });
    (1..5).for_each(|cpu| system.switch(cpu, 0));
    system.cpu(3).pin().enter_lazy();
    system.switch(4, 1);
    let trims = |flushes: u64| {
        (0..flushes).for_each(|_| system.flush(0, 0, page_at(0)));
        system.spaces[0].stats(system.engine.machine()).cpumask_trims
    };
    assert_eq!(trims(4 * 8 - 1), 0);
    assert_eq!(trims(1), 1);
    assert_eq!(system.stats(0).skipped_elsewhere, 4 * 8);
}

/// The documentation of the types states their sizes, which an embedder pays for.
#[test]
fn sizes_are_as_documented() {
    use shootdown::CpuState;
    use std::mem::{align_of, size_of};
    assert_eq!(size_of::<CpuState<Machine>>(), 640);
    assert_eq!(size_of::<CpuState<Machine<8>>>(), 640);
    assert_eq!(size_of::<CpuState<Machine<64>>>(), 640);
    assert_eq!(align_of::<CpuState<Machine>>(), 64);
    assert_eq!(size_of::<Space<Machine>>(), 448);
    assert_eq!(size_of::<Space<Machine<2>>>(), 448);
    assert_eq!(size_of::<Space<Machine<3>>>(), 512);
    assert_eq!(size_of::<Space<Machine<8>>>(), 576);
    assert_eq!(size_of::<Space<Machine<64>>>(), 1472);
    // Some compilers lay these types out in one word less.
    assert!(size_of::<shootdown::Pending<'_, Machine<64>>>() <= 568);
    assert!(size_of::<shootdown::Pending<'_, Machine>>() <= 72);
}

/// The debug output is for people who examine a stuck kernel.
#[test]
fn debug_output_shows_the_state() {
    let system: System = System::new(CONFIG);
    system.switch(1, 0);
    let pin = system.cpu(0);
    let pin = pin.pin();
    assert_eq!(format!("{pin:?}"), "PinnedCpu { id: CpuId(0), presence: Out }");
    assert_eq!(format!("{:?}", system.engine), "Shootdown { online: [7], .. }");
    let space = &system.spaces[0];
    assert_eq!(format!("{space:?}"), "Space { id: 1, root: Root(0), .. }");
    let cpu = format!("{:?}", system.engine.cpu(CpuId(1)));
    assert!(
        cpu.starts_with("CpuState { stats: CpuStats { ") && cpu.contains(" switches: 1,"),
        "{cpu}"
    );

    let mut gather: Gather<Vec<u64>> = Gather::new();
    gather.page(0x3000, PageSize::SIZE_4K, 9);
    assert_eq!(format!("{gather:?}"), "Gather { extents: [0x3000+1x4K], .. }");
    let sent = gather.send(&pin, space);
    assert_eq!(format!("{sent:?}"), "Sent(Pending({1}))");
    system.cpu(1).interrupt_point();
    let flushed = format!("{:?}", sent.wait());
    assert_eq!(flushed, "Flushed { horizon: Horizon { space: 1, flush: 1, cleared: 1 }, .. }");

    let mut one = CpuSet::new();
    one.insert(CpuId(1));
    let report = format!("{:?}", StallReport::new(system.engine.machine(), &one));
    let bell = "[Unanswered { cpu: CpuId(1), bell: Quiet, presence: Active(1) }]";
    assert_eq!(report, bell);
    assert_eq!(format!("{:?}", VcpuWord::<Machine>::default()), "VcpuWord { .. }");

    let mut several = ExtentSet::new();
    [page_at(3), page_at(5)].into_iter().for_each(|extent| several.add(extent));
    let mut pending = pin.flush_gathered(space, &several);
    system.cpu(1).interrupt_point();
    let horizon = format!("{:?}", pending.horizon());
    assert_eq!(horizon, "Horizon { space: 1, flush: 3, cleared: 3 }");
    pending.wait();

    let mut quarantine: Quarantine<Vec<u64>> = Quarantine::new(9);
    quarantine.defer(Horizon::UNKNOWN, 3, vec![1, 2, 3]).unwrap();
    assert_eq!(format!("{quarantine:?}"), "{0: 3}");

    let mut batch: Batch<_, Vec<u64>> = Batch::new();
    let entry = batch.space(system.engine.machine(), &space).unwrap();
    assert_eq!(format!("{entry:?}"), "BatchEntry([])");
    entry.unmapped(&pin, page_at(4), StaleWrites::Impossible).wait();
    assert_eq!(format!("{batch:?}"), "[[0x4000+1x4K]]");
    let sent = batch.send(&pin);
    assert_eq!(format!("{sent:?}"), "SentBatch(Pending({1}))");
    system.cpu(1).interrupt_point();
    sent.wait();

    system.cpu(1).pin().enter_lazy();
    // SAFETY: no CPU uses the space any more, and it stays in place.
    let retiring = unsafe { pin.retire(NonNull::from(space)) };
    assert_eq!(format!("{retiring:?}"), "Retiring({})");
    retiring.wait();
    let reaping = pin.reap();
    assert_eq!(format!("{reaping:?}"), "Reaping({1})");
    system.cpu(1).interrupt_point();
    reaping.wait();
}
