//! Random recordings.

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::sample::select;

use super::super::fields::Choice;
use super::super::{CPUS_MAX, NAME_BYTES_MAX, SPACES_MAX};
use super::*;

/// A random event. Its task has any number until [`numbered`] corrects it.
fn event(cpus: u32) -> impl Strategy<Value = Event> {
    let task = || any::<u32>().prop_map(TaskId);
    let space = || (0..SPACES_MAX).prop_map(SpaceId);
    let name = || ".{0,64}".prop_filter("too long", |name| name.len() <= NAME_BYTES_MAX);
    prop_oneof![
        (task(), one_of::<Owner>(), space(), name())
            .prop_map(|(task, owner, space, name)| Event::Task { task, owner, space, name }),
        task().prop_map(|task| Event::Running { task }),
        (task(), one_of::<Left>()).prop_map(|(next, left)| Event::Switch { next, left }),
        (task(), one_of::<Waker>()).prop_map(|(task, by)| Event::Wake { task, by }),
        (task(), space(), name()).prop_map(|(task, space, name)| Event::Spawn {
            task,
            space,
            name
        }),
        (space(), name()).prop_map(|(space, name)| Event::Exec { space, name }),
        Just(Event::Exit),
        call().prop_map(Event::Call),
        number().prop_map(|value| Event::Return { value: value as i64 }),
        (-5000..5000_i64).prop_map(|value| Event::Return { value }),
        (number(), any::<u32>())
            .prop_map(|(address, code)| Event::Fault { address, code: FaultCode(code) }),
        (one_of::<FlushReason>(), proptest::option::of(number()))
            .prop_map(|(reason, pages)| Event::Flush { reason, pages }),
        btree_set(0..cpus, 0..20)
            .prop_map(|targets| Event::Interrupts { targets: targets.into_iter().collect() }),
        btree_set(0..cpus, 0..20)
            .prop_map(|targets| Event::Requests { targets: targets.into_iter().collect() }),
        number().prop_map(|requests| Event::Counted { requests }),
        // The sum of all losses must fit in 64 bits.
        (0..1_u64 << 50).prop_map(|count| Event::Lost { count }),
    ]
}

fn call() -> impl Strategy<Value = Call> {
    let range = || (number(), number(), any::<u32>());
    prop_oneof![
        (range(), any::<u32>()).prop_map(|((address, length, protection), flags)| {
            Call::Map { address, length, protection, flags }
        }),
        range().prop_map(|(address, length, _)| Call::Unmap { address, length }),
        range().prop_map(|(address, length, protection)| {
            Call::Protect { address, length, protection }
        }),
        range().prop_map(|(address, length, advice)| Call::Advise { address, length, advice }),
        (range(), number(), number()).prop_map(
            |((address, old_length, flags), new_length, new_address)| {
                Call::Remap { address, old_length, new_length, flags, new_address }
            }
        ),
        number().prop_map(|address| Call::Break { address }),
        range().prop_map(|(address, length, flags)| Call::Sync { address, length, flags }),
    ]
}

/// A number of any size, with or without whole pages.
fn number() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0..64, select(vec![u64::MAX, !0xfff])).prop_map(|(n, s, mask)| n >> s & mask)
}

fn one_of<C: Choice + core::fmt::Debug>() -> impl Strategy<Value = C> {
    select(C::ALL).prop_map(|(_, choice)| choice)
}

fn recording() -> impl Strategy<Value = (u32, Vec<Record>)> {
    (select(vec![1, 2, 64, 200, CPUS_MAX])).prop_flat_map(|cpus| {
        let step = (number().prop_map(|ns| ns >> 8), 0..cpus, event(cpus));
        (Just(cpus), vec(step, 0..200).prop_map(numbered))
    })
}

/// Makes the times ascend, and introduces tasks in sequence before other records refer to them.
fn numbered(steps: Vec<(u64, u32, Event)>) -> Vec<Record> {
    let (mut time, mut tasks) = (0, 0);
    let mut record = |(after_ns, cpu, mut event)| {
        time += after_ns;
        match &mut event {
            Event::Task { task, .. } | Event::Spawn { task, .. } => {
                tasks += 1;
                task.0 = tasks;
            }
            Event::Running { task }
            | Event::Switch { next: task, .. }
            | Event::Wake { task, .. } => {
                task.0 %= tasks + 1;
            }
            _ => {}
        }
        Record { time_ns: time, cpu, event }
    };
    steps.into_iter().map(&mut record).collect()
}

proptest! {
    #[test]
    fn any_recording_survives_writing((cpus, records) in recording(), status: i32) {
        let header = samples::header(cpus);
        let mut writer = Writer::create(Vec::new(), &header).unwrap();
        for record in &records {
            writer.write(record).unwrap();
        }
        let file = writer.finish(Ended::Exited(status)).unwrap();
        let reader = Reader::open(&file[..]).unwrap();
        prop_assert_eq!(reader.header(), &header);
        let (read, totals) = super::read(&file).unwrap();
        prop_assert_eq!(totals.ended, Ended::Exited(status));
        prop_assert_eq!(read, records);
    }
}
