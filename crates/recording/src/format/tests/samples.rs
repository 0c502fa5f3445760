//! Recordings for these tests and for `tests/damaged.rs`, which includes this file: every name
//! comes from the parent module.

use super::{
    Call, Event, FaultCode, FlushReason, Frame, FrameId, Header, Layer, Left, Owner, Record, Rng,
    Source, SpaceId, TaskId, Waker,
};

/// The header of a recording with this number of CPUs.
pub(crate) fn header(cpus: u32) -> Header {
    Header {
        recorder: "sample 1".into(),
        source: Source::Tracefs,
        kernel: "6.18.44".into(),
        processor: "Processor \"X\" \u{1b}[2J".into(),
        cpus,
        command: vec!["sort".into(), "--parallel=2".into()],
    }
}

/// Every kind of event, in each of its variants, on three CPUs.
pub(crate) fn every_kind() -> Vec<Record> {
    let (address, length) = (0x7f12_3456_7000, 0x21_000);
    let (task, space, name) = (TaskId(1), SpaceId(0), String::from("main\n\u{1b}"));
    let events = [
        Event::Task { task, owner: Owner::Recorded, space, name: name.clone() },
        Event::Task {
            task: TaskId(2),
            owner: Owner::Other,
            space: SpaceId(7),
            name: String::new(),
        },
        Event::Running { task },
        Event::Spawn { task: TaskId(3), space, name: "worker".into() },
        Event::Wake { task: TaskId(3), by: Waker::Running },
        Event::Wake { task, by: Waker::Interrupt },
        Event::Switch { next: TaskId(3), left: Left::Runnable },
        Event::Switch { next: TaskId(2), left: Left::Blocked },
        Event::Switch { next: TaskId::KERNEL, left: Left::Dead },
        Event::Exec { space: SpaceId(9), name },
        Event::Call(Call::Map { address: 0, length, protection: 3, flags: 0x22 }),
        Event::Return { value: address as i64 },
        Event::Call(Call::Protect { address, length: 1, protection: 1 }),
        Event::Return { value: -12 },
        Event::Call(Call::Advise { address: address - 0x1000, length, advice: 4 }),
        Event::Call(Call::Remap {
            address,
            old_length: length,
            new_length: length + 3,
            flags: 1,
            new_address: 0,
        }),
        Event::Return { value: i64::MIN },
        Event::Call(Call::Break { address: 0 }),
        Event::Call(Call::Sync { address, length, flags: 4 }),
        Event::Return { value: 0 },
        Event::Fault { address: address + 0x123, code: FaultCode(7) },
        Event::Fault { address: u64::MAX, code: FaultCode(u32::MAX) },
        Event::Flush { reason: FlushReason::Request, pages: Some(33) },
        Event::Flush { reason: FlushReason::Remote, pages: Some(u64::MAX) },
        Event::Flush { reason: FlushReason::TaskSwitch, pages: None },
        Event::Interrupts { targets: vec![0, 2] },
        Event::Interrupts { targets: vec![] },
        Event::Requests { targets: vec![0, 1, 2] },
        frame(1, 0, Layer::User, "main"),
        frame(2, 1, Layer::Kernel, "do_madvise"),
        Event::Stack { frame: FrameId(2), requests: 300 },
        Event::Name { frame: FrameId(1), function: "Main.run".into(), file: String::new() },
        Event::Counted { requests: u64::MAX },
        Event::Call(Call::Unmap { address, length: u64::MAX }),
        Event::Lost { count: 300 },
        Event::Exit,
    ];
    let records = (0..).zip(events);
    records
        .map(|(i, event)| Record { time_ns: i * i * 100, cpu: i as u32 / 4 % 3, event })
        .collect()
}

fn frame(frame: u32, caller: u32, layer: Layer, function: &str) -> Event {
    let function = Frame { layer, function: function.into(), file: "main.c".into(), line: 17 };
    Event::Frame { frame: FrameId(frame), caller: FrameId(caller), function }
}

/// The events of a program with threads, in the proportions of a real one: mostly faults, of which
/// some follow the last one, and a few calls and switches.
pub(crate) fn program(seed: u64, count: u64) -> Vec<Record> {
    let mut rng = Rng::new(seed);
    let (mut time_ns, mut cpu) = (0, 0);
    let mut heap = [0x7f12_0000_0000_u64, 0x7f52_0000_0000];
    let mut records = Vec::new();
    for id in 1..=4 {
        let (task, space, name) = (TaskId(id), SpaceId(0), "worker".into());
        let event = Event::Task { task, owner: Owner::Recorded, space, name };
        records.push(Record { time_ns, cpu, event });
    }
    while (records.len() as u64) < count {
        if rng.below(5) == 0 {
            cpu = 1 - cpu;
        }
        let longest_ns = 64 << rng.below(10);
        time_ns += 100 + rng.below(longest_ns);
        let at = &mut heap[cpu as usize];
        let address = match rng.below(10) {
            0..=5 => *at + 0x1000,
            6..=8 => *at & !0xfff ^ rng.below(1 << 24),
            _ => 0x5555_5555_0000 + rng.below(1 << 20),
        };
        *at = address;
        let (whole, length) = (address & !0xfff, rng.below(64) << 12);
        let event = match rng.below(100) {
            0..=77 => Event::Fault { address, code: FaultCode(6) },
            78 => Event::Call(Call::Map { address: 0, length, protection: 3, flags: 0x4022 }),
            79 => Event::Return { value: whole as i64 },
            80..=82 => Event::Call(Call::Unmap { address: whole, length }),
            83..=85 => Event::Call(Call::Advise { address: whole, length, advice: 4 }),
            86..=91 => Event::Return { value: 0 },
            92..=93 => Event::Flush { reason: FlushReason::Request, pages: Some(length >> 12) },
            94 => Event::Interrupts { targets: vec![1 - cpu] },
            95..=96 => Event::Wake { task: TaskId(rng.below(5) as u32), by: Waker::Running },
            _ => Event::Switch { next: TaskId(rng.below(5) as u32), left: Left::Blocked },
        };
        records.push(Record { time_ns, cpu, event });
    }
    records
}
