//! Recordings that no kernel would write. Whatever they contain, a replay ends, with an outcome or
//! with an error.

use std::io::Cursor;
use std::rc::Rc;

use proptest::prelude::*;
use shootdown_designs::{Engine, Linux70, Linux412, Linux414, Naive};
use shootdown_recording::record::{
    Call, Event, FaultCode, FlushReason, Left, Owner, Record, SpaceId, TaskId, Waker,
};
use shootdown_recording::{Ended, Header, Reader, Source, Writer};
use shootdown_run::replay::{Survey, replay, threads};
use shootdown_run::{Limits, Memory, Settings, run};
use shootdown_sim::{Machine, Sim};
use shootdown_vm::ErasedCoherence;

const MACHINE: &str = include_str!("../../../../machines/emerald-rapids-kvm.toml");

fn address() -> impl Strategy<Value = u64> {
    let near = (0..64_u64).prop_map(|page| 0x7f00_0000_0000 + page * 4096);
    prop_oneof![8 => near, 1 => any::<u64>(), 1 => Just(0), 1 => Just(u64::MAX)]
}

fn length() -> impl Strategy<Value = u64> {
    prop_oneof![8 => (0..20_u64).prop_map(|pages| pages * 4096), 1 => any::<u64>()]
}

fn call() -> impl Strategy<Value = Call> {
    let flags = prop_oneof![Just(0x22), Just(0x32), Just(0x8022), Just(1), any::<u32>()];
    prop_oneof![
        (address(), length(), 0..8_u32, flags).prop_map(|(address, length, protection, flags)| {
            Call::Map { address, length, protection, flags }
        }),
        (address(), length()).prop_map(|(address, length)| Call::Unmap { address, length }),
        (address(), length(), 0..8_u32).prop_map(|(address, length, protection)| {
            Call::Protect { address, length, protection }
        }),
        (address(), length(), prop_oneof![Just(4), Just(8), any::<u32>()])
            .prop_map(|(address, length, advice)| Call::Advise { address, length, advice }),
        (address(), length(), length(), address()).prop_map(|(address, old, new, new_address)| {
            Call::Remap { address, old_length: old, new_length: new, flags: 3, new_address }
        }),
        (address(), length())
            .prop_map(|(address, length)| { Call::Sync { address, length, flags: 4 } }),
        address().prop_map(|address| Call::Break { address }),
    ]
}

/// Tasks are numbered when the recording is written.
fn event() -> impl Strategy<Value = Event> {
    let task = || (0..5_u32).prop_map(TaskId);
    let space = || (0..4_u32).prop_map(SpaceId);
    let left = prop_oneof![Just(Left::Runnable), Just(Left::Blocked), Just(Left::Dead)];
    let reason = prop_oneof![
        Just(FlushReason::Request),
        Just(FlushReason::LocalSpace),
        Just(FlushReason::Remote)
    ];
    let by = prop_oneof![Just(Waker::Running), Just(Waker::Interrupt)];
    let owner = prop_oneof![3 => Just(Owner::Recorded), 1 => Just(Owner::Other)];
    prop_oneof![
        1 => (owner, space()).prop_map(|(owner, space)| Event::Task {
            task: TaskId(0),
            owner,
            space,
            name: String::new(),
        }),
        1 => task().prop_map(|task| Event::Running { task }),
        4 => (task(), left).prop_map(|(next, left)| Event::Switch { next, left }),
        2 => (task(), by).prop_map(|(task, by)| Event::Wake { task, by }),
        1 => space().prop_map(|space| Event::Spawn {
            task: TaskId(0),
            space,
            name: String::new(),
        }),
        1 => space().prop_map(|space| Event::Exec { space, name: String::new() }),
        1 => Just(Event::Exit),
        4 => call().prop_map(Event::Call),
        4 => prop_oneof![Just(0), (-4096..4096_i64), address().prop_map(|at| at as i64)]
            .prop_map(|value| Event::Return { value }),
        6 => (address(), 0..32_u32).prop_map(|(address, code)| Event::Fault {
            address,
            code: FaultCode(code),
        }),
        4 => reason.prop_map(|reason| Event::Flush { reason, pages: Some(1) }),
        1 => Just(Event::Interrupts { targets: vec![0, 1] }),
        1 => Just(Event::Lost { count: 1 }),
    ]
}

fn events() -> impl Strategy<Value = Vec<(u32, u64, Event)>> {
    let gap = prop_oneof![9 => 0..5_000_u64, 1 => 0..10_000_000_u64];
    prop::collection::vec((0..2_u32, gap, event()), 1..120)
}

/// Writes the events that the writer admits.
fn write(events: &[(u32, u64, Event)]) -> Vec<u8> {
    let header = Header {
        recorder: String::new(),
        source: Source::Tracefs,
        kernel: String::new(),
        processor: String::new(),
        cpus: 2,
        command: Vec::new(),
    };
    let mut writer = Writer::create(Vec::new(), &header).unwrap();
    let (mut time_ns, mut tasks) = (0, 0);
    for (cpu, gap_ns, event) in events {
        let mut event = event.clone();
        if let Event::Task { task, .. } | Event::Spawn { task, .. } = &mut event {
            *task = TaskId(tasks + 1);
        }
        let is_task = matches!(event, Event::Task { .. } | Event::Spawn { .. });
        time_ns += gap_ns;
        if writer.write(&Record { time_ns, cpu: *cpu, event }).is_ok() && is_task {
            tasks += 1;
        }
    }
    writer.finish(Ended::Interrupted).unwrap()
}

fn reader(file: &[u8]) -> Reader<'static> {
    Reader::open(Cursor::new(file.to_vec())).unwrap()
}

fn under_recorded_schedule<C: Into<ErasedCoherence>>(
    file: &[u8],
    survey: &Survey,
    design: impl FnOnce(Rc<Sim>) -> C,
) {
    let machine = Machine::from_toml(MACHINE).unwrap();
    // The replay may fail, but must end.
    let _ = replay(machine, 1 << 14, reader(file), survey, |_| {}, design);
}

fn assert_ends(events: &[(u32, u64, Event)]) {
    let file = write(events);
    let survey = Survey::of(reader(&file), |_| {}).unwrap();
    under_recorded_schedule(&file, &survey, Linux70::uncounted);
    under_recorded_schedule(&file, &survey, Engine::<1>::new);
    let threads = threads(reader(&file), &survey, 1, |_| {}).unwrap();
    let machine = Machine::from_toml(MACHINE).unwrap();
    let settings = Settings {
        memory: Memory::of_frames(1 << 14),
        limits: Limits { threads: 8, ..Limits::DEFAULT },
        ..Settings::DEFAULT
    };
    let _ = run(machine, settings, Rc::new(threads), Engine::<1>::new);
}

fn start() -> Vec<(u32, u64, Event)> {
    let (owner, space, name) = (Owner::Recorded, SpaceId(0), String::new());
    vec![
        (0, 0, Event::Task { task: TaskId(0), owner, space, name: name.clone() }),
        (0, 0, Event::Running { task: TaskId(1) }),
        (0, 0, Event::Spawn { task: TaskId(0), space, name }),
        (1, 0, Event::Running { task: TaskId(2) }),
    ]
}

#[test]
fn aliased_addresses_are_no_violation() {
    let fault = |cpu, address| (cpu, 1000, Event::Fault { address, code: FaultCode(6) });
    let (page, alias) = (0x7f00_0000_0000, 0x7f00_0000_0000 | 1 << 48);
    let mut events = start();
    let unmap = Event::Call(Call::Unmap { address: page, length: 4096 });
    events.extend([fault(0, page), fault(1, alias), (0, 1000, unmap)]);
    events.extend([(0, 1000, Event::Return { value: 0 }), fault(1, alias)]);
    let file = write(&events);
    let survey = Survey::of(reader(&file), |_| {}).unwrap();
    let machine = Machine::from_toml(MACHINE).unwrap();
    let outcome =
        replay(machine, 1 << 14, reader(&file), &survey, |_| {}, Linux70::uncounted).unwrap();
    assert_eq!(outcome.violations, 0);
}

#[test]
fn write_back_of_any_range_ends_a_replay() {
    let page = 0x7f00_0000_0000;
    let map = |flags| {
        let call = Call::Map { address: page, length: 4 << 12, protection: 3, flags };
        [(0, 1000, Event::Call(call)), (0, 1000, Event::Return { value: page as i64 })]
    };
    let (shared, anonymous) = (1, 0x22);
    for (flags, address, length) in [
        (shared, page - (8 << 12), 4 << 12),
        (anonymous, page, 4 << 12),
        (shared, page, 0),
        (shared, page, 16 << 12),
        (shared, page, u64::MAX),
        (shared, u64::MAX, u64::MAX),
        (shared, page + 1, 1),
    ] {
        let mut events = start();
        events.extend(map(flags));
        let fault = Event::Fault { address: page, code: FaultCode(6) };
        events.extend([(0, 1000, fault.clone()), (1, 1000, fault)]);
        let flush = Event::Flush { reason: FlushReason::LocalSpace, pages: Some(1) };
        let sync = Event::Call(Call::Sync { address, length, flags: 4 });
        let return_value = Event::Return { value: 0 };
        events.extend([(0, 100_000, sync), (0, 1000, flush), (0, 1000, return_value)]);
        assert_ends(&events);
    }
}

#[test]
fn extreme_times_end_a_replay() {
    for gap_ns in [1 << 51, 1 << 53, 1 << 62, u64::MAX / 2] {
        let mut events = start();
        events.push((1, 10, Event::Switch { next: TaskId(0), left: Left::Blocked }));
        events.push((0, gap_ns, Event::Wake { task: TaskId(2), by: Waker::Interrupt }));
        events.push((0, 10, Event::Fault { address: 1 << 30, code: FaultCode(6) }));
        assert_ends(&events);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn replay_of_any_recording_ends(events in events()) {
        let file = write(&events);
        let survey = Survey::of(reader(&file), |_| {}).unwrap();
        under_recorded_schedule(&file, &survey, Naive::new);
        under_recorded_schedule(&file, &survey, Linux412::new);
        under_recorded_schedule(&file, &survey, Linux414::new);
        under_recorded_schedule(&file, &survey, Linux70::uncounted);
        under_recorded_schedule(&file, &survey, Engine::<1>::new);
        let threads = threads(reader(&file), &survey, 1, |_| {}).unwrap();
        let machine = Machine::from_toml(MACHINE).unwrap();
        let count = threads.program_count() + 1;
        let limits = Limits { threads: count, ..Limits::DEFAULT };
        let memory = Memory::of_frames(1 << 14);
        let settings = Settings { memory, limits, ..Settings::DEFAULT };
        let _ = run(machine, settings, Rc::new(threads), Engine::<1>::new);
    }
}
