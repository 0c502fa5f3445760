//! An encoded workload, which implements [`Workload`].

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::codes::Field;
use super::{Stream, StreamError};
use crate::operation::{Operation, ProgramId, Start, Steps, Workload};
use crate::varint::Cursor;

/// A workload that is encoded. Its bytes were checked.
#[derive(Clone, Debug)]
pub struct Encoded {
    pub(super) name: String,
    pub(super) starts: Vec<Start>,
    pub(super) program_count: usize,
    pub(super) bytes: Arc<[u8]>,
}

impl Encoded {
    /// Checks all bytes.
    ///
    /// # Errors
    ///
    /// Fails if the bytes are not a workload, or were damaged.
    pub fn new(bytes: Vec<u8>) -> Result<Self, StreamError> {
        let stream = Stream::parse(&bytes)?;
        stream.check()?;
        let (name, starts) = (stream.name().into(), stream.processes().collect());
        Ok(Self { name, starts, program_count: stream.program_count, bytes: bytes.into() })
    }

    /// Returns the encoding.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the number of programs.
    #[must_use]
    pub const fn program_count(&self) -> usize {
        self.program_count
    }
}

impl Workload for Encoded {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn processes(&self) -> Vec<Start> {
        self.starts.clone()
    }

    /// Returns the steps of a program; none if the workload has no program with this number.
    fn steps(&self, program: ProgramId) -> Steps {
        let stream = Stream::parse(&self.bytes).ok();
        let steps = stream.and_then(|stream| stream.range(program)).unwrap_or(0..0);
        let (bytes, mut at) = (Arc::clone(&self.bytes), steps.start);
        Box::new(core::iter::from_fn(move || {
            let mut from = Cursor::new(bytes.get(..steps.end)?, at);
            if from.is_at_end() {
                return None;
            }
            let step = Operation::take(&mut from).ok()?;
            at = from.at();
            Some(step)
        }))
    }
}
