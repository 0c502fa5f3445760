//! A workload as bytes. The encoding is compact enough to keep a long recording in memory, and it
//! is the only format of workloads that the kernel that boots reads.
//!
//! ```text
//! magic "SDWL"  version  name: length, bytes
//! processes: count, then for each   program  CPU + 1, or 0
//! programs: count, then for each    difference to the number before, less 1   length of its steps
//! steps of the first program, of the second …
//! ```
//!
//! Numbers are encoded as in a recording: LEB128, in as few bytes as they need. A step is a byte
//! with the code of its [`Operation`], and the fields of the operation; `codes` has the table. A
//! step of a loop takes 3 to 6 bytes.
//!
//! [`encode`] encodes all programs that a workload can start. A [`Stream`] borrows the bytes, and
//! decodes them on demand, without allocation. An [`Encoded`] owns the bytes, and implements
//! [`Workload`](crate::Workload), so that the simulator runs the same workload as the kernel.

mod codes;
mod encode;
mod encoded;

use core::ops::Range;
use core::str;

use thiserror::Error;

use crate::operation::{Operation, ProgramId, Start};
use crate::varint::{Cursor, Malformed};
use codes::Field;

pub use encode::{Encoder, encode};
pub use encoded::Encoded;

const MAGIC: &[u8] = b"SDWL";
/// The version of the layout. There is only one so far.
pub const VERSION: u64 = 1;

/// An encoded workload, in borrowed bytes that are not trusted until [`check`](Self::check).
#[derive(Clone, Debug)]
pub struct Stream<'a> {
    name: &'a str,
    start_count: usize,
    starts: Cursor<'a>,
    program_count: usize,
    directory: Cursor<'a>,
    steps: &'a [u8],
    /// Number of bytes before the steps.
    steps_at: usize,
}

/// The reason why bytes are not a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The bytes do not begin like a workload.
    #[error("not a workload")]
    NotAStream,
    /// The layout is newer than this version of the program.
    #[error("a workload of version {version}, but this program supports only {VERSION}")]
    Newer {
        /// The version of the layout.
        version: u64,
    },
    /// The part before the steps is damaged.
    #[error("the workload's head: {0}")]
    Head(Malformed),
    /// The steps do not end where the bytes do.
    #[error("the workload's steps differ in length from its directory")]
    Length,
    /// A step is damaged.
    #[error("a step of program {}: {cause}", program.0)]
    Step {
        /// The program of the step.
        program: ProgramId,
        /// The damage.
        cause: Malformed,
    },
    /// A program is started that the bytes do not contain.
    #[error("program {} is started, but does not exist", .0.0)]
    NoProgram(ProgramId),
}

impl<'a> Stream<'a> {
    /// Decodes everything except the steps.
    ///
    /// # Errors
    ///
    /// Fails if the bytes are not a workload, or were damaged before the steps.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, StreamError> {
        let rest = bytes.strip_prefix(MAGIC).ok_or(StreamError::NotAStream)?;
        let mut head = Cursor::new(rest, 0);
        let version = head.varint().map_err(StreamError::Head)?;
        if version != VERSION {
            return Err(StreamError::Newer { version });
        }
        let mut stream = Self::parse_head(head).map_err(StreamError::Head)?;
        stream.steps_at = bytes.len() - stream.steps.len();
        // Offsets of steps are sums of lengths, which are therefore checked here.
        let mut length: usize = 0;
        for (_, steps) in stream.directory() {
            length = length.checked_add(steps).ok_or(StreamError::Length)?;
        }
        if length == stream.steps.len() { Ok(stream) } else { Err(StreamError::Length) }
    }

    fn parse_head(mut head: Cursor<'a>) -> Result<Self, Malformed> {
        let length = usize::take(&mut head)?;
        let name = str::from_utf8(head.take(length)?).map_err(|_| Malformed::Unknown)?;
        let start_count = usize::take(&mut head)?;
        let starts = head.clone();
        for _ in 0..start_count {
            Start::take(&mut head)?;
        }
        let program_count = usize::take(&mut head)?;
        let directory = head.clone();
        let mut next = Some(0);
        for _ in 0..program_count {
            take_entry(&mut head, &mut next)?;
        }
        let (steps, steps_at) = (head.rest(), 0);
        Ok(Self { name, start_count, starts, program_count, directory, steps, steps_at })
    }

    /// Decodes every step.
    ///
    /// # Errors
    ///
    /// Fails if a step is damaged, or starts a program that does not exist.
    pub fn check(&self) -> Result<(), StreamError> {
        let exists = |program| self.steps(program).map(drop).ok_or(StreamError::NoProgram(program));
        self.processes().try_for_each(|start| exists(start.program))?;
        for (program, _) in self.directory() {
            for step in self.steps(program).into_iter().flatten() {
                match step.map_err(|cause| StreamError::Step { program, cause })? {
                    Operation::Fork(other) | Operation::Spawn(other) => exists(other)?,
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Returns the workload's name.
    #[must_use]
    pub const fn name(&self) -> &'a str {
        self.name
    }

    /// Returns the processes that start with the workload.
    pub fn processes(&self) -> impl Iterator<Item = Start> + 'a {
        let mut from = self.starts.clone();
        (0..self.start_count).map_while(move |_| Start::take(&mut from).ok())
    }

    /// Returns the steps of a program; `None` if no program has this number.
    #[must_use]
    pub fn steps(&self, program: ProgramId) -> Option<StreamSteps<'a>> {
        let Range { start, end } = self.range(program)?;
        let steps = self.steps.get(start - self.steps_at..end - self.steps_at)?;
        Some(StreamSteps(Cursor::new(steps, 0)))
    }

    /// Returns the range of the bytes that contains the steps of a program.
    fn range(&self, program: ProgramId) -> Option<Range<usize>> {
        let mut start = self.steps_at;
        for (number, length) in self.directory() {
            if number == program {
                return Some(start..start + length);
            }
            start += length;
        }
        None
    }

    /// Returns the programs, and the number of bytes of their steps.
    fn directory(&self) -> impl Iterator<Item = (ProgramId, usize)> + 'a {
        let (mut from, mut next) = (self.directory.clone(), Some(0));
        (0..self.program_count).map_while(move |_| take_entry(&mut from, &mut next).ok())
    }
}

/// Decodes a program and the number of bytes of its steps. `next` is the lowest number that the
/// program may have; `None` after the highest number.
fn take_entry(
    from: &mut Cursor<'_>,
    next: &mut Option<u32>,
) -> Result<(ProgramId, usize), Malformed> {
    let difference = u32::take(from)?;
    let program = next.and_then(|next| next.checked_add(difference)).ok_or(Malformed::Number)?;
    *next = program.checked_add(1);
    Ok((ProgramId(program), usize::take(from)?))
}

/// The steps of one program, in order, up to the first damaged step.
#[derive(Clone, Debug)]
pub struct StreamSteps<'a>(Cursor<'a>);

impl Iterator for StreamSteps<'_> {
    type Item = Result<Operation, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_at_end() {
            return None;
        }
        let step = Operation::take(&mut self.0);
        if step.is_err() {
            self.0 = Cursor::new(&[], 0);
        }
        Some(step)
    }
}
