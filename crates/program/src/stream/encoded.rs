//! Bytes that are a workload again.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::codes::Field;
use super::{Stream, StreamError};
use crate::operation::{Operation, ProgramId, Start, Steps, Workload};
use crate::varint::Cursor;

/// A workload that was written down, and read from beginning to end once.
#[derive(Clone, Debug)]
pub struct Encoded {
    name: String,
    starts: Vec<Start>,
    bytes: Arc<[u8]>,
}

impl Encoded {
    /// Reads all of it.
    ///
    /// # Errors
    ///
    /// If any of it makes no sense.
    pub fn new(bytes: Vec<u8>) -> Result<Self, StreamError> {
        let stream = Stream::parse(&bytes)?;
        stream.check()?;
        let (name, starts) = (stream.name().into(), stream.processes().collect());
        Ok(Self { name, starts, bytes: bytes.into() })
    }

    /// What it was read from.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Workload for Encoded {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn processes(&self) -> Vec<Start> {
        self.starts.clone()
    }

    /// None, of a program that is not there.
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
