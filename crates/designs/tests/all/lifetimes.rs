//! Lifetimes of spaces on which CPUs are lazy: their cost per switch, the CPUs that an exit
//! interrupts, and the time at which each space is freed. Counts and times are calculated by hand.
//!
//! The machine has two sockets of four CPUs. An atomic operation takes 8 ns, a transfer of a line
//! from the other socket 150 ns, a barrier 10 ns, and a store 1 ns.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::rig::Rig;
use shootdown_designs::linux::lifetime::Lifetime;
use shootdown_designs::linux::v7_0::Mm;
use shootdown_designs::{ExitFlush, Linux70};
use shootdown_sim::{Rng, Sim, ViolationKind};
use shootdown_vm::{Coherence, Retired};

fn counted(sim: Rc<Sim>) -> Linux70 {
    Linux70::counted(sim, ExitFlush::Broadcast)
}

fn shoot(sim: Rc<Sim>) -> Linux70 {
    Linux70::shoot(sim, ExitFlush::Broadcast)
}

fn hazard(sim: Rc<Sim>) -> Linux70 {
    Linux70::hazard(sim, ExitFlush::Broadcast)
}

/// The thread to which a thread yields.
#[derive(Clone, Copy)]
enum Other {
    Kernel,
    Space,
}

/// The average time in which a thread on each of these CPUs yields to another and resumes. All
/// these threads are in one space and run at the same time.
fn round_trips_ns<C: Coherence + 'static>(
    other: Other,
    cpus: &[usize],
    design: impl FnOnce(Rc<Sim>) -> C,
) -> Vec<f64> {
    const WARM_UP: u64 = 10;
    const TRIPS: u64 = 100;
    let rig = Rig::new(8, design);
    let times = Rc::new(RefCell::new(Vec::new()));
    for &cpu in cpus {
        let times = Rc::clone(&times);
        rig.thread(cpu, 0, move |rig| {
            (0..WARM_UP).for_each(|_| rig.sim.yield_now());
            let start = rig.sim.now();
            (0..TRIPS).for_each(|_| rig.sim.yield_now());
            let time = rig.sim.now() - start;
            times.borrow_mut().push(time.ns() as f64 / TRIPS as f64);
        });
        match other {
            Other::Kernel => rig.kernel_thread(cpu, |rig| {
                (0..WARM_UP + TRIPS).for_each(|_| rig.sim.yield_now());
            }),
            Other::Space => rig.thread(cpu, 1, |rig| {
                (0..WARM_UP + TRIPS).for_each(|_| rig.sim.yield_now());
            }),
        }
    }
    rig.run();
    times.take()
}

/// The additional time per round trip, compared with a design without references of lazy CPUs.
fn extra_ns<C: Coherence + 'static>(
    other: Other,
    cpus: &[usize],
    design: impl FnOnce(Rc<Sim>) -> C,
) -> Vec<f64> {
    let without = round_trips_ns(other, cpus, Linux70::uncounted);
    let with = round_trips_ns(other, cpus, design);
    with.iter().zip(without).map(|(with, without)| with - without).collect()
}

#[test]
fn counted_costs_two_atomics_per_round_trip() {
    assert_eq!(extra_ns(Other::Kernel, &[0], counted), [2.0 * 8.0]);
    // The CPUs alternate, so each transfers the line from the other.
    assert_eq!(extra_ns(Other::Kernel, &[0, 4], counted), [2.0 * (150.0 + 8.0); 2]);
}

#[test]
fn shoot_costs_one_barrier_per_round_trip() {
    assert_eq!(extra_ns(Other::Kernel, &[0], shoot), [10.0]);
    assert_eq!(extra_ns(Other::Kernel, &[0, 4], shoot), [10.0; 2]);
}

#[test]
fn hazard_costs_two_private_stores_per_round_trip() {
    assert_eq!(extra_ns(Other::Kernel, &[0], hazard), [2.0]);
    assert_eq!(extra_ns(Other::Kernel, &[0, 4], hazard), [2.0; 2]);
}

#[test]
fn switch_between_user_threads_is_free() {
    assert_eq!(extra_ns(Other::Space, &[0, 4], counted), [0.0; 2]);
    assert_eq!(extra_ns(Other::Space, &[0, 4], shoot), [0.0; 2]);
    assert_eq!(extra_ns(Other::Space, &[0, 4], hazard), [0.0; 2]);
}

/// The results of an exit.
#[derive(Debug, PartialEq, Eq)]
struct Exit {
    sent: u64,
    to_lazy: u64,
    to_absent: u64,
    /// The CPU that had freed the space when the exit returned.
    at_once: Option<usize>,
    /// The CPU that freed the space in the end.
    by: usize,
}

/// Runs a space with five threads, of which the one on CPU 0 exits last. CPUs 1 to 3 are idle by
/// then, and CPU 4 runs another space. CPU 7 then starts a thread of the other space on CPUs 0, 2,
/// 3 and 1, in that order.
fn exit<C: Coherence + 'static>(design: impl FnOnce(Rc<Sim>) -> C) -> Exit {
    let rig = Rig::new(8, design);
    for cpu in 1..=4 {
        rig.thread(cpu, 0, |rig| {
            rig.touch(0..8);
            rig.until(10);
        });
    }
    rig.thread(4, 1, |rig| rig.until(200));
    let at_once = Rc::new(Cell::new(None));
    let result = Rc::clone(&at_once);
    rig.thread(0, 0, move |rig| {
        rig.touch(0..8);
        rig.until(50);
        rig.exit(0);
        result.set(rig.freed().first().map(|&(_, cpu)| cpu));
    });
    rig.kernel_thread(7, |rig| {
        for (us, cpu) in [(100, 0), (120, 2), (140, 3), (160, 1)] {
            rig.until(us);
            rig.thread(cpu, 1, |rig| rig.touch(0..8));
        }
    });
    rig.run();
    let counts = rig.sim.counts();
    let freed = rig.freed();
    let [(0, by)] = freed[..] else { panic!("{freed:?}") };
    Exit {
        sent: counts.interrupts_sent,
        to_lazy: counts.interrupts_to_lazy,
        to_absent: counts.interrupts_to_absent,
        at_once: at_once.get(),
        by,
    }
}

#[test]
fn last_lazy_cpu_to_leave_frees_the_space() {
    let expected = Exit { sent: 0, to_lazy: 0, to_absent: 0, at_once: None, by: 1 };
    assert_eq!(exit(counted), expected);
    assert_eq!(exit(hazard), expected);
}

#[test]
fn shooting_interrupts_the_mask_and_frees() {
    let expected = Exit { sent: 4, to_lazy: 3, to_absent: 1, at_once: Some(0), by: 0 };
    assert_eq!(exit(shoot), expected);
    // Without references the last flush has the same effects.
    assert_eq!(exit(Linux70::uncounted), expected);
}

#[test]
fn shot_cpu_in_other_space_does_nothing() {
    let rig = Rig::new(8, shoot);
    rig.thread(4, 0, |rig| rig.until(10));
    rig.thread(4, 1, |rig| rig.until(100));
    rig.thread(0, 0, |rig| {
        rig.until(50);
        rig.exit(0);
    });
    rig.run();
    // Entry, acknowledgement and exit; transfers of its queue, the call object and the description
    // from the other socket; and the reply. The mask does not change.
    let handler = (150 + 8) + 150 + 150 + 1;
    assert_eq!(rig.sim.counts_of(4).interrupted.ns(), 200 + 50 + 100 + handler);
}

#[test]
fn interrupting_exit_leaves_references_to_scheduler() {
    let interrupted = |sim| Linux70::counted(sim, ExitFlush::Interrupts);
    let expected = Exit { sent: 4, to_lazy: 3, to_absent: 1, at_once: None, by: 1 };
    assert_eq!(exit(interrupted), expected);
}

#[test]
fn interrupting_exit_leaves_no_hazard_pointer() {
    let interrupted = |sim| Linux70::hazard(sim, ExitFlush::Interrupts);
    let expected = Exit { sent: 4, to_lazy: 3, to_absent: 1, at_once: Some(0), by: 0 };
    assert_eq!(exit(interrupted), expected);
}

#[test]
fn interrupting_exit_shoots_the_mask_again() {
    let interrupted = |sim| Linux70::shoot(sim, ExitFlush::Interrupts);
    // The lazy CPUs have left the space by then, and CPU 4 has left the mask.
    let expected = Exit { sent: 4 + 3, to_lazy: 3, to_absent: 1 + 3, at_once: Some(0), by: 0 };
    assert_eq!(exit(interrupted), expected);
}

/// Returns the spaces that were freed when a thread executed another program, while another CPU was
/// lazy on the old space, or none if `other_cpu` is 0.
fn exec<C: Coherence + 'static>(
    other_cpu: usize,
    design: impl FnOnce(Rc<Sim>) -> C,
) -> Vec<(u64, usize)> {
    let rig = Rig::new(4, design);
    rig.thread(other_cpu, 0, |rig| rig.until(10));
    let freed = Rc::new(RefCell::new(Vec::new()));
    let result = Rc::clone(&freed);
    rig.thread(0, 0, move |rig| {
        rig.until(50);
        rig.sim.set_space(Some(1));
        rig.retire(0);
        result.replace(rig.freed());
    });
    rig.run();
    freed.take()
}

#[test]
fn exec_frees_unborrowed_space_immediately() {
    assert_eq!(exec(0, counted), [(0, 0)]);
    assert_eq!(exec(0, hazard), [(0, 0)]);
    assert_eq!(exec(1, counted), []);
    assert_eq!(exec(1, hazard), []);
}

#[test]
fn deep_idle_clears_hazard_pointer_but_keeps_reference() {
    fn freed_at_once<C: Coherence + 'static>(design: impl FnOnce(Rc<Sim>) -> C) -> bool {
        let rig = Rig::new(4, design);
        rig.thread(1, 0, |rig| rig.until(10));
        rig.kernel_thread(1, |rig| {
            rig.until(20);
            rig.sim.mask();
            rig.design.leave_space();
            rig.sim.unmask();
        });
        let at_once = Rc::new(Cell::new(false));
        let result = Rc::clone(&at_once);
        rig.thread(0, 0, move |rig| {
            rig.until(50);
            rig.sim.set_space(Some(1));
            rig.retire(0);
            result.set(rig.freed() == [(0, 0)]);
        });
        rig.kernel_thread(2, |rig| {
            rig.until(100);
            rig.thread(1, 1, |_| ());
        });
        rig.run();
        assert_eq!(rig.freed().len(), 1);
        at_once.get()
    }
    assert!(!freed_at_once(counted));
    assert!(freed_at_once(hazard));
}

#[test]
fn kernel_threads_pass_the_borrowed_space_on() {
    fn frees<C: Coherence + 'static>(design: impl FnOnce(Rc<Sim>) -> C) {
        let rig = Rig::new(4, design);
        rig.thread(1, 0, |rig| rig.until(10));
        for us in [60, 70, 80] {
            rig.kernel_thread(1, move |rig| rig.until(us));
        }
        rig.thread(0, 0, |rig| {
            rig.until(50);
            rig.sim.set_space(Some(1));
            rig.retire(0);
            rig.until(90);
            assert_eq!(rig.freed(), []);
        });
        rig.kernel_thread(2, |rig| {
            rig.until(100);
            rig.thread(1, 1, |_| ());
        });
        rig.run();
        assert_eq!(rig.freed(), [(0, 1)]);
    }
    frees(counted);
    frees(hazard);
}

/// CPU 1 gets a reference to space 0, and becomes lazy on space 1 before it has dropped that
/// reference. CPU 2 finds the reference when space 1 dies, and drops it instead.
#[test]
fn exiting_cpu_drops_pending_reference_of_another() {
    let rig = Rig::with_spaces(3, 4, hazard);
    rig.thread(1, 0, |rig| rig.until(10));
    rig.thread(0, 0, |rig| {
        rig.until(50);
        rig.sim.set_space(Some(1));
        rig.retire(0);
        rig.until(60);
        rig.frees_dead.set(false);
    });
    rig.thread(2, 1, |rig| {
        rig.until(120);
        assert_eq!(rig.freed(), []);
        rig.exit(1);
        assert_eq!(rig.freed(), [(0, 2)]);
        rig.frees_dead.set(true);
    });
    rig.kernel_thread(3, |rig| {
        rig.until(100);
        rig.thread(1, 1, |_| ());
        for (us, cpu) in [(140, 2), (160, 1), (180, 0)] {
            rig.until(us);
            rig.thread(cpu, 2, |_| ());
        }
    });
    rig.run();
    assert_eq!(rig.freed(), [(0, 2), (1, 0)]);
}

/// Runs short-lived spaces on random CPUs at random times, so that exits race with switches. At the
/// end all CPUs run a thread of one more space, and all other spaces must have been freed.
fn storm<C: Coherence + 'static>(seed: u64, design: impl FnOnce(Rc<Sim>) -> C) -> Rc<Rig<C>> {
    const SPACES: u64 = 40;
    let rig = Rig::with_spaces(SPACES + 1, 8, design);
    let mut random = Rng::new(seed);
    for space in 0..SPACES {
        let users = Rc::new(Cell::new(3));
        for _ in 0..3 {
            let (cpu, compute_ns) = (random.below(8) as usize, random.below(4000));
            let users = Rc::clone(&users);
            rig.thread(cpu, space, move |rig| {
                rig.touch(0..4);
                rig.sim.spend(shootdown_sim::Time::from_ns(compute_ns));
                rig.sim.set_space(None);
                users.set(users.get() - 1);
                if users.get() == 0 {
                    rig.retire(space);
                }
            });
            rig.kernel_thread(cpu, move |rig| {
                rig.sim.spend(shootdown_sim::Time::from_ns(compute_ns / 2));
            });
        }
    }
    for cpu in 0..8 {
        rig.thread(cpu, SPACES, |rig| rig.until(500));
    }
    rig.run_unchecked();
    rig
}

fn check_storms_free_all<C: Coherence + 'static>(design: impl Fn(Rc<Sim>) -> C) {
    for seed in 1..=20 {
        let rig = storm(seed, &design);
        let first = rig.sim.first_violations();
        assert_eq!((rig.sim.violations(), rig.sim.hazards()), (0, 0), "{seed}: {first:?}");
        let mut freed: Vec<u64> = rig.freed().into_iter().map(|(space, _)| space).collect();
        freed.sort_unstable();
        assert_eq!(freed, Vec::from_iter(0..40), "{seed}");
    }
}

#[test]
fn storm_of_exits_frees_each_space_once() {
    check_storms_free_all(Linux70::uncounted);
    for exit_flush in [ExitFlush::Interrupts, ExitFlush::Broadcast] {
        check_storms_free_all(|sim| Linux70::counted(sim, exit_flush));
        check_storms_free_all(|sim| Linux70::shoot(sim, exit_flush));
        check_storms_free_all(|sim| Linux70::hazard(sim, exit_flush));
    }
}

/// A lifetime that frees a space when its users are gone, although CPUs may still be lazy on it.
#[derive(Debug)]
struct Careless;

impl Lifetime for Careless {
    fn put(&self, _linux: &Linux70, _mm: &Rc<Mm>) -> Retired {
        Retired::Free
    }
}

#[test]
fn oracle_detects_free_under_lazy_cpu() {
    let rig = storm(1, |sim| Linux70::with_lifetime(sim, ExitFlush::Broadcast, Careless));
    let first = rig.sim.first_violations()[0];
    assert_eq!(first.kind, ViolationKind::WalkableTableFreed);
    // No CPU has walked the freed tables, so there is no violation besides the hazard.
    assert_eq!(rig.sim.violations(), 0);
}
