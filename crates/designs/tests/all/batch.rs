//! Reclaim under each Linux with batches, and under the last one without: the CPUs that are
//! interrupted, with counts calculated by hand; no use of a page after its flush, whatever the CPUs
//! did during the batch; and broken rules, which the oracle must detect. For random tests, see
//! `batch_storm.rs`.

use std::cell::RefCell;
use std::rc::Rc;

use crate::rig::{Batch, Hardware, Rig};
use shootdown_designs::Engine;
use shootdown_designs::linux::arm64::Variant;
use shootdown_designs::{Arm64, ExitFlush, Linux70, Linux412, LinuxRule, Riscv};
use shootdown_sim::{Counts, Sim, Time, ViolationKind};
use shootdown_vm::Coherence;
use shootdown_vm::Freed::Pages;

/// Number of tags that is enough for each design with eight CPUs.
const TAGS: usize = 31;
const CPUS: usize = 8;

/// The results when CPU 0, which has neither space loaded, reclaims pages 0 to 2 of space 0, and
/// pages 0 and 1 of space 1.
///
/// | CPU | during the batch | after it |
/// |---|---|---|
/// | 1 | runs space 0 | |
/// | 2 | runs space 1 | |
/// | 3 | is lazy on space 0 | runs space 0 |
/// | 4 | has run space 0, and runs space 1 | runs both again |
struct Reclaimed {
    /// Counts of each CPU until the batch was flushed.
    until_flushed: Vec<Counts>,
    /// Counts of each CPU after that.
    afterwards: Vec<Counts>,
    /// CPU, space, and the pages that faulted afterwards.
    faults: Vec<(usize, u64, Vec<u64>)>,
    violations: Vec<ViolationKind>,
}

impl Reclaimed {
    fn sum<T: std::iter::Sum>(&self, count: fn(&Counts) -> T) -> T {
        self.until_flushed.iter().map(count).sum()
    }

    /// A count of each of CPUs 1 to 4.
    fn each(&self, count: fn(&Counts) -> u64) -> [u64; 4] {
        [1, 2, 3, 4].map(|cpu| count(&self.until_flushed[cpu]))
    }

    fn each_afterwards(&self, count: fn(&Counts) -> u64) -> [u64; 4] {
        [1, 2, 3, 4].map(|cpu| count(&self.afterwards[cpu]))
    }

    /// Asserts that exactly the reclaimed pages fault on every CPU.
    fn assert_gone(&self) {
        assert_eq!(self.violations, []);
        let (zero, one) = (vec![0, 1, 2], vec![0, 1]);
        let expected = [(1, 0, &zero), (2, 1, &one), (3, 0, &zero), (4, 0, &zero), (4, 1, &one)];
        let mut faults = self.faults.clone();
        faults.sort();
        let expected = expected.map(|(cpu, space, pages)| (cpu, space, pages.clone()));
        assert_eq!(faults, expected);
    }
}

/// A reader's steps while pages are reclaimed.
type During<C> = Box<dyn FnOnce(&Rc<Rig<C>>)>;

fn all_counts(sim: &Sim) -> Vec<Counts> {
    (0..CPUS).map(|cpu| sim.counts_of(cpu)).collect()
}

fn since(now: &[Counts], before: &[Counts]) -> Vec<Counts> {
    now.iter().zip(before).map(|(now, before)| now.since(before)).collect()
}

fn reclaim<C: Coherence + 'static>(
    hardware: Hardware,
    design: impl FnOnce(Rc<Sim>) -> C,
) -> Reclaimed {
    let rig = Rig::on(hardware.machine(TAGS, CPUS), 2, design);
    let faults = Rc::new(RefCell::new(Vec::new()));
    // Reads eight pages, executes `during`, and reads the pages again.
    let reader = |cpu: usize, space: u64, during: During<C>| {
        let (whole, faults) = (Rc::clone(&rig), Rc::clone(&faults));
        rig.thread(cpu, space, move |rig| {
            rig.touch(0..8);
            during(&whole);
            let faulted = rig.faults(0..8);
            faults.borrow_mut().push((cpu, space, faulted));
        });
    };
    reader(1, 0, Box::new(|rig| rig.until(200)));
    reader(2, 1, Box::new(|rig| rig.until(200)));
    reader(3, 0, Box::new(|rig| rig.sleep_until(200, 5)));
    reader(4, 0, Box::new(|rig| rig.sleep_until(150, 6)));
    reader(4, 1, Box::new(|rig| rig.until(200)));
    let counts = Rc::new(RefCell::new(Vec::new()));
    let result = Rc::clone(&counts);
    rig.kernel_thread(0, move |rig| {
        rig.until(100);
        let before = all_counts(&rig.sim);
        let mut batch = Batch::new();
        rig.reclaim(&mut batch, 0, 0..3);
        rig.reclaim(&mut batch, 1, 0..2);
        rig.flush_batch(batch);
        let after = all_counts(&rig.sim);
        result.borrow_mut().extend([since(&after, &before), after]);
    });
    rig.run_unchecked();
    let violations = rig.sim.first_violations().iter().map(|first| first.kind).collect();
    let mut counts = counts.take();
    let (after, until_flushed) = (counts.pop().unwrap(), counts.pop().unwrap());
    let afterwards = since(&all_counts(&rig.sim), &after);
    Reclaimed { until_flushed, afterwards, faults: faults.take(), violations }
}

fn invlpgb(sim: Rc<Sim>) -> Linux70 {
    Linux70::invlpgb(sim, ExitFlush::Interrupts)
}

#[test]
fn linux_4_2_interrupts_the_mask_per_page() {
    let outcome = reclaim(Hardware::Plain, Linux412::new);
    outcome.assert_gone();
    // Space 0: CPUs 1 and 3, and then only CPU 1, twice. Space 1: CPUs 2 and 4, twice.
    assert_eq!(outcome.sum(|counts| counts.interrupts_sent), 4 + 4);
    assert_eq!(outcome.sum(|counts| counts.interrupts_to_lazy), 1);
    assert_eq!(outcome.each(|counts| counts.interrupts_taken), [3, 2, 1, 2]);
    assert_eq!(outcome.each(|counts| counts.pages_invalidated), [3, 2, 0, 2]);
    assert_eq!(outcome.sum(|counts| counts.flushes_full), 0);
}

#[test]
fn batched_linux_interrupts_the_mask_once() {
    let outcome = reclaim(Hardware::Plain, Linux412::batched);
    outcome.assert_gone();
    assert_eq!(outcome.sum(|counts| counts.interrupts_sent), 4);
    assert_eq!(outcome.sum(|counts| counts.interrupts_to_lazy), 1);
    assert_eq!(outcome.each(|counts| counts.interrupts_taken), [1; 4]);
    assert_eq!(outcome.each(|counts| counts.flushes_full), [1; 4]);
    assert_eq!(outcome.sum(|counts| counts.pages_invalidated), 0);
}

/// Shootdown sends as few interrupts as Linux. Every CPU drops only the reclaimed pages of the
/// space that it runs, and a CPU that resumes a space drops only that space's pages.
#[test]
fn shootdown_interrupts_present_cpus_once() {
    let outcome = reclaim(Hardware::Plain, Engine::<1>::new);
    outcome.assert_gone();
    assert_eq!(outcome.sum(|counts| counts.interrupts_sent), 3);
    assert_eq!(outcome.sum(|counts| counts.interrupts_to_lazy), 0);
    assert_eq!(outcome.each(|counts| counts.interrupts_taken), [1, 1, 0, 1]);
    assert_eq!(outcome.each(|counts| counts.pages_invalidated), [3, 2, 0, 2]);
    assert_eq!(outcome.each_afterwards(|counts| counts.pages_invalidated), [0, 0, 3, 3]);
    let no_full_flush = |counts: &[Counts]| counts.iter().all(|counts| counts.flushes_full == 0);
    assert!(no_full_flush(&outcome.until_flushed) && no_full_flush(&outcome.afterwards));
}

#[test]
fn linux_7_0_skips_lazy_cpus_for_batches() {
    let outcome = reclaim(Hardware::Plain, Linux70::uncounted);
    outcome.assert_gone();
    assert_eq!(outcome.sum(|counts| counts.interrupts_sent), 3);
    assert_eq!(outcome.sum(|counts| counts.interrupts_to_lazy), 0);
    assert_eq!(outcome.each(|counts| counts.interrupts_taken), [1, 1, 0, 1]);
    assert_eq!(outcome.each(|counts| counts.flushes_full), [1, 1, 0, 1]);
    // CPU 3 was lazy, and CPU 4 has a stale tag for space 0.
    assert_eq!(outcome.each_afterwards(|counts| counts.flushes_full), [0, 0, 1, 1]);
}

#[test]
fn invlpgb_flushes_all_tlbs_by_one_broadcast() {
    let outcome = reclaim(Hardware::Broadcast, invlpgb);
    outcome.assert_gone();
    assert_eq!(outcome.sum(|counts| counts.interrupts_sent), 0);
    assert_eq!(outcome.sum(|counts| counts.broadcasts), 1);
    // The broadcast flushed these TLBs also, but did not update their generations.
    assert_eq!(outcome.each_afterwards(|counts| counts.flushes_full), [0, 0, 1, 1]);
    // Without broadcasts, the results are those of `Linux70`.
    let without = reclaim(Hardware::Plain, invlpgb);
    without.assert_gone();
    assert_eq!(without.sum(|counts| counts.interrupts_sent), 3);
}

#[test]
fn arm64_broadcasts_each_page_and_waits_once() {
    for design in [Arm64::stock as fn(_) -> _, Arm64::skip] {
        let outcome = reclaim(Hardware::Broadcast, design);
        outcome.assert_gone();
        assert_eq!(outcome.sum(|counts| counts.interrupts_sent), 0);
        assert_eq!(outcome.sum(|counts| counts.broadcasts), 5);
        assert_eq!(outcome.each(|counts| counts.flushes_full), [0; 4]);
        // The last broadcast takes 300 ns. The other four occupy the interconnect for 100 ns each.
        let waited = outcome.until_flushed[0].broadcast_wait;
        assert!(waited <= Time::from_ns(300 + 4 * 100), "{waited}");
        let without = reclaim(Hardware::Plain, design);
        without.assert_gone();
        // Each page interrupts all other CPUs, because arm64 does not record users.
        assert_eq!(without.sum(|counts| counts.interrupts_sent), 5 * (CPUS as u64 - 1));
    }
}

#[test]
fn riscv_fences_the_mask_by_one_call() {
    let outcome = reclaim(Hardware::Fence, Riscv::new);
    outcome.assert_gone();
    assert_eq!(outcome.sum(|counts| counts.interrupts_sent), 0);
    assert_eq!(outcome.sum(|counts| counts.remote_fences), 4);
    let without = reclaim(Hardware::Plain, Riscv::new);
    without.assert_gone();
    assert_eq!(without.each(|counts| counts.interrupts_taken), [1; 4]);
    assert_eq!(without.each(|counts| counts.flushes_full), [1; 4]);
}

#[test]
fn batched_linux_interrupts_lazy_cpu_per_batch() {
    let rig = Rig::new(3, Linux412::batched);
    rig.thread(1, 0, |rig| rig.touch(0..8));
    rig.kernel_thread(0, |rig| {
        for turn in 0..3 {
            rig.until(50 + turn * 50);
            let mut batch = Batch::new();
            rig.reclaim(&mut batch, 0, turn * 8..turn * 8 + 8);
            rig.flush_batch(batch);
            assert_eq!(rig.sim.counts().interrupts_to_lazy, turn + 1);
        }
    });
    rig.run();
}

#[test]
fn linux_7_0_cpu_in_other_space_drops_nothing() {
    let rig = Rig::new(3, Linux70::uncounted);
    rig.thread(1, 0, |rig| rig.touch(0..8));
    rig.thread(1, 1, |rig| {
        rig.touch(0..8);
        rig.until(100);
        rig.touch(0..8);
    });
    rig.kernel_thread(0, |rig| {
        rig.until(50);
        let before = rig.sim.counts_of(1);
        let mut batch = Batch::new();
        rig.reclaim(&mut batch, 0, 0..8);
        rig.flush_batch(batch);
        let there = rig.sim.counts_of(1).since(&before);
        assert_eq!((there.interrupts_taken, there.flushes_full), (1, 0));
        assert_eq!(rig.sim.counts().interrupts_to_absent, 1);
    });
    rig.run();
    assert_eq!(rig.sim.counts_of(1).walks, 8 + 8);
}

/// The counts when a thread reclaims pages of its own space, which no other CPU has run.
fn reclaim_alone<C: Coherence + 'static>(
    hardware: Hardware,
    design: impl FnOnce(Rc<Sim>) -> C,
) -> Counts {
    let rig = Rig::on(hardware.machine(TAGS, 3), 2, design);
    let counts = Rc::new(RefCell::new(Counts::default()));
    let result = Rc::clone(&counts);
    rig.thread(1, 0, move |rig| {
        rig.touch(0..8);
        let before = rig.sim.counts_of(1);
        let mut batch = Batch::new();
        rig.reclaim(&mut batch, 0, 0..3);
        rig.flush_batch(batch);
        result.replace(rig.sim.counts_of(1).since(&before));
        assert_eq!(rig.faults(0..8), [0, 1, 2]);
    });
    rig.run();
    counts.take()
}

#[test]
fn pages_of_unshared_space_are_flushed_one_by_one() {
    let counts = [
        reclaim_alone(Hardware::Plain, Linux412::new),
        reclaim_alone(Hardware::Plain, Linux412::batched),
        reclaim_alone(Hardware::Plain, Linux70::uncounted),
        // INVLPGB is only for batches, and for spaces with a global tag.
        reclaim_alone(Hardware::Broadcast, invlpgb),
        // It detects that no other CPU is active.
        reclaim_alone(Hardware::Broadcast, Arm64::skip),
    ];
    for counts in counts {
        assert_eq!((counts.pages_invalidated, counts.flushes_full), (3, 0));
        assert_eq!((counts.interrupts_sent, counts.broadcasts), (0, 0));
    }
    assert_eq!(reclaim_alone(Hardware::Broadcast, Arm64::stock).broadcasts, 3);
    // RISC-V always defers.
    let riscv = reclaim_alone(Hardware::Fence, Riscv::new);
    assert_eq!((riscv.pages_invalidated, riscv.flushes_full, riscv.remote_fences), (0, 1, 0));
}

/// The counts when a thread reclaims pages of its own space, which CPU 1 is also running.
fn reclaim_shared<C: Coherence + 'static>(
    hardware: Hardware,
    design: impl FnOnce(Rc<Sim>) -> C,
) -> Counts {
    let rig = Rig::on(hardware.machine(TAGS, 3), 2, design);
    let counts = Rc::new(RefCell::new(Counts::default()));
    let result = Rc::clone(&counts);
    rig.thread(1, 0, |rig| {
        rig.touch(0..8);
        rig.until(100);
        assert_eq!(rig.faults(0..8), [0, 1, 2]);
    });
    rig.thread(0, 0, move |rig| {
        rig.touch(0..8);
        rig.until(50);
        let before = rig.sim.counts();
        let mut batch = Batch::new();
        rig.reclaim(&mut batch, 0, 0..3);
        rig.flush_batch(batch);
        result.replace(rig.sim.counts().since(&before));
        assert_eq!(rig.faults(0..8), [0, 1, 2]);
    });
    rig.run();
    counts.take()
}

#[test]
fn reclaiming_cpu_flushes_its_own_tlb() {
    let summed = |counts: Counts| {
        let scope = counts.interrupts_sent + counts.broadcasts + counts.remote_fences;
        (scope, counts.flushes_full, counts.pages_invalidated)
    };
    assert_eq!(summed(reclaim_shared(Hardware::Plain, Linux412::new)), (3, 0, 6));
    assert_eq!(summed(reclaim_shared(Hardware::Plain, Linux412::batched)), (1, 2, 0));
    assert_eq!(summed(reclaim_shared(Hardware::Plain, Linux70::uncounted)), (1, 2, 0));
    assert_eq!(summed(reclaim_shared(Hardware::Broadcast, invlpgb)), (1, 0, 0));
    assert_eq!(summed(reclaim_shared(Hardware::Broadcast, Arm64::stock)), (3, 0, 0));
    assert_eq!(summed(reclaim_shared(Hardware::Broadcast, Arm64::skip)), (3, 0, 0));
    assert_eq!(summed(reclaim_shared(Hardware::Fence, Riscv::new)), (2, 0, 0));
    assert_eq!(summed(reclaim_shared(Hardware::Plain, Riscv::new)), (1, 2, 0));
}

/// Reclaims pages of a space that has run on four CPUs long enough to have a global tag, and of a
/// space without one. Returns the number of violations, and the counts of the batch.
fn reclaim_with_global_tag(rule: Option<LinuxRule>) -> (u64, Counts) {
    const MS: u64 = 1000;
    let design = |sim| invlpgb(sim).breaking(rule);
    let rig = Rig::on(Hardware::Broadcast.machine(15, 6), 2, design);
    for cpu in 0..4 {
        rig.thread(cpu, 0, |rig| {
            rig.touch(0..8);
            // This takes long enough for the clock to select each thread's number.
            for turn in 0..200 {
                rig.until(turn * 200 + 200);
                rig.flush(0, 20..21, Pages);
            }
            rig.touch(0..8);
            rig.until(60 * MS);
            rig.faults(0..8);
        });
    }
    rig.thread(4, 1, |rig| {
        rig.touch(0..8);
        rig.until(60 * MS);
        rig.faults(0..8);
    });
    let counts = Rc::new(RefCell::new(Counts::default()));
    let result = Rc::clone(&counts);
    rig.kernel_thread(5, move |rig| {
        rig.until(50 * MS);
        assert_eq!(rig.sim.counts().tags_taken, 1);
        let before = rig.sim.counts();
        let mut batch = Batch::new();
        rig.reclaim(&mut batch, 0, 0..3);
        rig.reclaim(&mut batch, 1, 0..2);
        rig.flush_batch(batch);
        result.replace(rig.sim.counts().since(&before));
    });
    rig.run_unchecked();
    (rig.sim.violations(), counts.take())
}

#[test]
fn invlpgb_batch_is_one_broadcast_for_all_spaces() {
    let (violations, counts) = reclaim_with_global_tag(None);
    // Space 1 runs on one other CPU, so its pages are deferred.
    assert_eq!((violations, counts.broadcasts, counts.interrupts_sent), (0, 1, 0));
    let (violations, _) = reclaim_with_global_tag(Some(LinuxRule::FlushBatch));
    assert_eq!(violations, 4 * 3 + 2);
}

#[test]
fn arm64_skip_marks_inactive_space_as_stale() {
    let rig = Rig::on(Hardware::Broadcast.machine(TAGS, 3), 2, Arm64::skip);
    let sleeper = Rc::clone(&rig);
    rig.thread(1, 0, move |rig| {
        rig.touch(0..8);
        sleeper.sleep_until(100, 2);
        assert_eq!(rig.faults(0..8), [0, 1, 2]);
    });
    rig.kernel_thread(0, |rig| {
        rig.until(50);
        let mut batch = Batch::new();
        rig.reclaim(&mut batch, 0, 0..3);
        rig.flush_batch(batch);
    });
    rig.run();
    assert_eq!(rig.sim.counts().broadcasts, 0);
    assert_eq!(rig.sim.counts_of(1).flushes_full, 1);
}

/// CPU 0 reclaims pages of space 0, and its thread migrates before it flushes the batch.
fn reclaim_and_migrate(rule: Option<LinuxRule>) -> Rc<Rig<Arm64>> {
    let design = |sim| Arm64::with_broken_rule(sim, Variant::Stock, rule);
    let rig = Rig::on(Hardware::Broadcast.machine(TAGS, 3), 1, design);
    rig.thread(1, 0, |rig| {
        rig.touch(0..8);
        rig.until(100);
        rig.faults(0..8);
    });
    rig.kernel_thread(0, |rig| {
        rig.until(50);
        let mut batch = Batch::new();
        rig.reclaim(&mut batch, 0, 0..3);
        rig.sim.migrate(2);
        rig.flush_batch(batch);
    });
    rig.run_unchecked();
    rig
}

#[test]
fn arm64_migration_completes_broadcasts() {
    let rig = reclaim_and_migrate(None);
    assert_eq!((rig.sim.violations(), rig.sim.counts().broadcasts), (0, 3));
    let broken = reclaim_and_migrate(Some(LinuxRule::CompleteAtSwitch));
    assert_eq!(broken.sim.violations(), 3);
}

#[test]
fn oracle_detects_each_broken_batch_rule() {
    use LinuxRule::{Complete, CountUnmapped, FlushBatch};
    let linux70 = |rule| move |sim| Linux70::uncounted(sim).breaking(Some(rule));
    let invlpgb = |rule| move |sim| invlpgb(sim).breaking(Some(rule));
    let unmap_batched = |sim| Linux412::batched(sim).breaking(Some(FlushBatch));
    let arm64 = |sim| Arm64::with_broken_rule(sim, Variant::Stock, Some(Complete));
    let riscv = |sim| Riscv::with_broken_rule(sim, Some(FlushBatch));
    // Violations per CPU (and space). Without tags, a CPU that switched has dropped its entries.
    let (one, two, three, four_zero, four_one) = (3, 2, 3, 3, 2);
    let running = one + two + four_one;
    let caught = [
        (reclaim(Hardware::Plain, unmap_batched), running + three),
        (reclaim(Hardware::Plain, linux70(FlushBatch)), running),
        (reclaim(Hardware::Plain, linux70(CountUnmapped)), running + three + four_zero),
        (reclaim(Hardware::Broadcast, invlpgb(FlushBatch)), running),
        (reclaim(Hardware::Broadcast, arm64), running + three + four_zero),
        (reclaim(Hardware::Fence, riscv), running + three + four_zero),
        (reclaim(Hardware::Plain, riscv), running + three),
    ];
    for (number, (outcome, count)) in caught.into_iter().enumerate() {
        assert_eq!(outcome.violations, vec![ViolationKind::FlushedTranslation; count], "{number}");
    }
}

/// Checks that a space is batched from the first reclaimed page until the whole space was flushed.
/// The flush of the batch does not change that.
fn check_is_batched<C: Coherence + 'static>(
    hardware: Hardware,
    design: impl FnOnce(Rc<Sim>) -> C,
) -> Rc<Rig<C>> {
    let rig = Rig::on(hardware.machine(TAGS, 4), 2, design);
    for cpu in [1, 2] {
        rig.thread(cpu, 0, |rig| {
            rig.touch(0..8);
            rig.until(100);
            assert_eq!(rig.faults(0..8), [0, 1, 2]);
        });
    }
    rig.kernel_thread(0, |rig| {
        rig.until(50);
        assert!(!rig.is_batched(0));
        let mut batch = Batch::new();
        rig.reclaim(&mut batch, 0, 0..3);
        assert!(rig.is_batched(0) && !rig.is_batched(1));
        // An operation on pages 8 and 9 flushes all deferred pages; the batch continues.
        rig.flush(0, 8..10, Pages);
        assert!(rig.is_batched(0));
        rig.flush_batch(batch);
        assert!(!rig.is_batched(0), "all deferred pages were flushed");
        let mut batch = Batch::new();
        rig.reclaim(&mut batch, 0, 16..17);
        rig.flush_batch(batch);
        assert!(rig.is_batched(0), "no operation has flushed the space since");
        let before = rig.sim.counts();
        rig.flush(0, 8..10, Pages);
        assert_eq!(rig.sim.counts().since(&before).pages_invalidated, 0, "the whole space");
        assert!(!rig.is_batched(0));
        let before = rig.sim.counts();
        rig.flush(0, 8..10, Pages);
        assert_eq!(rig.sim.counts().since(&before).flushes_full, 0, "pages again");
    });
    rig.run();
    rig
}

#[test]
fn space_is_batched_until_fully_flushed() {
    check_is_batched(Hardware::Plain, Linux412::batched);
    check_is_batched(Hardware::Plain, Linux70::uncounted);
    check_is_batched(Hardware::Broadcast, invlpgb);
    check_is_batched(Hardware::Broadcast, Arm64::stock);
    check_is_batched(Hardware::Broadcast, Arm64::skip);
    check_is_batched(Hardware::Fence, Riscv::new);
}

#[test]
fn space_is_not_batched_without_deferral() {
    let rig = Rig::new(3, Linux412::new);
    rig.thread(1, 0, |rig| {
        rig.touch(0..8);
        rig.until(100);
    });
    rig.kernel_thread(0, |rig| {
        rig.until(50);
        let mut batch = Batch::new();
        rig.reclaim(&mut batch, 0, 0..1);
        assert!(!rig.is_batched(0));
        rig.flush_batch(batch);
    });
    rig.run();
}

/// CPU 2 unmaps a page that CPU 0 has reclaimed and CPU 1 has cached; the batch is flushed later.
/// Returns the number of violations.
fn unmap_during_batch(rule: Option<LinuxRule>) -> u64 {
    let rig = Rig::new(3, |sim| Linux412::batched(sim).breaking(rule));
    rig.thread(1, 0, |rig| {
        rig.touch(0..8);
        rig.until(100);
        rig.faults(0..8);
        rig.until(200);
    });
    rig.kernel_thread(0, |rig| {
        rig.until(50);
        let mut batch = Batch::new();
        rig.reclaim(&mut batch, 0, 0..1);
        rig.until(150);
        rig.flush_batch(batch);
    });
    rig.thread(2, 0, |rig| {
        rig.until(70);
        rig.unmap(0, 0);
    });
    rig.run_unchecked();
    rig.sim.violations()
}

#[test]
fn oracle_detects_the_bug_of_linux_4_3() {
    assert_eq!(unmap_during_batch(None), 0);
    assert_eq!(unmap_during_batch(Some(LinuxRule::MarkBatched)), 1);
}
