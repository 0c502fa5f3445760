//! Texts of three tools about the same small program, and texts that no tool would write.
//!
//! The program pins itself to CPU 0 and a second thread to CPU 1. Four times, the first thread maps
//! eight pages, touches two, protects one, discards the other, and unmaps all. Then it forks a
//! child that executes another program. `kernel.txt` and `trace-cmd.txt` show one run, `perf.txt`
//! shows another. The operations of other programs on their own memory were removed.

use std::fmt::Write as _;
use std::io::{BufReader, Cursor, Read, Seek, SeekFrom};

use shootdown_recording::import::{Grouping, ImportError, Imported, Options, Program, import};
use shootdown_recording::record::{Call, FlushReason, Left, Owner, SpaceId, TaskId, Waker};
use shootdown_recording::{Ended, Event, Reader, Record, Source, Totals};

const KERNEL: &str = include_str!("import/kernel.txt");
const TRACE_CMD: &str = include_str!("import/trace-cmd.txt");
const PERF: &str = include_str!("import/perf.txt");

/// The result of an import, and the recording that it wrote.
struct Import {
    imported: Imported,
    records: Vec<Record>,
    totals: Totals,
}

fn named(name: &str) -> Options {
    Options { source: None, program: Program::Name(name.to_owned()) }
}

fn try_import(text: &[u8], options: &Options) -> Result<Import, ImportError> {
    let (imported, bytes) = import(Cursor::new(text), options, Vec::new())?;
    let mut reader = Reader::open(bytes.as_slice()).unwrap();
    let records = reader.by_ref().map(|record| record.unwrap()).collect();
    Ok(Import { imported, records, totals: *reader.totals().unwrap() })
}

fn import_mapper(text: &str) -> Import {
    try_import(text.as_bytes(), &named("mapper")).unwrap()
}

fn events(text: &str, options: &Options) -> Vec<Event> {
    let read = try_import(text.as_bytes(), options).unwrap();
    read.records.into_iter().map(|record| record.event).collect()
}

fn refused(text: &str, options: &Options) -> ImportError {
    match try_import(text.as_bytes(), options) {
        Ok(read) => panic!("{:?}", read.records),
        Err(error) => error,
    }
}

fn count(records: &[Record], is: impl Fn(&Event) -> bool) -> usize {
    records.iter().filter(|record| is(&record.event)).count()
}

#[test]
fn every_tools_text_yields_the_programs_operations() {
    for text in [KERNEL, TRACE_CMD, PERF] {
        let Import { records, totals, imported } = import_mapper(text);
        assert_eq!((imported.cpus, imported.unknown, imported.lost), (2, 0, 0));
        assert_eq!(totals.ended, Ended::Exited(0));
        let calls = |is: fn(&Call) -> bool| {
            count(&records, |event| matches!(event, Event::Call(call) if is(call)))
        };
        // Four maps of the first thread, and one for the stack of the second. The other calls
        // include those of the C library and of `exec`.
        assert_eq!(calls(|call| matches!(call, Call::Map { .. })), 5);
        assert_eq!(calls(|call| matches!(call, Call::Unmap { .. })), 4);
        assert_eq!(calls(|call| matches!(call, Call::Remap { .. })), 1);
        assert_eq!(calls(|call| matches!(call, Call::Advise { .. })), 5);
        let all = calls(|_| true);
        assert_eq!(count(&records, |event| matches!(event, Event::Return { .. })), all);
        let sent =
            |event: &Event| matches!(event, Event::Interrupts { targets } if targets == &[1]);
        assert_eq!(count(&records, sent), 18);
        let exited = |event: &Event| matches!(event, Event::Exit);
        assert_eq!(count(&records, exited), 3);
        let remote =
            |event: &Event| matches!(event, Event::Flush { reason: FlushReason::Remote, .. });
        // One interrupt reached a CPU that had already caught up.
        assert_eq!(count(&records, remote), 17);
    }
}

/// Checks the creator and the address space of each task.
#[test]
fn threads_share_a_space_and_processes_do_not() {
    for text in [KERNEL, TRACE_CMD, PERF] {
        let records = import_mapper(text).records;
        let name = |name: &str| name.to_owned();
        let made: Vec<_> = records
            .into_iter()
            .map(|record| record.event)
            .filter(|event| {
                matches!(
                    event,
                    Event::Task { owner: Owner::Recorded, .. }
                        | Event::Spawn { .. }
                        | Event::Exec { .. }
                )
            })
            .collect();
        let expected = [
            Event::Task {
                task: TaskId(1),
                owner: Owner::Recorded,
                space: SpaceId(0),
                name: name("mapper"),
            },
            Event::Exec { space: SpaceId(1), name: name("mapper") },
            Event::Spawn { task: TaskId(2), space: SpaceId(1), name: name("mapper") },
            Event::Spawn { task: TaskId(3), space: SpaceId(2), name: name("mapper") },
            Event::Exec { space: SpaceId(3), name: name("nothing") },
        ];
        assert_eq!(made, expected);
    }
}

#[test]
fn unmapping_is_imported_step_by_step() {
    let records = import_mapper(TRACE_CMD).records;
    let unmap = Event::Call(Call::Unmap { address: 0x7f28_fc7c_0000, length: 0x8000 });
    let at = records.iter().position(|record| record.event == unmap).unwrap();
    let actual: Vec<_> = records[at..at + 7].iter().map(|r| (r.cpu, r.event.clone())).collect();
    let flush = |reason| Event::Flush { reason, pages: Some(1) };
    let expected = [
        (0, unmap),
        (0, flush(FlushReason::Request)),
        (0, Event::Requests { targets: vec![1] }),
        (0, Event::Interrupts { targets: vec![1] }),
        (0, flush(FlushReason::LocalSpace)),
        (1, flush(FlushReason::Remote)),
        (0, Event::Return { value: 0 }),
    ];
    assert_eq!(actual, expected);
}

#[test]
fn kernel_and_trace_cmd_texts_agree() {
    let (kernel, trace_cmd) = (import_mapper(KERNEL).records, import_mapper(TRACE_CMD).records);
    assert_eq!(kernel.len(), trace_cmd.len());
    for (kernel, trace_cmd) in kernel.iter().zip(&trace_cmd) {
        assert!(kernel.time_ns.abs_diff(trace_cmd.time_ns) <= 1000, "{kernel:?} {trace_cmd:?}");
        assert_eq!((kernel.cpu, &kernel.event), (trace_cmd.cpu, &trace_cmd.event));
    }
}

#[test]
fn exiting_thread_wakes_its_joiner() {
    let records = import_mapper(KERNEL).records;
    let wakers: Vec<_> = records
        .iter()
        .filter_map(|record| match record.event {
            Event::Wake { task, by } => Some((task, by)),
            _ => None,
        })
        .collect();
    let expected = [
        (TaskId(2), Waker::Interrupt),
        (TaskId(1), Waker::Interrupt),
        (TaskId(1), Waker::Running),
        (TaskId(1), Waker::Running),
    ];
    assert_eq!(wakers, expected, "migration, timer, child, thread");
}

#[test]
fn numberless_thread_of_perf_leaves_its_cpu() {
    let gone = PERF.lines().find(|line| line.contains(" -1 [")).unwrap();
    assert!(gone.contains("sched_switch"), "{gone}");
    let left = |text: &str| {
        let dead = |event: &Event| matches!(event, Event::Switch { left: Left::Dead, .. });
        count(&import_mapper(text).records, dead)
    };
    assert_eq!(left(PERF), 3);
    assert_eq!(left(&PERF.replace(gone, "")), 2);
}

#[test]
fn numberless_thread_is_the_one_switched_to() {
    let text = "  sh 10 [000] 1.0: task:task_newtask: pid=11 comm=sh clone_flags=10100 x=0\n  \
                sh 10 [000] 1.1: sched:sched_switch: prev_comm=sh prev_pid=10 prev_prio=120 \
                prev_state=S ==> next_comm=sh next_pid=11 next_prio=120\n \
                :-1 -1 [000] 1.2: sched:sched_switch: prev_comm=sh prev_pid=11 prev_prio=120 \
                prev_state=Z ==> next_comm=sh next_pid=10 next_prio=120\n";
    let events = events(text, &named("sh"));
    let switch = |next, left| Event::Switch { next: TaskId(next), left };
    assert_eq!(events[3..], [switch(2, Left::Blocked), switch(1, Left::Dead)]);
}

#[test]
fn process_of_a_line_is_used() {
    let brk = "sys_enter_brk: brk: 0x0";
    let text = format!(
        "  kworker/0:1-7 [000] 1.0: {brk}\n  a-21 (20) [000] 1.1: {brk}\n  \
         b-22 (20) [000] 1.2: {brk}\n  sh-11 (10) [000] 1.3: {brk}\n  sh-12 (10) [001] 1.4: {brk}\n"
    );
    let options = Options { source: None, program: Program::Pid(10) };
    let running = |task| Event::Running { task: TaskId(task) };
    let task = |task, owner, space, name: &str| Event::Task {
        task: TaskId(task),
        owner,
        space: SpaceId(space),
        name: name.to_owned(),
    };
    let call = Event::Call(Call::Break { address: 0 });
    let expected = [
        running(0),
        task(1, Owner::Other, 0, ""),
        running(1),
        task(2, Owner::Recorded, 1, "sh"),
        running(2),
        call.clone(),
        task(3, Owner::Recorded, 1, "sh"),
        running(3),
        call,
    ];
    assert_eq!(events(&text, &options), expected);
}

#[test]
fn program_is_selected_by_name_or_pid() {
    let by_name = import_mapper(KERNEL);
    let options = Options { source: Some(Source::TraceCmd), program: Program::Pid(19820) };
    let by_pid = try_import(KERNEL.as_bytes(), &options).unwrap();
    assert_eq!(by_name.imported.process, 19820);
    assert_eq!(by_name.records, by_pid.records);
    // Only the child.
    let options = named("nothing");
    let child = try_import(KERNEL.as_bytes(), &options).unwrap();
    let executed = |event: &Event| matches!(event, Event::Exec { .. });
    assert_eq!(count(&child.records, executed), 1);
    let others = |event: &Event| matches!(event, Event::Task { owner: Owner::Other, .. });
    assert_eq!(count(&child.records, others), 1, "both threads of the parent are one task");
}

/// Returns the lines of three threads of one process, which fault in turn, as perf prints them with
/// `of(thread)` as their numbers, and of a process with the same name that a shell creates.
fn running_threads(of: impl Fn(u32) -> String) -> String {
    let fault = "exceptions:page_fault_user: address=0x401000 ip=0x401000 error_code=0x6";
    let mut text = String::new();
    for (time, thread) in (0..).zip([12, 11, 13, 12, 11]) {
        writeln!(text, "worker {} [000] 1.{time:09}: {fault}", of(thread)).unwrap();
    }
    let creation = "task:task_newtask: pid=21 comm=sh clone_flags=1200000 oom_score_adj=0";
    writeln!(text, "sh {} [000] 2.0: {creation}", of(20)).unwrap();
    writeln!(text, "worker {} [001] 2.1: {fault}", of(21)).unwrap();
    text
}

#[test]
fn threads_of_running_program_share_a_space() {
    let process_of = |thread| if thread < 20 { 11 } else { thread };
    let with_processes = running_threads(|thread| format!("{}/{thread}", process_of(thread)));
    let without = running_threads(|thread| thread.to_string());
    let pid = |pid| Options { source: None, program: Program::Pid(pid) };
    for (text, options, grouping, threads) in [
        (&with_processes, pid(11), Grouping::Process, 3),
        (&with_processes, named("worker"), Grouping::Process, 3),
        (&without, named("worker"), Grouping::Name, 3),
        (&without, pid(11), Grouping::OneThread, 1),
    ] {
        let read = try_import(text.as_bytes(), &options).unwrap();
        let Imported { process, began_before, .. } = read.imported;
        assert_eq!((process, began_before), (11, true));
        assert_eq!((read.imported.grouping, read.imported.threads), (grouping, threads));
        let recorded = |event: &Event| {
            matches!(event, Event::Task { owner: Owner::Recorded, space: SpaceId(0), .. })
        };
        // With one thread, another thread's event may come first.
        if threads == 3 {
            assert_eq!(count(&read.records, recorded), threads);
            assert_eq!(count(&read.records, |event| matches!(event, Event::Fault { .. })), 5);
        }
    }
    // The process that the shell creates has a space of its own.
    let created = try_import(with_processes.as_bytes(), &pid(21)).unwrap().imported;
    assert_eq!((created.process, created.threads, created.began_before), (21, 1, false));
    assert!(!created.has_interrupts);
    let interrupt = "ipi:ipi_send_cpu: cpu=1 callsite=generic_exec_single+0x1 callback=0x0";
    let with_interrupt = format!("{with_processes}worker 11/11 [000] 3.0: {interrupt}\n");
    let imported = try_import(with_interrupt.as_bytes(), &pid(21)).unwrap().imported;
    assert!(imported.has_interrupts);
}

#[test]
fn absent_program_and_empty_text_differ() {
    let unknown = refused(KERNEL, &named("\x1b[2Jsort"));
    assert_eq!(unknown.to_string(), "`\\u{1b}[2Jsort` does nothing in the text");
    let pid = Options { source: None, program: Program::Pid(1) };
    assert!(matches!(refused(KERNEL, &pid), ImportError::UnknownProgram(Program::Pid(1))));
    assert!(matches!(refused("", &named("sort")), ImportError::NoEvents));
    assert!(matches!(refused("Dear all,\n", &named("sort")), ImportError::NoEvents));
    let perf = Options { source: Some(Source::PerfScript), ..named("mapper") };
    assert!(matches!(refused(KERNEL, &perf), ImportError::NoEvents));
}

#[test]
fn truncated_text_is_imported_without_its_last_line() {
    for text in [KERNEL, TRACE_CMD, PERF] {
        let end_of_lines = text.match_indices('\n').map(|(at, _)| at + 1);
        let ends: Vec<_> = end_of_lines.collect();
        for at in (0..text.len()).step_by(97) {
            let is_end = at == 0 || ends.contains(&at);
            match try_import(&text.as_bytes()[..at], &named("mapper")) {
                Err(ImportError::NoEvents | ImportError::UnknownProgram(_)) => {}
                Ok(read) => assert_eq!(read.imported.is_cut, !is_end, "{at}"),
                Err(error) => panic!("{at}: {error}"),
            }
        }
        let exit = text.rfind("sched_process_exit").unwrap();
        let early = &text[..*ends.iter().rfind(|&&end| end < exit).unwrap()];
        let read = try_import(early.as_bytes(), &named("mapper")).unwrap();
        assert_eq!(read.totals.ended, Ended::Interrupted);
    }
}

#[test]
fn malformed_event_is_shown_with_its_line() {
    let text = KERNEL.replacen("pages:1 reason:remote", "pages:\x07 reason:remote", 1);
    let error = refused(&text, &named("mapper"));
    assert!(matches!(error, ImportError::Malformed { line: 83, .. }), "{error:?}");
    let expected = "line 83 cannot be parsed: `tlb_flush: pages:\\u{7} reason:remote IPI send (4)`";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn functions_without_names_are_refused() {
    let text = PERF.replace("callsite=on_each_cpu_cond_mask+0x20", "callsite=0xffffffff8124ac50");
    let error = refused(&text, &named("mapper"));
    assert!(matches!(error, ImportError::Unresolved { .. }), "{error:?}");
}

#[test]
fn unsorted_events_are_refused() {
    let mut lines: Vec<_> = PERF.lines().collect();
    lines.swap(100, 101);
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let error = refused(&text, &named("mapper"));
    assert!(matches!(error, ImportError::OutOfOrder { line: 102 }), "{error:?}");
    assert!(error.remedy().contains("perf script --ns"));
}

#[test]
fn loss_is_recorded_and_running_task_repeated() {
    let lost = "CPU:1 [LOST 7 EVENTS]\n";
    let text = format!(
        "{lost}  sh-10 [001] 1.0: sys_enter_brk: brk: 0x0\n{lost}CPU:0 [EVENTS DROPPED]\n  \
         sh-10 [001] 2.0: sys_enter_brk: brk: 0x0\n"
    );
    let read = try_import(text.as_bytes(), &named("sh")).unwrap();
    assert_eq!((read.imported.lost, read.totals.lost), (14, 14));
    let actual: Vec<_> = read.records.iter().map(|r| (r.time_ns, r.cpu, &r.event)).collect();
    let (running, lost) = (Event::Running { task: TaskId(1) }, Event::Lost { count: 7 });
    let call = Event::Call(Call::Break { address: 0 });
    assert_eq!(actual[0], (0, 1, &lost));
    assert_eq!(actual[2..4], [(0, 1, &running), (0, 1, &call)]);
    assert_eq!(actual[4..6], [(0, 1, &lost), (0, 0, &Event::Lost { count: 0 })]);
    assert_eq!(actual[6..], [(1_000_000_000, 1, &running), (1_000_000_000, 1, &call)]);
    let elsewhere = format!("{text}CPU:5 [EVENTS DROPPED]\n");
    let read = try_import(elsewhere.as_bytes(), &named("sh")).unwrap();
    assert_eq!(read.records.last().map(|record| record.cpu), Some(5));
    let perf = "  sh 10 [000] 1.0: syscalls:sys_enter_brk: brk: 0x0\n  \
                sh 10 [000] 1.0: PERF_RECORD_LOST lost 9\n";
    assert_eq!(try_import(perf.as_bytes(), &named("sh")).unwrap().totals.lost, 9);
}

#[test]
fn names_are_kept_and_invalid_bytes_replaced() {
    let text = b"  a\x1b[2J\xff-10 [000] 1.0: sys_enter_brk: brk: 0x0\n";
    let options = Options { source: None, program: Program::Pid(10) };
    let records = try_import(text, &options).unwrap().records;
    let name = "a\x1b[2J\u{fffd}".to_owned();
    let (task, space) = (TaskId(1), SpaceId(0));
    let expected = Event::Task { task, owner: Owner::Recorded, space, name };
    assert_eq!(records[0].event, expected);
}

#[test]
fn program_woken_before_its_first_event_has_a_name() {
    let text = "  other-9 [000] 1.0: sched_waking: comm=sh pid=10 prio=120 target_cpu=000\n  \
                sh-10 [001] 1.1: sys_enter_brk: brk: 0x0\n";
    let events = events(text, &named("sh"));
    let (task, space) = (TaskId(2), SpaceId(1));
    let expected = Event::Task { task, owner: Owner::Recorded, space, name: "sh".to_owned() };
    assert_eq!(events[2..4], [expected, Event::Wake { task, by: Waker::Interrupt }]);
}

#[test]
fn extreme_numbers_are_refused_or_harmless() {
    let line = |cpu: &str, time: &str, rest: &str| format!("  sh-10 [{cpu}] {time}: {rest}\n");
    let brk = "sys_enter_brk: brk: 0xffffffffffffffff";
    let whole = line("000", "18446744073.709551615", brk);
    let call = Event::Call(Call::Break { address: u64::MAX });
    assert_eq!(events(&whole, &named("sh")).last(), Some(&call));
    let apart = format!("{}{whole}", line("8191", "0.0", brk));
    assert_eq!(events(&apart, &named("sh")).last(), Some(&call));
    for cpu in ["8192", "4294967295"] {
        let error = refused(&line(cpu, "1.0", brk), &named("sh"));
        assert!(matches!(error, ImportError::TooManyCpus { line: 1 }), "{error:?}");
    }
    let target = "ipi_send_cpu: cpu=9999 callsite=a+0x1 callback=b+0x1";
    let error = refused(&line("0", "1.0", target), &named("sh"));
    assert!(matches!(error, ImportError::TooManyCpus { line: 1 }), "{error:?}");
    let error = refused(&line("0", "123456", brk), &named("sh"));
    assert!(matches!(error, ImportError::UnknownClock { line: 1 }), "{error:?}");
    for text in [line("99999999999", "1.0", brk), line("0", "18446744073.709551616", brk)] {
        assert!(matches!(refused(&text, &named("sh")), ImportError::NoEvents));
    }
}

/// Every thread creates the next one and exits; no CPU switches from any of them.
#[test]
fn tasks_beyond_the_bound_are_not_recorded() {
    const TASKS: u32 = (1 << 20) + 10;
    let mut text = String::new();
    for tid in 1..=TASKS {
        let made = format!("pid={} comm=x clone_flags=0 oom_score_adj=0", tid + 1);
        writeln!(text, "x-{tid} [000] 1.0: task_newtask: {made}").unwrap();
    }
    let options = Options { source: None, program: Program::Pid(1) };
    let records = try_import(text.as_bytes(), &options).unwrap().records;
    let made = count(&records, |event| matches!(event, Event::Spawn { .. }));
    assert_eq!(made, (1 << 20) - 1);
}

#[test]
fn text_that_cannot_be_read_twice_is_refused() {
    struct Pipe(&'static [u8]);
    impl Read for Pipe {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            self.0.read(buffer)
        }
    }
    impl Seek for Pipe {
        fn seek(&mut self, _: SeekFrom) -> std::io::Result<u64> {
            Err(std::io::ErrorKind::NotSeekable.into())
        }
    }
    let error = import(BufReader::new(Pipe(KERNEL.as_bytes())), &named("mapper"), Vec::new());
    assert!(matches!(error, Err(ImportError::Read(_))), "{error:?}");
}

#[test]
fn write_error_differs_from_read_error() {
    let mut room = [0; 1000];
    let error = import(Cursor::new(KERNEL), &named("mapper"), &mut room[..]).map(|_| ());
    assert!(matches!(error, Err(ImportError::Write(_))), "{error:?}");
}

#[test]
fn calls_below_perf_events_are_stacks() {
    let stack = "\tffffffff81342e3b do_madvise+0x1b ([kernel.kallsyms])\n\
                 \t    55d0c0a011a9 release+0x9 (/srv/server)\n\n";
    let is_request = |line: &&str| line.contains("tlb_flush:") && line.contains("(4)");
    let requests = PERF.lines().filter(is_request).count();
    assert!(requests > 0);
    let lines = PERF.lines().map(|line| {
        let below = if is_request(&line) { stack } else { "" };
        format!("{line}\n{below}")
    });
    let read = import_mapper(&lines.collect::<String>());
    let stacks = read.records.iter().filter(|it| matches!(it.event, Event::Stack { .. })).count();
    assert_eq!(stacks, requests);
    let names = read.records.iter().filter_map(|it| match &it.event {
        Event::Frame { function, .. } => Some(&*function.function),
        _ => None,
    });
    let names: Vec<_> = names.collect();
    assert!(["release", "do_madvise"].iter().all(|name| names.contains(name)), "{names:?}");
}
