//! What the kernel is to do, as `shootdown boot` puts it into memory: a line `shootdown-load N`
//! with the number of all bytes, this line included; lines of `name=value`; an empty line; and what
//! those are about.

use core::str::{self, FromStr};

use shootdown_program::OnFault;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// To see whether the architecture does what is asked of it.
    Smoke,
    /// The same, and then whether faults in the engine would be seen here.
    FaultInjection,
    /// To count the instructions of the hot paths, on the first CPU alone.
    Paths,
    /// To run the workload that comes behind the lines.
    Workload,
}

/// What `shootdown boot` has put into memory. What is not said is as in a run by hand, with nothing
/// put into memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// What is to be done.
    pub(crate) mode: Mode,
    /// How many CPUs there are.
    pub(crate) cpus: u32,
    /// After how long a thread gives its CPU up to others.
    pub(crate) slice_ns: u64,
    /// How often a CPU that runs a thread is interrupted by its timer, whether or not there is
    /// anything to do. An emulator that counts instructions has CPUs take turns, which are over at
    /// the latest then: the more ticks, the finer they interleave.
    pub(crate) tick_ns: u64,
    /// After how long without progress the run is given up.
    pub(crate) stall_ns: u64,
    /// The consequence of refused accesses: `refusals` is `fatal` or `survived`.
    pub(crate) on_fault: OnFault,
    /// How often each CPU flushes in a storm of the trials, or each path is run.
    pub(crate) rounds: u64,
    /// What comes behind the lines.
    pub(crate) rest: &'static [u8],
}

/// A line that makes no sense.
pub(crate) struct BadLine(pub(crate) &'static [u8]);

impl Load {
    const BY_HAND: Self = Self {
        mode: Mode::Smoke,
        cpus: 1,
        slice_ns: 3_000_000,
        tick_ns: 100_000_000,
        stall_ns: 20_000_000_000,
        on_fault: OnFault::Fatal,
        rounds: 40,
        rest: &[],
    };

    /// Reads the lines.
    ///
    /// # Errors
    ///
    /// The first line that names nothing that is known here, or no value that it can have.
    pub(crate) fn parse(bytes: &'static [u8]) -> Result<Self, BadLine> {
        let mut load = Self::BY_HAND;
        let head = bytes.windows(2).position(|pair| pair == b"\n\n").unwrap_or(bytes.len());
        load.rest = bytes.get(head + 2..).unwrap_or_default();
        // The first is the magic.
        for line in bytes[..head].split(|byte| *byte == b'\n').skip(1) {
            load.set(line).ok_or(BadLine(line))?;
        }
        Ok(load)
    }

    /// `None` if the line makes no sense.
    fn set(&mut self, line: &[u8]) -> Option<()> {
        fn number<N: FromStr>(text: &str) -> Option<N> {
            text.parse().ok()
        }
        let (name, value) = str::from_utf8(line).ok()?.split_once('=')?;
        match name {
            "mode" => {
                self.mode = match value {
                    "smoke" => Mode::Smoke,
                    "trials" => Mode::FaultInjection,
                    "paths" => Mode::Paths,
                    "workload" => Mode::Workload,
                    _ => return None,
                }
            }
            "cpus" => self.cpus = number(value).filter(|cpus| (1..=64).contains(cpus))?,
            "slice_ns" => self.slice_ns = number(value).filter(|ns| *ns > 0)?,
            "tick_ns" => self.tick_ns = number(value).filter(|ns| *ns > 0)?,
            "stall_ns" => self.stall_ns = number(value).filter(|ns| *ns > 0)?,
            "rounds" => self.rounds = number(value)?,
            "refusals" => {
                self.on_fault = match value {
                    "fatal" => OnFault::Fatal,
                    "survived" => OnFault::Survived,
                    _ => return None,
                }
            }
            // A host that asks for something that is not known here is told so.
            _ => return None,
        }
        Some(())
    }
}
