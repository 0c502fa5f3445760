//! What reclaim takes, under each Linux that puts its flush off, and under the one before: who is
//! told, by counts worked out by hand; that nobody uses the pages afterwards, wherever they were
//! meanwhile; and that the oracle sees it if anything of that is forgotten. At random:
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

/// Enough for each design to use them with eight CPUs.
const TAGS: usize = 31;
const CPUS: usize = 8;

/// What became of pages that CPU 0 took, which has neither space loaded: 0 to 2 of space 0, and 0
/// and 1 of space 1.
///
/// | CPU | meanwhile | and afterwards |
/// |---|---|---|
/// | 1 | runs space 0 | |
/// | 2 | runs space 1 | |
/// | 3 | is lazy on space 0 | comes back |
/// | 4 | has run space 0, and runs space 1 | runs both again |
struct Taken {
    /// By each CPU, until the batch was flushed.
    until_flushed: Vec<Counts>,
    /// By each CPU after that.
    afterwards: Vec<Counts>,
    /// Which pages were not there afterwards, by CPU and space.
    faults: Vec<(usize, u64, Vec<u64>)>,
    wrongs: Vec<ViolationKind>,
}

impl Taken {
    fn sum<T: std::iter::Sum>(&self, what: fn(&Counts) -> T) -> T {
        self.until_flushed.iter().map(what).sum()
    }

    /// Of CPUs 1 to 4.
    fn each(&self, what: fn(&Counts) -> u64) -> [u64; 4] {
        [1, 2, 3, 4].map(|cpu| what(&self.until_flushed[cpu]))
    }

    fn each_afterwards(&self, what: fn(&Counts) -> u64) -> [u64; 4] {
        [1, 2, 3, 4].map(|cpu| what(&self.afterwards[cpu]))
    }

    /// Everybody finds that the pages are gone, and nothing else is.
    fn assert_gone(&self) {
        assert_eq!(self.wrongs, []);
        let (zero, one) = (vec![0, 1, 2], vec![0, 1]);
        let expected = [(1, 0, &zero), (2, 1, &one), (3, 0, &zero), (4, 0, &zero), (4, 1, &one)];
        let mut faults = self.faults.clone();
        faults.sort();
        let expected = expected.map(|(cpu, space, pages)| (cpu, space, pages.clone()));
        assert_eq!(faults, expected);
    }
}

/// What a reader does while pages are taken.
type Meanwhile<C> = Box<dyn FnOnce(&Rc<Rig<C>>)>;

fn all_counts(sim: &Sim) -> Vec<Counts> {
    (0..CPUS).map(|cpu| sim.counts_of(cpu)).collect()
}

fn since(now: &[Counts], before: &[Counts]) -> Vec<Counts> {
    now.iter().zip(before).map(|(now, before)| now.since(before)).collect()
}

fn take<C: Coherence + 'static>(hardware: Hardware, design: impl FnOnce(Rc<Sim>) -> C) -> Taken {
    let rig = Rig::on(hardware.machine(TAGS, CPUS), 2, design);
    let faults = Rc::new(RefCell::new(Vec::new()));
    // Reads eight pages, is in whatever state until it is over, and reads them again.
    let reader = |cpu: usize, space: u64, meanwhile: Meanwhile<C>| {
        let (whole, faults) = (Rc::clone(&rig), Rc::clone(&faults));
        rig.thread(cpu, space, move |rig| {
            rig.touch(0..8);
            meanwhile(&whole);
            let gone = rig.faults(0..8);
            faults.borrow_mut().push((cpu, space, gone));
        });
    };
    reader(1, 0, Box::new(|rig| rig.until(200)));
    reader(2, 1, Box::new(|rig| rig.until(200)));
    reader(3, 0, Box::new(|rig| rig.sleep_until(200, 5)));
    reader(4, 0, Box::new(|rig| rig.sleep_until(150, 6)));
    reader(4, 1, Box::new(|rig| rig.until(200)));
    let counts = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&counts);
    rig.kernel_thread(0, move |rig| {
        rig.until(100);
        let before = all_counts(&rig.sim);
        let mut batch = Batch::new();
        rig.take(&mut batch, 0, 0..3);
        rig.take(&mut batch, 1, 0..2);
        rig.flush_batch(batch);
        let after = all_counts(&rig.sim);
        seen.borrow_mut().extend([since(&after, &before), after]);
    });
    rig.run_whatever_happens();
    let wrongs = rig.sim.first_violations().iter().map(|first| first.kind).collect();
    let mut counts = counts.take();
    let (after, until_flushed) = (counts.pop().unwrap(), counts.pop().unwrap());
    let afterwards = since(&all_counts(&rig.sim), &after);
    Taken { until_flushed, afterwards, faults: faults.take(), wrongs }
}

fn invlpgb(sim: Rc<Sim>) -> Linux70 {
    Linux70::invlpgb(sim, ExitFlush::Interrupts)
}

#[test]
fn linux_4_2_interrupts_the_mask_for_each_page_and_a_lazy_cpu_once() {
    let taken = take(Hardware::Plain, Linux412::new);
    taken.assert_gone();
    // CPUs 1 and 3, and 1 for the two others; CPUs 2 and 4, twice.
    assert_eq!(taken.sum(|counts| counts.interrupts_sent), 4 + 4);
    assert_eq!(taken.sum(|counts| counts.interrupts_to_lazy), 1);
    assert_eq!(taken.each(|counts| counts.interrupts_taken), [3, 2, 1, 2]);
    assert_eq!(taken.each(|counts| counts.pages_invalidated), [3, 2, 0, 2]);
    assert_eq!(taken.sum(|counts| counts.flushes_full), 0);
}

#[test]
fn seed_004_interrupts_each_cpu_of_the_masks_once_lazy_or_not_and_each_drops_all() {
    let taken = take(Hardware::Plain, Linux412::batched);
    taken.assert_gone();
    assert_eq!(taken.sum(|counts| counts.interrupts_sent), 4);
    assert_eq!(taken.sum(|counts| counts.interrupts_to_lazy), 1);
    assert_eq!(taken.each(|counts| counts.interrupts_taken), [1; 4]);
    assert_eq!(taken.each(|counts| counts.flushes_full), [1; 4]);
    assert_eq!(taken.sum(|counts| counts.pages_invalidated), 0);
}

/// As few interrupts as Linux, and every CPU drops what was taken from the space that it runs: it
/// keeps the rest. Who comes back drops as much.
#[test]
fn shootdown_interrupts_who_is_present_once_for_the_pages_of_its_space() {
    let taken = take(Hardware::Plain, Engine::<1>::new);
    taken.assert_gone();
    assert_eq!(taken.sum(|counts| counts.interrupts_sent), 3);
    assert_eq!(taken.sum(|counts| counts.interrupts_to_lazy), 0);
    assert_eq!(taken.each(|counts| counts.interrupts_taken), [1, 1, 0, 1]);
    assert_eq!(taken.each(|counts| counts.pages_invalidated), [3, 2, 0, 2]);
    assert_eq!(taken.each_afterwards(|counts| counts.pages_invalidated), [0, 0, 3, 3]);
    let nothing = |counts: &[Counts]| counts.iter().all(|counts| counts.flushes_full == 0);
    assert!(nothing(&taken.until_flushed) && nothing(&taken.afterwards));
}

#[test]
fn linux_7_0_skips_lazy_cpus_and_who_comes_back_is_behind() {
    let taken = take(Hardware::Plain, Linux70::new);
    taken.assert_gone();
    assert_eq!(taken.sum(|counts| counts.interrupts_sent), 3);
    assert_eq!(taken.sum(|counts| counts.interrupts_to_lazy), 0);
    assert_eq!(taken.each(|counts| counts.interrupts_taken), [1, 1, 0, 1]);
    assert_eq!(taken.each(|counts| counts.flushes_full), [1, 1, 0, 1]);
    // From lazy, and to a tag that was kept.
    assert_eq!(taken.each_afterwards(|counts| counts.flushes_full), [0, 0, 1, 1]);
}

#[test]
fn linux_7_0_with_invlpgb_interrupts_nobody_and_empties_all_tlbs_at_once() {
    let taken = take(Hardware::Broadcast, invlpgb);
    taken.assert_gone();
    assert_eq!(taken.sum(|counts| counts.interrupts_sent), 0);
    assert_eq!(taken.sum(|counts| counts.broadcasts), 1);
    // Their TLBs were emptied, too, but they do not know.
    assert_eq!(taken.each_afterwards(|counts| counts.flushes_full), [0, 0, 1, 1]);
    // Where the hardware does not broadcast, as without it.
    let without = take(Hardware::Plain, invlpgb);
    without.assert_gone();
    assert_eq!(without.sum(|counts| counts.interrupts_sent), 3);
}

#[test]
fn arm64_broadcasts_each_page_and_waits_once() {
    for design in [Arm64::stock as fn(_) -> _, Arm64::skip] {
        let taken = take(Hardware::Broadcast, design);
        taken.assert_gone();
        assert_eq!(taken.sum(|counts| counts.interrupts_sent), 0);
        assert_eq!(taken.sum(|counts| counts.broadcasts), 5);
        assert_eq!(taken.each(|counts| counts.flushes_full), [0; 4]);
        // 300 ns until the last is complete, and what five overlap by: each occupies 100 ns.
        let waited = taken.until_flushed[0].broadcast_wait;
        assert!(waited <= Time::from_ns(300 + 4 * 100), "{waited}");
        let without = take(Hardware::Plain, design);
        without.assert_gone();
        // All other CPUs, for each page: nobody knows who has it.
        assert_eq!(without.sum(|counts| counts.interrupts_sent), 5 * (CPUS as u64 - 1));
    }
}

#[test]
fn riscv_has_firmware_empty_the_masks_tlbs_by_one_call() {
    let taken = take(Hardware::Fence, Riscv::new);
    taken.assert_gone();
    assert_eq!(taken.sum(|counts| counts.interrupts_sent), 0);
    assert_eq!(taken.sum(|counts| counts.remote_fences), 4);
    let without = take(Hardware::Plain, Riscv::new);
    without.assert_gone();
    assert_eq!(without.each(|counts| counts.interrupts_taken), [1; 4]);
    assert_eq!(without.each(|counts| counts.flushes_full), [1; 4]);
}

#[test]
fn under_seed_004_a_lazy_cpu_stays_in_the_mask_and_is_told_of_each_batch() {
    let rig = Rig::new(3, Linux412::batched);
    rig.thread(1, 0, |rig| rig.touch(0..8));
    rig.kernel_thread(0, |rig| {
        for turn in 0..3 {
            rig.until(50 + turn * 50);
            let mut batch = Batch::new();
            rig.take(&mut batch, 0, turn * 8..turn * 8 + 8);
            rig.flush_batch(batch);
            assert_eq!(rig.sim.counts().interrupts_to_lazy, turn + 1);
        }
    });
    rig.run();
}

#[test]
fn under_linux_7_0_who_runs_a_space_that_nothing_was_taken_from_looks_and_drops_nothing() {
    let rig = Rig::new(3, Linux70::new);
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
        rig.take(&mut batch, 0, 0..8);
        rig.flush_batch(batch);
        let there = rig.sim.counts_of(1).since(&before);
        assert_eq!((there.interrupts_taken, there.flushes_full), (1, 0));
        assert_eq!(rig.sim.counts().interrupts_to_absent, 1);
    });
    rig.run();
    assert_eq!(rig.sim.counts_of(1).walks, 8 + 8);
}

/// What a thread takes from its own space, which no other CPU has.
fn take_alone<C: Coherence + 'static>(
    hardware: Hardware,
    design: impl FnOnce(Rc<Sim>) -> C,
) -> Counts {
    let rig = Rig::on(hardware.machine(TAGS, 3), 2, design);
    let counts = Rc::new(RefCell::new(Counts::default()));
    let seen = Rc::clone(&counts);
    rig.thread(1, 0, move |rig| {
        rig.touch(0..8);
        let before = rig.sim.counts_of(1);
        let mut batch = Batch::new();
        rig.take(&mut batch, 0, 0..3);
        rig.flush_batch(batch);
        seen.replace(rig.sim.counts_of(1).since(&before));
        assert_eq!(rig.faults(0..8), [0, 1, 2]);
    });
    rig.run();
    counts.take()
}

#[test]
fn what_no_other_cpu_has_is_flushed_at_once_and_page_by_page() {
    let counts = [
        take_alone(Hardware::Plain, Linux412::new),
        take_alone(Hardware::Plain, Linux412::batched),
        take_alone(Hardware::Plain, Linux70::new),
        // INVLPGB is for batches, and for spaces with a global tag.
        take_alone(Hardware::Broadcast, invlpgb),
        // It knows that it is alone.
        take_alone(Hardware::Broadcast, Arm64::skip),
    ];
    for counts in counts {
        assert_eq!((counts.pages_invalidated, counts.flushes_full), (3, 0));
        assert_eq!((counts.interrupts_sent, counts.broadcasts), (0, 0));
    }
    assert_eq!(take_alone(Hardware::Broadcast, Arm64::stock).broadcasts, 3);
    // Its batches are always put off.
    let riscv = take_alone(Hardware::Fence, Riscv::new);
    assert_eq!((riscv.pages_invalidated, riscv.flushes_full, riscv.remote_fences), (0, 1, 0));
}

/// What a thread takes from its own space, which CPU 1 runs, too.
fn take_together<C: Coherence + 'static>(
    hardware: Hardware,
    design: impl FnOnce(Rc<Sim>) -> C,
) -> Counts {
    let rig = Rig::on(hardware.machine(TAGS, 3), 2, design);
    let counts = Rc::new(RefCell::new(Counts::default()));
    let seen = Rc::clone(&counts);
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
        rig.take(&mut batch, 0, 0..3);
        rig.flush_batch(batch);
        seen.replace(rig.sim.counts().since(&before));
        assert_eq!(rig.faults(0..8), [0, 1, 2]);
    });
    rig.run();
    counts.take()
}

#[test]
fn who_takes_from_the_space_that_it_runs_drops_what_others_drop() {
    let summed = |counts: Counts| {
        let scope = counts.interrupts_sent + counts.broadcasts + counts.remote_fences;
        (scope, counts.flushes_full, counts.pages_invalidated)
    };
    assert_eq!(summed(take_together(Hardware::Plain, Linux412::new)), (3, 0, 6));
    assert_eq!(summed(take_together(Hardware::Plain, Linux412::batched)), (1, 2, 0));
    assert_eq!(summed(take_together(Hardware::Plain, Linux70::new)), (1, 2, 0));
    assert_eq!(summed(take_together(Hardware::Broadcast, invlpgb)), (1, 0, 0));
    assert_eq!(summed(take_together(Hardware::Broadcast, Arm64::stock)), (3, 0, 0));
    assert_eq!(summed(take_together(Hardware::Broadcast, Arm64::skip)), (3, 0, 0));
    assert_eq!(summed(take_together(Hardware::Fence, Riscv::new)), (2, 0, 0));
    assert_eq!(summed(take_together(Hardware::Plain, Riscv::new)), (1, 2, 0));
}

/// Pages of a space that runs on four CPUs for so long that it has a global tag, and of one that
/// has none.
fn take_with_a_global_tag(rule: Option<LinuxRule>) -> (u64, Counts) {
    const MS: u64 = 1000;
    let design = |sim| invlpgb(sim).breaking(rule);
    let rig = Rig::on(Hardware::Broadcast.machine(15, 6), 2, design);
    for cpu in 0..4 {
        rig.thread(cpu, 0, |rig| {
            rig.touch(0..8);
            // By then each has come to a jiffy of its number.
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
    let seen = Rc::clone(&counts);
    rig.kernel_thread(5, move |rig| {
        rig.until(50 * MS);
        assert_eq!(rig.sim.counts().tags_taken, 1);
        let before = rig.sim.counts();
        let mut batch = Batch::new();
        rig.take(&mut batch, 0, 0..3);
        rig.take(&mut batch, 1, 0..2);
        rig.flush_batch(batch);
        seen.replace(rig.sim.counts().since(&before));
    });
    rig.run_whatever_happens();
    (rig.sim.violations(), counts.take())
}

#[test]
fn with_invlpgb_a_batch_is_one_broadcast_for_spaces_with_a_global_tag_and_without() {
    let (wrongs, counts) = take_with_a_global_tag(None);
    // Space 1 runs on one other CPU, and so is put off.
    assert_eq!((wrongs, counts.broadcasts, counts.interrupts_sent), (0, 1, 0));
    let (wrongs, _) = take_with_a_global_tag(Some(LinuxRule::FlushBatch));
    assert_eq!(wrongs, 4 * 3 + 2);
}

#[test]
fn with_seed_003_what_nobody_is_active_on_is_marked_and_who_comes_back_drops_the_tag() {
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
        rig.take(&mut batch, 0, 0..3);
        rig.flush_batch(batch);
    });
    rig.run();
    assert_eq!(rig.sim.counts().broadcasts, 0);
    assert_eq!(rig.sim.counts_of(1).flushes_full, 1);
}

/// CPU 0 takes pages of space 0, and goes on elsewhere before it flushes.
fn take_and_move(rule: Option<LinuxRule>) -> Rc<Rig<Arm64>> {
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
        rig.take(&mut batch, 0, 0..3);
        rig.sim.migrate(2);
        rig.flush_batch(batch);
    });
    rig.run_whatever_happens();
    rig
}

#[test]
fn on_arm64_who_moves_with_a_batch_leaves_no_broadcast_behind() {
    let rig = take_and_move(None);
    assert_eq!((rig.sim.violations(), rig.sim.counts().broadcasts), (0, 3));
    assert_eq!(take_and_move(Some(LinuxRule::CompleteAtSwitch)).sim.violations(), 3);
}

#[test]
fn what_is_forgotten_is_caught() {
    use LinuxRule::{Complete, CountUnmapped, FlushBatch};
    let linux70 = |rule| move |sim| Linux70::new(sim).breaking(Some(rule));
    let invlpgb = |rule| move |sim| invlpgb(sim).breaking(Some(rule));
    let unmap_batched = |sim| Linux412::batched(sim).breaking(Some(FlushBatch));
    let arm64 = |sim| Arm64::with_broken_rule(sim, Variant::Stock, Some(Complete));
    let riscv = |sim| Riscv::with_broken_rule(sim, Some(FlushBatch));
    // By which CPUs, of which pages; without tags, a CPU that has gone elsewhere has dropped them.
    let (one, two, three, four_zero, four_one) = (3, 2, 3, 3, 2);
    let running = one + two + four_one;
    let caught = [
        (take(Hardware::Plain, unmap_batched), running + three),
        (take(Hardware::Plain, linux70(FlushBatch)), running),
        (take(Hardware::Plain, linux70(CountUnmapped)), running + three + four_zero),
        (take(Hardware::Broadcast, invlpgb(FlushBatch)), running),
        (take(Hardware::Broadcast, arm64), running + three + four_zero),
        (take(Hardware::Fence, riscv), running + three + four_zero),
        (take(Hardware::Plain, riscv), running + three),
    ];
    for (number, (taken, count)) in caught.into_iter().enumerate() {
        assert_eq!(taken.wrongs, vec![ViolationKind::FlushedTranslation; count], "{number}");
    }
}

/// A space looks held back from the first page that is taken until all of it has been flushed
/// since; nothing tells it when the batch was.
fn watch_held_back<C: Coherence + 'static>(
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
        rig.take(&mut batch, 0, 0..3);
        assert!(rig.is_batched(0) && !rig.is_batched(1));
        // Who relies on pages 8 and 9 flushes all that was put off; the batch goes on.
        rig.flush(0, 8..10, Pages);
        assert!(rig.is_batched(0));
        rig.flush_batch(batch);
        assert!(!rig.is_batched(0), "all that was put off has been flushed");
        let mut batch = Batch::new();
        rig.take(&mut batch, 0, 16..17);
        rig.flush_batch(batch);
        assert!(rig.is_batched(0), "nobody has looked since");
        let before = rig.sim.counts();
        rig.flush(0, 8..10, Pages);
        assert_eq!(rig.sim.counts().since(&before).pages_invalidated, 0, "all of the space");
        assert!(!rig.is_batched(0));
        let before = rig.sim.counts();
        rig.flush(0, 8..10, Pages);
        assert_eq!(rig.sim.counts().since(&before).flushes_full, 0, "pages again");
    });
    rig.run();
    rig
}

#[test]
fn a_space_is_held_back_until_all_of_it_was_flushed_once() {
    watch_held_back(Hardware::Plain, Linux412::batched);
    watch_held_back(Hardware::Plain, Linux70::new);
    watch_held_back(Hardware::Broadcast, invlpgb);
    watch_held_back(Hardware::Broadcast, Arm64::stock);
    watch_held_back(Hardware::Broadcast, Arm64::skip);
    watch_held_back(Hardware::Fence, Riscv::new);
}

#[test]
fn what_is_flushed_at_once_holds_nothing_back() {
    let rig = Rig::new(3, Linux412::new);
    rig.thread(1, 0, |rig| {
        rig.touch(0..8);
        rig.until(100);
    });
    rig.kernel_thread(0, |rig| {
        rig.until(50);
        let mut batch = Batch::new();
        rig.take(&mut batch, 0, 0..1);
        assert!(!rig.is_batched(0));
        rig.flush_batch(batch);
    });
    rig.run();
}

/// CPU 2 unmaps what CPU 0 has taken, and CPU 1 has cached; the batch is flushed later.
fn unmap_while_held_back(rule: Option<LinuxRule>) -> u64 {
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
        rig.take(&mut batch, 0, 0..1);
        rig.until(150);
        rig.flush_batch(batch);
    });
    rig.thread(2, 0, |rig| {
        rig.until(70);
        rig.unmap(0, 0);
    });
    rig.run_whatever_happens();
    rig.sim.violations()
}

#[test]
fn the_bug_of_linux_4_3_is_caught_and_mended() {
    assert_eq!(unmap_while_held_back(None), 0);
    assert_eq!(unmap_while_held_back(Some(LinuxRule::MarkBatched)), 1);
}
