//! The time of each CPU by its cause.

use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use lock_api::{RawMutex, RawRwLock};
use shootdown::Word;
use shootdown_sim::{Cause, SimWord, SleepingLock, SpinLock, Time, TimeByCause};

use crate::machine::{on_cpu, run, sim, with_handler};

/// Returns the times of each CPU at the end of a run, which add up to the time of the run.
fn causes(sim: &shootdown_sim::Sim) -> Vec<TimeByCause> {
    let all = sim.time_by_cause(sim.time());
    for (cpu, times) in all.iter().enumerate() {
        assert_eq!(times.total(), sim.time(), "CPU {cpu}: {times:?}");
    }
    all
}

const WORK: Time = Time::from_ns(10_000);

#[test]
fn idle_and_busy_times_add_up() {
    let sim = sim(3);
    on_cpu(&sim, 1, |sim| {
        sim.spend(WORK);
        sim.attribute(Cause::User, || sim.spend(WORK + WORK));
    });
    run(&sim);
    let all = causes(&sim);
    assert_eq!(all[1][Cause::User], WORK + WORK);
    assert!(all[1][Cause::Kernel] >= WORK && all[1][Cause::Idle] < WORK);
    assert!(all[0][Cause::Idle] > WORK && all[0][Cause::User] == Time::ZERO);
}

#[test]
fn interrupted_wait_is_interrupt_and_wait() {
    let sim = sim(2);
    let handler = with_handler(&sim);
    let done = Rc::new(SimWord::with(0));
    let seen = Rc::clone(&done);
    on_cpu(&sim, 1, move |sim| {
        sim.attribute(Cause::FlushWait, || {
            while seen.load(Relaxed) == 0 {
                sim.spin_hint();
            }
        });
    });
    on_cpu(&sim, 0, move |sim| {
        sim.spend(WORK);
        sim.send_flush_interrupt([1]);
        sim.spend(WORK);
        done.store(1, Relaxed);
    });
    run(&sim);
    assert_eq!(handler.taken.get(), 1);
    let all = causes(&sim);
    assert_eq!(all[1][Cause::Interrupts], sim.counts_of(1).interrupted);
    assert!(all[1][Cause::FlushWait] > WORK && all[0][Cause::FlushWait] == Time::ZERO);
}

#[test]
fn waiter_that_sleeps_leaves_its_cpu_idle() {
    let sim = sim(2);
    let lock = Rc::new(SleepingLock::INIT);
    for cpu in 0..2 {
        let lock = Rc::clone(&lock);
        on_cpu(&sim, cpu, move |sim| {
            lock.lock_exclusive();
            sim.attribute(Cause::User, || sim.spend(WORK));
            // SAFETY: locked above.
            #[expect(unsafe_code, reason = "the library's contract for locks")]
            unsafe {
                lock.unlock_exclusive();
            }
        });
    }
    run(&sim);
    for times in causes(&sim) {
        assert_eq!(times[Cause::User], WORK, "{times:?}");
    }
}

#[test]
fn waiter_that_spins_waits_for_the_lock() {
    let sim = sim(2);
    let lock = Rc::new(SpinLock::INIT);
    for cpu in 0..2 {
        let lock = Rc::clone(&lock);
        on_cpu(&sim, cpu, move |sim| {
            lock.lock();
            sim.spend(WORK);
            // SAFETY: locked above.
            #[expect(unsafe_code, reason = "the library's contract for locks")]
            unsafe {
                lock.unlock();
            }
        });
    }
    run(&sim);
    let waited: Vec<_> = causes(&sim).iter().map(|times| times[Cause::LockWait]).collect();
    let longest = *waited.iter().max().expect("two CPUs");
    assert!(longest > WORK - Time::from_ns(1000), "{waited:?}");
    assert!(waited.contains(&Time::ZERO), "{waited:?}");
}

#[test]
fn invalidations_and_refills_have_causes() {
    let sim = sim(1);
    on_cpu(&sim, 0, |sim| {
        sim.invalidate_all();
        sim.invalidate([0, 4096].into_iter());
        assert!(sim.touch(0, shootdown_sim::Touch::Read).is_err(), "nothing is mapped");
    });
    run(&sim);
    let tlb = &sim.machine().tlb;
    let times = causes(&sim)[0];
    assert_eq!(times[Cause::Invalidations], tlb.invalidate_all + tlb.invalidate_page * 2);
    assert_eq!(times[Cause::Refills], tlb.walk);
}
