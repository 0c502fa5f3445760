//! The records that the assembler makes of events.

mod restart;

use std::slice::from_ref;

use super::*;
use crate::format::{Header, Reader, Source};
use crate::raw::{CallSite, Function};
use crate::record::{Call, FaultCode, Owner, SpaceId};

const THREAD: u64 = 0x1_0100;
const FORK: u64 = 0;
const VFORK: u64 = 0x100;
const UNMAP: Call = Call::Unmap { address: 0x1000, length: 0x1000 };

/// Time, CPU, thread and kind of an event.
type Input = (u64, u32, u32, RawKind);

fn header() -> Header {
    Header {
        recorder: String::new(),
        source: Source::Tracefs,
        kernel: String::new(),
        processor: String::new(),
        cpus: 2,
        command: Vec::new(),
    }
}

fn assemble(startup: Startup, events: impl IntoIterator<Item = RawEvent>) -> Vec<Record> {
    let mut assembler = Assembler::new(Writer::create(Vec::new(), &header()).unwrap(), startup);
    for event in events {
        assembler.event(event).unwrap();
    }
    let bytes = assembler.finish(Ended::Interrupted).unwrap();
    Reader::open(bytes.as_slice()).unwrap().map(|record| record.unwrap()).collect()
}

fn raw((time_ns, cpu, tid, kind): Input) -> RawEvent {
    RawEvent { time_ns, cpu, tid: Tid(tid), during: During::Task, kind }
}

/// Thread 10 of process 10 is recorded. Threads 20 and 21 belong to another program, and 2 is a
/// kernel thread.
fn startup() -> Startup {
    let task = |tid, process, kind, name: &str| StartTask {
        tid: Tid(tid),
        process,
        kind,
        name: name.to_owned(),
    };
    Startup {
        recorded: vec![Tid(10)],
        tasks: vec![
            task(2, 2, TaskKind::Kernel, "kthreadd"),
            task(10, 10, TaskKind::User, "sort"),
            task(20, 20, TaskKind::User, "other"),
            task(21, 20, TaskKind::User, "other"),
        ],
    }
}

fn records(events: impl IntoIterator<Item = Input>) -> Vec<Record> {
    assemble(startup(), events.into_iter().map(raw))
}

fn events(inputs: impl IntoIterator<Item = Input>) -> Vec<Event> {
    records(inputs).into_iter().map(|record| record.event).collect()
}

fn switch(next: u32, left: Left) -> RawKind {
    RawKind::Switch { left, next: Tid(next), next_name: String::new() }
}

fn new_task(tid: u32, flags: u64) -> RawKind {
    RawKind::NewTask { tid: Tid(tid), clone_flags: Some(flags), name: "made".to_owned() }
}

fn recorded(task: u32, space: u32, name: &str) -> Event {
    let (task, space) = (TaskId(task), SpaceId(space));
    Event::Task { task, owner: Owner::Recorded, space, name: name.to_owned() }
}

fn other(task: u32, space: u32) -> Event {
    let (task, space) = (TaskId(task), SpaceId(space));
    Event::Task { task, owner: Owner::Other, space, name: String::new() }
}

fn spawned(task: u32, space: u32) -> Event {
    Event::Spawn { task: TaskId(task), space: SpaceId(space), name: "made".to_owned() }
}

fn running(task: u32) -> Event {
    Event::Running { task: TaskId(task) }
}

fn switched(next: u32, left: Left) -> Event {
    Event::Switch { next: TaskId(next), left }
}

#[test]
fn times_start_at_zero_and_never_decrease() {
    let exit = |value| RawKind::Return { value };
    let enter = || RawKind::Enter(UNMAP);
    let records = records([(500, 1, 10, enter()), (400, 1, 10, exit(0)), (507, 1, 10, enter())]);
    let times: Vec<_> = records.iter().map(|record| (record.time_ns, record.cpu)).collect();
    assert_eq!(times, [(0, 0), (0, 1), (0, 1), (0, 1), (7, 1)]);
    assert_eq!(records[0].event, recorded(1, 0, "sort"));
    assert_eq!(records[1].event, running(1));
}

#[test]
fn threads_of_another_program_are_one_task() {
    let blocked = Left::Blocked;
    let actual = events([
        (0, 0, 0, switch(20, Left::Runnable)),
        (1, 0, 20, switch(21, blocked)),
        (2, 0, 21, RawKind::Enter(UNMAP)),
        (3, 0, 21, switch(2, blocked)),
        (4, 0, 2, switch(0, blocked)),
        (5, 0, 0, switch(10, Left::Runnable)),
    ]);
    let expected = [
        running(0),
        other(1, 0),
        switched(1, Left::Runnable),
        switched(0, blocked),
        recorded(2, 1, "sort"),
        switched(2, Left::Runnable),
    ];
    assert_eq!(actual, expected);
}

#[test]
fn threads_share_a_space_and_processes_do_not() {
    let exec = || RawKind::Exec { file: "/usr/bin/true".to_owned() };
    let actual = events([
        (0, 0, 10, new_task(11, THREAD)),
        (1, 0, 10, new_task(12, FORK)),
        (2, 0, 10, new_task(13, VFORK)),
        (3, 0, 10, switch(13, Left::Blocked)),
        (4, 0, 13, exec()),
        (5, 0, 13, new_task(14, THREAD)),
        (6, 0, 13, switch(11, Left::Blocked)),
        (7, 0, 11, new_task(15, THREAD)),
    ]);
    let expected = [
        recorded(1, 0, "sort"),
        running(1),
        spawned(2, 0),
        spawned(3, 1),
        spawned(4, 0),
        switched(4, Left::Blocked),
        Event::Exec { space: SpaceId(2), name: "true".to_owned() },
        spawned(5, 2),
        switched(2, Left::Blocked),
        spawned(6, 0),
    ];
    assert_eq!(actual, expected);
}

#[test]
fn another_programs_child_with_own_space_is_own_task() {
    let actual = events([
        (0, 0, 20, new_task(30, VFORK)),
        (1, 0, 20, switch(30, Left::Blocked)),
        (2, 0, 30, RawKind::Exec { file: "x".to_owned() }),
        (3, 0, 30, switch(20, Left::Blocked)),
        (4, 0, 20, new_task(31, FORK)),
        (5, 0, 20, switch(31, Left::Runnable)),
    ]);
    let expected = [
        other(1, 0),
        running(1),
        other(2, 1),
        running(2),
        switched(1, Left::Blocked),
        other(3, 2),
        switched(3, Left::Runnable),
    ];
    assert_eq!(actual, expected);
}

#[test]
fn reused_number_is_another_task() {
    let actual = events([
        (0, 0, 10, new_task(11, THREAD)),
        (1, 0, 10, switch(11, Left::Blocked)),
        (2, 0, 11, RawKind::Exit),
        (3, 0, 11, RawKind::Enter(UNMAP)),
        (4, 0, 11, switch(10, Left::Dead)),
        (5, 0, 10, switch(11, Left::Blocked)),
        (6, 0, 11, RawKind::Enter(UNMAP)),
    ]);
    let expected = [
        recorded(1, 0, "sort"),
        running(1),
        spawned(2, 0),
        switched(2, Left::Blocked),
        Event::Exit,
        switched(1, Left::Dead),
        other(3, 1),
        switched(3, Left::Blocked),
    ];
    assert_eq!(actual, expected);
}

#[test]
fn reused_number_forgets_its_former_thread() {
    let actual = events([
        (0, 0, 10, new_task(2, THREAD)),
        (1, 0, 10, switch(2, Left::Blocked)),
        (2, 0, 2, RawKind::Exit),
        (3, 0, 2, switch(10, Left::Dead)),
        (4, 0, 10, switch(2, Left::Blocked)),
    ]);
    assert_eq!(actual[6..], [other(3, 1), switched(3, Left::Blocked)], "not the kernel's");
}

#[test]
fn fork_without_flags_is_a_thread_unless_known() {
    let fork = |tid| RawKind::NewTask { tid: Tid(tid), clone_flags: None, name: "made".to_owned() };
    let actual = events([
        (0, 0, 10, new_task(11, FORK)),
        (1, 0, 10, fork(11)),
        (2, 0, 10, fork(12)),
        (3, 0, 10, fork(0)),
    ]);
    assert_eq!(actual[2..], [spawned(2, 1), spawned(3, 0)]);
}

#[test]
fn return_needs_a_call_but_call_no_return() {
    let actual = events([
        (0, 0, 10, RawKind::Return { value: 1 }),
        (1, 0, 10, RawKind::Enter(UNMAP)),
        (2, 0, 10, RawKind::Enter(UNMAP)),
        (3, 0, 10, RawKind::Return { value: 2 }),
        (4, 0, 10, RawKind::Return { value: 3 }),
    ]);
    let (call, back) = (Event::Call(UNMAP), Event::Return { value: 2 });
    assert_eq!(actual[2..], [call.clone(), call, back]);
}

#[test]
fn only_user_faults_of_the_program_are_recorded() {
    let code = FaultCode(6);
    let fault = |address| RawKind::Fault { address, code };
    let mut raws =
        [(0, 0, 10, fault(1 << 12)), (1, 0, 10, fault(1 << 63)), (2, 0, 10, fault(2 << 12))]
            .map(raw);
    raws[2].during = During::Interrupt;
    let records = assemble(startup(), raws);
    assert_eq!(records.len(), 3, "{records:?}");
    assert_eq!(records[2].event, Event::Fault { address: 1 << 12, code });
}

#[test]
fn waker_is_the_program_or_an_interrupt() {
    let waking = || RawKind::Waking { tid: Tid(10) };
    let mut raws = [
        (0, 0, 20, waking()),
        (1, 0, 20, RawKind::Waking { tid: Tid(21) }),
        (2, 1, 10, waking()),
        (3, 1, 10, waking()),
        (4, 1, 10, new_task(11, THREAD)),
        (5, 1, 10, switch(11, Left::Blocked)),
        (6, 1, 11, RawKind::Exit),
        (7, 1, 11, waking()),
    ]
    .map(raw);
    raws[3].during = During::Interrupt;
    let records = assemble(startup(), raws);
    let wakers: Vec<_> = records
        .iter()
        .filter_map(|record| match record.event {
            Event::Wake { by, .. } => Some((record.time_ns, by)),
            _ => None,
        })
        .collect();
    use Waker::{Interrupt, Running};
    assert_eq!(wakers, [(0, Interrupt), (2, Running), (3, Interrupt), (7, Running)]);
}

#[test]
fn idle_cpu_switches_to_its_queued_thread() {
    let queued = |tid| RawKind::Queued { tid: Tid(tid), target: 1 };
    let start = [(0, 0, 10, new_task(11, THREAD)), (1, 1, 0, queued(11))];
    let switches = |rest: &[Input]| -> Vec<_> {
        let records = records(start.iter().chain(rest).cloned());
        let is_switch = |record: &Record| matches!(record.event, Event::Switch { .. });
        let switches = records.into_iter().filter(is_switch).filter(|record| record.cpu == 1);
        switches.map(|record| (record.time_ns, record.event)).collect()
    };
    let fault = || RawKind::Fault { address: 4096, code: FaultCode(6) };
    // The thread has an event there much later, or leaves the CPU again.
    let inferred = (1501, switched(2, Left::Runnable));
    assert_eq!(switches(&[(90_000, 1, 11, fault())]), from_ref(&inferred));
    let left = (90_000, switched(0, Left::Blocked));
    let leaves = [(90_000, 1, 11, switch(0, Left::Blocked))];
    assert_eq!(switches(&leaves), [inferred.clone(), left]);
    // The switch is traced after all, before or after the prediction, perhaps to another thread.
    let traced = |at, to| [(at, 1, 0, switch(to, Left::Runnable)), (90_000, 0, 10, fault())];
    assert_eq!(switches(&traced(900, 11)), [(900, switched(2, Left::Runnable))]);
    assert_eq!(switches(&traced(5000, 11)), from_ref(&inferred));
    assert_eq!(switches(&traced(5000, 0)), [inferred, (5000, switched(0, Left::Runnable))]);
    // The thread enters the queue of another CPU, or of a busy CPU.
    let elsewhere = [(0, 1, 0, RawKind::Queued { tid: Tid(10), target: 0 })];
    assert!(!events(elsewhere.to_vec()).contains(&switched(1, Left::Runnable)));
}

#[test]
fn flush_interrupts_are_kept_in_ascending_order() {
    let ipi =
        |targets: &[u32]| RawKind::Ipi { targets: targets.to_vec(), site: CallSite::CallFunction };
    let queue = |function| RawKind::QueueCall { function, target: 1 };
    let flush = || RawKind::Flush { reason: FlushReason::Request, pages: Some(1) };
    let sent = |inputs: &[Input]| -> Vec<_> {
        let events = events(inputs.to_vec());
        events.into_iter().filter(|event| matches!(event, Event::Interrupts { .. })).collect()
    };
    let one = [Event::Interrupts { targets: vec![0, 1] }];
    assert_eq!(sent(&[(0, 0, 20, flush()), (1, 0, 20, ipi(&[1, 0, 1]))]), one);
    let queues = [
        (0, 0, 20, flush()),
        (1, 0, 20, queue(Function::FlushSpace)),
        (2, 0, 20, ipi(&[1, 0])),
        (3, 0, 20, flush()),
        (4, 0, 20, queue(Function::Other)),
        (5, 0, 20, ipi(&[0])),
        (6, 0, 20, queue(Function::FlushSpace)),
        (7, 0, 20, ipi(&[])),
    ];
    assert_eq!(sent(&queues), one);
}

#[test]
fn requests_are_recorded_with_and_without_an_interrupt() {
    let queue = |target| RawKind::QueueCall { function: Function::FlushSpace, target };
    let ipi = RawKind::Ipi { targets: vec![1], site: CallSite::CallFunction };
    // Two requests for CPU 1 follow each other if its queue is not empty.
    let inputs = [queue(1), queue(0), ipi, queue(1), queue(1)];
    let actual = events((0..).zip(inputs).map(|(time_ns, kind)| (time_ns, 0, 10, kind)));
    let requests = |targets: &[u32]| Event::Requests { targets: targets.to_vec() };
    let sent = Event::Interrupts { targets: vec![1] };
    let expected = [requests(&[0, 1]), sent, requests(&[1]), requests(&[1])];
    assert_eq!(actual[2..], expected);
}

#[test]
fn running_task_is_repeated_after_a_loss() {
    let enter = || RawKind::Enter(UNMAP);
    let actual = events([
        (0, 0, 10, enter()),
        (1, 0, 0, RawKind::Lost { count: 3 }),
        (2, 0, 10, enter()),
        (3, 0, 20, enter()),
        (4, 0, 10, enter()),
    ]);
    let call = || Event::Call(UNMAP);
    let expected = [
        recorded(1, 0, "sort"),
        running(1),
        call(),
        Event::Lost { count: 3 },
        running(1),
        call(),
        other(2, 1),
        running(2),
        running(1),
        call(),
    ];
    assert_eq!(actual, expected);
}

#[test]
fn flush_within_a_switch_is_not_a_switch() {
    let flush = || RawKind::Flush { reason: FlushReason::TaskSwitch, pages: None };
    let actual = events([
        (0, 0, 10, switch(20, Left::Blocked)),
        (1, 0, 10, flush()),
        (2, 0, 20, RawKind::Enter(UNMAP)),
        (3, 1, 10, flush()),
    ]);
    let flushed = || Event::Flush { reason: FlushReason::TaskSwitch, pages: None };
    let switched = switched(2, Left::Blocked);
    let expected = [other(2, 1), switched, flushed(), running(1), flushed()];
    assert_eq!(actual[2..], expected);
}

/// The events that Linux may trace between `sched_switch` and the next thread's first event.
fn within_a_switch() -> [RawKind; 4] {
    [
        RawKind::QueueCall { function: Function::FlushSpace, target: 1 },
        RawKind::Ipi { targets: vec![1], site: CallSite::CallFunction },
        RawKind::Waking { tid: Tid(10) },
        RawKind::Flush { reason: FlushReason::Remote, pages: Some(1) },
    ]
}

#[test]
fn events_within_a_switch_are_not_a_switch() {
    let within = within_a_switch().map(|kind| (2, 0, 10, kind));
    for left in [Left::Blocked, Left::Dead] {
        let first = [(0, 0, 10, RawKind::Enter(UNMAP)), (1, 0, 10, switch(20, left))];
        let last = (3, 0, 20, switch(0, Left::Blocked));
        let actual = events(first.into_iter().chain(within.clone()).chain([last]));
        let changes = |event: &Event| {
            matches!(event, Event::Running { .. } | Event::Switch { .. } | Event::Task { .. })
        };
        let changes: Vec<_> = actual.iter().filter(|event| changes(event)).cloned().collect();
        let expected = [
            recorded(1, 0, "sort"),
            running(1),
            other(2, 1),
            switched(2, left),
            switched(0, Left::Blocked),
        ];
        assert_eq!(changes, expected);
        assert!(actual.contains(&Event::Interrupts { targets: vec![1] }));
        if left == Left::Blocked {
            assert!(actual.contains(&Event::Wake { task: TaskId(1), by: Waker::Interrupt }));
        }
    }
}

#[test]
fn running_thread_reveals_a_missing_switch() {
    let actual = events([
        (0, 0, 10, switch(20, Left::Blocked)),
        (1, 0, 10, RawKind::Enter(UNMAP)),
        (2, 0, 10, switch(20, Left::Blocked)),
        (3, 0, 20, switch(10, Left::Blocked)),
        (4, 0, 10, within_a_switch()[3].clone()),
    ]);
    let (call, flushed) = (Event::Call(UNMAP), FlushReason::Remote);
    let flushed = Event::Flush { reason: flushed, pages: Some(1) };
    let to = |task| switched(task, Left::Blocked);
    assert_eq!(actual[3..], [to(2), running(1), call, to(2), to(1), flushed]);
}

#[test]
fn missing_switch_from_idle_loop_is_added() {
    let actual = events([
        (0, 0, 10, switch(0, Left::Blocked)),
        (1, 0, 0, RawKind::Waking { tid: Tid(10) }),
        (2, 0, 10, RawKind::Enter(UNMAP)),
        (3, 0, 10, switch(2, Left::Blocked)),
        (4, 0, 10, RawKind::Enter(UNMAP)),
    ]);
    let expected = [
        switched(0, Left::Blocked),
        Event::Wake { task: TaskId(1), by: Waker::Interrupt },
        switched(1, Left::Runnable),
        Event::Call(UNMAP),
        switched(0, Left::Blocked),
        running(1),
        Event::Call(UNMAP),
    ];
    assert_eq!(actual[2..], expected, "only the switch from the idle loop is added");
}

/// The first thread, 10, creates threads 11 and 12. Thread 11 executes another program.
fn exec_by_a_thread(renumbered: impl IntoIterator<Item = Input>) -> Vec<Event> {
    let begin = [
        (0, 0, 10, new_task(11, THREAD)),
        (1, 0, 10, new_task(12, THREAD)),
        (2, 1, 0, switch(11, Left::Runnable)),
        (3, 1, 11, switch(12, Left::Blocked)),
        (4, 1, 12, RawKind::Exit),
        (5, 1, 12, switch(11, Left::Dead)),
        (6, 0, 10, RawKind::Exit),
    ];
    let end = [
        (20, 1, 10, RawKind::Exec { file: "/bin/true".to_owned() }),
        (21, 1, 10, switch(0, Left::Blocked)),
        (22, 0, 0, switch(10, Left::Runnable)),
        (23, 0, 10, RawKind::Enter(UNMAP)),
        (24, 0, 10, RawKind::Exit),
        (25, 0, 10, switch(0, Left::Dead)),
    ];
    let actual = events(begin.into_iter().chain(renumbered).chain(end));
    assert_eq!(
        actual[..5],
        [recorded(1, 0, "sort"), running(1), spawned(2, 0), spawned(3, 0), running(0)]
    );
    actual[5..].to_vec()
}

#[test]
fn thread_that_execs_stays_one_task() {
    let flush = || RawKind::Flush { reason: FlushReason::LocalSpace, pages: None };
    let flushed = || Event::Flush { reason: FlushReason::LocalSpace, pages: None };
    let ended = || (10, 0, 10, switch(0, Left::Dead));
    let ended_later = || (12, 0, 11, switch(0, Left::Dead));
    let seen = || (11, 1, 10, flush());
    let gone = || switched(0, Left::Dead);
    // The first thread still has its own number, or has the other thread's number, before or after
    // an event of the other thread.
    let orders = [
        (vec![ended(), seen()], vec![gone(), flushed()]),
        (vec![seen(), ended_later()], vec![flushed(), gone()]),
        (vec![ended_later(), (13, 1, 10, flush())], vec![gone(), flushed()]),
    ];
    for (renumbered, seen) in orders {
        let to = |task, left| switched(task, left);
        let begin = vec![
            to(2, Left::Runnable),
            to(3, Left::Blocked),
            Event::Exit,
            to(2, Left::Dead),
            Event::Exit,
        ];
        let end = vec![
            Event::Exec { space: SpaceId(1), name: "true".to_owned() },
            to(0, Left::Blocked),
            to(2, Left::Runnable),
            Event::Call(UNMAP),
            Event::Exit,
            to(0, Left::Dead),
        ];
        assert_eq!(exec_by_a_thread(renumbered), [begin, seen, end].concat());
    }
}

#[test]
fn thread_that_execs_is_known_without_its_switch() {
    let actual = events([
        (0, 0, 10, new_task(11, THREAD)),
        (1, 0, 10, RawKind::Exit),
        (2, 0, 10, switch(0, Left::Dead)),
        (3, 1, 0, RawKind::Waking { tid: Tid(11) }),
        (4, 1, 10, RawKind::Exec { file: "/bin/true".to_owned() }),
    ]);
    let exec = Event::Exec { space: SpaceId(1), name: "true".to_owned() };
    assert_eq!(actual[actual.len() - 2..], [switched(2, Left::Runnable), exec]);
}

#[test]
fn live_or_unseen_first_thread_keeps_its_number() {
    let enter = || RawKind::Enter(UNMAP);
    let actual = events([
        (0, 0, 10, new_task(11, THREAD)),
        (1, 0, 10, switch(11, Left::Blocked)),
        (2, 0, 10, enter()),
        (3, 0, 11, enter()),
        (4, 0, 21, switch(10, Left::Blocked)),
    ]);
    let call = || Event::Call(UNMAP);
    let expected =
        [switched(2, Left::Blocked), running(1), call(), running(2), call(), other(3, 1)];
    assert_eq!(actual[3..9], expected);
}

#[test]
fn event_on_unknown_cpu_changes_nothing_elsewhere() {
    let actual = events([
        (0, u32::MAX, 10, RawKind::Enter(UNMAP)),
        (1, 2, 10, new_task(11, THREAD)),
        (2, 0, 10, new_task(12, THREAD)),
        (3, 1, 10, RawKind::Ipi { targets: vec![7], site: CallSite::CallFunction }),
    ]);
    assert_eq!(actual, [recorded(1, 0, "sort"), running(1), spawned(2, 0), running(1)]);
}

#[test]
fn long_names_are_shortened() {
    let name = "é".repeat(200);
    let start = StartTask { tid: Tid(10), process: 10, kind: TaskKind::User, name };
    let startup = Startup { recorded: vec![Tid(10)], tasks: vec![start] };
    let records = assemble(startup, [raw((0, 0, 10, RawKind::Enter(UNMAP)))]);
    assert_eq!(records[0].event, recorded(1, 0, &"é".repeat(127)));
}

#[test]
fn kernel_threads_are_recognised_by_name() {
    let next = |next, name: &str| RawKind::Switch {
        left: Left::Blocked,
        next: Tid(next),
        next_name: name.to_owned(),
    };
    let raws = [(0, 0, 0, next(40, "kworker/0:1")), (1, 0, 40, next(41, "sh"))].map(raw);
    let records = assemble(Startup::default(), raws);
    let actual: Vec<_> = records.into_iter().map(|record| record.event).collect();
    assert_eq!(actual, [running(0), other(1, 0), switched(1, Left::Blocked)]);
}

#[test]
fn live_threads_bound_the_memory() {
    let mut tasks = Tasks::new(Startup::default());
    for tid in 1..100_000 {
        let (creator, child) = (Tid(tid), Tid(tid + 1));
        tasks.identify(creator, "sh");
        tasks.spawn(creator, child, Some(if tid % 2 == 0 { FORK } else { THREAD }), "");
        tasks.exit(creator);
        tasks.forget(creator);
    }
    assert_eq!(tasks.len(), (1, 1));
}
