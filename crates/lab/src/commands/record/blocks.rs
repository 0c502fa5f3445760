//! The file of a recording while it is written. It always ends with a whole block.

use std::fs::File;
use std::io::{self, Write};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

/// Space that is kept free on the disk and below the limit, for the totals at the end.
const RESERVE_BYTES: u64 = 4096;

/// The recording has reached its largest size.
#[derive(Debug, thiserror::Error)]
#[error("the recording has reached its largest size")]
pub(super) struct LimitReached;

/// A file to which a [`Writer`](shootdown_recording::Writer) writes whole blocks, each with one
/// write. A write that fails leaves the file as it was.
#[derive(Debug)]
pub(super) struct Blocks {
    file: File,
    bytes: u64,
    bytes_max: u64,
    /// `true` after a write has failed. Later writes may use the reserve.
    has_failed: bool,
}

impl Blocks {
    /// Creates an empty file of at most `bytes_max`.
    pub(super) fn new(file: File, bytes_max: u64) -> Self {
        Self { file, bytes: 0, bytes_max, has_failed: false }
    }

    /// Number of bytes in the file.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Allocates space for more bytes and for the totals after them.
    fn reserve(&self, more: u64) -> io::Result<()> {
        if self.has_failed {
            return Ok(());
        }
        let wanted = more.saturating_add(RESERVE_BYTES);
        if self.bytes.saturating_add(wanted) > self.bytes_max {
            return Err(io::Error::other(LimitReached));
        }
        match fallocate(&self.file, FallocateFlags::KEEP_SIZE, self.bytes, wanted) {
            Err(error @ (Errno::NOSPC | Errno::DQUOT)) => Err(error.into()),
            // Some file systems cannot reserve space. A full disk then costs the totals as well.
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

impl Write for Blocks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = self.reserve(bytes.len() as u64).and_then(|()| self.file.write_all(bytes));
        match written {
            Ok(()) => self.bytes += bytes.len() as u64,
            Err(error) => {
                self.has_failed = true;
                self.file.set_len(self.bytes)?;
                io::Seek::seek(&mut self.file, io::SeekFrom::Start(self.bytes))?;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Frees the space that was reserved and not used.
    fn flush(&mut self) -> io::Result<()> {
        self.file.set_len(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserve_is_for_the_write_after_the_limit() {
        let file = tempfile::tempfile().expect("a file");
        let mut blocks = Blocks::new(file.try_clone().expect("a file"), 10_000);
        blocks.write_all(&[1; 5000]).expect("room");
        let error = blocks.write_all(&[2; 1000]).expect_err("no room beside the reserve");
        assert!(error.get_ref().is_some_and(|error| error.is::<LimitReached>()), "{error}");
        assert_eq!(file.metadata().expect("a file").len(), 5000);
        blocks.write_all(&[3; 4000]).expect("the reserve");
        blocks.flush().expect("a file");
        assert_eq!(file.metadata().expect("a file").len(), 9000);
    }
}
