//! Damages recordings and texts to import at random, reads them, and checks that the result is an
//! error at worst.
//!
//! The test stops after [`RUNS`] damaged inputs, or after the seconds in
//! `SHOOTDOWN_DAMAGE_SECONDS`. `SHOOTDOWN_DAMAGE_SEED` and `SHOOTDOWN_DAMAGE_RUN` repeat one of
//! them. The profile detects overflows.
//!
//! Half of the files are damaged as a whole; checksums detect this. The other half are damaged in
//! their parts and reassembled with the right lengths and checksums; the decoder must detect this.
//! Every accepted file is written again, and must be read as the same. Texts lose and gain lines,
//! words, numbers and bytes; the result of an import must be a valid recording.
//!
//! Limits: the test has no feedback about the code that it reached, so that it finds a failure
//! that needs several unlikely changes by luck alone. It does not run the code that replays a
//! recording.

use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use peak_alloc::PeakAlloc;
use shootdown_program::varint::put;
use shootdown_recording::format::{Ended, Header, ReadError, Reader, Source, Totals, Writer};
use shootdown_recording::import::{ImportError, Options as Selection, Program, import};
use shootdown_recording::record::{
    Call, Event, FaultCode, FlushReason, Frame, FrameId, Layer, Left, Owner, Record, SpaceId,
    TaskId, Waker,
};
use shootdown_sim::Rng;

#[path = "../src/format/tests/samples.rs"]
mod samples;

/// Largest number of bytes that a reader or an importer may have allocated at any time.
const MEMORY_BYTES_MAX: usize = 4 << 20;

/// Number of damaged inputs, unless a variable of the environment gives a time.
const RUNS: u64 = 40_000;

/// Returns the number in a variable of the environment.
fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn damaged_input_is_an_error_at_worst() {
    let seed = variable("SHOOTDOWN_DAMAGE_SEED").unwrap_or(1);
    let time = variable("SHOOTDOWN_DAMAGE_SECONDS").map(Duration::from_secs);
    let (seeds, texts) = (seeds(), texts());
    for undamaged in &seeds {
        assert!(matches!(check_reader(&undamaged.file()), Ok(Outcome::Accepted)));
    }
    let start = Instant::now();
    let (mut runs, mut read, mut imported) = (0_u64, 0, 0);
    let one = variable("SHOOTDOWN_DAMAGE_RUN");
    let (first, end) = one.map_or((0, u64::MAX), |run| (run, run + 1));
    for run in first..end {
        if one.is_none() && time.map_or(runs >= RUNS, |time| start.elapsed() >= time) {
            break;
        }
        let mut rng = Rng::stream(seed, run);
        let is_text = rng.below(2) == 0;
        let once = || {
            if is_text { run_importer(&mut rng, &texts) } else { run_reader(&mut rng, &seeds) }
        };
        let result = catch_unwind(AssertUnwindSafe(once));
        match result.unwrap_or_else(|_| Err("a panic".to_owned())) {
            Ok(Outcome::Accepted) if is_text => imported += 1,
            Ok(Outcome::Accepted) => read += 1,
            Ok(Outcome::Refused) => {}
            Err(cause) => panic!(
                "{cause}: repeat with SHOOTDOWN_DAMAGE_SEED={seed} SHOOTDOWN_DAMAGE_RUN={run}"
            ),
        }
        runs += 1;
    }
    println!("{runs} runs; {read} recordings and {imported} texts were accepted");
    assert!(one.is_some() || read > 0 && imported > 0, "every input was refused");
}

enum Outcome {
    Accepted,
    Refused,
}

fn run_reader(rng: &mut Rng, seeds: &[Parts]) -> Result<Outcome, String> {
    // The last file has several blocks, and takes as long as all others together.
    let seed = if rng.below(64) == 0 { seeds.len() - 1 } else { rng.below(3) as usize };
    let mut parts = seeds[seed].clone();
    let file = if rng.below(2) == 0 {
        parts.damage(rng);
        parts.file()
    } else {
        let mut file = parts.file();
        let other = &seeds[rng.below(3) as usize].file();
        (0..=rng.below(3)).for_each(|_| damage(rng, &mut file, other));
        file
    };
    check_reader(&file)
}

/// Reads a file, damaged or not, to its end.
fn check_reader(file: &[u8]) -> Result<Outcome, String> {
    let read = || {
        let mut reader = Reader::open(file)?;
        while reader.next_record()?.is_some() {}
        Ok::<_, ReadError>(reader.totals().is_some())
    };
    let (result, bytes) = measured(read);
    if bytes > MEMORY_BYTES_MAX {
        return Err(format!("a reader has allocated {bytes} bytes"));
    }
    match result {
        Ok(true) => check_again(file).map(|()| Outcome::Accepted),
        Ok(false) => Err("a reader has ended without an error and without totals".into()),
        Err(error) if error.offset > file.len() as u64 => Err(format!("{error}, beyond the end")),
        Err(error) => check_line(&error.to_string()).map(|()| Outcome::Refused),
    }
}

/// Checks that an error is one printable line.
fn check_line(line: &str) -> Result<(), String> {
    if line.chars().any(char::is_control) || line.len() > 1000 {
        return Err(format!("an error is not a printable line: {line:?}"));
    }
    Ok(())
}

/// Writes an accepted file again, and checks that it is read as the same.
fn check_again(file: &[u8]) -> Result<(), String> {
    let (header, records, totals) =
        read(file).map_err(|error| format!("refused when read again: {error}"))?;
    let again = write(&header, &records, totals.ended)
        .map_err(|error| format!("accepted by the reader, not by the writer: {error}"))?;
    let (header_again, records_again, totals_again) =
        read(&again).map_err(|error| format!("refused after it was written again: {error}"))?;
    // The totals of the first file include records of unknown kinds.
    let same_totals = totals.records > records.len() as u64 || totals == totals_again;
    if (&header, &records) != (&header_again, &records_again) || !same_totals {
        return Err("differs after it was written again".into());
    }
    Ok(())
}

fn read(file: &[u8]) -> Result<(Header, Vec<Record>, Totals), ReadError> {
    let mut reader = Reader::open(file)?;
    let records = reader.by_ref().collect::<Result<Vec<_>, _>>()?;
    let totals = *reader.totals().expect("all records have been read");
    Ok((reader.header().clone(), records, totals))
}

fn write(header: &Header, records: &[Record], ended: Ended) -> std::io::Result<Vec<u8>> {
    let mut writer = Writer::create(Vec::new(), header)?;
    records.iter().try_for_each(|record| writer.write(record))?;
    writer.finish(ended)
}

/// Small recordings first, and one recording with several blocks.
fn seeds() -> Vec<Parts> {
    let ended = Ended::Exited(0);
    let few = samples::program(1, 200);
    let many = samples::program(2, 30_000);
    [vec![], samples::every_kind(), few, many]
        .iter()
        .map(|records| write(&samples::header(3), records, ended).expect("memory does not fail"))
        .map(|file| Parts::of_file(&file))
        .collect()
}

/// The parts of a file: see `FORMAT.md`.
#[derive(Clone)]
struct Parts {
    /// The magic number and the version.
    begin: Vec<u8>,
    header: Vec<u8>,
    blocks: Vec<Block>,
    end_mark: Vec<u8>,
}

#[derive(Clone)]
struct Block {
    tag: Vec<u8>,
    number: u32,
    records: u32,
    payload: Vec<u8>,
}

impl Parts {
    fn of_file(mut file: &[u8]) -> Self {
        let begin = split(&mut file, 12).to_vec();
        let length = word(split(&mut file, 4)) as usize;
        split(&mut file, 4);
        let header = split(&mut file, length).to_vec();
        let mut blocks = Vec::new();
        while blocks.last().is_none_or(|block: &Block| block.tag != b"ENDS") {
            let tag = split(&mut file, 4).to_vec();
            let [number, records, length] = [(); 3].map(|()| word(split(&mut file, 4)));
            split(&mut file, 4);
            let payload = split(&mut file, length as usize).to_vec();
            blocks.push(Block { tag, number, records, payload });
        }
        Self { begin, header, blocks, end_mark: file.to_vec() }
    }

    /// Assembles the file, with the right lengths and checksums.
    fn file(&self) -> Vec<u8> {
        let version = self.begin.get(8..).unwrap_or_default();
        let numbers = [version, &(self.header.len() as u32).to_le_bytes()].concat();
        let sum = checksum(&[&numbers, &self.header]);
        let mut file = [&self.begin, &numbers[version.len()..], &sum, &self.header].concat();
        for block in &self.blocks {
            let numbers = [block.number, block.records, block.payload.len() as u32];
            let numbers = numbers.map(u32::to_le_bytes).concat();
            let frame = [&block.tag[..], &numbers].concat();
            file.extend(
                [&frame[..], &checksum(&[&frame, &block.payload]), &block.payload].concat(),
            );
        }
        file.extend(&self.end_mark);
        file
    }

    fn damage(&mut self, rng: &mut Rng) {
        let count = self.blocks.len() as u64;
        let (one, two) = (rng.below(count) as usize, rng.below(count) as usize);
        match rng.below(16) {
            0 => damage(rng, &mut self.begin, &[]),
            1 => damage(rng, &mut self.end_mark, &[]),
            2 | 3 => damage(rng, &mut self.header, &self.blocks[one].payload),
            4 => self.blocks.swap(one, two),
            5 => self.blocks.insert(one, self.blocks[two].clone()),
            6 => drop(self.blocks.remove(one)),
            7 => self.blocks[one].records = extreme(rng) as u32,
            8 => self.blocks[one].number = extreme(rng) as u32,
            9 => {
                let records = &mut self.blocks[one].records;
                *records = records.wrapping_add(rng.below(3) as u32).wrapping_sub(1);
            }
            _ => {
                let other = self.blocks[two].payload.clone();
                (0..=rng.below(3)).for_each(|_| damage(rng, &mut self.blocks[one].payload, &other));
            }
        }
    }
}

/// The texts of all three tools about one small program, as lines.
fn texts() -> [Vec<&'static [u8]>; 3] {
    let texts: [&[u8]; 3] = [
        include_bytes!("import/kernel.txt"),
        include_bytes!("import/trace-cmd.txt"),
        include_bytes!("import/perf.txt"),
    ];
    texts.map(|text| text.split_inclusive(|byte| *byte == b'\n').collect())
}

fn run_importer(rng: &mut Rng, texts: &[Vec<&[u8]>]) -> Result<Outcome, String> {
    let lines = &texts[rng.below(3) as usize];
    // Some of the lines before the events, and few enough events that most runs are short.
    let count = rng.below(60) as usize;
    let start = rng.below((lines.len() - count) as u64) as usize;
    let titles = lines.iter().take(rng.below(16) as usize);
    let mut text: Vec<_> = titles.chain(&lines[start..start + count]).copied().collect();
    let other = &texts[rng.below(3) as usize];
    (0..rng.below(3)).for_each(|_| disorder(rng, &mut text, other));
    let mut text = text.concat();
    for _ in 0..rng.below(4) {
        match rng.below(2) {
            0 => renumber(rng, &mut text),
            _ => {
                let line = one_of(rng, other);
                damage(rng, &mut text, line);
            }
        }
    }
    let program = match rng.below(4) {
        0 => Program::Pid(19_820),
        1 => Program::Name(String::new()),
        _ => Program::Name("mapper".into()),
    };
    let source = match rng.below(4) {
        0 => Some(Source::PerfScript),
        1 => Some(Source::TraceCmd),
        _ => None,
    };
    check_importer(&text, &Selection { source, program })
}

fn check_importer(text: &[u8], selection: &Selection) -> Result<Outcome, String> {
    let (result, bytes) = measured(|| import(Cursor::new(text), selection, Vec::new()));
    if bytes > MEMORY_BYTES_MAX {
        return Err(format!("an importer has allocated {bytes} bytes"));
    }
    match result {
        Ok((_, file)) => match check_reader(&file)? {
            Outcome::Accepted => Ok(Outcome::Accepted),
            Outcome::Refused => Err("an imported recording is refused".into()),
        },
        Err(ImportError::Write(error)) => Err(format!("a recording was not written: {error}")),
        Err(error) => check_line(&error.to_string()).map(|()| Outcome::Refused),
    }
}

/// Swaps, removes or inserts lines.
fn disorder<'a>(rng: &mut Rng, lines: &mut Vec<&'a [u8]>, others: &[&'a [u8]]) {
    let at = rng.below(lines.len() as u64 + 1) as usize;
    match rng.below(3) {
        0 if at + 1 < lines.len() => lines.swap(at, at + 1),
        1 if at < lines.len() => drop(lines.remove(at)),
        _ => lines.insert(at, one_of(rng, others)),
    }
}

/// Replaces a number by an extreme one.
fn renumber(rng: &mut Rng, text: &mut Vec<u8>) {
    let from = rng.below(text.len() as u64 + 1) as usize;
    let Some(start) = text[from..].iter().position(u8::is_ascii_digit) else { return };
    let start = from + start;
    let digits = text[start..].iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let number = extreme(rng);
    let number = match rng.below(3) {
        0 => format!("{number:x}"),
        1 => format!("-{number}"),
        _ => number.to_string(),
    };
    text.splice(start..start + digits, number.into_bytes());
}

/// Removes and returns the first bytes.
fn split<'a>(bytes: &mut &'a [u8], count: usize) -> &'a [u8] {
    bytes.split_off(..count).expect("our own file is whole")
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes.try_into().expect("it has four bytes"))
}

fn checksum(parts: &[&[u8]]) -> [u8; 4] {
    let mut hasher = crc32fast::Hasher::new();
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize().to_le_bytes()
}

/// Changes bytes in one place, perhaps to a part of `other`.
fn damage(rng: &mut Rng, bytes: &mut Vec<u8>, other: &[u8]) {
    let range = |rng: &mut Rng, length: usize| {
        let start = rng.below(length as u64 + 1) as usize;
        let longest = if rng.below(2) == 0 { 4 } else { 300 };
        start..length.min(start + rng.below(longest) as usize)
    };
    let at = rng.below(bytes.len() as u64 + 1) as usize;
    let some = range(rng, bytes.len());
    match rng.below(8) {
        0 => bytes.truncate(at),
        1 => drop(bytes.drain(some)),
        2 => drop(bytes.splice(some, other[range(rng, other.len())].to_vec())),
        3 => drop(bytes.splice(at..at, bytes[some].to_vec())),
        4 => {
            let mut number = Vec::new();
            put(&mut number, extreme(rng));
            drop(bytes.splice(at..at, number));
        }
        5 if at + 4 <= bytes.len() => {
            bytes[at..at + 4].copy_from_slice(&(extreme(rng) as u32).to_le_bytes());
        }
        6 if at < bytes.len() => bytes[at] = one_of(rng, &[0, 1, 0x7f, 0x80, 0xff]),
        _ if at < bytes.len() => bytes[at] ^= 1 << rng.below(8),
        _ => bytes.push(rng.below(256) as u8),
    }
}

/// Returns a number at the limit of a field, or next to one.
fn extreme(rng: &mut Rng) -> u64 {
    let edge = 1 << one_of(rng, &[0, 8, 12, 13, 16, 20, 31, 32, 52, 53, 54, 63]);
    one_of(rng, &[edge - 1, edge, edge + 1, u64::MAX - edge])
}

fn one_of<T: Copy>(rng: &mut Rng, choices: &[T]) -> T {
    choices[rng.below(choices.len() as u64) as usize]
}

/// Calls `run`. Returns its result, and the number of bytes by which its peak memory exceeded the
/// memory in use before it.
fn measured<T>(run: impl FnOnce() -> T) -> (T, usize) {
    let before = ALLOCATOR.current_usage();
    ALLOCATOR.reset_peak_usage();
    let result = run();
    (result, ALLOCATOR.peak_usage().saturating_sub(before))
}

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;
