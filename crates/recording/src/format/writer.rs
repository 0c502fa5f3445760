//! The writer of a recording.

use std::io::{self, Write};

use super::base::Base;
use super::block::{BlockKind, FRAME_BYTES, Frame, PAYLOAD_BYTES_MAX, checksum};
use super::header::{self, Ended, Header, Totals};
use super::records::{bytes_max, encode};
use super::rules::{Invalid, Rules};
use super::{END_MARK, MAGIC, Version};
use crate::record::Record;

/// Writes a recording, block by block: at most 64 KiB are kept in memory.
///
/// A reader refuses the file as truncated unless [`Writer::finish`], [`Writer::end`] or
/// [`Writer::cut`] has been called.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    /// `true` after a failed write to `out`: the recording then has a gap, and nothing can follow.
    failed: bool,
    rules: Rules,
    /// The state of `rules` at the end of the last block that was written.
    written: Rules,
    base: Base,
    /// Room for the frame, and the records that follow it.
    block: Vec<u8>,
    /// Number of records in `block`.
    records: u32,
    /// Number of blocks that were written.
    blocks: u32,
}

impl<W: Write> Writer<W> {
    /// Begins a recording in `out`, which does not have to be buffered.
    ///
    /// # Errors
    ///
    /// Fails with [`io::ErrorKind::InvalidInput`] if the header is longer than
    /// [`HEADER_BYTES_MAX`](super::HEADER_BYTES_MAX), or if its number of CPUs is not between 1 and
    /// [`CPUS_MAX`](super::CPUS_MAX). Otherwise returns the errors of `out`.
    pub fn create(mut out: W, header: &Header) -> io::Result<Self> {
        let json = header::to_json(header).map_err(refused)?;
        let Version { major, minor } = Version::KNOWN;
        let mut numbers = [0; 8];
        numbers[..2].copy_from_slice(&major.to_le_bytes());
        numbers[2..4].copy_from_slice(&minor.to_le_bytes());
        numbers[4..].copy_from_slice(&(json.len() as u32).to_le_bytes());
        out.write_all(&MAGIC)?;
        out.write_all(&numbers)?;
        out.write_all(&checksum(&numbers, &json).to_le_bytes())?;
        out.write_all(&json)?;
        let mut block = Vec::with_capacity(FRAME_BYTES + PAYLOAD_BYTES_MAX);
        block.resize(FRAME_BYTES, 0);
        let (rules, base) = (Rules::new(header.cpus), Base::new(header.cpus));
        let written = rules.clone();
        Ok(Self { out, failed: false, rules, written, base, block, records: 0, blocks: 0 })
    }

    /// Returns the output. The last records may not be written to it yet.
    pub fn output(&self) -> &W {
        &self.out
    }

    /// Appends a record.
    ///
    /// # Errors
    ///
    /// Fails with [`io::ErrorKind::InvalidInput`] and an [`Invalid`] if a reader would refuse the
    /// record; the recording is then unchanged, and other records can follow. Otherwise returns the
    /// errors of `out`; after such an error, every later write to `out` fails.
    #[inline]
    pub fn write(&mut self, record: &Record) -> io::Result<()> {
        let is_full = self.block.len() + bytes_max(&record.event) > FRAME_BYTES + PAYLOAD_BYTES_MAX;
        if is_full && self.records > 0 {
            self.end_block(BlockKind::Records)?;
        }
        // The state of the rules at the end of a block does not include this record.
        self.rules.admit(record).map_err(refused)?;
        encode(&mut self.block, &mut self.base, record);
        self.records += 1;
        Ok(())
    }

    /// Ends the recording, flushes the output, and returns it.
    ///
    /// # Errors
    ///
    /// Returns the errors of the output.
    pub fn finish(mut self, ended: Ended) -> io::Result<W> {
        self.end(ended)?;
        Ok(self.out)
    }

    /// Ends the recording and flushes the output. Nothing can be written afterwards.
    ///
    /// # Errors
    ///
    /// Returns the errors of the output. The recording can then be [`cut`](Self::cut).
    pub fn end(&mut self, ended: Ended) -> io::Result<()> {
        if self.records > 0 {
            self.end_block(BlockKind::Records)?;
        }
        self.write_totals(ended)
    }

    /// Ends the recording after the last block that was written, because the output is full. Later
    /// records are dropped. If a write to the output has failed, the output must end where it ended
    /// before this write.
    ///
    /// # Errors
    ///
    /// Returns the errors of the output.
    pub fn cut(&mut self) -> io::Result<()> {
        self.block.truncate(FRAME_BYTES);
        (self.records, self.failed) = (0, false);
        self.rules = self.written.clone();
        self.write_totals(Ended::Interrupted)
    }

    fn write_totals(&mut self, ended: Ended) -> io::Result<()> {
        let Rules { records, lost, time_ns, .. } = self.rules;
        serde_json::to_writer(&mut self.block, &Totals { records, lost, time_ns, ended })?;
        self.end_block(BlockKind::Totals)?;
        // If the mark is not written, the totals could be written again.
        self.failed = true;
        self.out.write_all(&END_MARK)?;
        self.out.flush()
    }

    fn end_block(&mut self, kind: BlockKind) -> io::Result<()> {
        if self.failed {
            return Err(io::Error::other("the recording could not be written before"));
        }
        let (frame, payload) = self.block.split_at_mut(FRAME_BYTES);
        let (number, records, length) = (self.blocks, self.records, payload.len() as u32);
        frame.copy_from_slice(&Frame { kind, number, records, length }.bytes(payload));
        self.failed = true;
        self.out.write_all(&self.block)?;
        self.failed = false;
        self.written = self.rules.clone();
        self.block.truncate(FRAME_BYTES);
        self.base.reset();
        self.records = 0;
        self.blocks = self.blocks.wrapping_add(1);
        Ok(())
    }
}

fn refused(invalid: Invalid) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, invalid)
}
