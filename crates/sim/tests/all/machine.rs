//! The machine itself: time, interrupts, threads, locks, translation.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use lock_api::{RawMutex, RawRwLock};
use shootdown::Word;
use shootdown_sim::{
    Affinity, Kernel, Machine, PageFault, Purpose, RunEnd, Sim, SimWord, SleepingLock, SpinLock,
    TagEntries, ThreadSpec, Time, Touch,
};

const ROUND: &str = include_str!("../round.toml");

pub(crate) fn sim(cpus: usize) -> Rc<Sim> {
    let machine = Machine::from_toml(ROUND).unwrap().with_cpus(cpus).unwrap();
    Rc::new(Sim::new(machine, 1 << 16, 64).unwrap())
}

pub(crate) fn on_cpu(sim: &Rc<Sim>, cpu: usize, body: impl FnOnce(&Sim) + 'static) {
    let spec = ThreadSpec { space: None, affinity: Affinity::Cpu(cpu) };
    let inside = Rc::clone(sim);
    sim.spawn(spec, move || body(&inside)).unwrap();
}

pub(crate) fn run(sim: &Sim) {
    assert_eq!(sim.run_until(Time::END), RunEnd::Done);
}

/// Events as (time, number), in the order in which they happened.
type Log = Rc<RefCell<Vec<(u64, usize)>>>;

#[test]
fn effects_are_ordered_by_time_then_cpu() {
    let sim = sim(4);
    let log = Log::default();
    for cpu in 0..4 {
        let log = Rc::clone(&log);
        on_cpu(&sim, cpu, move |sim| {
            for step in 1..50 {
                sim.spend(Time::from_ns(step * 7 % 13 * (4 - cpu as u64)));
                log.borrow_mut().push((sim.now().ps(), sim.cpu()));
            }
        });
    }
    run(&sim);
    let log = log.borrow();
    assert_eq!(log.len(), 4 * 49);
    assert!(log.is_sorted());
}

#[repr(align(64))]
struct Line(SimWord);

#[test]
fn shared_counter_transfers_its_line_each_time() {
    let sim = sim(8);
    let counter = Rc::new(Line(SimWord::with(0)));
    for cpu in 0..8 {
        let counter = Rc::clone(&counter);
        on_cpu(&sim, cpu, move |_| {
            for _ in 0..100 {
                counter.0.fetch_add(1, Relaxed);
            }
        });
    }
    run(&sim);
    assert_eq!(counter.0.load(Relaxed), 800);
    // Each addition except the first few had to transfer the line.
    assert!(sim.time() > Time::from_ns(700 * 25), "{}", sim.time());
}

pub(crate) struct Handler {
    pub(crate) taken: Cell<u32>,
    at: Cell<Time>,
    sim: RefCell<Option<Rc<Sim>>>,
}

impl Kernel for Handler {
    fn online(&self) {}
    fn switch(&self, _space: u64) {}
    fn enter_lazy(&self) {}
    fn leave_space(&self) {}
    fn flush_interrupt(&self) {
        self.taken.set(self.taken.get() + 1);
        if let Some(sim) = &*self.sim.borrow() {
            self.at.set(sim.now());
            assert!(sim.is_masked());
        }
    }
}

pub(crate) fn with_handler(sim: &Rc<Sim>) -> Rc<Handler> {
    let handler = Rc::new(Handler {
        taken: Cell::new(0),
        at: Cell::new(Time::ZERO),
        sim: RefCell::new(Some(Rc::clone(sim))),
    });
    sim.install(handler.clone());
    handler
}

#[test]
fn busy_cpu_is_ticked_and_idle_cpu_is_not() {
    struct Ticking(Rc<Sim>, Log);
    impl Kernel for Ticking {
        fn online(&self) {}
        fn switch(&self, _space: u64) {}
        fn enter_lazy(&self) {}
        fn leave_space(&self) {}
        fn flush_interrupt(&self) {}
        fn tick_interval(&self) -> Option<Time> {
            Some(Time::from_ns(1000))
        }
        fn tick(&self) {
            assert!(self.0.is_masked());
            self.1.borrow_mut().push((self.0.now().ps(), self.0.cpu()));
        }
    }
    let (sim, log) = (sim(2), Log::default());
    sim.install(Rc::new(Ticking(Rc::clone(&sim), Rc::clone(&log))));
    on_cpu(&sim, 0, |sim| {
        sim.spend(Time::from_ns(5500));
        assert!(!sim.is_masked());
    });
    run(&sim);
    sim.uninstall();
    let times: Vec<_> = log.borrow().iter().map(|&(at, cpu)| (at / 1_000_000, cpu)).collect();
    assert!(times.len() >= 5, "{times:?}");
    let expected: Vec<_> = (1..=times.len() as u64).map(|tick| (tick, 0)).collect();
    assert_eq!(times, expected);
}

#[test]
fn interrupt_arrives_in_the_middle_of_computation() {
    let sim = sim(2);
    let handler = with_handler(&sim);
    let ended = Rc::new(Cell::new(Time::ZERO));
    let end = Rc::clone(&ended);
    on_cpu(&sim, 0, move |sim| {
        sim.spend(Time::from_ns(10_000));
        end.set(sim.now());
    });
    let sent_at = Rc::new(Cell::new(Time::ZERO));
    let sent = Rc::clone(&sent_at);
    on_cpu(&sim, 1, move |sim| {
        sim.spend(Time::from_ns(2000));
        sim.send_flush_interrupt([0]);
        sent.set(sim.now());
    });
    run(&sim);
    // The sender's command takes 100 ns, the delivery 500, and the entry of the handler 250.
    assert_eq!(handler.at.get(), sent_at.get() + Time::from_ns(750) + Time::TICK);
    assert_eq!(sim.counts_of(0).interrupted, Time::from_ns(350));
    // The computation began after the switch to its thread (500 ns), and the interrupt is added.
    assert_eq!(ended.get().ns(), 500 + 10_000 + 350);
}

#[test]
fn masked_cpu_coalesces_interrupts_until_it_unmasks() {
    let sim = sim(3);
    let handler = with_handler(&sim);
    let observed = Rc::clone(&handler);
    on_cpu(&sim, 0, move |sim| {
        sim.mask();
        sim.spend(Time::from_ns(50_000));
        assert_eq!(observed.taken.get(), 0);
        sim.unmask();
        assert_eq!(observed.taken.get(), 1);
    });
    for cpu in 1..3 {
        on_cpu(&sim, cpu, |sim| {
            sim.spend(Time::from_ns(1000));
            sim.send_flush_interrupt([0]);
        });
    }
    run(&sim);
    assert_eq!((sim.counts().interrupts_sent, sim.counts().interrupts_taken), (2, 1));
}

#[test]
fn sleeping_lock_excludes_writers_and_admits_readers() {
    let sim = sim(4);
    let lock = Rc::new(<SleepingLock as RawRwLock>::INIT);
    let log = Log::default();
    for index in 0..8 {
        let (lock, log) = (Rc::clone(&lock), Rc::clone(&log));
        on_cpu(&sim, index % 4, move |sim| {
            sim.spend(Time::from_ns(10_000 * index as u64));
            let is_reader = index % 4 > 1;
            if is_reader {
                lock.lock_shared();
            } else {
                lock.lock_exclusive();
            }
            log.borrow_mut().push((sim.now().ns() / 1000, index));
            sim.spend(Time::from_ns(200_000));
            // SAFETY: locked above.
            #[expect(unsafe_code, reason = "the raw interface")]
            unsafe {
                if is_reader { lock.unlock_shared() } else { lock.unlock_exclusive() }
            }
        });
    }
    run(&sim);
    let order: Vec<usize> = log.borrow().iter().map(|&(_, index)| index).collect();
    assert_eq!(order.iter().copied().collect::<std::collections::BTreeSet<_>>().len(), 8);
    let at = |index| log.borrow().iter().find(|entry| entry.1 == index).unwrap().0;
    assert!(at(1) >= at(0) + 200, "writers exclude each other");
    assert!(at(3) < at(2) + 200, "readers do not");
}

#[test]
fn spin_lock_admits_one_cpu() {
    let sim = sim(4);
    let lock = Rc::new(<SpinLock as RawMutex>::INIT);
    let inside = Rc::new(Cell::new(0));
    for cpu in 0..4 {
        let (lock, inside) = (Rc::clone(&lock), Rc::clone(&inside));
        on_cpu(&sim, cpu, move |sim| {
            for _ in 0..20 {
                lock.lock();
                inside.set(inside.get() + 1);
                sim.spend(Time::from_ns(30));
                assert_eq!(inside.get(), 1);
                inside.set(0);
                // SAFETY: locked above.
                #[expect(unsafe_code, reason = "the raw interface")]
                unsafe {
                    lock.unlock();
                }
            }
        });
    }
    run(&sim);
}

#[test]
fn idle_cpus_steal_ready_threads() {
    let sim = sim(4);
    for _ in 0..16 {
        let spec = ThreadSpec { space: None, affinity: Affinity::Any };
        let inside = Rc::clone(&sim);
        sim.spawn(spec, move || inside.spend(Time::from_ms(1))).unwrap();
    }
    run(&sim);
    let time = sim.time();
    assert!(time >= Time::from_ms(4) && time < Time::from_ms(5), "{time}");
}

#[test]
fn thread_that_waits_forever_is_a_deadlock() {
    let sim = sim(1);
    on_cpu(&sim, 0, Sim::block);
    assert_eq!(sim.run_until(Time::END), RunEnd::Deadlock(1));
}

/// Builds page tables that map address 0x1000 to a page filled with zeros.
fn tables(sim: &Sim) -> (u64, u64, u64) {
    let table = || sim.allocate(Purpose::Table).unwrap();
    let (top, upper, middle, leaf) = (table(), table(), table(), table());
    let page = sim.allocate(Purpose::Page).unwrap();
    for (from, to) in [(top, upper), (upper, middle), (middle, leaf)] {
        sim.update_entry(from, 0, |_| to << 12 | 7);
    }
    sim.update_entry(leaf, 1, |_| page << 12 | 5);
    sim.clear_page(page);
    (top, leaf, page)
}

#[test]
fn translation_uses_tables_then_tlb() {
    let sim = sim(1);
    on_cpu(&sim, 0, |sim| {
        let (root, leaf, page) = tables(sim);
        sim.load_root(root, 1, TagEntries::Discarded);
        assert_eq!(sim.touch(0x1008, Touch::Read), Ok(0));
        assert_eq!(sim.touch(0x1000, Touch::Write(9)), Err(PageFault), "read-only");
        assert_eq!(sim.touch(0x2000, Touch::Read), Err(PageFault), "not mapped");
        sim.update_entry(leaf, 1, |entry| entry | 2);
        assert_eq!(sim.touch(0x1000, Touch::Write(9)), Ok(9));
        assert_eq!(sim.entry(leaf, 1) & 0xfff, 0x67, "accessed and dirty");
        sim.update_entry(leaf, 1, |_| 0);
        assert_eq!(sim.touch(0x1000, Touch::Read), Ok(9), "the TLB has a stale entry");
        sim.invalidate([0x1000].into_iter());
        assert_eq!(sim.touch(0x1000, Touch::Read), Err(PageFault));
        assert_eq!(sim.users(page), 1);
        assert_eq!((sim.violations(), sim.hazards()), (0, 0));
    });
    run(&sim);
    assert_eq!(sim.counts().walks, 5);
}

#[test]
fn oracle_counts_each_violation() {
    let sim = sim(1);
    on_cpu(&sim, 0, |sim| {
        let (root, leaf, page) = tables(sim);
        sim.load_root(root, 1, TagEntries::Discarded);
        let read = || sim.touch(0x1000, Touch::Read);
        assert_eq!(read(), Ok(0));
        let flush = sim.flush_began(root, Some(0x1000..0x2000));
        assert_eq!((read(), sim.violations()), (Ok(0), 0), "the flush has not ended");
        sim.flush_ended(flush);
        assert!(read().is_ok());
        assert_eq!(sim.violations(), 1, "the flush ended without an invalidation");
        sim.invalidate([0x1000].into_iter());
        assert!(read().is_ok());
        sim.release(page);
        assert!(read().is_ok());
        assert_eq!(sim.violations(), 2, "the page was freed");
        let (other, ..) = tables(sim);
        sim.load_root(other, 1, TagEntries::Kept);
        assert!(read().is_ok());
        assert_eq!(sim.violations(), 3, "the tag was not flushed");
        assert_eq!(sim.hazards(), 0);
        sim.load_root(root, 1, TagEntries::Discarded);
        assert!(read().is_ok());
        sim.free_table(leaf);
        assert_eq!(sim.hazards(), 1, "the CPU can still walk the table");
        let _ = sim.touch(0x3000, Touch::Read);
        assert_eq!(sim.violations(), 4, "the CPU walks the freed table");
    });
    run(&sim);
}

#[test]
fn run_ends_at_its_time_limit() {
    for step in [Time::from_ns(50), Time::NEVER] {
        let sim = sim(1);
        on_cpu(&sim, 0, move |sim| {
            loop {
                sim.spend(step);
            }
        });
        assert_eq!(sim.run_until(Time::from_ms(1)), RunEnd::TimeUp);
    }
}

/// Leaving a space before a deep idle state takes time, in which the CPU is not yet waiting.
#[test]
fn no_wakeup_is_lost_before_deep_idle() {
    struct Leaver(Rc<Sim>);
    impl Kernel for Leaver {
        fn online(&self) {}
        fn switch(&self, _space: u64) {}
        fn enter_lazy(&self) {}
        fn leave_space(&self) {
            self.0.spend(Time::from_ns(300));
        }
        fn flush_interrupt(&self) {}
    }
    let idle = "\n[[idle]]\nname = \"deep\"\ntlb = \"lost\"\n\
        after_us = { value = 0.0, source = \"made up for tests\" }\n\
        exit_us = { value = 1.0, source = \"made up for tests\" }\n";
    for wake_at_ns in (500..3000).step_by(50) {
        let machine = Machine::from_toml(&format!("{ROUND}{idle}")).unwrap();
        let sim = Rc::new(Sim::new(machine.with_cpus(2).unwrap(), 16, 8).unwrap());
        sim.install(Rc::new(Leaver(Rc::clone(&sim))));
        let spec = ThreadSpec { space: None, affinity: Affinity::Cpu(0) };
        let inside = Rc::clone(&sim);
        let sleeper = sim.spawn(spec, move || inside.block()).unwrap();
        on_cpu(&sim, 1, move |sim| {
            sim.spend(Time::from_ns(2000 + wake_at_ns));
            sim.wake(sleeper);
        });
        assert_eq!(sim.run_until(Time::END), RunEnd::Done, "woken at {wake_at_ns} ns");
        sim.uninstall();
    }
}

#[test]
fn spurious_wakeup_does_not_grant_a_lock() {
    let sim = sim(3);
    let lock = Rc::new(<SleepingLock as RawRwLock>::INIT);
    let inside = Rc::new(Cell::new(0));
    let spec = |cpu| ThreadSpec { space: None, affinity: Affinity::Cpu(cpu) };
    let mut threads = Vec::new();
    for cpu in 0..2 {
        let (sim_, lock, inside) = (Rc::clone(&sim), Rc::clone(&lock), Rc::clone(&inside));
        let body = move || {
            lock.lock_exclusive();
            inside.set(inside.get() + 1);
            sim_.spend(Time::from_ns(50_000));
            assert_eq!(inside.get(), 1);
            inside.set(0);
            // SAFETY: locked above.
            #[expect(unsafe_code, reason = "the raw interface")]
            unsafe {
                lock.unlock_exclusive();
            }
        };
        threads.push(sim.spawn(spec(cpu), body).unwrap());
    }
    on_cpu(&sim, 2, move |sim| {
        sim.spend(Time::from_ns(20_000));
        threads.iter().for_each(|&thread| sim.wake(thread));
    });
    run(&sim);
}
