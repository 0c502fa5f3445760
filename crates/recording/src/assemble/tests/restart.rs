//! Records that belong to no thread, and recordings that go on in another file.

use super::*;
use crate::record::{Frame, FrameId, Layer};

#[test]
fn next_recording_begins_with_the_live_threads() {
    let mut assembler = Assembler::new(Writer::create(Vec::new(), &header()).unwrap(), startup());
    let enter = || RawKind::Enter(UNMAP);
    let spawn =
        |tid| RawKind::NewTask { tid: Tid(tid), clone_flags: Some(THREAD), name: "b".into() };
    let fork = RawKind::NewTask { tid: Tid(12), clone_flags: Some(FORK), name: "c".into() };
    let dead = || RawKind::Switch { left: Left::Dead, next: Tid(10), next_name: String::new() };
    let before = [
        (0, 1, 20, enter()),
        (1, 0, 10, spawn(11)),
        (2, 0, 10, fork),
        (3, 0, 10, spawn(13)),
        (4, 0, 13, RawKind::Exit),
        (5, 0, 13, dead()),
        (6, 0, 10, enter()),
    ];
    before.into_iter().for_each(|event| assembler.event(raw(event)).unwrap());
    assembler.end(Ended::Interrupted).unwrap();
    let first = assembler.output().clone();
    let first = Reader::open(first.as_slice()).unwrap().map(|record| record.unwrap().event);
    assert!(first.last() == Some(Event::Call(UNMAP)));
    assembler.restart(Writer::create(Vec::new(), &header()).unwrap()).unwrap();
    let after = [(100, 0, 12, enter()), (107, 1, 20, enter()), (108, 0, 10, enter())];
    after.into_iter().for_each(|event| assembler.event(raw(event)).unwrap());
    let bytes = assembler.finish(Ended::Interrupted).unwrap();
    let second = Reader::open(bytes.as_slice()).unwrap().map(|record| record.unwrap());
    let (times, second): (Vec<_>, Vec<_>) =
        second.map(|record| (record.time_ns, record.event)).unzip();
    let call = || Event::Call(UNMAP);
    let expected = [
        recorded(1, 0, ""),
        recorded(2, 0, ""),
        recorded(3, 1, ""),
        running(3),
        call(),
        other(4, 2),
        running(4),
        running(1),
        call(),
    ];
    assert_eq!(second, expected);
    assert_eq!(times, [0, 0, 0, 0, 0, 7, 7, 8, 8]);
}

#[test]
fn counters_and_late_names_belong_to_no_thread() {
    let frame = |function: &str| {
        let (layer, function, file) = (Layer::User, function.to_owned(), String::new());
        Frame { layer, function, file, line: 0 }
    };
    let stack = || RawKind::Stack { frames: vec![frame("[0x10]")], requests: 1 };
    let names = RawKind::Names { names: vec![(frame("[0x10]"), frame("run"))] };
    let actual = events([
        (0, 1, 0, RawKind::Counted { requests: 7 }),
        (1, 0, 10, RawKind::Enter(UNMAP)),
        (2, 0, 10, stack()),
        (3, 0, 0, names),
        (4, 0, 10, RawKind::Return { value: 0 }),
    ]);
    let named = Event::Name { frame: FrameId(1), function: "run".into(), file: String::new() };
    let expected = [
        Event::Counted { requests: 7 },
        recorded(1, 0, "sort"),
        running(1),
        Event::Call(UNMAP),
        Event::Frame { frame: FrameId(1), caller: FrameId::NONE, function: frame("[0x10]") },
        Event::Stack { frame: FrameId(1), requests: 1 },
        named,
        Event::Return { value: 0 },
    ];
    assert_eq!(actual, expected);
}

/// A stack whose switch is recorded late does not get the name of the thread that ran before.
#[test]
fn stack_of_another_thread_has_the_name_of_that_thread_or_none() {
    let frame = |layer, function: &str| {
        let (function, file) = (function.to_owned(), String::new());
        Frame { layer, function, file, line: 0 }
    };
    let in_kernel = || frame(Layer::Kernel, "flush_tlb_mm_range");
    let stack = |tid| (5, 0, tid, RawKind::Stack { frames: vec![in_kernel()], requests: 1 });
    let next = |tid, name: &str| RawKind::Switch {
        left: Left::Blocked,
        next: Tid(tid),
        next_name: name.to_owned(),
    };
    let names_with = |tid| {
        let inputs = [(0, 0, 10, next(30, "worker")), (1, 0, 30, next(2, "ksmd")), stack(tid)];
        let names = events(inputs).into_iter().filter_map(|event| match event {
            Event::Frame { function, .. } if function.layer == Layer::User => {
                Some(function.function)
            }
            _ => None,
        });
        names.collect::<Vec<_>>()
    };
    assert_eq!(names_with(2), ["ksmd"]);
    assert_eq!(names_with(30), ["worker"]);
    assert!(names_with(31).is_empty());
}
