//! Workloads as bytes: decoding yields what was encoded, and refuses damaged bytes.

use proptest::prelude::*;
use shootdown_program::operation::{
    Access, AreaId, Entry, FileId, Filling, Folios, LockId, Mapping, Moves, Operation, Permission,
    ProgramId, RawAddress, Start, Steps,
};
use shootdown_program::stream::{Encoded, Stream, StreamError, encode};
use shootdown_program::{Malformed, Workload};
use std::collections::{BTreeMap, BTreeSet};

/// Programs by number. Some of them start with the workload.
#[derive(Clone, Debug)]
struct Programs {
    starts: Vec<Start>,
    programs: BTreeMap<u32, Vec<Operation>>,
}

impl Workload for Programs {
    fn name(&self) -> String {
        "programs, 1 × 2".to_owned()
    }
    fn processes(&self) -> Vec<Start> {
        self.starts.clone()
    }
    fn steps(&self, program: ProgramId) -> Steps {
        Box::new(self.programs.get(&program.0).cloned().unwrap_or_default().into_iter())
    }
}

/// Returns the operation with an index, with these numbers in its fields; `None` after the last.
fn operation(number: usize, [a, b, c, d]: [u64; 4]) -> Option<Operation> {
    let (area, program, lock) = (AreaId(a as u32), ProgramId(a as u32), LockId(a as u32));
    let (pages, file) = (b..c, FileId(a as u32));
    let permission = [Permission::None, Permission::Read, Permission::ReadWrite][d as usize % 3];
    let mappings = [Mapping::Anonymous, Mapping::PrivateFile(file), Mapping::SharedFile(file)];
    let mapping = mappings[c as usize % 3];
    let access = [Access::Read, Access::Write][d as usize % 2];
    let filling = [Filling::OnDemand, Filling::AtOnce][a as usize % 2];
    let entry = [Entry::Absent, Entry::Refusing][a as usize % 2];
    let folios = [Folios::Small, Folios::Large, Folios::LargeTracked][b as usize % 3];
    let moves = [Moves::IfNecessary, Moves::Always][d as usize % 2];
    let node = d as usize;
    let raw_address = match number.wrapping_sub(31) {
        0 => Some(RawAddress::Map { pages: b..c, permission, mapping, filling }),
        1 => Some(RawAddress::Unmap(b..c)),
        2 => Some(RawAddress::Protect { pages: b..c, permission }),
        3 => Some(RawAddress::Discard(b..c)),
        4 => Some(RawAddress::Offer(b..c)),
        5 => Some(RawAddress::Collapse(b..c)),
        6 => Some(RawAddress::MovePages { pages: b..c, node }),
        7 => Some(RawAddress::Move { from: a..b, to: c..d }),
        8 => Some(RawAddress::Fault { page: b, access, entry }),
        9 => Some(RawAddress::Populate { pages: b..c, access }),
        10 => Some(RawAddress::Cool(b..c)),
        11 => Some(RawAddress::PageOut(b..c)),
        12 => Some(RawAddress::UseFolios { pages: b..c, folios }),
        13 => Some(RawAddress::Sync(b..c)),
        _ => None,
    };
    Some(match number {
        0 => Operation::Map { area, pages: b, permission, mapping },
        1 => Operation::Unmap { area, pages },
        2 => Operation::Protect { area, pages, permission },
        3 => Operation::Discard { area, pages },
        4 => Operation::MovePages { area, pages, node },
        5 => Operation::Touch { area, pages, access },
        6 => Operation::Segfault { area, page: b },
        7 => Operation::Fork(program),
        8 => Operation::Spawn(program),
        9 => Operation::Join(program),
        10 => Operation::Exec,
        11 => Operation::Migrate(b as usize),
        12 => Operation::Yield,
        13 => Operation::Block,
        14 => Operation::Sleep(b),
        15 => Operation::Wake(program),
        16 => Operation::Lock(lock),
        17 => Operation::Unlock(lock),
        18 => Operation::SystemCall,
        19 => Operation::Compute(b),
        20 => Operation::Begin,
        21 => Operation::End { iterations: b },
        22 => Operation::PageOut { area, pages },
        23 => Operation::DiscardEach { area, pages, step: d },
        24 => Operation::Offer { area, pages },
        25 => Operation::Collapse { area, pages },
        26 => Operation::Sync { area, pages },
        27 => Operation::Remap { area, from: b, to: c, moves },
        28 => Operation::Hint { area, pages },
        29 => Operation::Truncate { file, pages: b },
        30 => Operation::UseLargePages { area, pages },
        _ => return raw_address.map(Operation::RawAddress),
    })
}

/// A number of any size.
fn number() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0..64_u32).prop_map(|(value, shift)| value >> shift)
}

fn any_operation() -> impl Strategy<Value = Operation> {
    (0..45_usize, prop::array::uniform4(number()))
        .prop_map(|(number, numbers)| operation(number, numbers).expect("there are 45"))
}

fn read(stream: &Stream<'_>, program: ProgramId) -> Vec<Operation> {
    stream.steps(program).expect("the program is encoded").map(Result::unwrap).collect()
}

#[test]
fn operations_are_complete() {
    let kinds: BTreeSet<String> = (0..)
        .map_while(|number| operation(number, [1, 2, 3, 4]))
        .map(|it| format!("{it:?}").chars().take_while(|c| !"{ 1234".contains(*c)).collect())
        .collect();
    assert_eq!(kinds.len(), 45, "{kinds:?}");
}

proptest! {
    #[test]
    fn workload_survives_encoding(
        steps in prop::collection::vec(any_operation(), 0..40),
        more in prop::collection::vec(any_operation(), 0..5),
        cpu in prop::option::of(0..usize::MAX),
        last: u32,
    ) {
        let start = |number, cpu| Start { program: ProgramId(number), cpu };
        let starts = vec![start(7, cpu), start(last, None)];
        let programs = BTreeMap::from([(last, more), (7, steps)]);
        let workload = Programs { starts: starts.clone(), programs };
        let bytes = encode(&workload).bytes().to_vec();
        let stream = Stream::parse(&bytes).unwrap();
        prop_assert_eq!(stream.name(), workload.name());
        prop_assert_eq!(stream.check(), Ok(()));
        prop_assert_eq!(stream.processes().collect::<Vec<_>>(), starts);
        let encoded = Encoded::new(bytes.clone()).unwrap();
        for (&program, steps) in &workload.programs {
            prop_assert_eq!(&read(&stream, ProgramId(program)), steps);
            prop_assert_eq!(&encoded.steps(ProgramId(program)).collect::<Vec<_>>(), steps);
            // The programs that they start are encoded as well.
            for step in steps {
                if let Operation::Fork(other) | Operation::Spawn(other) = step {
                    prop_assert!(stream.steps(*other).is_some());
                }
            }
        }
        let again = encode(&encoded);
        prop_assert_eq!(again.bytes(), bytes);
    }

    #[test]
    fn random_bytes_are_refused(bytes: Vec<u8>) {
        decode_all(&bytes);
        decode_all(&[b"SDWL\x01".as_slice(), &bytes].concat());
    }
}

/// Decodes everything: the result is an error or operations, but never a panic.
fn decode_all(bytes: &[u8]) -> Option<StreamError> {
    let stream = match Stream::parse(bytes) {
        Ok(stream) => stream,
        Err(error) => return Some(error),
    };
    let checked = stream.check();
    for start in stream.processes().take(100) {
        let _ = stream.steps(start.program).map(|steps| steps.take(1000).count());
    }
    assert_eq!(Encoded::new(bytes.to_vec()).err(), checked.err());
    checked.err()
}

fn sample() -> Programs {
    let all = (0..35).map(|number| operation(number, [3, 300, 70_000, 1]).unwrap());
    let starts = vec![Start { program: ProgramId(0), cpu: Some(2) }];
    let programs = BTreeMap::from([(0, all.collect()), (3, vec![Operation::Exec])]);
    Programs { starts, programs }
}

#[test]
fn damaged_bytes_are_refused_or_decoded_differently() {
    let bytes = encode(&sample()).bytes().to_vec();
    assert_eq!(decode_all(&bytes), None);
    for length in 0..bytes.len() {
        assert_ne!(decode_all(&bytes[..length]), None, "of {length} bytes");
    }
    for bit in 0..8 * bytes.len() {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let _ = decode_all(&flipped);
    }
}

#[test]
fn errors_name_the_damage() {
    let bytes = encode(&sample()).bytes().to_vec();
    assert_eq!(Stream::parse(b"SDW").err(), Some(StreamError::NotAStream));
    let mut newer = bytes.clone();
    newer[4] = 2;
    assert_eq!(Stream::parse(&newer).err(), Some(StreamError::Newer { version: 2 }));
    let longer = [bytes.as_slice(), &[0]].concat();
    assert_eq!(Stream::parse(&longer).err(), Some(StreamError::Length));
    let mut unknown = bytes.clone();
    *unknown.last_mut().unwrap() = 32;
    let step = StreamError::Step { program: ProgramId(3), cause: Malformed::Unknown };
    assert_eq!(Stream::parse(&unknown).unwrap().check(), Err(step));
    let starts = vec![Start { program: ProgramId(0), cpu: None }];
    let alone = Programs { starts, programs: BTreeMap::from([(0, vec![])]) };
    let mut missing = encode(&alone).bytes().to_vec();
    // The only program gets another number.
    let directory = missing.len() - 2;
    missing[directory] = 5;
    let error = StreamError::NoProgram(ProgramId(0));
    assert_eq!(Stream::parse(&missing).unwrap().check(), Err(error));
}

#[test]
fn codes_do_not_change() {
    for number in 0..45 {
        let only = vec![operation(number, [0, 1, 2, 3]).unwrap()];
        let starts = vec![Start { program: ProgramId(0), cpu: None }];
        let encoded = encode(&Programs { starts, programs: BTreeMap::from([(0, only)]) });
        let bytes = encoded.bytes();
        // The steps follow the name, the start, and the directory of one or two programs.
        let head = b"SDWL\x01".len() + 1 + "programs, 1 × 2".len() + 3;
        let steps_at = head + 1 + 2 * usize::from(bytes[head]);
        let code = |index: usize| usize::from(bytes[steps_at + index]);
        match number {
            0..=6 => assert_eq!(code(0), number),
            7..=30 => assert_eq!(code(0), number + 1),
            _ => assert_eq!([code(0), code(1)], [7, number - 31]),
        }
    }
}
