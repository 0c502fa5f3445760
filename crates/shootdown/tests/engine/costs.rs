//! The costs of notifying CPUs: hints to the cache, and measured delays.

use std::ptr::NonNull;

use shootdown::NotifyCosts;

use super::measured::{CONFIG, Config, Hints, PAGE, System};

/// The sender hints at each line that it is going to access, and the target at its bell.
#[test]
fn each_line_of_a_flush_is_hinted_at_once() {
    for answers_early in [false, true] {
        let system = System::new(Config { cpus: 26, answers_early, ..CONFIG });
        // It is scanned, and not rung.
        system.pin(25).leave_space();
        let (in_flush, mut pending) = system.hints(|| system.pin(0).flush(&system.space, PAGE));
        let answer = |cpu| system.hints(|| system.pin(cpu).handle_flush_ipi()).0;
        let in_answers: Vec<_> = (1..25).map(answer).collect();
        // There are ten hints after the first answer, ten after the next ten, and so on.
        let (in_poll, is_done) = system.hints(|| pending.poll());
        assert!(is_done);
        assert_eq!(in_flush, Hints { reads: 25, writes: 24 });
        assert_eq!(in_answers, [Hints { reads: 0, writes: 1 }; 24]);
        let reads = if answers_early { 2 * 23 } else { 23 };
        assert_eq!(in_poll, Hints { reads, writes: 0 });
    }
}

#[test]
fn poll_without_an_answer_gives_no_hint() {
    let system = System::new(Config { cpus: 3, ..CONFIG });
    let mut pending = system.pin(0).flush(&system.space, PAGE);
    let (hints, is_done) = system.hints(|| pending.poll());
    (1..3).for_each(|cpu| system.pin(cpu).handle_flush_ipi());
    assert!(pending.poll());
    assert_eq!((hints, is_done), (Hints { reads: 0, writes: 0 }, false));
}

#[test]
fn flush_of_the_kernel_hints_at_each_bell() {
    let system = System::new(Config { cpus: 26, ..CONFIG });
    let (hints, mut pending) = system.hints(|| system.pin(0).flush_kernel(PAGE));
    (1..26).for_each(|cpu| system.pin(cpu).handle_flush_ipi());
    assert!(pending.poll());
    assert_eq!(hints, Hints { reads: 0, writes: 25 });
}

#[test]
fn retire_and_reap_hint_at_each_cpu() {
    let system = System::new(Config { cpus: 26, ..CONFIG });
    (1..26).for_each(|cpu| system.pin(cpu).leave_space());
    // SAFETY: no CPU uses the space, and it stays in place.
    let retire = || unsafe { system.pin(0).retire(NonNull::from(&*system.space)) }.wait();
    let each = Hints { reads: 25, writes: 0 };
    assert_eq!(system.hints(retire).0, each);
    assert_eq!(system.hints(|| system.pin(0).reap().wait()).0, each);
}

/// A virtual CPU that is not running answers after milliseconds.
#[test]
fn slow_answers_change_the_method() {
    let costs = NotifyCosts { interrupt_ns: 2000, broadcast_ns: 5000, ..NotifyCosts::default() };
    for (answer_ns, broadcasts) in [(2000, 0), (1_000_000, 1)] {
        let system = System::new(Config { costs: Some(costs), answer_ns, ..CONFIG });
        system.flush();
        assert_eq!((system.stats().interrupts_sent, system.stats().broadcasts_sent), (1, 0));
        system.flush();
        assert_eq!(system.stats().broadcasts_sent, broadcasts, "{answer_ns} ns");
    }
}

/// The broadcasts of other CPUs were queued before that of this CPU.
#[test]
fn queue_of_broadcasts_changes_the_method() {
    let costs = NotifyCosts { interrupt_ns: 5000, broadcast_ns: 2000, ..NotifyCosts::default() };
    for (completion_ns, interrupts) in [(2000, 0), (1_000_000, 1)] {
        let system = System::new(Config { costs: Some(costs), completion_ns, ..CONFIG });
        system.flush();
        assert_eq!((system.stats().interrupts_sent, system.stats().broadcasts_sent), (0, 1));
        system.flush();
        assert_eq!(system.stats().interrupts_sent, interrupts, "{completion_ns} ns");
    }
}
