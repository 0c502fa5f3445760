//! The kernel's ring buffers, one for each CPU and instance.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;

use rustix::fs::OFlags;
use rustix::time::{ClockId, clock_gettime};

use super::error::RecordError;
use super::page::{PageFormat, Step};
use super::queue::Batch;
use super::tracefs::Instance;

/// Largest and smallest number of pages that are read from one buffer before the next buffer's
/// turn.
const PAGES_MAX: usize = 512;
const PAGES_MIN: usize = 16;
/// Largest number of pages that are read from all buffers in one turn: 32 MiB.
const PAGES_OF_ALL: usize = 8192;
/// The time after which an event is in its buffer. The kernel takes the time first, and an
/// interrupt may delay the rest.
const COMMIT_NS: u64 = 1_000_000;

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
    /// The time up to which all events were read.
    complete_to_ns: u64,
}

/// Numbers of events.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) events: u64,
    pub(super) lost: u64,
    /// Number of bytes of the pages.
    pub(super) bytes: u64,
}

/// The state of the buffers after a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drained {
    Empty,
    MaybeMore,
}

impl Rings {
    /// Opens the buffer of every CPU, first of one instance, then of the next.
    ///
    /// # Errors
    ///
    /// If a buffer cannot be opened.
    pub(super) fn open(instances: &[&Instance]) -> Result<Self, RecordError> {
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
                rings.push(Ring { cpu, file, complete_to_ns: 0 });
            }
        }
        let page = vec![0; format.page_bytes()];
        Ok(Self { format, rings, page, counts: Counts::default() })
    }

    /// Returns the CPU of each buffer. A [`Batch`] numbers the buffers in this order.
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

    /// Reads the pages of all buffers, a bounded number from each.
    ///
    /// # Errors
    ///
    /// If a buffer cannot be read.
    pub(super) fn read(&mut self) -> Result<(Batch, Drained), RecordError> {
        let pages_max = (PAGES_OF_ALL / self.rings.len().max(1)).clamp(PAGES_MIN, PAGES_MAX);
        let (mut batch, mut drained) = (Batch::default(), Drained::Empty);
        for index in 0..self.rings.len() {
            let now_ns = now_ns().saturating_sub(COMMIT_NS);
            match self.read_one(index, pages_max, &mut batch)? {
                Drained::Empty => self.rings[index].complete_to_ns = now_ns,
                Drained::MaybeMore => drained = Drained::MaybeMore,
            }
        }
        let complete = self.rings.iter().map(|ring| ring.complete_to_ns);
        batch.complete_to_ns = complete.min().unwrap_or_default();
        Ok((batch, drained))
    }

    fn read_one(
        &mut self,
        index: usize,
        pages_max: usize,
        batch: &mut Batch,
    ) -> Result<Drained, RecordError> {
        let unreadable = |error| RecordError::System { what: "the kernel's buffers", error };
        for _ in 0..pages_max {
            let ring = &mut self.rings[index];
            let read = match ring.file.read(&mut self.page) {
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
            batch.pages.push((index, page[..header.used].into()));
            // The events of the next page are not earlier.
            ring.complete_to_ns = ring.complete_to_ns.max(header.time_ns);
            let mut cursor = header.cursor();
            while let Some(Step::Event { .. }) = cursor.next(page) {
                self.counts.events += 1;
            }
            self.counts.lost += header.lost.unwrap_or_default();
            self.counts.bytes += header.used as u64;
        }
        Ok(Drained::MaybeMore)
    }
}

/// Returns the time on the clock of the events.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
