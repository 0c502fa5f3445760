//! The sleeping lock: the way in which each thread waits, and for how long.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use lock_api::{RawRwLock, RawRwLockDowngrade, RwLock};
use shootdown_sim::{
    Affinity, LockWaiting, Machine, Purpose, ReadMostlyLock, Rng, RunEnd, Sim, SleepingLock,
    ThreadSpec, Time,
};

const ALL: [LockWaiting; 3] =
    [LockWaiting::Sleep, LockWaiting::SpinOnWriters, LockWaiting::SpinOnAll];

fn sim(cpus: usize, waiting: LockWaiting) -> Rc<Sim> {
    let machine = Machine::from_toml(include_str!("../round.toml")).unwrap();
    let sim = Rc::new(Sim::new(machine.with_cpus(cpus).unwrap(), 1 << 16, 64).unwrap());
    sim.set_lock_waiting(waiting);
    sim
}

fn on_cpu(sim: &Rc<Sim>, cpu: usize, body: impl FnOnce(&Sim) + 'static) {
    let spec = ThreadSpec { space: None, affinity: Affinity::Cpu(cpu) };
    let inside = Rc::clone(sim);
    sim.spawn(spec, move || body(&inside)).unwrap();
}

fn run(sim: &Sim) {
    assert_eq!(sim.run_until(Time::END), RunEnd::Done);
}

/// A lock, and a log of the threads that got it.
#[derive(Clone)]
struct Logged {
    lock: Rc<SleepingLock>,
    log: Rc<RefCell<Vec<(&'static str, Time)>>>,
}

#[expect(unsafe_code, reason = "the raw interface")]
impl Logged {
    fn new() -> Self {
        Self { lock: Rc::new(<SleepingLock as RawRwLock>::INIT), log: Rc::default() }
    }

    fn write(&self, sim: &Sim, name: &'static str, held: Time) {
        self.lock.lock_exclusive();
        self.log.borrow_mut().push((name, sim.now()));
        sim.spend(held);
        // SAFETY: locked above.
        unsafe { self.lock.unlock_exclusive() };
    }

    fn read(&self, sim: &Sim, name: &'static str, held: Time) {
        self.lock.lock_shared();
        self.log.borrow_mut().push((name, sim.now()));
        sim.spend(held);
        // SAFETY: locked above.
        unsafe { self.lock.unlock_shared() };
    }

    fn names(&self) -> Vec<&'static str> {
        self.log.borrow().iter().map(|&(name, _)| name).collect()
    }

    fn at(&self, name: &str) -> Time {
        self.log.borrow().iter().find(|entry| entry.0 == name).expect("it had the lock").1
    }
}

const fn us(us: u64) -> Time {
    Time::from_ns(us * 1000)
}

#[test]
fn writer_spins_while_a_writer_runs() {
    for waiting in ALL {
        let (sim, lock) = (sim(2, waiting), Logged::new());
        let [first, second] = [lock.clone(), lock.clone()];
        on_cpu(&sim, 0, move |sim| first.write(sim, "owner", us(50)));
        on_cpu(&sim, 1, move |sim| {
            sim.spend(us(20));
            second.write(sim, "spinner", us(1));
        });
        run(&sim);
        let counts = sim.counts();
        assert_eq!(counts.lock_waits, 1);
        let spins = waiting != LockWaiting::Sleep;
        assert_eq!((counts.lock_spin > us(20), counts.lock_sleep > us(20)), (spins, !spins));
        // A thread that spins has the lock as soon as the line has moved; one that sleeps is woken.
        let delay = lock.at("spinner") - lock.at("owner") - us(50);
        assert_eq!(delay < Time::from_ns(600), spins, "{waiting:?}: {delay}");
    }
}

#[test]
fn writer_sleeps_when_the_owner_leaves_its_cpu() {
    let (sim, lock) = (sim(2, LockWaiting::SpinOnAll), Logged::new());
    let [first, second] = [lock.clone(), lock.clone()];
    on_cpu(&sim, 0, move |sim| {
        first.lock.lock_exclusive();
        sim.spend(us(30));
        sim.sleep(us(500));
        // SAFETY: locked above.
        #[expect(unsafe_code, reason = "the raw interface")]
        unsafe {
            first.lock.unlock_exclusive();
        }
    });
    on_cpu(&sim, 1, move |sim| {
        sim.spend(us(10));
        second.write(sim, "waiter", us(1));
    });
    run(&sim);
    let counts = sim.counts();
    assert!(us(10) < counts.lock_spin && counts.lock_spin < us(40), "{}", counts.lock_spin);
    assert!(counts.lock_sleep > us(400), "{}", counts.lock_sleep);
}

#[test]
fn writer_spins_on_readers_for_limited_time() {
    for (waiting, held, least, most) in [
        (LockWaiting::SpinOnAll, us(8), us(1), us(11)),
        (LockWaiting::SpinOnAll, us(100), us(10), us(12)),
        (LockWaiting::SpinOnWriters, us(8), Time::ZERO, Time::ZERO),
    ] {
        let (sim, lock) = (sim(2, waiting), Logged::new());
        let [first, second] = [lock.clone(), lock.clone()];
        on_cpu(&sim, 0, move |sim| first.read(sim, "reader", held));
        on_cpu(&sim, 1, move |sim| {
            sim.spend(us(2));
            second.write(sim, "writer", us(1));
        });
        run(&sim);
        let spun = sim.counts().lock_spin;
        assert!(least <= spun && spun <= most, "{waiting:?}, {held}: {spun}");
        assert_eq!(sim.counts().lock_sleep > Time::ZERO, most != us(11), "{waiting:?}, {held}");
    }
}

/// A writer spins in vain, the next one does not spin, and when both have had the lock, a third
/// spins again.
#[test]
fn writer_that_spun_in_vain_stops_others() {
    let (sim, lock) = (sim(3, LockWaiting::SpinOnAll), Logged::new());
    let [reader, first, second] = [lock.clone(), lock.clone(), lock.clone()];
    on_cpu(&sim, 0, move |sim| {
        reader.read(sim, "reader", us(100));
        sim.spend(us(200));
        reader.read(sim, "reader", us(100));
    });
    on_cpu(&sim, 1, move |sim| {
        sim.spend(us(2));
        first.write(sim, "first", us(1));
        sim.spend(us(310) - sim.now());
        first.write(sim, "third", us(1));
    });
    on_cpu(&sim, 2, move |sim| {
        sim.spend(us(20));
        second.write(sim, "second", us(1));
    });
    run(&sim);
    let spun = sim.counts().lock_spin;
    assert!(us(20) < spun && spun < us(24), "{spun}");
}

#[test]
fn readers_sleep_in_every_version() {
    for waiting in ALL {
        let (sim, lock) = (sim(2, waiting), Logged::new());
        let [first, second] = [lock.clone(), lock.clone()];
        on_cpu(&sim, 0, move |sim| first.write(sim, "owner", us(50)));
        on_cpu(&sim, 1, move |sim| {
            sim.spend(us(20));
            second.read(sim, "reader", us(1));
        });
        run(&sim);
        assert_eq!(sim.counts().lock_spin, Time::ZERO, "{waiting:?}");
        assert!(sim.counts().lock_sleep > us(20), "{waiting:?}");
    }
}

/// Makes a writer "late" go to sleep, because the owner of the lock sleeps from 10 to 100 µs. The
/// owner then runs, with the lock, until about 150 µs.
fn put_writer_to_sleep(sim: &Rc<Sim>, lock: &Logged) {
    let [first, late] = [lock.clone(), lock.clone()];
    on_cpu(sim, 0, move |sim| {
        first.lock.lock_exclusive();
        sim.spend(us(10));
        sim.sleep(us(90));
        sim.spend(us(50));
        // SAFETY: locked above.
        #[expect(unsafe_code, reason = "the raw interface")]
        unsafe {
            first.lock.unlock_exclusive();
        }
    });
    on_cpu(sim, 1, move |sim| {
        sim.spend(us(30));
        late.write(sim, "late", us(1));
    });
}

#[test]
fn spinner_overtakes_sleeper() {
    for waiting in ALL {
        let (sim, lock) = (sim(3, waiting), Logged::new());
        put_writer_to_sleep(&sim, &lock);
        let spinner = lock.clone();
        on_cpu(&sim, 2, move |sim| {
            sim.spend(us(120));
            spinner.write(sim, "spinner", us(1));
        });
        run(&sim);
        let in_order = waiting == LockWaiting::Sleep;
        let order = if in_order { ["late", "spinner"] } else { ["spinner", "late"] };
        assert_eq!(lock.names(), order, "{waiting:?}");
    }
}

/// Two threads pass the lock to each other, and one of them always spins.
#[test]
fn overtaken_writer_has_lock_after_four_ms() {
    let (sim, lock) = (sim(4, LockWaiting::SpinOnAll), Logged::new());
    put_writer_to_sleep(&sim, &lock);
    for cpu in 2..4 {
        let lock = lock.clone();
        on_cpu(&sim, cpu, move |sim| {
            sim.spend(us(120));
            while sim.now() < us(20_000) {
                lock.write(sim, "spinner", us(20));
            }
        });
    }
    run(&sim);
    let at = lock.at("late");
    assert!(us(4000) < at && at < us(4200), "{at}");
}

/// Threads that read, write and downgrade at random, with and without sleep, on fewer CPUs.
#[test]
#[expect(unsafe_code, reason = "the raw interface")]
fn lock_excludes_in_every_version() {
    for waiting in ALL {
        for seed in 0..20 {
            let (sim, lock) = (sim(3, waiting), Rc::new(<SleepingLock as RawRwLock>::INIT));
            let inside = Rc::new(Cell::new((0_i32, 0_i32)));
            for thread in 0..7_u64 {
                let (inside, lock) = (Rc::clone(&inside), Rc::clone(&lock));
                on_cpu(&sim, thread as usize % 3, move |sim| {
                    let mut rng = Rng::new(seed * 100 + thread);
                    for _ in 0..60 {
                        sim.spend(Time::from_ns(rng.below(3000)));
                        let add = |readers: i32, writers: i32| {
                            let (r, w) = inside.get();
                            inside.set((r + readers, w + writers));
                            let (r, w) = inside.get();
                            assert!(w == 0 || (w == 1 && r == 0), "{r} readers, {w} writers");
                        };
                        let hold = |rng: &mut Rng| match rng.below(8) {
                            0 => sim.sleep(us(40)),
                            _ => sim.spend(Time::from_ns(rng.below(9000))),
                        };
                        let is_reader = rng.below(2) == 0;
                        if is_reader {
                            lock.lock_shared();
                            add(1, 0);
                        } else {
                            lock.lock_exclusive();
                            add(0, 1);
                        }
                        hold(&mut rng);
                        if !is_reader && rng.below(3) == 0 {
                            add(0, -1);
                            // SAFETY: locked above.
                            unsafe { lock.downgrade() };
                            add(1, 0);
                            hold(&mut rng);
                            add(-1, 0);
                            // SAFETY: locked above, and downgraded.
                            unsafe { lock.unlock_shared() };
                        } else if is_reader {
                            add(-1, 0);
                            // SAFETY: locked above.
                            unsafe { lock.unlock_shared() };
                        } else {
                            add(0, -1);
                            // SAFETY: locked above.
                            unsafe { lock.unlock_exclusive() };
                        }
                        sim.preemption_point();
                    }
                });
            }
            assert_eq!(sim.run_until(Time::END), RunEnd::Done, "{waiting:?}, seed {seed}");
            assert_eq!(inside.get(), (0, 0));
        }
    }
}

/// Readers share the line of the lock until a writer changes what it guards.
#[test]
fn read_mostly_lock_costs_readers_a_hit() {
    let sim = sim(2, LockWaiting::SpinOnAll);
    let index = Rc::new(RwLock::<ReadMostlyLock, u64>::new(0));
    let times = Rc::new(RefCell::new(Vec::new()));
    let (readers, log) = (Rc::clone(&index), Rc::clone(&times));
    on_cpu(&sim, 0, move |sim| {
        for expected in [0, 0, 1] {
            let began = sim.now();
            assert_eq!(*readers.read(), expected);
            log.borrow_mut().push(sim.now() - began);
            sim.spend(us(10));
        }
    });
    on_cpu(&sim, 1, move |sim| {
        sim.spend(us(15));
        *index.write() = 1;
    });
    run(&sim);
    let [_, unchanged, changed] = times.borrow()[..] else { panic!("three reads") };
    assert!(unchanged < Time::from_ns(10), "{unchanged}");
    assert!(changed > Time::from_ns(10), "{changed}");
}

#[test]
fn locked_table_makes_other_cpu_spin() {
    let sim = sim(2, LockWaiting::Sleep);
    let table = sim.allocate(Purpose::Table).unwrap();
    on_cpu(&sim, 0, move |sim| {
        sim.lock_table(table);
        assert!(!sim.try_lock_table(table));
        sim.spend(Time::from_ns(5000));
        sim.unlock_table(table);
    });
    let got_at = Rc::new(Cell::new(Time::ZERO));
    let at = Rc::clone(&got_at);
    on_cpu(&sim, 1, move |sim| {
        sim.spend(Time::from_ns(500));
        sim.lock_table(table);
        at.set(sim.now());
        sim.unlock_table(table);
    });
    run(&sim);
    assert!(got_at.get() >= Time::from_ns(5000), "{:?}", got_at.get());
    assert_eq!(sim.counts().lock_waits, 1);
}

/// Two CPUs that need frames at the same time wait for the lock of the node, once for each batch.
#[test]
fn zone_is_locked_once_for_each_batch_of_frames() {
    let sim = sim(2, LockWaiting::Sleep);
    let batch = 15;
    for cpu in 0..2 {
        on_cpu(&sim, cpu, move |sim| {
            let waits = |sim: &Sim| sim.counts_of(cpu).lock_waits;
            let pages: Vec<_> = (0..batch).map(|_| sim.allocate(Purpose::Page).unwrap()).collect();
            let first = waits(sim);
            assert!(first <= 1);
            // A page that this CPU has just freed is its next.
            assert!(sim.release(pages[3]));
            assert_eq!(sim.allocate(Purpose::Page), Some(pages[3]));
            assert_eq!(waits(sim), first);
        });
    }
    run(&sim);
    assert_eq!(sim.counts().lock_waits, 1);
}
