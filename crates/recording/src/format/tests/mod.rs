//! Whole files: the reader returns what was written, and refuses every other file.

mod hostile;
mod random;
pub(super) mod samples;

use std::cell::Cell;
use std::io::{self, Write};
use std::rc::Rc;

use shootdown_sim::Rng;

use super::base::Base;
use super::records::{self, Decoded, decode, kinds};
use super::schema::Treatment;
use super::{Ended, Header, Invalid, ReadError, Reader, Source, Totals, Writer};
use crate::record::{
    Call, Event, FaultCode, FlushReason, Frame, FrameId, Layer, Left, Owner, Record, SpaceId,
    TaskId, Waker,
};
use shootdown_program::varint::Cursor;

const CPUS: u32 = 3;

fn write(records: &[Record]) -> io::Result<Vec<u8>> {
    let mut writer = Writer::create(Vec::new(), &samples::header(CPUS))?;
    records.iter().try_for_each(|record| writer.write(record))?;
    writer.finish(Ended::Exited(0))
}

fn read(file: &[u8]) -> Result<(Vec<Record>, Totals), ReadError> {
    let mut reader = Reader::open(file)?;
    let records = reader.by_ref().collect::<Result<Vec<_>, _>>()?;
    Ok((records, *reader.totals().expect("all has been read")))
}

/// A disk with room for this number of bytes.
#[derive(Clone, Debug)]
struct Disk {
    room: Rc<Cell<usize>>,
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = self.room.get();
        let count = bytes.len().min(room);
        self.room.set(room - count);
        if count == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn every_kind_of_record_survives_writing() {
    let records = samples::every_kind();
    let (read, totals) = read(&write(&records).unwrap()).unwrap();
    assert_eq!(read, records);
    let time_ns = records.last().unwrap().time_ns;
    let count = records.len() as u64;
    let expected = Totals { records: count, lost: 300, time_ns, ended: Ended::Exited(0) };
    assert_eq!(totals, expected);
}

#[test]
fn recording_without_records_is_valid() {
    for ended in [Ended::Interrupted, Ended::Signalled(9), Ended::Exited(-1)] {
        let writer = Writer::create(Vec::new(), &samples::header(1)).unwrap();
        let file = writer.finish(ended).unwrap();
        let expected = Totals { records: 0, lost: 0, time_ns: 0, ended };
        assert_eq!(read(&file).unwrap(), (vec![], expected));
    }
}

#[test]
fn totals_exist_only_after_the_last_record() {
    let file = write(&samples::every_kind()).unwrap();
    let mut reader = Reader::open(&file[..]).unwrap();
    assert_eq!(reader.header(), &samples::header(CPUS));
    while reader.totals().is_none() {
        if reader.next_record().unwrap().is_none() {
            assert!(reader.totals().is_some());
        }
    }
    assert!(reader.next_record().unwrap().is_none());
}

#[test]
fn records_of_many_blocks_survive_writing() {
    let records = samples::program(1, 100_000);
    assert!(read(&write(&records).unwrap()).unwrap().0 == records);
}

#[test]
fn program_records_take_six_bytes_each() {
    let header_bytes = write(&[]).unwrap().len();
    let records = samples::program(2, 80_000);
    let bytes = write(&records).unwrap().len() - header_bytes;
    let each = bytes as f64 / records.len() as f64;
    assert!((5.0..6.5).contains(&each), "{each} bytes");
}

#[test]
fn block_is_decoded_without_earlier_blocks() {
    let records = samples::every_kind();
    let (first, second) = records.split_at(records.len() / 2);
    let (mut out, mut base) = (Vec::new(), Base::new(CPUS));
    let treatments = super::schema::treatments(kinds()).unwrap();
    for part in [first, second] {
        base.reset();
        out.clear();
        part.iter().for_each(|record| records::encode(&mut out, &mut base, record));
    }
    let (mut from, mut base) = (Cursor::new(&out, 0), Base::new(CPUS));
    for record in second {
        match decode(&mut from, &mut base, &treatments) {
            Ok(Decoded::Record(read)) => assert_eq!(read, *record),
            other => panic!("{other:?} instead of {record:?}"),
        }
    }
}

#[test]
fn every_kind_is_skipped_by_its_schema() {
    let (mut out, mut base) = (Vec::new(), Base::new(CPUS));
    let unknown: Vec<_> = kinds().into_iter().map(|kind| Treatment::Skip(kind.fields)).collect();
    for record in samples::every_kind() {
        records::encode(&mut out, &mut base, &record);
    }
    let (mut from, mut other) = (Cursor::new(&out, 0), Base::new(CPUS));
    for record in samples::every_kind() {
        match decode(&mut from, &mut other, &unknown) {
            Ok(Decoded::Skipped { time_ns, cpu }) => {
                assert_eq!((time_ns, cpu), (record.time_ns, record.cpu));
            }
            other => panic!("{other:?} instead of {record:?}"),
        }
    }
    assert_eq!(from.at(), out.len());
    assert_eq!(format!("{other:?}"), format!("{base:?}"));
}

#[test]
fn refused_record_is_not_written_and_others_follow() {
    let mut writer = Writer::create(Vec::new(), &samples::header(CPUS)).unwrap();
    let first = Record { time_ns: 5, cpu: 0, event: Event::Exit };
    writer.write(&first).unwrap();
    for refused in [
        Record { time_ns: 4, ..first.clone() },
        Record { cpu: CPUS, ..first.clone() },
        Record { event: Event::Running { task: TaskId(1) }, ..first.clone() },
    ] {
        let error = writer.write(&refused).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(error.get_ref().is_some_and(|inner| inner.is::<Invalid>()));
    }
    writer.write(&first).unwrap();
    let file = writer.finish(Ended::Interrupted).unwrap();
    assert_eq!(read(&file).unwrap().0, [first.clone(), first]);
}

#[test]
fn full_disk_error_is_returned() {
    let mut records = samples::every_kind();
    let last_ns = records.last().unwrap().time_ns;
    let exits = (0..40_000).map(|i| Record { time_ns: last_ns + i, cpu: 0, event: Event::Exit });
    records.extend(exits);
    let length = write(&records).unwrap().len();
    let fill = |room| {
        let mut writer =
            Writer::create(Disk { room: Rc::new(Cell::new(room)) }, &samples::header(CPUS))?;
        records.iter().try_for_each(|record| writer.write(record))?;
        writer.finish(Ended::Exited(0))
    };
    for room in (0..length).step_by(97).chain([length - 1]) {
        assert_eq!(fill(room).unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
    assert_eq!(fill(length).unwrap().room.get(), 0);
}

#[test]
fn writes_after_a_failed_write_fail() {
    let disk = Disk { room: Rc::new(Cell::new(5000)) };
    let mut writer = Writer::create(disk.clone(), &samples::header(1)).unwrap();
    let record = Record { time_ns: 0, cpu: 0, event: Event::Exit };
    let error = (0..100_000).find_map(|_| writer.write(&record).err()).unwrap();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    disk.room.set(usize::MAX);
    assert_eq!(writer.write(&record).unwrap_err().kind(), io::ErrorKind::Other);
    assert_eq!(writer.finish(Ended::Interrupted).unwrap_err().kind(), io::ErrorKind::Other);
}

/// An output that has room for some bytes, and undoes a write that does not fit.
struct Bounded {
    bytes: Vec<u8>,
    bytes_max: usize,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.bytes_max {
            self.bytes_max = usize::MAX;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn cut_recording_has_the_blocks_before_the_failure() {
    let records = samples::program(7, 40_000);
    let whole = write(&records).unwrap().len();
    let mut counts = Vec::new();
    for bytes_max in [whole / 3, whole / 2, whole - 200, whole - 4] {
        let mut out = Bounded { bytes: Vec::new(), bytes_max };
        let mut writer = Writer::create(&mut out, &samples::header(4)).unwrap();
        let written = records.iter().try_for_each(|record| writer.write(record));
        let error = written.and_then(|()| writer.end(Ended::Exited(0))).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        if bytes_max < whole - 8 {
            writer.cut().unwrap();
            let (found, totals) = read(&out.bytes).unwrap();
            assert_eq!(found, records[..found.len()]);
            assert_eq!(totals.ended, Ended::Interrupted);
            counts.push(found.len());
        }
    }
    assert!(counts.is_sorted() && counts[0] > 0 && counts[2] < records.len(), "{counts:?}");
}
