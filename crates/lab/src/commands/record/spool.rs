//! The spool: the pages of all buffers in a file without a name, until they are sorted.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::FileExt as _;

use super::page::Header;
use crate::output::{Output, OutputError};

/// Bytes per write. Large writes are rare and do not disturb the recorded program.
const BUFFER_BYTES: usize = 1 << 20;

/// A spool that pages are added to.
#[derive(Debug)]
pub(super) struct Spool<'a> {
    output: &'a Output,
    file: BufWriter<File>,
    end: u64,
    streams: Vec<Stream>,
}

/// The pages of one buffer, in ascending order of time.
#[derive(Debug)]
pub(super) struct Stream {
    /// The CPU of the buffer.
    pub(super) cpu: u32,
    /// The offset of each page in the file, and its size in bytes.
    pages: Vec<(u64, u32)>,
    /// Number of lost events that the pages report.
    lost: u64,
    /// Number of lost events that no page reports.
    pub(super) lost_unreported: u64,
}

impl<'a> Spool<'a> {
    /// Creates a spool in the directory of `output`, with one stream for each of `cpus`.
    ///
    /// # Errors
    ///
    /// If no file can be created there.
    pub(super) fn new(
        output: &'a Output,
        cpus: impl Iterator<Item = u32>,
    ) -> Result<Self, OutputError> {
        let file = tempfile::tempfile_in(output.directory());
        let file = file.map_err(|error| output.not_created(error))?;
        let file = BufWriter::with_capacity(BUFFER_BYTES, file);
        let streams = cpus
            .map(|cpu| Stream { cpu, pages: Vec::new(), lost: 0, lost_unreported: 0 })
            .collect();
        Ok(Self { output, file, end: 0, streams })
    }

    /// Adds the used part of `page`, which has this `header`, to the stream with this index.
    ///
    /// # Errors
    ///
    /// If the disk is full or fails.
    ///
    /// # Panics
    ///
    /// If there is no stream with this index, or the header belongs to another page.
    pub(super) fn add(
        &mut self,
        stream: usize,
        page: &[u8],
        header: &Header,
    ) -> Result<(), OutputError> {
        let page = &page[..header.used];
        self.file.write_all(page).map_err(|error| self.output.unwritable(error))?;
        let stream = &mut self.streams[stream];
        stream.pages.push((self.end, page.len() as u32));
        stream.lost = stream.lost.saturating_add(header.lost.unwrap_or_default());
        self.end += page.len() as u64;
        Ok(())
    }

    /// Sets the total number of lost events of the stream with this index.
    ///
    /// # Panics
    ///
    /// If there is no stream with this index.
    pub(super) fn set_lost(&mut self, stream: usize, lost: u64) {
        let stream = &mut self.streams[stream];
        stream.lost_unreported = lost.saturating_sub(stream.lost);
    }

    /// Returns the size of all pages in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.end
    }

    /// Ends writing, and returns the pages for reading.
    ///
    /// # Errors
    ///
    /// If the disk is full or fails.
    pub(super) fn finish(self) -> Result<Spooled, OutputError> {
        let Self { output, file, streams, .. } = self;
        let file = file.into_inner().map_err(|error| output.unwritable(error.into_error()))?;
        Ok(Spooled { file, streams })
    }
}

/// A complete spool.
#[derive(Debug)]
pub(super) struct Spooled {
    file: File,
    pub(super) streams: Vec<Stream>,
}

impl Spooled {
    /// Reads the page with this index of a stream into `page`. Returns `false` if there is none.
    ///
    /// # Errors
    ///
    /// If the disk fails.
    pub(super) fn read(
        &self,
        stream: &Stream,
        index: usize,
        page: &mut Vec<u8>,
    ) -> io::Result<bool> {
        let Some((offset, bytes)) = stream.pages.get(index).copied() else { return Ok(false) };
        page.resize(bytes as usize, 0);
        self.file.read_exact_at(page, offset)?;
        Ok(true)
    }
}
