//! A loop without an event for each iteration takes as long as one with all events.

use std::cell::RefCell;
use std::rc::Rc;

use shootdown_sim::{
    Affinity, Cause, Counts, Machine, PairWord, Rng, RunEnd, Sim, ThreadSpec, Time, TimeByCause,
};

/// The CPU that sends interrupts, and the CPUs that can wait and answer.
const SENDER: usize = 1;
const ENDS: [usize; 2] = [0, 2];

/// The end of each wait, and the counts and times of all CPUs.
type Log = (Vec<Time>, Counts, Vec<TimeByCause>);

/// Waits several times for another CPU that answers after a random time, beside a CPU that sends
/// interrupts to both. All costs are multiples of 1 ns, and so are the random times with most
/// seeds: CPUs often act at the same time.
fn waits(seed: u64, wait: fn(&PairWord, &Sim, usize)) -> Log {
    let machine = Machine::from_toml(include_str!("../round.toml")).unwrap();
    let sim = Rc::new(Sim::new(machine.with_cpus(3).unwrap(), 1 << 12, 8).unwrap());
    let words: Rc<Vec<PairWord>> = Rc::new((0..20).map(|_| PairWord::default()).collect());
    let log = Rc::new(RefCell::new(Vec::new()));
    let [waiter, other] = if seed.is_multiple_of(2) { ENDS } else { [ENDS[1], ENDS[0]] };
    let on_cpu = |cpu, body: Box<dyn FnOnce(&Sim)>| {
        let spec = ThreadSpec { space: None, affinity: Affinity::Cpu(cpu) };
        let inside = Rc::clone(&sim);
        sim.spawn(spec, move || body(&inside)).unwrap();
    };
    let is_round = !seed.is_multiple_of(3);
    let pause = move |rng: &mut Rng, sim: &Sim, most: u64| {
        let fine = if is_round { 0 } else { rng.below(1000) };
        sim.spend(Time::from_ps(rng.below(most) * 1000 + fine));
    };
    let (mine, ends) = (Rc::clone(&words), Rc::clone(&log));
    on_cpu(
        waiter,
        Box::new(move |sim| {
            for word in mine.iter() {
                word.store(sim, other, true);
                wait(word, sim, other);
                ends.borrow_mut().push(sim.now());
            }
        }),
    );
    let theirs = Rc::clone(&words);
    on_cpu(
        other,
        Box::new(move |sim| {
            let mut rng = Rng::new(seed);
            for word in theirs.iter() {
                pause(&mut rng, sim, 100);
                while !word.load(sim, waiter) {
                    sim.spin_hint();
                }
                // The longest wait makes iterations longer.
                let most = if rng.below(8) == 0 { 300_000 } else { 2000 };
                pause(&mut rng, sim, most);
                word.store(sim, waiter, false);
            }
        }),
    );
    on_cpu(
        SENDER,
        Box::new(move |sim| {
            let mut rng = Rng::new(seed + 1);
            // An interrupt arrives one picosecond later than its costs say.
            sim.spend(Time::from_ps(999));
            for _ in 0..rng.below(60) {
                pause(&mut rng, sim, 3000);
                sim.send_flush_interrupt(ENDS.into_iter().take(1 + rng.below(2) as usize));
            }
        }),
    );
    assert_eq!(sim.run_until(Time::END), RunEnd::Done);
    let ends = log.take();
    (ends, sim.counts(), sim.time_by_cause(sim.time()))
}

#[test]
fn skipped_iterations_change_no_time() {
    for seed in 0..300 {
        let with_events = waits(seed, |word, sim, other| {
            sim.attribute(Cause::FlushWait, || {
                while word.load(sim, other) {
                    sim.flush_wait_hint();
                }
            });
        });
        let without = waits(seed, PairWord::wait_until_clear);
        assert_eq!(without, with_events, "{seed}");
        let preemptible = waits(seed, |word, sim, other| {
            word.wait_preemptibly(sim, sim.cpu(), other);
        });
        assert_eq!(preemptible, with_events, "{seed}: no other thread is ready");
    }
}
