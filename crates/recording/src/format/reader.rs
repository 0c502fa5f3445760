//! The reader of a recording. It checks every block and every record.

use std::fmt;
use std::io::{self, Read};

use super::base::Base;
use super::block::{BlockKind, FRAME_BYTES, Frame, PAYLOAD_BYTES_MAX, checksum};
use super::error::{Cause, ReadError};
use super::header::{self, Ended, Header, Totals};
use super::records::{Decoded, decode};
use super::rules::{Invalid, Rules};
use super::schema::Treatment;
use super::{END_MARK, HEADER_BYTES_MAX, MAGIC, Version};
use crate::record::Record;
use shootdown_program::varint::Cursor;

/// Reads a recording, block by block: at most a header and 64 KiB of records are in memory.
///
/// Every record obeys the rules that a [`Writer`](super::Writer) enforces, so that a consumer may
/// use its numbers as indexes. The reader stops at the first error. If it returns no more records
/// and has no [`Reader::totals`], it has returned an error before.
///
/// [`Reader::intact_part`] makes a reader that ends before the first damaged block instead.
#[derive(Debug)]
pub struct Reader<'r> {
    input: Input<'r>,
    header: Header,
    treatments: Vec<Treatment>,
    rules: Rules,
    base: Base,
    /// The records of the current block.
    payload: Vec<u8>,
    /// Offset of the next record in `payload`.
    at: usize,
    /// Number of records that are left in `payload`.
    left: u32,
    /// Number of blocks that were read.
    blocks: u32,
    damage: Damage,
    state: State,
}

/// The treatment of a file that ends early, or of a block that was altered.
#[derive(Debug)]
enum Damage {
    Refused,
    /// The reader ends before the damage.
    EndsReading,
    /// The reader has ended because of this damage.
    Found(ReadError),
}

#[derive(Debug)]
enum State {
    Reading,
    Failed,
    Ended(Totals),
}

impl<'r> Reader<'r> {
    /// Reads the header. `input` does not have to be buffered.
    ///
    /// # Errors
    ///
    /// Fails if `input` does not start with a valid header of a supported version.
    pub fn open(input: impl Read + 'r) -> Result<Self, ReadError> {
        let mut input = Input { inner: Box::new(input), offset: 0 };
        let magic: [u8; MAGIC.len()] = input.array()?;
        if magic != MAGIC {
            return Err(ReadError { offset: 0, cause: Cause::NotARecording });
        }
        let at = input.offset;
        let error = |cause| ReadError { offset: at, cause };
        let numbers: [u8; 8] = input.array()?;
        let [major, minor] = [0, 2].map(|at| u16::from_le_bytes([numbers[at], numbers[at + 1]]));
        let version = Version { major, minor };
        if version.major > Version::KNOWN.major {
            return Err(error(Cause::Newer { version }));
        }
        let length = u32::from_le_bytes([numbers[4], numbers[5], numbers[6], numbers[7]]) as usize;
        if length > HEADER_BYTES_MAX {
            return Err(error(Cause::Invalid(Invalid::LongHeader)));
        }
        let expected = u32::from_le_bytes(input.array()?);
        let json_at = input.offset;
        let mut json = vec![0; length];
        input.fill(&mut json)?;
        if checksum(&numbers, &json) != expected {
            return Err(error(Cause::Altered));
        }
        let (header, treatments) = header::of_json(&json)
            .map_err(|invalid| ReadError { offset: json_at, cause: Cause::Invalid(invalid) })?;
        let (rules, base) = (Rules::new(header.cpus), Base::new(header.cpus));
        Ok(Self {
            input,
            header,
            treatments,
            rules,
            base,
            payload: Vec::with_capacity(PAYLOAD_BYTES_MAX),
            at: 0,
            left: 0,
            blocks: 0,
            damage: Damage::Refused,
            state: State::Reading,
        })
    }

    /// Returns a reader that accepts a file which ends early or was altered: it returns the records
    /// before the first missing or damaged block. Its totals are then those of these records. If
    /// not even the first block is intact, the reader still fails.
    #[must_use]
    pub fn intact_part(mut self) -> Self {
        self.damage = Damage::EndsReading;
        self
    }

    /// Returns the reason why the reader of an [intact part](Self::intact_part) ended before the
    /// end of the recording; `None` if it has not done so.
    pub fn cut(&self) -> Option<&ReadError> {
        match &self.damage {
            Damage::Found(error) => Some(error),
            Damage::Refused | Damage::EndsReading => None,
        }
    }

    /// Returns the header of the file.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the totals; `None` before all records have been read.
    pub fn totals(&self) -> Option<&Totals> {
        match &self.state {
            State::Ended(totals) => Some(totals),
            State::Reading | State::Failed => None,
        }
    }

    /// Returns the next record; `None` at the end, and after an error.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, or is not a complete and valid recording.
    #[inline]
    pub fn next_record(&mut self) -> Result<Option<Record>, ReadError> {
        if !matches!(self.state, State::Reading) {
            return Ok(None);
        }
        let result = self.read();
        if result.is_err() {
            self.state = State::Failed;
        }
        result
    }

    fn read(&mut self) -> Result<Option<Record>, ReadError> {
        loop {
            if self.left == 0 {
                match self.next_block() {
                    Ok(BlockKind::Records) => {}
                    Ok(BlockKind::Totals) => return Ok(None),
                    Err(error) => return self.end_before(error).map(|()| None),
                }
            }
            self.left -= 1;
            let at = self.at;
            let decoded = self.decode().map_err(|invalid| self.invalid_at(at, invalid))?;
            if self.left == 0 && self.at < self.payload.len() {
                return Err(self.invalid_at(self.at, Invalid::BlockEnd));
            }
            if decoded.is_some() {
                return Ok(decoded);
            }
        }
    }

    #[inline]
    fn decode(&mut self) -> Result<Option<Record>, Invalid> {
        let mut cursor = Cursor::new(&self.payload, self.at);
        let decoded = decode(&mut cursor, &mut self.base, &self.treatments)?;
        self.at = cursor.at();
        match decoded {
            Decoded::Record(record) => {
                self.rules.admit(&record)?;
                Ok(Some(record))
            }
            Decoded::Skipped { time_ns, cpu } => {
                self.rules.skip(time_ns, cpu)?;
                Ok(None)
            }
        }
    }

    fn next_block(&mut self) -> Result<BlockKind, ReadError> {
        let offset = self.input.offset;
        let error = |cause| Err(ReadError { offset, cause });
        let frame_bytes: [u8; FRAME_BYTES] = self.input.array()?;
        let Some(frame) = Frame::of_bytes(&frame_bytes) else { return error(Cause::Altered) };
        self.payload.resize(frame.length as usize, 0);
        self.input.fill(&mut self.payload)?;
        if frame.bytes(&self.payload) != frame_bytes {
            return error(Cause::Altered);
        }
        if frame.number != self.blocks {
            return error(Cause::Invalid(Invalid::BlockOrder));
        }
        match frame.kind {
            BlockKind::Records if frame.records == 0 => {
                return error(Cause::Invalid(Invalid::BlockEnd));
            }
            BlockKind::Records => {
                self.blocks = self.blocks.wrapping_add(1);
                self.base.reset();
                (self.at, self.left) = (0, frame.records);
            }
            BlockKind::Totals => self.end()?,
        }
        Ok(frame.kind)
    }

    fn end(&mut self) -> Result<(), ReadError> {
        let totals: Totals = serde_json::from_slice(&self.payload).map_err(|error| {
            self.invalid_at(0, Invalid::TotalsSyntax { column: error.column() })
        })?;
        let Rules { records, lost, time_ns, .. } = self.rules;
        if totals != (Totals { records, lost, time_ns, ended: totals.ended }) {
            return Err(self.invalid_at(0, Invalid::Totals));
        }
        let offset = self.input.offset;
        if self.input.array()? != END_MARK {
            return Err(ReadError { offset, cause: Cause::Altered });
        }
        let offset = self.input.offset;
        match self.input.fill(&mut [0]) {
            Err(ReadError { cause: Cause::Truncated, .. }) => {}
            Err(error) => return Err(error),
            Ok(()) => return Err(ReadError { offset, cause: Cause::Invalid(Invalid::Surplus) }),
        }
        self.state = State::Ended(totals);
        Ok(())
    }

    /// Ends the reading before a damaged block, if that is permitted.
    fn end_before(&mut self, error: ReadError) -> Result<(), ReadError> {
        let is_damage = matches!(
            error.cause,
            Cause::Truncated | Cause::Altered | Cause::Invalid(Invalid::BlockOrder)
        );
        let Rules { records, lost, time_ns, .. } = self.rules;
        if !is_damage || records == 0 || !matches!(self.damage, Damage::EndsReading) {
            return Err(error);
        }
        self.damage = Damage::Found(error);
        self.state = State::Ended(Totals { records, lost, time_ns, ended: Ended::Interrupted });
        Ok(())
    }

    /// Returns the error for an invalid value at an offset in the block.
    #[cold]
    fn invalid_at(&self, at: usize, invalid: Invalid) -> ReadError {
        let block_at = self.input.offset - self.payload.len() as u64;
        ReadError { offset: block_at + at as u64, cause: Cause::Invalid(invalid) }
    }
}

impl Iterator for Reader<'_> {
    type Item = Result<Record, ReadError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.next_record().transpose()
    }
}

/// A file, and the number of bytes that were read from it. The type of the file is erased, so that
/// the reader is compiled once; the dynamic call happens once per block.
struct Input<'r> {
    inner: Box<dyn Read + 'r>,
    offset: u64,
}

impl fmt::Debug for Input<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Input").field("offset", &self.offset).finish_non_exhaustive()
    }
}

impl Input<'_> {
    fn array<const BYTES: usize>(&mut self) -> Result<[u8; BYTES], ReadError> {
        let mut bytes = [0; BYTES];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), ReadError> {
        self.read_exact(bytes).map_err(|error| {
            let is_end = error.kind() == io::ErrorKind::UnexpectedEof;
            let cause = if is_end { Cause::Truncated } else { Cause::Io(error) };
            ReadError { offset: self.offset, cause }
        })
    }
}

impl Read for Input<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(bytes)?;
        self.offset += count as u64;
        Ok(count)
    }
}
