//! The first pass over a text: collects the data that a recording needs before its first record.

use std::io::BufRead;

use super::fields::{self, Parsed};
use super::head::{self, Head};
use super::lines::Lines;
use super::{CPUS_MAX, ImportError, Options, Program};
use crate::assemble::{StartTask, TaskKind, shorten};
use crate::format::Source;
use crate::raw::{RawKind, Tid};

/// Largest number of bytes of a thread's name that Linux keeps (`TASK_COMM_LEN`).
const COMM_BYTES_MAX: usize = 15;
/// Largest number of bytes that are kept of a line of `perf script --header`.
const TITLE_BYTES_MAX: usize = 255;

/// The result of the first pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Survey {
    pub(super) source: Source,
    pub(super) cpus: u32,
    /// Time of the first event.
    pub(super) start_ns: u64,
    /// The first thread of the program.
    pub(super) first: StartTask,
    /// The kernel's release; empty if the text lacks it.
    pub(super) kernel: String,
    /// The processor's name; empty if the text lacks it.
    pub(super) processor: String,
}

/// The data that were found so far.
#[derive(Debug, Default)]
struct Known {
    source: Option<Source>,
    cpus: u32,
    start_ns: Option<u64>,
    first: Option<StartTask>,
    kernel: String,
    processor: String,
}

impl Survey {
    /// Reads a text to its end.
    pub(super) fn of(text: impl BufRead, options: &Options) -> Result<Self, ImportError> {
        let mut known = Known { source: options.source, ..Known::default() };
        let mut lines = Lines::new(text);
        while let Some(line) = lines.next_line()? {
            match Head::parse(&line) {
                Some(head) if *known.source.get_or_insert(head.source) == head.source => {
                    known.event(&head, &options.program, lines.number)?;
                }
                Some(_) => {}
                None => known.title(&line, lines.number)?,
            }
        }
        let (Some(source), Some(start_ns)) = (known.source, known.start_ns) else {
            return Err(ImportError::NoEvents);
        };
        let Some(first) = known.first else {
            return Err(ImportError::UnknownProgram(options.program.clone()));
        };
        let Known { cpus, kernel, processor, .. } = known;
        Ok(Self { source, cpus, start_ns, first, kernel, processor })
    }
}

impl Known {
    fn event(&mut self, head: &Head<'_>, program: &Program, line: u64) -> Result<(), ImportError> {
        if head.rest.starts_with(fields::PERF_RECORD) {
            // These records may concern events from before the start.
            return Ok(());
        }
        self.start_ns.get_or_insert(head.time_ns.ok_or(ImportError::UnknownClock { line })?);
        self.count_cpu(head.cpu, line)?;
        // A CPU without events of its own may still be interrupted.
        if head.rest.contains("ipi_send_")
            && let Ok(Parsed::Event(RawKind::Ipi { targets, .. })) = fields::parse(head.rest)
        {
            for target in targets {
                self.count_cpu(target, line)?;
            }
        }
        if let Some(tid) = head.tid
            && self.first.is_none()
            && is_of(head, tid, program)
        {
            let (process, name) = (head.process.unwrap_or(tid.0), head.name.to_owned());
            self.first = Some(StartTask { tid, process, kind: TaskKind::User, name });
        }
        Ok(())
    }

    /// Parses a line that is not an event: a header line, or a report of lost events.
    fn title(&mut self, line: &str, number: u64) -> Result<(), ImportError> {
        let title = |key: &str| {
            let value = line.strip_prefix(key)?.trim_start().strip_prefix(": ")?;
            Some(shorten(value, TITLE_BYTES_MAX).to_owned())
        };
        if let Some(kernel) = title("# os release") {
            self.kernel = kernel;
        } else if let Some(processor) = title("# cpudesc") {
            self.processor = processor;
        }
        let cpus = title("# nrcpus avail");
        let cpus = cpus.as_deref().or_else(|| line.strip_prefix("cpus="));
        if let Some(last) = cpus.and_then(head::decimal).and_then(|cpus| cpus.checked_sub(1)) {
            self.count_cpu(last, number)?;
        }
        match head::lost(line) {
            Some((cpu, _)) => self.count_cpu(cpu, number),
            None => Ok(()),
        }
    }

    fn count_cpu(&mut self, cpu: u32, line: u64) -> Result<(), ImportError> {
        if cpu >= CPUS_MAX {
            return Err(ImportError::TooManyCpus { line });
        }
        self.cpus = self.cpus.max(cpu + 1);
        Ok(())
    }
}

fn is_of(head: &Head<'_>, tid: Tid, program: &Program) -> bool {
    match program {
        Program::Pid(pid) => head.process == Some(*pid) || tid == Tid(*pid),
        Program::Name(name) => head.name == shorten(name, COMM_BYTES_MAX) && tid != Tid(0),
    }
}
