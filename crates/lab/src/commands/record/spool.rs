//! The pages of all buffers, in a file without a name, until they can be put in order.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::FileExt as _;

use super::page::Header;
use crate::output::{Output, OutputError};

/// How much is written at once, in bytes: seldom enough not to disturb what is recorded.
const BUFFER_BYTES: usize = 1 << 20;

/// Pages being kept.
#[derive(Debug)]
pub(super) struct Spool<'a> {
    output: &'a Output,
    file: BufWriter<File>,
    end: u64,
    streams: Vec<Stream>,
}

/// The pages of one buffer, in the order of time.
#[derive(Debug)]
pub(super) struct Stream {
    /// Whose buffer it was.
    pub(super) cpu: u32,
    /// Where in the file each is, and how many bytes.
    pages: Vec<(u64, u32)>,
    /// Events of which the pages say that they were lost.
    lost: u64,
    /// Events that were lost without a page that says so.
    pub(super) lost_unsaid: u64,
}

impl<'a> Spool<'a> {
    /// Beside `output`, for one stream of each of `cpus`.
    ///
    /// # Errors
    ///
    /// If no file can be made there.
    pub(super) fn new(
        output: &'a Output,
        cpus: impl Iterator<Item = u32>,
    ) -> Result<Self, OutputError> {
        let file = tempfile::tempfile_in(output.directory());
        let file = file.map_err(|error| output.unwritable(error))?;
        let file = BufWriter::with_capacity(BUFFER_BYTES, file);
        let streams =
            cpus.map(|cpu| Stream { cpu, pages: Vec::new(), lost: 0, lost_unsaid: 0 }).collect();
        Ok(Self { output, file, end: 0, streams })
    }

    /// Adds what means something of `page`, whose header that is, to the stream of that index.
    ///
    /// # Errors
    ///
    /// If the disk is full, or fails.
    ///
    /// # Panics
    ///
    /// If there is no such stream, or the header is of another page.
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

    /// Says how many events the stream of that index lost in all, at its end.
    ///
    /// # Panics
    ///
    /// If there is no such stream.
    pub(super) fn set_lost(&mut self, stream: usize, lost: u64) {
        let stream = &mut self.streams[stream];
        stream.lost_unsaid = lost.saturating_sub(stream.lost);
    }

    /// How many bytes there are.
    pub(super) fn bytes(&self) -> u64 {
        self.end
    }

    /// To be read from now on.
    ///
    /// # Errors
    ///
    /// If the disk is full, or fails.
    pub(super) fn finish(self) -> Result<Spooled, OutputError> {
        let Self { output, file, streams, .. } = self;
        let file = file.into_inner().map_err(|error| output.unwritable(error.into_error()))?;
        Ok(Spooled { file, streams })
    }
}

/// Pages that were kept.
#[derive(Debug)]
pub(super) struct Spooled {
    file: File,
    pub(super) streams: Vec<Stream>,
}

impl Spooled {
    /// Reads the page of that index of a stream into `page`; `false` if there are no more.
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
