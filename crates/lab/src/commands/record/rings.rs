//! The kernel's ring buffers, one for each CPU and instance.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;

use rustix::fs::OFlags;

use super::error::RecordError;
use super::page::{PageFormat, Step};
use super::spool::Spool;
use super::tracefs::Instance;

/// Number of pages that are read from one buffer before the next buffer's turn.
const PAGES_MAX: usize = 512;

/// All buffers.
#[derive(Debug)]
pub(super) struct Rings {
    format: PageFormat,
    rings: Vec<Ring>,
    page: Vec<u8>,
    /// The numbers of events so far.
    pub(super) counts: Counts,
}

#[derive(Debug)]
struct Ring {
    cpu: u32,
    file: File,
}

/// Numbers of events.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) events: u64,
    pub(super) lost: u64,
}

/// The state of the buffers after a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drained {
    Empty,
    MaybeMore,
}

impl Rings {
    /// Opens the buffer of every CPU, first of one instance, then of the other.
    ///
    /// # Errors
    ///
    /// If a buffer cannot be opened.
    pub(super) fn open(instances: [&Instance; 2]) -> Result<Self, RecordError> {
        let format = instances[0].page_format()?;
        let mut rings = Vec::new();
        for instance in instances {
            for cpu in instance.cpus()? {
                let path = instance.buffer(cpu);
                let file = OpenOptions::new()
                    .read(true)
                    .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
                    .open(&path)
                    .map_err(|error| RecordError::kernel(&path, error))?;
                rings.push(Ring { cpu, file });
            }
        }
        let page = vec![0; format.page_bytes()];
        Ok(Self { format, rings, page, counts: Counts::default() })
    }

    /// Returns the CPU of each buffer. The [`Spool`] has a stream for each of them, in this order.
    pub(super) fn cpus(&self) -> impl Iterator<Item = u32> + '_ {
        self.rings.iter().map(|ring| ring.cpu)
    }

    pub(super) fn format(&self) -> PageFormat {
        self.format
    }

    /// Returns file descriptors that are readable if the buffer has reached the kernel's threshold.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.rings.iter().map(|ring| ring.file.as_fd())
    }

    /// Moves pages from the buffers to `spool`, at most [`PAGES_MAX`] from each.
    ///
    /// # Errors
    ///
    /// If a buffer cannot be read, or the spool cannot be written.
    pub(super) fn drain(&mut self, spool: &mut Spool) -> Result<Drained, RecordError> {
        let mut drained = Drained::Empty;
        for index in 0..self.rings.len() {
            if self.drain_one(index, spool)? == Drained::MaybeMore {
                drained = Drained::MaybeMore;
            }
        }
        Ok(drained)
    }

    fn drain_one(&mut self, index: usize, spool: &mut Spool) -> Result<Drained, RecordError> {
        let unreadable = |error| RecordError::System { what: "the kernel's buffers", error };
        for _ in 0..PAGES_MAX {
            let read = match self.rings[index].file.read(&mut self.page) {
                Ok(0) => return Ok(Drained::Empty),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Drained::Empty);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(unreadable(error)),
            };
            let page = &self.page[..read];
            let Some(header) = self.format.header(page) else {
                let error = io::Error::new(io::ErrorKind::InvalidData, "not a page of events");
                return Err(unreadable(error));
            };
            spool.add(index, page, &header)?;
            let mut cursor = header.cursor();
            while let Some(Step::Event { .. }) = cursor.next(page) {
                self.counts.events += 1;
            }
            self.counts.lost += header.lost.unwrap_or_default();
        }
        Ok(Drained::MaybeMore)
    }
}
