//! Analyses of recordings that the tests make.

use shootdown_recording::record::{
    Call, Event, FaultCode, FlushReason, Frame, FrameId, Layer, Left, Owner, Record, SpaceId,
    TaskId,
};
use shootdown_recording::{Ended, Header, Reader, Source, Writer};

use crate::{Analysis, Change, Costs, Explanation};

const SPACE: SpaceId = SpaceId(0);

fn header() -> Header {
    Header {
        recorder: "test".into(),
        source: Source::Tracefs,
        kernel: "6.18".into(),
        processor: "test".into(),
        cpus: 2,
        command: vec!["program".into()],
    }
}

/// Events on CPU 0, 100 ns apart, after two tasks of a program began to run.
#[derive(Default)]
struct Program {
    records: Vec<Record>,
    frames: u32,
}

impl Program {
    fn new() -> Self {
        let mut program = Self::default();
        for id in 1..=2 {
            let (task, owner, name) = (TaskId(id), Owner::Recorded, String::new());
            program.on(0, Event::Task { task, owner, space: SPACE, name });
            program.on(id - 1, Event::Running { task });
        }
        program
    }

    fn on(&mut self, cpu: u32, event: Event) {
        let time_ns = self.records.len() as u64 * 100;
        self.records.push(Record { time_ns, cpu, event });
    }

    /// Task 1 requests a flush from CPU 1, which performs it.
    fn flush(&mut self, stack: Option<&[(Layer, &str)]>) {
        self.on(0, Event::Flush { reason: FlushReason::Request, pages: Some(1) });
        if let Some(stack) = stack {
            self.stack(stack);
        }
        self.on(0, Event::Requests { targets: vec![1] });
        self.on(0, Event::Interrupts { targets: vec![1] });
        self.on(1, Event::Flush { reason: FlushReason::Remote, pages: Some(1) });
    }

    /// The last request of CPU 0 was sampled.
    fn stack(&mut self, stack: &[(Layer, &str)]) {
        let mut caller = FrameId::NONE;
        for (layer, function) in stack.iter().rev() {
            self.frames += 1;
            let frame = FrameId(self.frames);
            let (function, file) = ((*function).to_owned(), String::new());
            let function = Frame { layer: *layer, function, file, line: 0 };
            self.on(0, Event::Frame { frame, caller, function });
            caller = frame;
        }
        self.on(0, Event::Stack { frame: caller, requests: 1 });
    }

    fn madvise(&mut self, stack: Option<&[(Layer, &str)]>) {
        self.on(0, Event::Call(Call::Advise { address: 0x1000, length: 4096, advice: 4 }));
        self.flush(stack);
        self.on(0, Event::Return { value: 0 });
    }

    fn file(&self) -> Vec<u8> {
        let mut writer = Writer::create(Vec::new(), &header()).expect("a header");
        for record in &self.records {
            writer.write(record).expect("a record");
        }
        writer.finish(Ended::Exited(0)).expect("an end")
    }
}

fn explain(file: &[u8]) -> (Analysis, Explanation) {
    let mut reader = Reader::open(file).expect("a header");
    let analysis = Analysis::of(&mut reader, Costs::MODEL).expect("a recording");
    let explanation = Explanation::of(&analysis, Costs::MODEL);
    (analysis, explanation)
}

/// Returns the cause, the innermost call of the program, and the requests of each site.
fn sites(program: &Program) -> Vec<(String, String, u64)> {
    let (analysis, explanation) = explain(&program.file());
    let row = |site: &crate::Site| {
        let call = site.frames.first().map(|frame| frame.function.clone()).unwrap_or_default();
        (analysis.causes.name(site.cause).to_owned(), call, site.sum.requests)
    };
    explanation.sites.iter().map(row).collect()
}

const MADVISE: &[(Layer, &str)] =
    &[(Layer::Kernel, "do_madvise"), (Layer::User, "madvise"), (Layer::User, "release")];

#[test]
fn unsampled_flush_belongs_to_the_sampled_site() {
    let mut program = Program::new();
    program.madvise(None);
    program.madvise(Some(MADVISE));
    program.madvise(None);
    let expected = ("madvise(MADV_DONTNEED)".to_owned(), "madvise".to_owned(), 3);
    assert_eq!(sites(&program), [expected]);
}

#[test]
fn stack_of_a_flush_without_targets_counts_for_others() {
    let mut program = Program::new();
    program.on(0, Event::Call(Call::Advise { address: 0x1000, length: 4096, advice: 4 }));
    program.on(0, Event::Flush { reason: FlushReason::Request, pages: Some(1) });
    program.stack(MADVISE);
    program.on(0, Event::Return { value: 0 });
    assert!(sites(&program).is_empty(), "it has no cost of its own");
    program.madvise(None);
    let expected = ("madvise(MADV_DONTNEED)".to_owned(), "madvise".to_owned(), 1);
    assert_eq!(sites(&program), [expected]);
    let (analysis, explanation) = explain(&program.file());
    assert_eq!(explanation.flushes(&analysis).count(), 1);
    assert_eq!((explanation.total.flushes, explanation.sites[0].sampled), (1, 0));
}

#[test]
fn targets_that_flushed_are_inferred_without_requests() {
    let announced = || Event::Flush { reason: FlushReason::Request, pages: Some(1) };
    let flushed = || Event::Flush { reason: FlushReason::Remote, pages: Some(1) };
    let mut program = Program::new();
    program.madvise(Some(MADVISE));
    program.madvise(None);
    let old = |program: &Program, has_switches: bool| {
        let is_known =
            |event: &Event| !matches!(event, Event::Requests { .. } | Event::Interrupts { .. });
        let mut old = Program::default();
        for (cpu, requests) in [(0, 5), (1, 7)] {
            old.on(cpu, Event::Counted { requests });
        }
        let switches = [TaskId::KERNEL, TaskId(2)].into_iter().filter(|_| has_switches);
        let switch = |next| Event::Switch { next, left: Left::Runnable };
        let switches: Vec<_> = switches.map(switch).collect();
        let known = program.records.iter().filter(|record| is_known(&record.event));
        for (index, record) in known.enumerate() {
            // After both tasks began to run.
            if index == 4 {
                switches.iter().for_each(|event| old.on(1, event.clone()));
            }
            old.on(record.cpu, record.event.clone());
        }
        for (cpu, requests) in [(0, 5), (1, 9)] {
            old.on(cpu, Event::Counted { requests });
        }
        old
    };
    assert!(sites(&old(&program, false)).is_empty(), "the spaces of CPUs would be guesses");
    assert_eq!(sites(&old(&program, true)), sites(&program));
    let (analysis, explanation) = explain(&old(&program, true).file());
    assert!(analysis.is_inferred && analysis.flushes[0].is_measured);
    assert_eq!((explanation.total.interrupts, explanation.total.in_vain), (2, 0));
    let balance = analysis.balance.expect("counters");
    assert_eq!((balance.recorded, balance.counted), (2, 2));
    // One request for each CPU, and none of a CPU that runs another program, or of the sender.
    program.on(0, announced());
    program.on(1, flushed());
    program.on(1, flushed());
    program.on(0, flushed());
    assert_eq!(explain(&old(&program, true).file()).1.total.requests, 3);
    assert!(!explain(&program.file()).0.is_inferred, "the recording has requests");
}

#[test]
fn flush_costs_the_wait_and_the_interrupt() {
    let mut program = Program::new();
    program.madvise(None);
    let (analysis, explanation) = explain(&program.file());
    // Three events of 100 ns lie between the request and the target's flush.
    assert_eq!(analysis.flushes[0].sender_ns, 300);
    assert_eq!(explanation.total.cpu_ns, 300 + Costs::MODEL.interrupt_ns);
    assert_eq!((explanation.total.interrupts, explanation.total.in_vain), (1, 0));
    assert_eq!(explanation.total.measured_ns, 300);
}

#[test]
fn fault_of_another_tracer_does_not_end_a_flush() {
    let mut program = Program::new();
    program.on(0, Event::Call(Call::Advise { address: 0x1000, length: 4096, advice: 4 }));
    program.on(0, Event::Flush { reason: FlushReason::Request, pages: Some(1) });
    program.on(0, Event::Fault { address: 0x7000, code: FaultCode(0) });
    program.on(0, Event::Requests { targets: vec![1] });
    let expected = ("madvise(MADV_DONTNEED)".to_owned(), String::new(), 1);
    assert_eq!(sites(&program), [expected]);
}

#[test]
fn request_to_an_idle_cpu_is_in_vain() {
    let mut program = Program::new();
    program.on(1, Event::Switch { next: TaskId::KERNEL, left: Left::Blocked });
    program.madvise(None);
    assert_eq!(explain(&program.file()).1.total.in_vain, 1);
}

#[test]
fn flushes_before_a_spawn_belong_to_the_fork() {
    let mut program = Program::new();
    program.flush(None);
    let child = Event::Spawn { task: TaskId(3), space: SpaceId(1), name: String::new() };
    program.on(0, child);
    assert_eq!(sites(&program), [("fork".to_owned(), String::new(), 1)]);
    assert!(!explain(&program.file()).0.allows(Change::Spawn), "the child executes nothing");
}

#[test]
fn kernel_stack_overrides_the_event() {
    let mut program = Program::new();
    program.on(0, Event::Fault { address: 0x5000, code: FaultCode(6) });
    let stack = [(Layer::Kernel, "change_prot_numa"), (Layer::User, "main")];
    program.flush(Some(&stack));
    assert_eq!(sites(&program), [("NUMA hint".to_owned(), "main".to_owned(), 1)]);
}

/// Returns the events of a recording after a change at its most expensive site.
fn changed(program: &Program, change: Change) -> Vec<Event> {
    let file = program.file();
    let (analysis, explanation) = explain(&file);
    let reader = Reader::open(&file[..]).expect("a header");
    let site = &explanation.sites[0];
    let file = change.apply(reader, &analysis, &explanation, site, Vec::new());
    let file = file.expect("a recording");
    let mut reader = Reader::open(&file[..]).expect("a header");
    let mut events = Vec::new();
    while let Some(record) = reader.next_record().expect("a record") {
        events.push(record.event);
    }
    events
}

#[test]
fn dropped_calls_leave_no_return() {
    let mut program = Program::new();
    // The first call flushes nothing, and is of the same site.
    program.on(0, Event::Call(Call::Advise { address: 0x9000, length: 4096, advice: 4 }));
    program.on(0, Event::Return { value: 0 });
    program.madvise(Some(MADVISE));
    program.on(0, Event::Call(Call::Protect { address: 0x1000, length: 4096, protection: 1 }));
    program.on(0, Event::Return { value: -12 });
    let events = changed(&program, Change::Drop);
    let calls: Vec<_> = events.iter().filter(|it| matches!(it, Event::Call(_))).collect();
    assert!(matches!(calls[..], [Event::Call(Call::Protect { .. })]), "{calls:?}");
    let returns: Vec<_> = events.iter().filter(|it| matches!(it, Event::Return { .. })).collect();
    assert_eq!(returns, [&Event::Return { value: -12 }]);
}

/// Maps memory at an address, and unmaps it, which flushes if `is_flushed`.
fn map_and_unmap(program: &mut Program, at: u64, length: u64, is_flushed: bool) {
    let map = Call::Map { address: 0, length, protection: 3, flags: 2 };
    program.on(0, Event::Call(map));
    program.on(0, Event::Return { value: at as i64 });
    program.on(0, Event::Fault { address: at + 0x1000, code: FaultCode(4) });
    program.on(0, Event::Call(Call::Unmap { address: at, length }));
    if is_flushed {
        program.flush(None);
    }
    program.on(0, Event::Return { value: 0 });
}

/// Returns the addresses of the calls, returns and faults of a program.
fn steps(events: &[Event]) -> Vec<u64> {
    let step = |event: &Event| match event {
        Event::Call(Call::Map { length, .. }) => Some(*length),
        Event::Call(Call::Unmap { address, .. }) | Event::Fault { address, .. } => Some(*address),
        Event::Return { value } => Some(*value as u64),
        _ => None,
    };
    events.iter().filter_map(step).collect()
}

#[test]
fn kept_memory_is_not_mapped_again() {
    let mut program = Program::new();
    program.on(0, Event::Call(Call::Unmap { address: 0x10_000, length: 0x4000 }));
    program.flush(None);
    program.on(0, Event::Return { value: 0 });
    // The last lies where no mapping was kept, and the next is mapped over the others.
    for (at, flags) in [(0x11_000, 2), (0x13_000, 2), (0x14_000, 2), (0x15_000, 2), (0x11_000, 18)]
    {
        program.on(0, Event::Call(Call::Map { address: 0, length: 0x2000, protection: 3, flags }));
        program.on(0, Event::Return { value: at });
    }
    let events = changed(&program, Change::Keep);
    assert_eq!(steps(&events), [0x2000, 0x11_000], "larger mappings reuse what was kept");
}

#[test]
fn dropped_munmap_drops_its_mmap_and_accesses() {
    let mut program = Program::new();
    // As of a file whose size is not a number of pages.
    map_and_unmap(&mut program, 0x10_000, 0x1f01, true);
    map_and_unmap(&mut program, 0x10_000, 0x1f01, false);
    // Only a part of this is unmapped.
    let map = Call::Map { address: 0, length: 0x3000, protection: 3, flags: 2 };
    program.on(0, Event::Call(map));
    program.on(0, Event::Return { value: 0x20_000 });
    program.on(0, Event::Call(Call::Unmap { address: 0x20_000, length: 0x1000 }));
    program.on(0, Event::Return { value: 0 });
    program.on(0, Event::Fault { address: 0x11_000, code: FaultCode(4) });
    let events = changed(&program, Change::Drop);
    assert_eq!(steps(&events), [0x3000, 0x20_000, 0x11_000]);
}

#[test]
fn first_read_becomes_a_write() {
    let mut program = Program::new();
    for (address, code) in [(0x5000, 4), (0x6000, 4), (0x5008, 7)] {
        program.on(0, Event::Fault { address, code: FaultCode(code) });
    }
    program.flush(None);
    let events = changed(&program, Change::WriteFirst);
    let code = |at| {
        events.iter().find_map(|event| match event {
            Event::Fault { address, code } if *address == at => Some(code.0),
            _ => None,
        })
    };
    assert_eq!([0x5000, 0x6000].map(code), [Some(6), Some(4)]);
}

#[test]
fn spawned_child_shares_memory_until_exec() {
    let mut program = Program::new();
    program.flush(None);
    let (task, name) = (TaskId(3), String::new);
    program.on(0, Event::Spawn { task, space: SpaceId(1), name: name() });
    program.on(0, Event::Switch { next: task, left: Left::Runnable });
    program.on(0, Event::Exec { space: SpaceId(2), name: name() });
    // This one keeps the data of its parent.
    let (saving, data) = (TaskId(4), SpaceId(3));
    program.on(0, Event::Spawn { task: saving, space: data, name: name() });
    let (analysis, _) = explain(&program.file());
    assert!(analysis.allows(Change::Spawn));
    let events = changed(&program, Change::Spawn);
    assert!(events.contains(&Event::Spawn { task, space: SPACE, name: name() }));
    assert!(events.contains(&Event::Spawn { task: saving, space: data, name: name() }));
    assert!(events.contains(&Event::Exec { space: SpaceId(2), name: name() }));
}

#[test]
fn late_name_joins_the_call_sites_of_a_function() {
    let stack = |function| [(Layer::Kernel, "do_madvise"), (Layer::User, function)];
    let mut program = Program::new();
    program.madvise(Some(&stack("[0x7f00]")));
    let unnamed = FrameId(program.frames - 1);
    program.madvise(Some(&stack("Pool.close")));
    assert_eq!(sites(&program).len(), 2);
    let (frame, function, file) = (unnamed, "Pool.close".to_owned(), "[jit]".to_owned());
    program.on(1, Event::Name { frame, function, file });
    let cause = "madvise(MADV_DONTNEED)".to_owned();
    assert_eq!(sites(&program), [(cause, "Pool.close".to_owned(), 2)]);
}

#[test]
fn flushes_of_others_are_suffered_and_not_caused() {
    let mut program = Program::new();
    let (task, owner, space) = (TaskId(3), Owner::Other, SpaceId(1));
    program.on(0, Event::Task { task, owner, space, name: String::new() });
    for (task, name) in [(task, "bash"), (TaskId::KERNEL, "kswapd0")] {
        program.on(0, Event::Switch { next: task, left: Left::Blocked });
        program.flush(Some(&[(Layer::Kernel, "shrink_folio_list"), (Layer::User, name)]));
        program.flush(None);
    }
    program.on(1, Event::Switch { next: TaskId::KERNEL, left: Left::Blocked });
    program.flush(None);
    let (analysis, explanation) = explain(&program.file());
    assert_eq!((explanation.total.requests, explanation.sites.len()), (0, 0));
    assert_eq!(explanation.flushes(&analysis).count(), 0);
    let row = |it: &crate::Suffered| {
        let cause = analysis.causes.name(it.cause).to_owned();
        (it.sender.clone(), it.is_kernel, cause, it.sum.requests)
    };
    let rows: Vec<_> = explanation.suffered.iter().map(row).collect();
    let expected =
        |name: &str, is_kernel| (Some(name.to_owned()), is_kernel, "reclaim".to_owned(), 2);
    assert_eq!(rows, [expected("bash", false), expected("kswapd0", true)]);
}

#[test]
fn call_without_an_event_lends_its_cause_to_unsampled_flushes() {
    let mut program = Program::new();
    let truncate = [
        (Layer::Kernel, "unmap_mapping_range"),
        (Layer::Kernel, "__x64_sys_ftruncate"),
        (Layer::User, "shrink"),
    ];
    // The last fault of the task does not explain the flushes.
    program.on(0, Event::Fault { address: 0x5000, code: FaultCode(6) });
    program.flush(None);
    program.on(0, Event::Fault { address: 0x6000, code: FaultCode(6) });
    program.flush(Some(&truncate));
    program.flush(None);
    assert_eq!(sites(&program), [("ftruncate".to_owned(), "shrink".to_owned(), 3)]);
    let mut without = Program::new();
    without.on(0, Event::Fault { address: 0x5000, code: FaultCode(6) });
    without.flush(None);
    assert_eq!(sites(&without), [("unknown".to_owned(), String::new(), 1)]);
}

#[test]
fn parallel_time_needs_two_threads_of_one_space() {
    let mut program = Program::new();
    program.madvise(None);
    let (analysis, _) = explain(&program.file());
    // The second thread runs from its own record on.
    let since_ns = analysis.time_ns - 300;
    assert_eq!((analysis.busy_ns, analysis.parallel_ns), (analysis.time_ns - 100, since_ns));
    program.on(1, Event::Switch { next: TaskId::KERNEL, left: Left::Blocked });
    program.madvise(None);
    let (longer, _) = explain(&program.file());
    assert_eq!(longer.parallel_ns, since_ns + 100);
}
