//! Linux 7.3: a thread is preempted while it waits for the CPUs that it has interrupted. CPU 1
//! masks interrupts for long, so that each flush of CPU 0 waits.

use std::cell::Cell;
use std::rc::Rc;

use lock_api::RawMutex as _;
use shootdown_designs::{Linux70, LinuxRule};
use shootdown_sim::machine::Policy;
use shootdown_sim::{Affinity, Sim, SpinLock, ThreadSpec, Time};
use shootdown_vm::Freed::Pages;

use crate::rig::{Hardware, Rig};

fn us(time: u64) -> Time {
    Time::from_ns(time * 1000)
}

fn linux_7_0(sim: Rc<Sim>) -> Linux70 {
    Linux70::counted(sim, shootdown_designs::ExitFlush::Interrupts)
}

fn linux_7_3(sim: Rc<Sim>) -> Linux70 {
    Linux70::waiting_preemptibly(sim, None)
}

/// A machine of three CPUs, and a thread of space 0 on CPU 1 that masks interrupts until 500 µs.
fn rig(policy: Policy, design: impl FnOnce(Rc<Sim>) -> Linux70) -> Rc<Rig<Linux70>> {
    let mut machine = Hardware::Plain.machine(6, 3);
    machine.scheduler = policy;
    machine.kernel.timeslice = us(200);
    let rig = Rig::on(machine, 2, design);
    rig.thread(1, 0, |rig| {
        rig.sim.masked(|| rig.until(500));
        rig.until(600);
    });
    rig
}

/// Starts a thread on CPU 0 that flushes at 50 µs. Returns the time at which it has waited, in µs,
/// and the CPU on which it runs then. Threads that start next run before that, and are owed time.
fn flusher(rig: &Rc<Rig<Linux70>>, affinity: Affinity) -> Rc<Cell<(u64, usize)>> {
    let ended = Rc::new(Cell::new((0, 0)));
    let (result, inside) = (Rc::clone(&ended), Rc::clone(rig));
    let body = move || {
        inside.until(20);
        inside.sim.yield_now();
        inside.until(50);
        assert_eq!(inside.sim.cpu(), 0);
        inside.flush(0, 0..1, Pages);
        result.set((inside.sim.now().ns() / 1000, inside.sim.cpu()));
    };
    rig.sim.spawn(ThreadSpec { space: Some(0), affinity }, body).unwrap();
    ended
}

/// Starts a thread on CPU 0 that sleeps until 100 µs, and computes until `until_us`. Returns the
/// time at which it runs again, in µs.
fn sleeper(rig: &Rc<Rig<Linux70>>, until_us: u64) -> Rc<Cell<u64>> {
    let ran = Rc::new(Cell::new(0));
    let (result, inside) = (Rc::clone(&ran), Rc::clone(rig));
    rig.thread(0, 1, move |_| {
        inside.sleep_until(100, 2);
        result.set(inside.sim.now().ns() / 1000);
        inside.until(until_us.max(result.get() + 1));
    });
    ran
}

#[test]
fn woken_thread_runs_while_flush_waits() {
    let run = |design: fn(Rc<Sim>) -> Linux70| {
        let rig = rig(Policy::Eevdf, design);
        let ended = flusher(&rig, Affinity::Cpu(0));
        let ran = sleeper(&rig, 0);
        rig.run();
        assert_eq!(rig.sim.counts().interrupts_sent, 1);
        (ran.get(), ended.get().0)
    };
    // The wake-up takes 0.2 µs, its interrupt 0.95, and the switch 0.65.
    assert_eq!(run(linux_7_3), (101, 501));
    // CPU 1 has flushed at 500.5 µs, and the iterations of a long wait are long.
    assert_eq!(run(linux_7_0), (504, 504));
}

#[test]
fn timeslice_ends_while_flush_waits() {
    let run = |design: fn(Rc<Sim>) -> Linux70| {
        let rig = rig(Policy::RoundRobin, design);
        let ran = Rc::new(Cell::new(0));
        let result = Rc::clone(&ran);
        flusher(&rig, Affinity::Cpu(0));
        rig.thread(0, 1, move |rig| {
            rig.sim.yield_now();
            result.set(rig.sim.now().ns() / 1000);
        });
        rig.run();
        ran.get()
    };
    // The slice of the thread that flushes begins at 22 µs.
    assert!((222..=225).contains(&run(linux_7_3)), "{}", run(linux_7_3));
    assert_eq!(run(linux_7_0), 504);
}

/// The call object belongs to CPU 0, and CPU 2 reads it as a third CPU.
#[test]
fn preempted_thread_waits_on_another_cpu() {
    let rig = rig(Policy::Eevdf, linux_7_3);
    // A thread that may run on any CPU starts on that of its number, and moves to an idle one.
    (1..3).for_each(|half| rig.kernel_thread(2, move |rig| rig.until(30 * half)));
    let ended = flusher(&rig, Affinity::Any);
    let ran = sleeper(&rig, 900);
    rig.run();
    assert_eq!((ran.get(), ended.get()), (101, (501, 2)));
}

#[test]
fn thread_with_spin_lock_keeps_its_cpu() {
    let rig = rig(Policy::Eevdf, linux_7_3);
    rig.thread(0, 0, |rig| {
        let lock = SpinLock::INIT;
        rig.until(20);
        rig.sim.yield_now();
        lock.lock();
        rig.flush(0, 0..1, Pages);
        // SAFETY: locked above.
        #[expect(unsafe_code, reason = "a raw lock")]
        unsafe {
            lock.unlock();
        }
    });
    let ran = sleeper(&rig, 0);
    rig.run();
    assert_eq!(ran.get(), 504);
}

/// A second thread of CPU 0 unmaps a page while the first waits. Returns the number of violations
/// for several times of the second call, in steps of 100 ns around the end of the first.
fn violations(broken: Option<LinuxRule>) -> u64 {
    let run = |late_ns: u64| {
        let mut machine = Hardware::Plain.machine(6, 3);
        machine.scheduler = Policy::Eevdf;
        let rig = Rig::on(machine, 2, |sim| Linux70::waiting_preemptibly(sim, broken));
        rig.thread(1, 0, |rig| {
            rig.touch(0..40);
            rig.sim.masked(|| rig.until(100));
            while rig.sim.now() < us(150) {
                rig.faults(33..34);
                rig.sim.spend(Time::from_ns(10));
            }
        });
        rig.thread(0, 0, |rig| {
            rig.until(20);
            rig.sim.yield_now();
            rig.until(50);
            rig.flush(0, 0..33, Pages);
        });
        let inside = Rc::clone(&rig);
        rig.thread(0, 0, move |_| {
            inside.sleep_until(80, 2);
            inside.sim.spend(us(15) + Time::from_ns(late_ns));
            inside.unmap(0, 33);
        });
        rig.run_unchecked();
        rig.sim.violations()
    };
    (0..100).map(|step| run(step * 100)).sum()
}

#[test]
fn second_call_of_cpu_waits_for_first() {
    assert_eq!(violations(None), 0);
    assert!(violations(Some(LinuxRule::LockCall)) > 0);
}
