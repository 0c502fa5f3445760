//! Writes a recording, a block at a time.

use std::io::{self, Write};

use super::base::Base;
use super::block::{Contents, FRAME_BYTES, Frame, PAYLOAD_BYTES_MAX, checksum};
use super::header::{self, Ended, Header, Totals};
use super::records::{bytes_max, encode};
use super::rules::{Invalid, Rules};
use super::{END_MARK, MAGIC, Version};
use crate::record::Record;

/// Writes a recording, block by block: at most 64 KiB are kept in memory.
///
/// A file without [`Writer::finish`] is refused by readers as truncated.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    /// What it could not be given, nothing can follow.
    failed: bool,
    rules: Rules,
    base: Base,
    /// The frame that comes, and the records after it.
    block: Vec<u8>,
    /// How many records are in it.
    records: u32,
    /// How many blocks there were.
    blocks: u32,
}

impl<W: Write> Writer<W> {
    /// Begins a recording in `out`, which needs no buffer of its own.
    ///
    /// # Errors
    ///
    /// Of [`io::ErrorKind::InvalidInput`] if the header is longer than
    /// [`HEADER_BYTES_MAX`](super::HEADER_BYTES_MAX), or its CPUs are not between 1 and
    /// [`CPUS_MAX`](super::CPUS_MAX); else that of `out`.
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
        Ok(Self { out, failed: false, rules, base, block, records: 0, blocks: 0 })
    }

    /// Appends a record.
    ///
    /// # Errors
    ///
    /// Of [`io::ErrorKind::InvalidInput`], with an [`Invalid`], if a reader would refuse the
    /// record: the recording is then as before, and others can follow. Else that of `out`, after
    /// which nothing can.
    #[inline]
    pub fn write(&mut self, record: &Record) -> io::Result<()> {
        self.rules.admit(record).map_err(refused)?;
        if self.block.len() + bytes_max(&record.event) > FRAME_BYTES + PAYLOAD_BYTES_MAX {
            self.end_block(Contents::Records)?;
        }
        encode(&mut self.block, &mut self.base, record);
        self.records += 1;
        Ok(())
    }

    /// Ends the recording, and gives back what it was written to, flushed.
    ///
    /// # Errors
    ///
    /// That of what it is written to.
    pub fn finish(mut self, ended: Ended) -> io::Result<W> {
        if self.records > 0 {
            self.end_block(Contents::Records)?;
        }
        let Rules { records, lost, time_ns, .. } = self.rules;
        serde_json::to_writer(&mut self.block, &Totals { records, lost, time_ns, ended })?;
        self.end_block(Contents::Totals)?;
        self.out.write_all(&END_MARK)?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn end_block(&mut self, contents: Contents) -> io::Result<()> {
        if self.failed {
            return Err(io::Error::other("the recording could not be written before"));
        }
        let (frame, payload) = self.block.split_at_mut(FRAME_BYTES);
        let (number, records, length) = (self.blocks, self.records, payload.len() as u32);
        frame.copy_from_slice(&Frame { contents, number, records, length }.bytes(payload));
        self.failed = true;
        self.out.write_all(&self.block)?;
        self.failed = false;
        self.block.truncate(FRAME_BYTES);
        self.base.reset();
        self.records = 0;
        self.blocks = self.blocks.wrapping_add(1);
        Ok(())
    }
}

fn refused(what: Invalid) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}
