//! Random programs, whose every step is compared with the pages that CPUs may use.

use proptest::prelude::*;
use shootdown::soft::{Config, Touch};
use shootdown::{Extent, PageSize, Reach, Tagging};

use crate::{CONFIG, System, page_at};

/// A machine with a random number of tags of any kind; with global tags, broadcasts of any reach.
/// The costs make the engine choose interrupts, broadcasts, or each in turn.
fn tags() -> impl Strategy<Value = Config> {
    let reach = prop_oneof![Just(None), Just(Some(Reach::Everyone)), Just(Some(Reach::Targets))];
    let costs_swap_after = prop_oneof![Just(0), Just(3), Just(8)];
    let interrupt_ns = prop_oneof![Just(0), Just(1)];
    let global =
        (prop::sample::select(vec![0, 3, 4, 6, 15, 60]), reach, costs_swap_after, interrupt_ns)
            .prop_map(|(tags, broadcast, costs_swap_after, interrupt_ns)| {
                let mut costs = CONFIG.costs;
                (costs.interrupt_ns, costs.broadcast_ns) = (interrupt_ns, 1 - interrupt_ns);
                Config {
                    tags,
                    tagging: Tagging::Global,
                    broadcast,
                    costs,
                    costs_swap_after,
                    ..CONFIG
                }
            });
    let renamed = prop::sample::select(vec![0, 1, 2, 6, 15]).prop_map(|tags| Config {
        tags,
        tagging: Tagging::Renamed,
        ..CONFIG
    });
    prop_oneof![
        2 => (0usize..4).prop_map(|tags| Config { tags, ..CONFIG }),
        4 => global,
        2 => renamed,
    ]
}

/// One step of a random program.
#[derive(Clone, Copy, Debug)]
enum Step {
    Switch(u32, usize),
    Lazy(u32),
    Leave(u32),
    Touch(u32, usize),
    Replace(u32, usize, usize, usize),
    FreeTables(u32, usize),
    ReplaceKernel(u32, usize),
    TouchKernel(u32, usize),
    Trim(u32, usize),
    Cycle(u32),
}

fn step() -> impl Strategy<Value = Step> {
    // Three spaces are used most; the others make tags run out.
    let (cpu, page) = (0u32..3, 0usize..6);
    let space = prop_oneof![3 => 0usize..3, 1 => 3usize..8];
    prop_oneof![
        4 => (cpu.clone(), space.clone()).prop_map(|(cpu, space)| Step::Switch(cpu, space)),
        3 => cpu.clone().prop_map(Step::Lazy),
        1 => cpu.clone().prop_map(Step::Leave),
        8 => (cpu.clone(), page.clone()).prop_map(|(cpu, page)| Step::Touch(cpu, page)),
        6 => (cpu.clone(), space.clone(), page.clone(), 1usize..40)
            .prop_map(|(cpu, space, page, count)| Step::Replace(cpu, space, page, count)),
        1 => (cpu.clone(), space.clone()).prop_map(|(cpu, space)| Step::FreeTables(cpu, space)),
        1 => (cpu.clone(), page.clone()).prop_map(|(cpu, page)| Step::ReplaceKernel(cpu, page)),
        2 => (cpu.clone(), page).prop_map(|(cpu, page)| Step::TouchKernel(cpu, page)),
        1 => (cpu.clone(), space).prop_map(|(cpu, space)| Step::Trim(cpu, space)),
        1 => cpu.prop_map(Step::Cycle),
    ]
}

/// Maximum number of steps of a program.
const STEPS: usize = if cfg!(miri) { 40 } else { 150 };

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 1 } else { 512 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// In random programs, no CPU uses a freed page or walks a freed table. A flush of pages
    /// interrupts exactly the CPUs that use the space, unless it is broadcast.
    #[test]
    fn random_programs_use_no_freed_memory(
        config in tags(), steps in prop::collection::vec(step(), 1..STEPS)
    ) {
        let system: System = System::new(Config { tables: 8, pages: 6, ..config });
        let machine = system.engine.machine();
        let mut used = [None; 3];
        for step in steps {
            match step {
                Step::Switch(cpu, space) => {
                    system.switch(cpu, space);
                    used[cpu as usize] = Some(space);
                }
                Step::Lazy(cpu) => {
                    system.cpu(cpu).pin().enter_lazy();
                    used[cpu as usize] = None;
                }
                Step::Leave(cpu) => {
                    system.cpu(cpu).pin().leave_space();
                    used[cpu as usize] = None;
                }
                Step::Touch(cpu, page) => {
                    if used[cpu as usize].is_some() {
                        prop_assert_eq!(system.cpu(cpu).touch(page), Touch::Ok);
                    }
                }
                Step::Replace(cpu, space, page, count) => {
                    machine.unmap(&system.spaces[space], page);
                    let address = (page as u64) << 12;
                    let extent = Extent::pages(address, count, PageSize::SIZE_4K);
                    let interrupts = system.stats(cpu).interrupts_sent;
                    let broadcasts = system.stats(cpu).broadcasts_sent;
                    system.flush(cpu, space, extent);
                    let others = (0..3).filter(|&other| other != cpu);
                    let active = others.filter(|&other| used[other as usize] == Some(space));
                    let sent = system.stats(cpu).interrupts_sent - interrupts;
                    let was_broadcast = system.stats(cpu).broadcasts_sent != broadcasts;
                    prop_assert_eq!(sent, if was_broadcast { 0 } else { active.count() as u64 });
                    machine.free(&system.spaces[space], page);
                    machine.map(&system.spaces[space], page);
                }
                Step::FreeTables(cpu, space) => {
                    machine.unhook_tables(&system.spaces[space]);
                    system.flush(cpu, space, page_at(0).freeing_tables());
                    machine.free_tables(&system.spaces[space]);
                }
                Step::ReplaceKernel(cpu, page) => {
                    machine.unmap_kernel(page);
                    let mut pending = system.cpu(cpu).pin().flush_kernel(page_at(page as u64));
                    (0..3).for_each(|other| system.cpu(other).interrupt_point());
                    // The wait is on `cpu`, which must complete its broadcast.
                    let _ = system.cpu(cpu).pin();
                    pending.wait();
                    machine.free_kernel(page);
                    machine.map_kernel(page);
                }
                Step::TouchKernel(cpu, page) => {
                    prop_assert_eq!(system.cpu(cpu).touch_kernel(page), Touch::Ok);
                }
                Step::Trim(cpu, space) => {
                    system.cpu(cpu).pin().trim_cpumask(&system.spaces[space]);
                }
                Step::Cycle(cpu) => {
                    system.cpu(cpu).pin().offline();
                    system.cpu(cpu).pin().online();
                    used[cpu as usize] = None;
                }
            }
            (0..3).for_each(|cpu| system.cpu(cpu).speculate());
            prop_assert_eq!(machine.freed_table_walks(), 0);
        }
    }
}
