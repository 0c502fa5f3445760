//! Invalidation of other CPUs' TLBs without their kernels: broadcasts and remote fences.

#![expect(clippy::single_range_in_vec_init, reason = "most flushes name one range")]

use std::cell::Cell;
use std::rc::Rc;

use shootdown_sim::{
    Affinity, BroadcastScope, FrameNumber, Machine, Purpose, RunEnd, Sim, TagEntries, ThreadSpec,
    Time, Touch,
};

const ROUND: &str = include_str!("../round.toml");
const BROADCAST: &str = "
[broadcast]
issue_ns = { value = 10, source = \"made up for tests\" }
complete_ns = { value = 1000, source = \"made up for tests\" }
cross_ns = { value = 0, source = \"made up for tests\" }
occupy_ns = { value = 1000, source = \"made up for tests\" }
victim_ns = { value = 0, source = \"made up for tests\" }
pages_per_operation = { value = 8, source = \"made up for tests\" }
page_ceiling = { value = 64, source = \"made up for tests\" }
";
const DOMAINS: &str = "
[domains]
cpus = { value = 1, source = \"made up for tests\" }
most = { value = 2, source = \"made up for tests\" }
complete_ns = { value = 400, source = \"made up for tests\" }
occupy_ns = { value = 300, source = \"made up for tests\" }
";
const REMOTE_FENCE: &str = "
[remote_fence]
call_ns = { value = 200, source = \"made up for tests\" }
each_ns = { value = 100, source = \"made up for tests\" }
target_ns = { value = 300, source = \"made up for tests\" }
deliver_ns = { value = 1000, source = \"made up for tests\" }
page_ceiling = { value = 1, source = \"made up for tests\" }
";
const PAGE: u64 = 0x1000;
const TAG: u16 = 7;

fn sim(sections: &str, cpus: usize) -> Rc<Sim> {
    let text = ROUND.replace("[topology]", "tagging = \"global\"\n\n[topology]") + sections;
    let machine = Machine::from_toml(&text).unwrap().with_cpus(cpus).unwrap();
    Rc::new(Sim::new(machine, 1 << 16, 64).unwrap())
}

fn on_cpu(sim: &Rc<Sim>, cpu: usize, body: impl FnOnce(&Sim) + 'static) {
    let spec = ThreadSpec { space: None, affinity: Affinity::Cpu(cpu) };
    let inside = Rc::clone(sim);
    sim.spawn(spec, move || body(&inside)).unwrap();
}

fn run(sim: &Sim) {
    assert_eq!(sim.run_until(Time::END), RunEnd::Done);
}

/// Page tables that map one page at [`PAGE`].
#[derive(Clone, Copy, Default)]
struct Tables {
    root: FrameNumber,
    middle: FrameNumber,
    leaf: FrameNumber,
    page: FrameNumber,
}

impl Tables {
    fn new(sim: &Sim) -> Self {
        let table = || sim.allocate(Purpose::Table).unwrap();
        let (root, upper, middle, leaf) = (table(), table(), table(), table());
        let page = sim.allocate(Purpose::Page).unwrap();
        for (from, to) in [(root, upper), (upper, middle), (middle, leaf)] {
            sim.update_entry(from, 0, |_| to << 12 | 7);
        }
        sim.update_entry(leaf, 1, |_| page << 12 | 7);
        Self { root, middle, leaf, page }
    }

    fn load(&self, sim: &Sim) {
        sim.load_root(self.root, TAG, TagEntries::Kept);
    }
}

fn read(sim: &Sim) -> bool {
    sim.touch(PAGE, Touch::Read).is_ok()
}

/// A step of a CPU that unmaps the page.
type Step = fn(&Sim);
const ISSUE: Step = |sim| sim.broadcast(TAG, BroadcastScope::Pages(&[PAGE..PAGE + 0x1000]));
const ISSUE_TAG: Step = |sim| sim.broadcast(TAG, BroadcastScope::Tag);
const ISSUE_ALL: Step = |sim| sim.broadcast(0, BroadcastScope::Everything);
const COMPLETE: Step = Sim::complete_broadcasts;

/// CPU 0 unmaps a page that both CPUs have cached. It executes `before` and `after` around the
/// change of the page table; then CPU 1 executes `elsewhere`, and CPU 0 ends the flush. Returns the
/// number of uses of the page after that.
fn unmap(before: &[Step], after: &[Step], elsewhere: &[Step]) -> u64 {
    let sim = sim(BROADCAST, 2);
    let tables = Rc::new(Cell::new(Tables::default()));
    let shared = Rc::clone(&tables);
    let (before, after, elsewhere) = (before.to_vec(), after.to_vec(), elsewhere.to_vec());
    on_cpu(&sim, 0, move |sim| {
        let tables = Tables::new(sim);
        shared.set(tables);
        tables.load(sim);
        assert!(read(sim));
        sim.spend(Time::from_ns(20_000));
        before.iter().for_each(|step| step(sim));
        assert!(read(sim), "the page is still mapped");
        sim.update_entry(tables.leaf, 1, |_| 0);
        let flush = sim.flush_began(tables.root, Some(PAGE..PAGE + 0x1000));
        after.iter().for_each(|step| step(sim));
        sim.spend(Time::from_ns(20_000));
        sim.flush_ended(flush);
        let _ = read(sim);
    });
    on_cpu(&sim, 1, move |sim| {
        sim.spend(Time::from_ns(15_000));
        tables.get().load(sim);
        assert!(read(sim));
        sim.spend(Time::from_ns(20_000));
        elsewhere.iter().for_each(|step| step(sim));
        sim.spend(Time::from_ns(40_000));
        let _ = read(sim);
    });
    run(&sim);
    sim.violations()
}

#[test]
fn completed_broadcast_removes_translations_everywhere() {
    for issue in [ISSUE, ISSUE_TAG, ISSUE_ALL] {
        assert_eq!(unmap(&[], &[issue, COMPLETE], &[]), 0);
        // Two, because the issuer's own TLB is stale like the other's.
        assert_eq!(unmap(&[], &[issue], &[]), 2, "not completed");
        assert_eq!(unmap(&[], &[issue], &[COMPLETE]), 2, "completed by another CPU");
    }
}

#[test]
fn broadcast_before_page_table_change_is_useless() {
    // CPU 0 reads the page between the issue and the change.
    assert_eq!(unmap(&[ISSUE, COMPLETE], &[], &[]), 1);
}

#[test]
fn entries_cached_after_the_issue_stay() {
    let sim = sim(BROADCAST, 1);
    on_cpu(&sim, 0, |sim| {
        let tables = Tables::new(sim);
        tables.load(sim);
        for issue in [ISSUE, ISSUE_TAG, ISSUE_ALL] {
            issue(sim);
            assert!(read(sim), "mapped");
            sim.update_entry(tables.leaf, 1, |_| 0);
            COMPLETE(sim);
            assert!(read(sim), "cached after the issue");
            sim.invalidate([PAGE].into_iter());
            assert!(!read(sim));
            sim.update_entry(tables.leaf, 1, |_| tables.page << 12 | 7);
        }
    });
    run(&sim);
}

/// The average wait for a broadcast, and the total time, when `cpus` CPUs issue continuously.
fn wait(cpus: usize) -> (Time, Time) {
    const ROUNDS: u64 = 50;
    let sim = sim(BROADCAST, cpus);
    for cpu in 0..cpus {
        on_cpu(&sim, cpu, |sim| {
            for _ in 0..ROUNDS {
                ISSUE(sim);
                COMPLETE(sim);
            }
        });
    }
    run(&sim);
    let counts = sim.counts();
    assert_eq!(counts.broadcasts, ROUNDS * cpus as u64);
    (Time::from_ps(counts.broadcast_wait.ps() / counts.broadcasts), sim.time())
}

#[test]
fn broadcast_time_is_proportional_to_issuers() {
    let (alone, _) = wait(1);
    // After the barrier of 10 ns.
    assert_eq!(alone.ns(), 990);
    for cpus in [2, 4, 8] {
        let factor = wait(cpus).0.us() / alone.us();
        assert!((factor / cpus as f64 - 1.0).abs() < 0.05, "{cpus} issuers: {factor} times");
    }
    assert_eq!(wait(8), wait(8));
}

#[test]
fn completing_no_broadcast_costs_a_barrier() {
    let sim = sim(BROADCAST, 1);
    on_cpu(&sim, 0, |sim| {
        let began = sim.now();
        sim.complete_broadcasts();
        assert_eq!(sim.now() - began, sim.machine().cache.fence);
    });
    run(&sim);
}

#[test]
fn broadcast_operation_names_several_pages() {
    let sim = sim(BROADCAST, 1);
    on_cpu(&sim, 0, |sim| {
        let issued = |scope| {
            let before = sim.counts().broadcasts;
            sim.broadcast(TAG, scope);
            sim.counts().broadcasts - before
        };
        assert_eq!(issued(BroadcastScope::Pages(&[0x1000..0x9000])), 1);
        assert_eq!(issued(BroadcastScope::Tables(&[0x1000..0xa000, 0x10_0000..0x10_1000])), 3);
        assert_eq!(issued(BroadcastScope::Pages(&[u64::MAX - 0x1fff..u64::MAX])), 1);
        assert_eq!((issued(BroadcastScope::Tag), issued(BroadcastScope::Everything)), (1, 1));
        sim.complete_broadcasts();
    });
    run(&sim);
}

#[test]
fn broadcasts_take_time_from_running_cpus() {
    let victims = BROADCAST.replace("victim_ns = { value = 0", "victim_ns = { value = 70");
    let sim = sim(&victims, 3);
    let ended = Rc::new(Cell::new(Time::ZERO));
    let end = Rc::clone(&ended);
    on_cpu(&sim, 0, |sim| {
        sim.spend(Time::from_ns(2000));
        (0..5).for_each(|_| ISSUE(sim));
        COMPLETE(sim);
    });
    on_cpu(&sim, 1, move |sim| {
        sim.spend(Time::from_ns(20_000));
        end.set(sim.now());
    });
    run(&sim);
    // The thread began after the switch to it (500 ns); CPU 2 is idle.
    assert_eq!(ended.get().ns(), 500 + 20_000 + 5 * 70);
    assert_eq!(sim.counts().stolen.ns(), 5 * 70);
}

/// CPU 4 walks continuously while CPU 0 unhooks a table, broadcasts the invalidation and frees the
/// table as fast as it can. The walks wait for a line that CPUs 1 and 2 also want.
#[test]
fn walk_restarts_after_concurrent_broadcast() {
    let fast = BROADCAST.replace("value = 1000", "value = 1");
    for offset_ns in 0..600 {
        let sim = sim(&fast, 8);
        let tables = Rc::new(Cell::new(Tables::default()));
        let shared = Rc::clone(&tables);
        let until = |sim: &Sim, ns| sim.spend(Time::from_ns(ns) - sim.now());
        on_cpu(&sim, 0, move |sim| {
            let tables = Tables::new(sim);
            sim.update_entry(tables.leaf, 2, |_| tables.page << 12 | 7);
            shared.set(tables);
            until(sim, 20_000 + offset_ns);
            sim.update_entry(tables.middle, 0, |_| 0);
            let flush = sim.flush_began(tables.root, Some(0..1 << 21));
            sim.broadcast(TAG, BroadcastScope::Tables(&[PAGE..PAGE + 0x1000]));
            sim.complete_broadcasts();
            sim.flush_ended(flush);
            sim.free_table(tables.leaf);
            sim.release(tables.page);
        });
        for cpu in 1..3 {
            let tables = Rc::clone(&tables);
            on_cpu(&sim, cpu, move |sim| {
                until(sim, 20_000);
                tables.get().load(sim);
                // Sets the accessed bit of the entry.
                let _ = sim.touch(0x2000, Touch::Write(1));
            });
        }
        on_cpu(&sim, 4, move |sim| {
            until(sim, 15_000);
            let tables = tables.get();
            tables.load(sim);
            for _ in 0..100 {
                let _ = read(sim);
                sim.load_root(tables.root, TAG, TagEntries::Discarded);
            }
        });
        run(&sim);
        assert_eq!((sim.violations(), sim.hazards()), (0, 0), "after {offset_ns} ns");
    }
}

#[test]
fn broadcast_in_domains_reaches_their_cpus_alone() {
    let sim = sim(&(BROADCAST.to_owned() + DOMAINS), 3);
    let tables = Rc::new(Cell::new(Tables::default()));
    let shared = Rc::clone(&tables);
    on_cpu(&sim, 0, move |sim| {
        let tables = Tables::new(sim);
        shared.set(tables);
        tables.load(sim);
        assert!(read(sim));
        sim.spend(Time::from_ns(20_000));
        sim.update_entry(tables.leaf, 1, |_| 0);
        let began = sim.now();
        sim.broadcast_in_domains([1, 1], TAG);
        assert_eq!((sim.now() - began).ns(), 10, "CPU 1 is named once");
        let fence_ns = sim.machine().cache.fence.ns();
        sim.complete_broadcasts();
        assert_eq!((sim.now() - began).ns(), 10 + 400.max(fence_ns));
        assert!(read(sim), "this CPU is in no named domain");
        sim.invalidate_tag();
    });
    for cpu in 1..3 {
        let tables = Rc::clone(&tables);
        on_cpu(&sim, cpu, move |sim| {
            sim.spend(Time::from_ns(15_000));
            tables.get().load(sim);
            assert!(read(sim));
            sim.mask();
            sim.spend(Time::from_ns(50_000));
            assert_eq!(read(sim), cpu != 1);
            sim.unmask();
        });
    }
    run(&sim);
    assert_eq!((sim.counts().broadcasts, sim.counts().interrupts_taken), (1, 0));
}

#[test]
fn remote_fence_reaches_exactly_its_targets() {
    let sim = sim(REMOTE_FENCE, 3);
    let tables = Rc::new(Cell::new(Tables::default()));
    let shared = Rc::clone(&tables);
    on_cpu(&sim, 0, move |sim| {
        let tables = Tables::new(sim);
        shared.set(tables);
        sim.spend(Time::from_ns(20_000));
        sim.update_entry(tables.leaf, 1, |_| 0);
        let began = sim.now();
        sim.remote_fence([1], TAG, BroadcastScope::Pages(&[PAGE..PAGE + 0x1000]));
        // 200 for the call, 100 for one target, 1000 for delivery, and 100 for one page.
        assert_eq!((sim.now() - began).ns(), 200 + 100 + 1000 + 100);
        assert_eq!(sim.counts_of(0).broadcast_wait.ns(), 1400);
    });
    for cpu in 1..3 {
        let tables = Rc::clone(&tables);
        on_cpu(&sim, cpu, move |sim| {
            sim.spend(Time::from_ns(15_000));
            tables.get().load(sim);
            assert!(read(sim));
            sim.mask();
            let began = sim.now();
            sim.spend(Time::from_ns(50_000));
            let is_target = cpu == 1;
            assert_eq!(read(sim), !is_target);
            let lost = if is_target { 300 + 100 } else { 0 };
            assert!((sim.now() - began).ns() >= 50_000 + lost);
            assert_eq!(sim.counts_of(cpu).stolen.ns(), lost);
            sim.unmask();
        });
    }
    run(&sim);
    assert_eq!((sim.counts().remote_fences, sim.counts().interrupts_taken), (1, 0));
}

#[test]
fn firmware_drops_the_tag_above_its_ceiling() {
    for (end, stays) in [(PAGE + 0x1000, true), (PAGE + 0x2000, false)] {
        let sim = sim(REMOTE_FENCE, 2);
        on_cpu(&sim, 0, move |sim| {
            let tables = Tables::new(sim);
            sim.update_entry(tables.leaf, 9, |_| tables.page << 12 | 7);
            tables.load(sim);
            assert!(sim.touch(0x9000, Touch::Read).is_ok());
            sim.update_entry(tables.leaf, 9, |_| 0);
            sim.remote_fence([0], TAG, BroadcastScope::Pages(&[PAGE..end]));
            assert_eq!(sim.touch(0x9000, Touch::Read).is_ok(), stays);
        });
        run(&sim);
    }
}

/// A target that several CPUs fence executes the fences one after the other.
#[test]
fn remote_fences_of_one_target_queue() {
    let sim = sim(REMOTE_FENCE, 8);
    let longest = Rc::new(Cell::new(Time::ZERO));
    for cpu in 1..8 {
        let longest = Rc::clone(&longest);
        on_cpu(&sim, cpu, move |sim| {
            let began = sim.now();
            sim.remote_fence([0], TAG, BroadcastScope::Pages(&[PAGE..PAGE + 0x1000]));
            longest.set(longest.get().max(sim.now() - began));
        });
    }
    run(&sim);
    assert_eq!(longest.get().ns(), 1400 + 6 * (300 + 100));
}

#[test]
fn kernel_refill_walks_only_for_user_threads() {
    let soft = ROUND.replace("[topology]", "refill = \"software\"\n\n[topology]");
    for (text, hazards) in [(ROUND, 1), (soft.as_str(), 0)] {
        let machine = Machine::from_toml(text).unwrap().with_cpus(1).unwrap();
        let sim = Rc::new(Sim::new(machine, 1 << 10, 8).unwrap());
        on_cpu(&sim, 0, |sim| {
            let tables = Tables::new(sim);
            tables.load(sim);
            assert!(read(sim));
            // A kernel thread, with the space still loaded.
            sim.free_table(tables.leaf);
        });
        run(&sim);
        assert_eq!(sim.hazards(), hazards);
    }
}
