//! What becomes of events.

use std::slice::from_ref;

use super::*;
use crate::format::{Header, Reader, Source};
use crate::raw::{CallSite, Function};
use crate::record::{Call, FaultCode, Owner, SpaceId};

const THREAD: u64 = 0x1_0100;
const FORK: u64 = 0;
const VFORK: u64 = 0x100;
const UNMAP: Call = Call::Unmap { address: 0x1000, length: 0x1000 };

/// Time, CPU, thread, kind.
type Told = (u64, u32, u32, RawKind);

fn assemble(startup: Startup, events: impl IntoIterator<Item = RawEvent>) -> Vec<Record> {
    let header = Header {
        recorder: String::new(),
        source: Source::Tracefs,
        kernel: String::new(),
        processor: String::new(),
        cpus: 2,
        command: Vec::new(),
    };
    let mut assembler = Assembler::new(Writer::create(Vec::new(), &header).unwrap(), startup);
    for event in events {
        assembler.event(event).unwrap();
    }
    let bytes = assembler.finish(Ended::Interrupted).unwrap();
    Reader::open(bytes.as_slice()).unwrap().map(|record| record.unwrap()).collect()
}

fn raw((time_ns, cpu, tid, kind): Told) -> RawEvent {
    RawEvent { time_ns, cpu, tid: Tid(tid), during: During::Task, kind }
}

/// Thread 10 of process 10 is recorded; 20 and 21 are another program's; 2 is the kernel's.
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

fn told(events: impl IntoIterator<Item = Told>) -> Vec<Record> {
    assemble(startup(), events.into_iter().map(raw))
}

fn events(told_events: impl IntoIterator<Item = Told>) -> Vec<Event> {
    told(told_events).into_iter().map(|record| record.event).collect()
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
fn times_start_at_the_first_event_and_never_go_backwards() {
    let exit = |value| RawKind::Return { value };
    let enter = || RawKind::Enter(UNMAP);
    let records = told([(500, 1, 10, enter()), (400, 1, 10, exit(0)), (507, 1, 10, enter())]);
    let times: Vec<_> = records.iter().map(|record| (record.time_ns, record.cpu)).collect();
    assert_eq!(times, [(0, 0), (0, 1), (0, 1), (0, 1), (7, 1)]);
    assert_eq!(records[0].event, recorded(1, 0, "sort"));
    assert_eq!(records[1].event, running(1));
}

#[test]
fn threads_of_another_program_are_one_task_and_the_kernel_is_none() {
    let blocked = Left::Blocked;
    let told = events([
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
    assert_eq!(told, expected);
}

#[test]
fn a_thread_shares_its_makers_space_and_a_process_has_its_own_until_exec_gives_it_another() {
    let exec = || RawKind::Exec { file: "/usr/bin/true".to_owned() };
    let told = events([
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
    assert_eq!(told, expected);
}

#[test]
fn another_programs_child_is_its_own_task_once_it_has_its_own_space() {
    let told = events([
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
    assert_eq!(told, expected);
}

#[test]
fn a_number_that_is_used_again_is_another_task() {
    let told = events([
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
    assert_eq!(told, expected);
}

#[test]
fn what_was_known_of_a_number_before_it_was_used_again_is_forgotten() {
    let told = events([
        (0, 0, 10, new_task(2, THREAD)),
        (1, 0, 10, switch(2, Left::Blocked)),
        (2, 0, 2, RawKind::Exit),
        (3, 0, 2, switch(10, Left::Dead)),
        (4, 0, 10, switch(2, Left::Blocked)),
    ]);
    assert_eq!(told[6..], [other(3, 1), switched(3, Left::Blocked)], "not the kernel's");
}

#[test]
fn a_fork_that_says_nothing_of_spaces_is_a_thread_unless_more_was_said_before() {
    let fork = |tid| RawKind::NewTask { tid: Tid(tid), clone_flags: None, name: "made".to_owned() };
    let told = events([
        (0, 0, 10, new_task(11, FORK)),
        (1, 0, 10, fork(11)),
        (2, 0, 10, fork(12)),
        (3, 0, 10, fork(0)),
    ]);
    assert_eq!(told[2..], [spawned(2, 1), spawned(3, 0)]);
}

#[test]
fn a_return_needs_its_call_and_a_call_that_never_returned_does_not_keep_the_next_out() {
    let told = events([
        (0, 0, 10, RawKind::Return { value: 1 }),
        (1, 0, 10, RawKind::Enter(UNMAP)),
        (2, 0, 10, RawKind::Enter(UNMAP)),
        (3, 0, 10, RawKind::Return { value: 2 }),
        (4, 0, 10, RawKind::Return { value: 3 }),
    ]);
    let (call, back) = (Event::Call(UNMAP), Event::Return { value: 2 });
    assert_eq!(told[2..], [call.clone(), call, back]);
}

#[test]
fn only_what_the_program_does_itself_at_its_own_addresses_is_a_fault() {
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
fn a_task_is_woken_by_the_program_or_by_whatever_else() {
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
fn an_idle_cpu_switches_to_what_is_put_into_its_queue_though_nobody_says_so() {
    let queued = |tid| RawKind::Queued { tid: Tid(tid), target: 1 };
    let start = [(0, 0, 10, new_task(11, THREAD)), (1, 1, 0, queued(11))];
    let switches = |rest: &[Told]| -> Vec<_> {
        let told = told(start.iter().chain(rest).cloned());
        let is_switch = |record: &Record| matches!(record.event, Event::Switch { .. });
        let switches = told.into_iter().filter(is_switch).filter(|record| record.cpu == 1);
        switches.map(|record| (record.time_ns, record.event)).collect()
    };
    let fault = || RawKind::Fault { address: 4096, code: FaultCode(6) };
    // It is seen there long after, or leaves again.
    let inferred = (1501, switched(2, Left::Runnable));
    assert_eq!(switches(&[(90_000, 1, 11, fault())]), from_ref(&inferred));
    let left = (90_000, switched(0, Left::Blocked));
    let leaves = [(90_000, 1, 11, switch(0, Left::Blocked))];
    assert_eq!(switches(&leaves), [inferred.clone(), left]);
    // The switch is traced after all, sooner or later, perhaps to another thread.
    let traced = |at, to| [(at, 1, 0, switch(to, Left::Runnable)), (90_000, 0, 10, fault())];
    assert_eq!(switches(&traced(900, 11)), [(900, switched(2, Left::Runnable))]);
    assert_eq!(switches(&traced(5000, 11)), from_ref(&inferred));
    assert_eq!(switches(&traced(5000, 0)), [inferred, (5000, switched(0, Left::Runnable))]);
    // Into another CPU's queue, or into that of a busy one.
    let elsewhere = [(0, 1, 0, RawKind::Queued { tid: Tid(10), target: 0 })];
    assert!(!events(elsewhere.to_vec()).contains(&switched(1, Left::Runnable)));
}

#[test]
fn interrupts_that_flush_are_kept_whoever_sends_them_in_ascending_order() {
    let ipi =
        |targets: &[u32]| RawKind::Ipi { targets: targets.to_vec(), site: CallSite::CallFunction };
    let queue = |function| RawKind::QueueCall { function };
    let flush = || RawKind::Flush { reason: FlushReason::Request, pages: Some(1) };
    let sent = |told_events: &[Told]| -> Vec<_> {
        let told = events(told_events.to_vec());
        told.into_iter().filter(|event| matches!(event, Event::Interrupts { .. })).collect()
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
fn what_runs_is_said_again_after_losses_and_where_a_switch_is_missing() {
    let enter = || RawKind::Enter(UNMAP);
    let told = events([
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
    assert_eq!(told, expected);
}

#[test]
fn a_flush_amid_a_switch_does_not_look_like_a_switch_back() {
    let flush = || RawKind::Flush { reason: FlushReason::TaskSwitch, pages: None };
    let told = events([
        (0, 0, 10, switch(20, Left::Blocked)),
        (1, 0, 10, flush()),
        (2, 0, 20, RawKind::Enter(UNMAP)),
        (3, 1, 10, flush()),
    ]);
    let flushed = || Event::Flush { reason: FlushReason::TaskSwitch, pages: None };
    let switched = switched(2, Left::Blocked);
    let expected = [other(2, 1), switched, flushed(), running(1), flushed()];
    assert_eq!(told[2..], expected);
}

/// What Linux may trace between `sched_switch` and the next thread's first event.
fn amid_a_switch() -> [RawKind; 4] {
    [
        RawKind::QueueCall { function: Function::FlushSpace },
        RawKind::Ipi { targets: vec![1], site: CallSite::CallFunction },
        RawKind::Waking { tid: Tid(10) },
        RawKind::Flush { reason: FlushReason::Remote, pages: Some(1) },
    ]
}

#[test]
fn nothing_amid_a_switch_looks_like_a_switch_back_even_from_a_task_that_is_gone() {
    let amid = amid_a_switch().map(|kind| (2, 0, 10, kind));
    for left in [Left::Blocked, Left::Dead] {
        let first = [(0, 0, 10, RawKind::Enter(UNMAP)), (1, 0, 10, switch(20, left))];
        let last = (3, 0, 20, switch(0, Left::Blocked));
        let told = events(first.into_iter().chain(amid.clone()).chain([last]));
        let changes = |event: &Event| {
            matches!(event, Event::Running { .. } | Event::Switch { .. } | Event::Task { .. })
        };
        let changes: Vec<_> = told.iter().filter(|event| changes(event)).cloned().collect();
        let expected = [
            recorded(1, 0, "sort"),
            running(1),
            other(2, 1),
            switched(2, left),
            switched(0, Left::Blocked),
        ];
        assert_eq!(changes, expected);
        assert!(told.contains(&Event::Interrupts { targets: vec![1] }));
        if left == Left::Blocked {
            assert!(told.contains(&Event::Wake { task: TaskId(1), by: Waker::Interrupt }));
        }
    }
}

#[test]
fn what_only_a_running_thread_does_tells_that_a_switch_back_is_missing() {
    let told = events([
        (0, 0, 10, switch(20, Left::Blocked)),
        (1, 0, 10, RawKind::Enter(UNMAP)),
        (2, 0, 10, switch(20, Left::Blocked)),
        (3, 0, 20, switch(10, Left::Blocked)),
        (4, 0, 10, amid_a_switch()[3].clone()),
    ]);
    let (call, flushed) = (Event::Call(UNMAP), FlushReason::Remote);
    let flushed = Event::Flush { reason: flushed, pages: Some(1) };
    let to = |task| switched(task, Left::Blocked);
    assert_eq!(told[3..], [to(2), running(1), call, to(2), to(1), flushed]);
}

#[test]
fn a_switch_from_the_idle_loop_that_is_missing_is_mended() {
    let told = events([
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
    assert_eq!(told[2..], expected, "and one from a kernel thread is not");
}

/// The first thread, 10, makes 11, which executes another program while 12 is there as well.
fn exec_by_a_thread(renumbered: impl IntoIterator<Item = Told>) -> Vec<Event> {
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
    let told = events(begin.into_iter().chain(renumbered).chain(end));
    assert_eq!(
        told[..5],
        [recorded(1, 0, "sort"), running(1), spawned(2, 0), spawned(3, 0), running(0)]
    );
    told[5..].to_vec()
}

#[test]
fn a_thread_that_executes_a_program_goes_on_as_one_task_under_the_first_threads_number() {
    let flush = || RawKind::Flush { reason: FlushReason::LocalSpace, pages: None };
    let flushed = || Event::Flush { reason: FlushReason::LocalSpace, pages: None };
    let ended = || (10, 0, 10, switch(0, Left::Dead));
    let ended_later = || (12, 0, 11, switch(0, Left::Dead));
    let seen = || (11, 1, 10, flush());
    let gone = || switched(0, Left::Dead);
    // The first thread has its own number still, or the other one's, and that before or after the
    // other one is seen.
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
fn a_thread_that_executes_a_program_is_known_even_if_the_switch_to_it_is_missing() {
    let told = events([
        (0, 0, 10, new_task(11, THREAD)),
        (1, 0, 10, RawKind::Exit),
        (2, 0, 10, switch(0, Left::Dead)),
        (3, 1, 0, RawKind::Waking { tid: Tid(11) }),
        (4, 1, 10, RawKind::Exec { file: "/bin/true".to_owned() }),
    ]);
    let exec = Event::Exec { space: SpaceId(1), name: "true".to_owned() };
    assert_eq!(told[told.len() - 2..], [switched(2, Left::Runnable), exec]);
}

#[test]
fn a_first_thread_that_lives_or_that_nobody_saw_yet_has_lent_its_number_to_nobody() {
    let enter = || RawKind::Enter(UNMAP);
    let told = events([
        (0, 0, 10, new_task(11, THREAD)),
        (1, 0, 10, switch(11, Left::Blocked)),
        (2, 0, 10, enter()),
        (3, 0, 11, enter()),
        (4, 0, 21, switch(10, Left::Blocked)),
    ]);
    let call = || Event::Call(UNMAP);
    let expected =
        [switched(2, Left::Blocked), running(1), call(), running(2), call(), other(3, 1)];
    assert_eq!(told[3..9], expected);
}

#[test]
fn a_cpu_that_the_recording_does_not_have_changes_nothing_on_those_it_has() {
    let told = events([
        (0, u32::MAX, 10, RawKind::Enter(UNMAP)),
        (1, 2, 10, new_task(11, THREAD)),
        (2, 0, 10, new_task(12, THREAD)),
        (3, 1, 10, RawKind::Ipi { targets: vec![7], site: CallSite::CallFunction }),
    ]);
    assert_eq!(told, [recorded(1, 0, "sort"), running(1), spawned(2, 0), running(1)]);
}

#[test]
fn names_are_as_long_as_they_may_be() {
    let name = "é".repeat(200);
    let start = StartTask { tid: Tid(10), process: 10, kind: TaskKind::User, name };
    let startup = Startup { recorded: vec![Tid(10)], tasks: vec![start] };
    let records = assemble(startup, [raw((0, 0, 10, RawKind::Enter(UNMAP)))]);
    assert_eq!(records[0].event, recorded(1, 0, &"é".repeat(127)));
}

#[test]
fn a_thread_of_which_only_the_name_is_known_is_the_kernels_if_it_looks_like_one() {
    let next = |next, name: &str| RawKind::Switch {
        left: Left::Blocked,
        next: Tid(next),
        next_name: name.to_owned(),
    };
    let raws = [(0, 0, 0, next(40, "kworker/0:1")), (1, 0, 40, next(41, "sh"))].map(raw);
    let records = assemble(Startup::default(), raws);
    let told: Vec<_> = records.into_iter().map(|record| record.event).collect();
    assert_eq!(told, [running(0), other(1, 0), switched(1, Left::Blocked)]);
}

#[test]
fn live_threads_bound_what_is_remembered() {
    let mut tasks = Tasks::new(Startup::default());
    for tid in 1..100_000 {
        let (maker, child) = (Tid(tid), Tid(tid + 1));
        tasks.identify(maker, "sh");
        tasks.spawn(maker, child, Some(if tid % 2 == 0 { FORK } else { THREAD }), "");
        tasks.exit(maker);
        tasks.forget(maker);
    }
    assert_eq!(tasks.len(), (1, 1));
}
