//! Files that were truncated, altered or forged.

use std::io::Read;

use super::super::block::{BlockKind, FRAME_BYTES, Frame, PAYLOAD_BYTES_MAX, checksum};
use super::super::{Cause, END_MARK, HEADER_BYTES_MAX, MAGIC, Version, header};
use super::*;
use shootdown_program::varint::put;

const HEAD_BYTES: usize = 20;

/// A file with arbitrary parts, and the right checksums.
#[derive(Clone)]
struct Forgery {
    version: Version,
    header: String,
    blocks: Vec<(u32, Vec<u8>)>,
    totals: Totals,
}

impl Forgery {
    fn new(blocks: &[(u32, &[u8])], totals: Totals) -> Self {
        let header = String::from_utf8(header::to_json(&samples::header(CPUS)).unwrap()).unwrap();
        let blocks = blocks.iter().map(|&(records, payload)| (records, payload.to_vec())).collect();
        Self { version: Version::KNOWN, header, blocks, totals }
    }

    fn file(&self) -> Vec<u8> {
        let mut numbers = Vec::new();
        numbers.extend(self.version.major.to_le_bytes());
        numbers.extend(self.version.minor.to_le_bytes());
        numbers.extend((self.header.len() as u32).to_le_bytes());
        let checksum = checksum(&numbers, self.header.as_bytes()).to_le_bytes();
        let mut file = [&MAGIC[..], &numbers, &checksum, self.header.as_bytes()].concat();
        let totals = serde_json::to_vec(&self.totals).unwrap();
        for (number, (records, payload)) in (0..).zip(&self.blocks) {
            file.extend(block(BlockKind::Records, number, *records, payload));
        }
        file.extend(block(BlockKind::Totals, self.blocks.len() as u32, 0, &totals));
        file.extend(END_MARK);
        file
    }
}

fn block(kind: BlockKind, number: u32, records: u32, payload: &[u8]) -> Vec<u8> {
    let frame = Frame { kind, number, records, length: payload.len() as u32 };
    [&frame.bytes(payload)[..], payload].concat()
}

fn totals(records: u64, time_ns: u64) -> Totals {
    Totals { records, lost: 0, time_ns, ended: Ended::Exited(0) }
}

/// Reads a file whose second record has this kind and these fields. Returns the offset of the error
/// in the payload, and the error.
fn refused(kind: u8, fields: &[u64]) -> (u64, Invalid) {
    let mut payload = vec![6, 0, kind, 0];
    fields.iter().for_each(|field| put(&mut payload, *field));
    let forgery = Forgery::new(&[(2, &payload)], totals(2, 0));
    let error = read(&forgery.file()).unwrap_err();
    let payload_at = HEAD_BYTES + forgery.header.len() + FRAME_BYTES;
    (error.offset - payload_at as u64, invalid(error))
}

fn invalid(error: ReadError) -> Invalid {
    match error.cause {
        Cause::Invalid(invalid) => invalid,
        cause => panic!("{cause:?}"),
    }
}

#[test]
fn truncated_recording_is_refused() {
    let file = write(&samples::every_kind()).unwrap();
    for length in 0..file.len() {
        let error = read(&file[..length]).unwrap_err();
        assert!(matches!(error.cause, Cause::Truncated), "{length}: {error}");
        assert_eq!(error.offset, length as u64);
    }
}

#[test]
fn intact_part_has_the_blocks_before_a_cut() {
    let records = samples::program(7, 40_000);
    let mut file = write(&records).unwrap();
    let intact = |file: &[u8]| {
        let mut reader = Reader::open(file).unwrap().intact_part();
        let found: Vec<_> = reader.by_ref().map(Result::unwrap).collect();
        let (totals, cut) = (*reader.totals().unwrap(), reader.cut().map(ToString::to_string));
        assert_eq!(totals.records, found.len() as u64);
        assert_eq!(totals.time_ns, found.last().map_or(0, |record| record.time_ns));
        (found, totals.ended, cut)
    };
    assert_eq!(intact(&file), (records.clone(), Ended::Exited(0), None));
    let mut counts = vec![0];
    // The last cut is within the end mark.
    for length in (100_000..file.len()).step_by(9973).chain([file.len() - 1]) {
        let (found, ended, cut) = intact(&file[..length]);
        assert_eq!(found, records[..found.len()]);
        assert_eq!(ended, Ended::Interrupted);
        assert!(cut.unwrap().starts_with("the recording ends too early, at byte "));
        assert!(found.len() >= *counts.last().unwrap());
        counts.push(found.len());
    }
    counts.dedup();
    assert!(counts.len() > 2, "the cuts hit one block: {counts:?}");
    assert_eq!(counts.last(), Some(&records.len()));
    let first_block_is_cut = Reader::open(&file[..10_000]).unwrap().intact_part().next_record();
    assert!(matches!(first_block_is_cut, Err(ReadError { cause: Cause::Truncated, .. })));
    // The records of an altered block, and those after it, are not returned.
    let middle = file.len() / 2;
    file[middle] ^= 1;
    let (found, _, cut) = intact(&file);
    assert!(found.len() < records.len() && found == records[..found.len()]);
    assert!(cut.unwrap().starts_with("the recording was damaged or altered, at byte "));
}

#[test]
fn recording_with_one_altered_byte_is_refused() {
    let mut file = write(&samples::every_kind()).unwrap();
    for at in 0..file.len() {
        for change in 1..=255 {
            file[at] ^= change;
            let error = read(&file).expect_err("the change was not detected");
            // A length that is too great is detected at the end of the file.
            let early = error.offset <= at as u64;
            assert!(early || matches!(error.cause, Cause::Truncated), "{at} ^ {change}: {error}");
            file[at] ^= change;
        }
    }
    assert!(read(&file).is_ok());
}

#[test]
fn other_files_differ_from_damaged_recordings() {
    let error = read(b"#!/bin/sh\nrm -rf /\n").unwrap_err();
    assert!(matches!(error.cause, Cause::NotARecording));
    assert_eq!(error.to_string(), "this is not a recording, at byte 0");
    let unix_ends = [b"\x89SHOOT\n".to_vec(), vec![0; 100]].concat();
    assert!(matches!(read(&unix_ends).unwrap_err().cause, Cause::NotARecording));
}

#[test]
fn newer_major_version_is_reported_first() {
    let major = Version::KNOWN.major + 1;
    let file = [&MAGIC[..], &major.to_le_bytes(), &[7, 0], &[0xff; 100]].concat();
    let error = read(&file).unwrap_err();
    assert!(matches!(error.cause, Cause::Newer { version } if version.minor == 7));
    let text = "the recording has version 2.7, newer than 1.4, at byte 8";
    assert_eq!(error.to_string(), text);
}

#[test]
fn unknown_kinds_of_a_newer_minor_version_are_skipped() {
    let known = samples::every_kind();
    let (mut payload, mut base) = (Vec::new(), Base::new(CPUS));
    for record in &known {
        records::encode(&mut payload, &mut base, record);
        // An address (0), a size with bytes beyond pages, two CPUs, an empty text, and a choice.
        payload.extend([99, 0, 0, 3, 1, 2, 0, 1, 0, 1]);
    }
    let count = 2 * known.len() as u64;
    let time_ns = known.last().unwrap().time_ns;
    let sums = Totals { lost: 300, ..totals(count, time_ns) };
    let mut forgery = Forgery::new(&[(count as u32, &payload)], sums);
    assert_eq!(invalid(read(&forgery.file()).unwrap_err()), Invalid::UnknownKind(99));
    forgery.version.minor += 1;
    let kind = r#"{"number":99,"name":"new","meant":"for nobody","fields":[
        {"name":"a","encoding":"address"},{"name":"b","encoding":"size"},
        {"name":"c","encoding":"cpus"},{"name":"d","encoding":"text"},
        {"name":"e","encoding":{"choice":["no","yes"]}}]}]}"#;
    forgery.header.truncate(forgery.header.len() - 2);
    forgery.header += ",";
    forgery.header += kind;
    assert_eq!(read(&forgery.file()).unwrap(), (known, sums));
    forgery.header =
        forgery.header.replace(r#""b","encoding":"size""#, r#""b","encoding":"float""#);
    let error = invalid(read(&forgery.file()).unwrap_err());
    assert!(matches!(error, Invalid::Header { .. }));
}

#[test]
fn missing_duplicate_or_reordered_block_is_detected() {
    let exit: &[u8] = &[6, 1];
    let whole = Forgery::new(&[(1, exit), (1, exit)], totals(2, 1));
    assert_eq!(read(&whole.file()).unwrap().0.len(), 2);
    let file = whole.file();
    let block_bytes = FRAME_BYTES + exit.len();
    let blocks_at = HEAD_BYTES + whole.header.len();
    let (first, rest) = file[blocks_at..].split_at(block_bytes);
    let (second, end) = rest.split_at(block_bytes);
    for wrong in [[&[], second, end], [first, &[], end], [second, first, end]] {
        let file = [&file[..blocks_at], &wrong.concat()].concat();
        assert_eq!(invalid(read(&file).unwrap_err()), Invalid::BlockOrder);
    }
    let twice = [&file[..blocks_at], first, first, second, end].concat();
    assert_eq!(invalid(read(&twice).unwrap_err()), Invalid::BlockOrder);
    for wrong in [totals(1, 1), totals(3, 1), totals(2, 2), Totals { lost: 1, ..totals(2, 1) }] {
        let forgery = Forgery { totals: wrong, ..whole.clone() };
        assert_eq!(invalid(read(&forgery.file()).unwrap_err()), Invalid::Totals);
    }
}

#[test]
fn totals_that_are_not_json_are_refused() {
    let mut file = Forgery::new(&[], totals(0, 0)).file();
    let totals_at = file.len() - END_MARK.len() - totals_bytes(&file) - FRAME_BYTES;
    file.truncate(totals_at);
    file.extend(block(BlockKind::Totals, 0, 0, b"{}"));
    file.extend(END_MARK);
    let error = invalid(read(&file).unwrap_err());
    assert_eq!(error, Invalid::TotalsSyntax { column: 2 });
    assert_eq!(error.to_string(), "the totals have an error in column 2");
}

#[test]
fn block_must_end_with_its_records() {
    for (records, payload) in [(0, &[][..]), (0, &[6, 0]), (2, &[6, 0]), (1, &[6]), (1, &[6, 0, 6])]
    {
        let forgery = Forgery::new(&[(records, payload)], totals(1, 0));
        assert_eq!(invalid(read(&forgery.file()).unwrap_err()), Invalid::BlockEnd);
    }
}

#[test]
fn data_after_the_end_are_refused() {
    let mut file = write(&[]).unwrap();
    let length = file.len() as u64;
    file.push(0);
    let error = read(&file).unwrap_err();
    assert_eq!((error.offset, invalid(error)), (length, Invalid::Surplus));
}

/// The reader would read without end if it trusted one of these lengths.
#[test]
fn lengths_are_bounded_before_they_are_read() {
    let mut file = write(&[]).unwrap();
    let frame_at = file.len() - END_MARK.len() - totals_bytes(&file) - FRAME_BYTES;
    for (at, length, bytes) in [
        (12, HEADER_BYTES_MAX as u32 + 1, 16),
        (12, u32::MAX, 16),
        (frame_at + 12, PAYLOAD_BYTES_MAX as u32 + 1, frame_at + FRAME_BYTES),
        (frame_at + 12, u32::MAX, frame_at + FRAME_BYTES),
    ] {
        let kept: [u8; 4] = file[at..at + 4].try_into().unwrap();
        file[at..at + 4].copy_from_slice(&length.to_le_bytes());
        let mut endless = (&file[..]).chain(std::io::repeat(0)).take(1 << 20);
        let refused = Reader::open(&mut endless).and_then(|mut reader| reader.next_record());
        assert!(matches!(refused.unwrap_err().cause, Cause::Altered | Cause::Invalid(_)));
        assert_eq!((1 << 20) - endless.limit(), bytes as u64);
        file[at..at + 4].copy_from_slice(&kept);
    }
}

fn totals_bytes(file: &[u8]) -> usize {
    serde_json::to_vec(&read(file).unwrap().1).unwrap().len()
}

#[test]
fn invalid_record_is_refused_at_its_offset() {
    // The second record begins after two bytes.
    let at = 2;
    assert_eq!(refused(5, &[0, 256]), (at, Invalid::LongName));
    assert_eq!(refused(5, &[0, u64::MAX]), (at, Invalid::LongName));
    assert_eq!(refused(5, &[0, 1, 0xff]), (at, Invalid::Text));
    assert_eq!(refused(5, &[0, 2, 0x20]), (at, Invalid::BlockEnd));
    assert_eq!(refused(5, &[1 << 20, 0]), (at, Invalid::TooManySpaces));
    assert_eq!(refused(5, &[1 << 32, 0]), (at, Invalid::Number));
    assert_eq!(refused(18, &[u64::from(u32::MAX)]), (at, Invalid::Number));
    assert_eq!(refused(18, &[8192, 0]), (at, Invalid::BlockEnd));
    assert_eq!(refused(18, &[1, 3]), (at, Invalid::UnknownCpu(3)));
    assert_eq!(refused(18, &[2, u64::from(u32::MAX) - 1, 1]), (at, Invalid::Number));
    assert_eq!(refused(0, &[2, 0, 0, 0]), (at, Invalid::TaskOutOfSequence(TaskId(2))));
    assert_eq!(refused(1, &[1]), (at, Invalid::UnknownTask(TaskId(1))));
    assert_eq!(refused(2, &[0, 3]), (at, Invalid::Choice(3)));
    assert_eq!(refused(127, &[]), (at, Invalid::UnknownKind(127)));
}

#[test]
fn invalid_cpu_or_time_is_refused() {
    let refused = |payload: &[u8], records| {
        let forgery = Forgery::new(&[(records, payload)], totals(records.into(), 0));
        invalid(read(&forgery.file()).unwrap_err())
    };
    assert_eq!(refused(&[0x86, 3, 0], 1), Invalid::UnknownCpu(3));
    let mut late = vec![6];
    put(&mut late, u64::MAX);
    late.extend([6, 1]);
    assert_eq!(refused(&late, 2), Invalid::Number);
    let backwards = Forgery::new(&[(1, &[6, 9]), (1, &[6, 8])], totals(2, 8));
    assert_eq!(invalid(read(&backwards.file()).unwrap_err()), Invalid::TimeBackwards);
}

#[test]
fn read_errors_are_returned_and_interruptions_retried() {
    struct Bad(std::io::ErrorKind);
    impl Read for Bad {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            let kind = std::mem::replace(&mut self.0, io::ErrorKind::PermissionDenied);
            Err(kind.into())
        }
    }
    let file = write(&samples::every_kind()).unwrap();
    let half = || &file[..file.len() / 2];
    for kind in [io::ErrorKind::Interrupted, io::ErrorKind::PermissionDenied] {
        let reader = Reader::open(half().chain(Bad(kind)));
        let error = match reader {
            Ok(reader) => reader.into_iter().find_map(Result::err),
            Err(error) => Some(error),
        };
        let error = error.unwrap();
        assert_eq!(error.offset, half().len() as u64);
        assert!(matches!(error.cause, Cause::Io(e) if e.kind() == io::ErrorKind::PermissionDenied));
    }
}
