//! Other CPUs while a flush of a replay waits, and replays of emulated CPUs, which keep the
//! recorded times.

use shootdown_designs::{Engine, Linux70, Naive};
use shootdown_recording::record::{Call, Event, FlushReason, Left, Owner, SpaceId, TaskId, Waker};

use shootdown_sim::Time;

use crate::replay::*;

/// A machine whose idle CPUs leave their space after a time.
const DEEP_IDLE: &str = include_str!("../../../../machines/xeon-2s.toml");

const EMULATED: &str = "QEMU TCG CPU version 2.5+";

/// Two threads that use a page each, in an area whose page table stays.
fn using_pages() -> Script {
    Script::two_threads()
        .map(0, PAGE, 8 << 12)
        .fault(0, PAGE, WRITE_ABSENT)
        .fault(0, PAGE + (7 << 12), WRITE_ABSENT)
        .fault(1, PAGE + 4096, WRITE_ABSENT)
        .after_ns(100_000)
}

trait Parts {
    fn begin_unmap(self, cpu: u32, address: u64) -> Self;
    fn flush(self, cpu: u32, reason: FlushReason) -> Self;
    /// The CPU has requested a flush, and asks another CPU by an interrupt.
    fn ask(self, cpu: u32, target: u32) -> Self;
    fn end(self, cpu: u32) -> Self;
    fn block(self, cpu: u32) -> Self;
    /// CPU 0 unmaps a page. The interrupt to CPU 1 arrives after a time.
    fn unmap_slowly(self, address: u64, deliver_ns: u64) -> Self;
}

impl Parts for Script {
    fn begin_unmap(self, cpu: u32, address: u64) -> Self {
        self.on(cpu, Event::Call(Call::Unmap { address, length: 4096 }))
    }

    fn flush(self, cpu: u32, reason: FlushReason) -> Self {
        self.on(cpu, Event::Flush { reason, pages: Some(1) })
    }

    fn ask(self, cpu: u32, target: u32) -> Self {
        self.on(cpu, Event::Requests { targets: vec![target] })
            .on(cpu, Event::Interrupts { targets: vec![target] })
    }

    fn end(self, cpu: u32) -> Self {
        self.on(cpu, Event::Return { value: 0 })
    }

    fn block(self, cpu: u32) -> Self {
        self.on(cpu, Event::Switch { next: TaskId::KERNEL, left: Left::Blocked })
    }

    fn unmap_slowly(self, address: u64, deliver_ns: u64) -> Self {
        self.begin_unmap(0, address)
            .flush(0, FlushReason::Request)
            .ask(0, 1)
            .flush(0, FlushReason::LocalSpace)
            .after_ns(deliver_ns)
            .flush(1, FlushReason::Remote)
    }
}

/// The target leaves the space before the late interrupt arrives, and has nothing to flush.
#[test]
fn other_cpus_go_on_while_a_call_waits_for_its_flush() {
    let stays = using_pages().by_processor(EMULATED).unmap_slowly(PAGE, 70_000).end(0);
    assert_eq!(flushes(&stays), (0, 2, 1));
    let leaves = using_pages()
        .by_processor(EMULATED)
        .begin_unmap(0, PAGE)
        .flush(0, FlushReason::Request)
        .ask(0, 1)
        .flush(0, FlushReason::LocalSpace)
        .after_ns(20_000)
        .block(1)
        .after_ns(50_000)
        .end(0);
    assert_eq!(flushes(&leaves), (0, 1, 1));
}

/// `munmap` holds the lock of the space exclusively, until it has found what to flush. So another
/// call that flushes shows that it has ended.
#[test]
fn call_that_holds_the_lock_ends_what_the_last_one_gathered() {
    let both = using_pages()
        .begin_unmap(0, PAGE)
        .flush(0, FlushReason::LocalSpace)
        .begin_unmap(1, PAGE + 4096)
        .flush(1, FlushReason::LocalSpace)
        .end(1)
        .end(0);
    assert_eq!(flushes(&both), (0, 4, 2));
    // Discarding needs no exclusive lock: the other call may still gather.
    let shared = using_pages()
        .begin_unmap(0, PAGE)
        .flush(0, FlushReason::LocalSpace)
        .advise(1, PAGE + 4096, 1, DONT_NEED)
        .end(0);
    assert_eq!(flushes(&shared), (2, 2, 2));
}

/// The call that held the lock first waits longer in the replay than in the recording. It gathers
/// nothing any more when its flush is complete.
#[test]
fn call_that_waits_longer_than_recorded_does_not_gather_afterwards() {
    let slow = (0..3).fold(using_pages(), |script, page| {
        let address = PAGE + ((4 + page) << 12);
        let script = script.fault(0, address, WRITE_ABSENT).after_ns(100_000);
        script.unmap_slowly(address, 200_000).end(0).after_ns(100_000)
    });
    let fast = slow
        .unmap_slowly(PAGE, 5_000)
        .begin_unmap(1, PAGE + 4096)
        .flush(1, FlushReason::LocalSpace)
        .end(1)
        .end(0);
    assert_eq!(flushes(&fast), (0, 10, 5));
}

/// The switch and the flush begin at the same time in the replay, because calls take less time than
/// in the recorded kernel.
#[test]
fn cpu_that_is_leaving_is_not_asked() {
    let script = using_pages().begin_unmap(0, PAGE).after_ns(50_000).block(1);
    let script = script.after_ns(50_000).flush(0, FlushReason::LocalSpace).end(0);
    let outcome = on_machine(DEEP_IDLE, &script.write(), Linux70::uncounted).unwrap();
    assert_eq!(outcome.counts.interrupts_sent, 0);
}

/// The kernel counts a flush, and then takes its time to choose whom it asks.
#[test]
fn cpu_that_leaves_before_the_choice_is_not_asked() {
    let request = || {
        let script = using_pages().by_processor(EMULATED).begin_unmap(0, PAGE).after_ns(50_000);
        script.flush(0, FlushReason::Request).after_ns(50_000)
    };
    let leaves = request().block(1).after_ns(50_000).flush(0, FlushReason::LocalSpace).end(0);
    assert_eq!(flushes(&leaves), (0, 1, 0));
    let stays =
        request().ask(0, 1).flush(0, FlushReason::LocalSpace).flush(1, FlushReason::Remote).end(0);
    assert_eq!(flushes(&stays), (0, 2, 1));
}

/// Before a flush is counted, and until it has chosen whom it asks. A design that does not report
/// that it has counted a flush chooses before that time.
#[test]
fn calls_of_emulated_cpus_take_their_recorded_time() {
    let script = |processor| {
        using_pages()
            .by_processor(processor)
            .begin_unmap(0, PAGE)
            .after_ns(2_000_000)
            .flush(0, FlushReason::Request)
            .after_ns(3_000_000)
            .ask(0, 1)
            .flush(0, FlushReason::LocalSpace)
            .flush(1, FlushReason::Remote)
            .end(0)
            .write()
    };
    let [emulated, other] = [EMULATED, "Some Processor"].map(script);
    let times_ms = |file: &[u8]| {
        let linux_7_0 = under_recorded_schedule(file, Linux70::uncounted).unwrap();
        let naive = under_recorded_schedule(file, Naive::new).unwrap();
        [linux_7_0, naive].map(|outcome| outcome.time.ns() / 1_000_000)
    };
    assert_eq!(times_ms(&emulated), [5, 5]);
    // The time from the request is taken for that of sending an interrupt, which is 1 ms at most.
    assert_eq!(times_ms(&other), [1, 1]);
}

/// `mprotect` frees nothing after its flush, and another call gets the lock then.
#[test]
fn protection_gathers_nothing_after_its_flush() {
    let protect = |script: Script, cpu: u32, address: u64| {
        script
            .on(cpu, Event::Call(Call::Protect { address, length: 4096, protection: 1 }))
            .flush(cpu, FlushReason::LocalSpace)
    };
    let first = protect(using_pages(), 0, PAGE);
    let both = first.advise(1, PAGE + 4096, 1, DONT_NEED).end(0);
    assert_eq!(flushes(&both), (0, 4, 2));
}

/// Another call gets the lock exclusively while a call that discards is under way: that one waits
/// for the lock. Since 6.17, it has locked its area only, and gathers.
#[test]
fn discard_that_waits_for_the_lock_does_not_gather() {
    let unmap = Call::Unmap { address: PAGE + 4096, length: 4096 };
    let protect = Call::Protect { address: PAGE + 4096, length: 4096, protection: 1 };
    for (kernel, expected) in [("6.12.38+deb13-amd64", (0, 2, 1)), ("6.17", (2, 0, 1))] {
        for (call, order) in [(unmap, [0, 1]), (protect, [0, 1]), (protect, [1, 0])] {
            let begin = |script: Script, cpu| match cpu {
                0 => script.begin_advice(0, PAGE + (6 << 12), 1, DONT_NEED),
                _ => script.on(1, Event::Call(call)),
            };
            let script = order.into_iter().fold(using_pages().on_kernel(kernel), begin);
            let script = script.flush(1, FlushReason::LocalSpace).end(1).end(0);
            assert_eq!(flushes(&script), expected, "{kernel}, {call:?}, {order:?}");
        }
    }
}

/// `munmap` lets readers lock the space before it flushes.
#[test]
fn call_that_begins_during_munmap_gathers() {
    for advice in [DONT_NEED, PAGE_OUT] {
        let script = using_pages()
            .on_kernel("6.12")
            .begin_unmap(1, PAGE + 4096)
            .begin_advice(0, PAGE + (6 << 12), 1, advice)
            .flush(1, FlushReason::LocalSpace)
            .end(1)
            .end(0);
        assert_eq!(flushes(&script), (2, 0, 1), "{advice}");
    }
}

/// Calls that discard do not wait for each other.
#[test]
fn discards_gather_at_the_same_time() {
    let script = using_pages()
        .on_kernel("6.12")
        .begin_advice(0, PAGE + (6 << 12), 1, DONT_NEED)
        .begin_advice(1, PAGE + 4096, 1, DONT_NEED)
        .flush(1, FlushReason::LocalSpace)
        .end(1)
        .end(0);
    assert_eq!(flushes(&script), (2, 0, 1));
}

/// The lock of one space does not hold back the calls in another one.
#[test]
fn discard_does_not_wait_for_another_space() {
    let [child, thread] = [3, 4].map(TaskId);
    let spawn = |task| Event::Spawn { task, space: SpaceId(1), name: String::new() };
    let switch = |next| Event::Switch { next, left: Left::Blocked };
    let begin = || {
        using_pages()
            .on_kernel("6.12")
            .on(0, spawn(child))
            .on(0, switch(child))
            .fault(0, PAGE, WRITE_REFUSED)
            .on(0, spawn(thread))
            .on(1, switch(thread))
            .fault(1, PAGE + (6 << 12), WRITE_ABSENT)
            .on(0, switch(A))
            .after_ns(100_000)
    };
    let discard = |script: Script| script.begin_advice(1, PAGE + (6 << 12), 1, DONT_NEED);
    let unmap = |script: Script| {
        script.begin_unmap(0, PAGE + 4096).flush(0, FlushReason::LocalSpace).end(0)
    };
    let gather_both = |script: Script| {
        script.on(0, switch(child)).advise(0, PAGE, 1, DONT_NEED).end(1).after_ns(100_000)
    };
    let after = flushes(&gather_both(discard(unmap(begin()))));
    assert_eq!(flushes(&gather_both(unmap(discard(begin())))), after);
    let alone = flushes(&gather_both(unmap(begin())));
    assert!(after.0 > alone.0, "{after:?} {alone:?}");
}

/// Paging out locks the space in any version.
#[test]
fn paging_out_waits_for_the_lock() {
    let script = using_pages()
        .begin_advice(0, PAGE + (6 << 12), 1, PAGE_OUT)
        .begin_unmap(1, PAGE + 4096)
        .flush(1, FlushReason::LocalSpace)
        .end(1)
        .end(0);
    assert_eq!(flushes(&script), (0, 2, 1));
}

/// A CPU is stopped after the record of its switch, and before it loads the space.
#[test]
fn switch_takes_effect_after_the_flush_that_did_not_ask_the_cpu() {
    for processor in [EMULATED, "Some Processor"] {
        let script = using_pages()
            .by_processor(processor)
            .block(1)
            .after_ns(50_000)
            .on(1, Event::Switch { next: TaskId(2), left: Left::Runnable })
            .begin_unmap(0, PAGE)
            .after_ns(50_000)
            .flush(0, FlushReason::Request)
            .flush(0, FlushReason::LocalSpace)
            .end(0)
            .after_ns(50_000)
            .fault(1, PAGE + (2 << 12), WRITE_ABSENT);
        assert_eq!(flushes(&script).2, 0, "{processor}");
    }
}

/// The same for a CPU that leaves: it is asked. If it leaves for idle, its flush shows that.
#[test]
fn switch_takes_effect_after_the_flush_that_asks_the_cpu() {
    let idles = using_pages().block(1).after_ns(50_000).unmap_slowly(PAGE, 50_000).end(0);
    assert_eq!(flushes(&idles).2, 1);
    let other = Event::Task {
        task: TaskId(3),
        owner: Owner::Other,
        space: SpaceId(1),
        name: String::new(),
    };
    let leaves = [
        vec![other, Event::Switch { next: TaskId(3), left: Left::Runnable }],
        vec![Event::Exit],
        vec![Event::Exit, Event::Wake { task: TaskId(1), by: Waker::Running }],
    ];
    for events in leaves {
        let left = events.iter().cloned().fold(using_pages(), |script, it| script.on(1, it));
        let discards = |script: Script| {
            let script = script.begin_advice(0, PAGE, 1, DONT_NEED);
            script.flush(0, FlushReason::Request)
        };
        let asked = discards(left.clone()).ask(0, 1).flush(0, FlushReason::LocalSpace).end(0);
        assert_eq!(flushes(&asked).2, 1, "{events:?}");
        let unasked = discards(left).flush(0, FlushReason::LocalSpace).end(0);
        assert_eq!(flushes(&unasked).2, 0, "{events:?}");
    }
}

/// CPU 1 flushes for CPU 0 between the request and the choice of its own fault, and has nothing
/// left to flush itself. The fault has counted its flush nevertheless, so CPU 0 drops everything.
#[test]
fn fault_that_flushes_nothing_itself_counts_its_flush() {
    let shared = Script::two_threads()
        .by_processor(EMULATED)
        .map(0, PAGE, 8 << 12)
        .fault(0, PAGE, READ_ABSENT)
        .fault(1, PAGE + 4096, READ_ABSENT)
        .after_ns(100_000);
    let script = shared
        .fault(1, PAGE + 4096, WRITE_REFUSED)
        .after_ns(20_000)
        .flush(1, FlushReason::Request)
        .after_ns(20_000)
        .fault(0, PAGE, WRITE_REFUSED)
        .after_ns(20_000)
        .flush(0, FlushReason::Request)
        .ask(0, 1)
        .flush(0, FlushReason::LocalSpace)
        .after_ns(20_000)
        .flush(1, FlushReason::Remote)
        .after_ns(20_000)
        .ask(1, 0)
        .after_ns(100_000)
        .fault(1, PAGE + (5 << 12), READ_ABSENT);
    // One full flush on each CPU, and an interrupt to each.
    assert_eq!(flushes(&script), (2, 0, 2));
}

/// An emulated CPU answers late if the host has no time for it.
#[test]
fn interrupt_is_as_late_as_recorded() {
    let script = using_pages().by_processor(EMULATED).unmap_slowly(PAGE, 400_000_000).end(0);
    let outcome = under_recorded_schedule(&script.write(), Linux70::uncounted).unwrap();
    assert!(outcome.time >= Time::from_ms(400), "{}", outcome.time);
}

/// The record of a flush is written at the end of the flush function, whose time is that of the
/// sender's own flush: the interrupt arrives earlier by that time.
#[test]
fn interrupt_arrives_before_the_record_of_its_flush() {
    let wait_us = |flush_ns| {
        let unmap = |script: Script, page: u64, deliver_ns: u64| {
            script
                .begin_unmap(0, PAGE + (page << 12))
                .flush(0, FlushReason::Request)
                .ask(0, 1)
                .after_ns(flush_ns)
                .flush(0, FlushReason::LocalSpace)
                .after_ns(deliver_ns - flush_ns)
                .flush(1, FlushReason::Remote)
                .end(0)
        };
        // Most interrupts are quick: the usual time is not that of the last one.
        let quick =
            [0, 7].into_iter().fold(using_pages().by_processor(EMULATED), |script, page| {
                unmap(script, page, 400_000).after_ns(1_000_000)
            });
        let script = unmap(quick.fault(0, PAGE, WRITE_ABSENT), 0, 900_000);
        let outcome = under_recorded_schedule(&script.write(), Linux70::uncounted).unwrap();
        outcome.waits.max().ns().div_ceil(1000)
    };
    // A long wait ends up to a hundredth late.
    let [long, short] = [0, 300_000].map(wait_us);
    assert!((290..=310).contains(&(long - short)), "{long} {short}");
}

/// The engine discards a page in place, and frees it 20 ms later, with a flush that CPU 1 answers
/// late. A thread that touches the page in that time waits for the flush, and does not fault
/// 100,000 times.
#[test]
fn fault_waits_for_the_flush_of_a_claimed_page() {
    let script = using_pages()
        .by_processor(EMULATED)
        .advise(0, PAGE, 1, DONT_NEED)
        .unmap_slowly(PAGE + (7 << 12), 400_000_000)
        .end(0)
        .begin_advice(0, PAGE + 4096, 1, DONT_NEED)
        .flush(0, FlushReason::LocalSpace)
        .fault(1, PAGE, WRITE_ABSENT)
        .end(0);
    let outcome = under_recorded_schedule(&script.write(), Engine::<1>::new).unwrap();
    assert_eq!((outcome.violations, outcome.dropped_steps), (0, 0));
}

/// The mask of Linux 6.12 has the idle CPU as long as it has the space loaded.
#[test]
fn emulated_cpu_stays_in_its_space_when_idle() {
    for (processor, sent) in [(EMULATED, 1), ("Some Processor", 0)] {
        // The unmapped page is the last of its page table, which idle CPUs are asked for.
        let script = Script::two_threads()
            .by_processor(processor)
            .map(0, PAGE, 4096)
            .fault(0, PAGE, WRITE_ABSENT)
            .block(1)
            .after_ns(5_000_000)
            .unmap(0, PAGE, &[]);
        let outcome = on_machine(DEEP_IDLE, &script.write(), Linux70::clearing_at_switch).unwrap();
        assert_eq!(outcome.counts.interrupts_sent, sent, "{processor}");
    }
}
