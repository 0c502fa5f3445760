//! Recordings from the text of other tools: `trace-cmd report`, the kernel's own `trace` file,
//! and `perf script`.
//!
//! All three print the same events in much the same words. What a recording needs of them, on all
//! CPUs (`-a`): `sched:sched_switch`, `sched:sched_waking`, `sched:sched_wakeup`,
//! `task:task_newtask`, `sched:sched_process_exec`, `sched:sched_process_exit`,
//! `exceptions:page_fault_user`, `exceptions:page_fault_kernel`, `tlb:tlb_flush`,
//! `csd:csd_queue_cpu`, `ipi:ipi_send_cpu`, `ipi:ipi_send_cpumask`, and `syscalls:sys_enter_*` and
//! `sys_exit_*` of `mmap`, `munmap`, `mprotect`, `madvise`, `mremap` and `brk`. What is missing is
//! not there for a replay either.
//!
//! The text of perf needs `--ns`, or times are rounded to microseconds, as trace-cmd rounds them
//! without `-t`. It does not say what happened in an interrupt; neither do older versions of
//! trace-cmd. What happened in one is then taken for the thread's doing.
//!
//! In reading order: `lines`, `head` what every line begins with, `fields` what an event says, and
//! `survey` what must be known before.

mod error;
mod fields;
mod head;
mod lines;
mod survey;

use std::collections::HashMap;
use std::io::{BufRead, Seek, Write};

pub use error::ImportError;

use super::assemble::{Assembler, StartTask, Startup};
use super::format::{CPUS_MAX, Ended, Header, Source, Writer};
use super::raw::{During, RawEvent, RawKind, Tid};
use error::excerpt;
use fields::{Said, Unclear};
use head::Head;
use lines::Lines;
use survey::Survey;

/// What to import of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whose text it is; `None` to find out.
    pub source: Option<Source>,
    /// What to record of all that it says.
    pub program: Program,
}

/// The program to record, with all threads and processes that it makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// The process of this number.
    Pid(u32),
    /// The first thread of this name, as the text has it: at most 15 bytes count.
    Name(String),
}

/// What was imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// Whose text it was.
    pub source: Source,
    /// The program's first thread.
    pub tid: Tid,
    /// How many events were used, or were of no use to this recording.
    pub events: u64,
    /// How many events are of a kind that no recording has a use for.
    pub unknown: u64,
    /// How many events the source lost, as far as it counted them.
    pub lost: u64,
    /// Whether it lost none.
    pub is_complete: bool,
    /// How many CPUs there were.
    pub cpus: u32,
    /// From the first event to the last.
    pub time_ns: u64,
}

/// Reads a text twice, and writes the recording.
///
/// Memory is bounded by the number of live threads in the text, and by a line.
///
/// # Errors
///
/// If the text cannot be read or understood, or the recording not be written. What was written
/// until then is no recording.
pub fn import<W: Write>(
    mut text: impl BufRead + Seek,
    options: &Options,
    out: W,
) -> Result<(Imported, W), ImportError> {
    let start = text.stream_position().map_err(ImportError::Read)?;
    let survey = Survey::of(&mut text, options)?;
    text.seek(std::io::SeekFrom::Start(start)).map_err(ImportError::Read)?;
    let header = Header {
        recorder: concat!("shootdown ", env!("CARGO_PKG_VERSION")).to_owned(),
        source: survey.source,
        kernel: survey.kernel.clone(),
        processor: survey.processor.clone(),
        cpus: survey.cpus,
        command: vec![survey.first.name.clone()],
    };
    let writer = Writer::create(out, &header).map_err(ImportError::Write)?;
    let startup = Startup { recorded: vec![survey.first.tid], tasks: vec![survey.first.clone()] };
    Import::new(Assembler::new(writer, startup), &survey).run(text)
}

/// An import that has begun.
struct Import<'a, W: Write> {
    assembler: Assembler<W>,
    survey: &'a Survey,
    imported: Imported,
    /// What ran last on each CPU.
    running: HashMap<u32, Tid>,
    /// The last event's time.
    time_ns: u64,
    ended: Ended,
}

impl<'a, W: Write> Import<'a, W> {
    fn new(assembler: Assembler<W>, survey: &'a Survey) -> Self {
        let Survey { source, cpus, first: StartTask { tid, .. }, .. } = *survey;
        let imported = Imported {
            source,
            tid,
            events: 0,
            unknown: 0,
            lost: 0,
            is_complete: true,
            cpus,
            time_ns: 0,
        };
        let ended = Ended::Interrupted;
        Self {
            assembler,
            survey,
            imported,
            running: HashMap::new(),
            time_ns: survey.start_ns,
            ended,
        }
    }

    fn run(mut self, text: impl BufRead) -> Result<(Imported, W), ImportError> {
        let mut lines = Lines::new(text);
        while let Some(line) = lines.next_line()? {
            match Head::parse(&line) {
                Some(head) if head.source == self.survey.source => {
                    self.event(&head, lines.number)?;
                }
                Some(_) => {}
                None => self.no_event(&line)?,
            }
        }
        let out = self.assembler.finish(self.ended).map_err(ImportError::Write)?;
        self.imported.time_ns = self.time_ns - self.survey.start_ns;
        Ok((self.imported, out))
    }

    fn event(&mut self, head: &Head<'_>, line: u64) -> Result<(), ImportError> {
        let kind = match fields::parse(head.rest) {
            Ok(Said::Event(kind)) => kind,
            Ok(Said::Nothing) => return Ok(()),
            Ok(Said::Unknown) => {
                self.imported.unknown += 1;
                return Ok(());
            }
            Err(unclear) => {
                let excerpt = excerpt(head.rest);
                return Err(match unclear {
                    Unclear::Words => ImportError::Malformed { line, excerpt },
                    Unclear::Function => ImportError::Unresolved { line, excerpt },
                });
            }
        };
        let time_ns = head.time_ns.ok_or(ImportError::UnknownClock { line })?;
        if time_ns < self.time_ns {
            return Err(ImportError::OutOfOrder { line });
        }
        self.time_ns = time_ns;
        self.imported.events += 1;
        let Head { cpu, during, .. } = *head;
        if let RawKind::Lost { count } = kind {
            return self.lose(cpu, count);
        }
        let Some(tid) = head.tid.or_else(|| self.running.get(&cpu).copied()) else {
            // Whoever it was ended before anything else was said of it.
            return Ok(());
        };
        let next = if let RawKind::Switch { next, .. } = kind { next } else { tid };
        self.running.insert(cpu, next);
        if head.tid.is_some() {
            self.assembler.meet(tid, head.process, head.name);
        }
        if kind == RawKind::Exit && tid == self.survey.first.tid {
            // With which status, no event says.
            self.ended = Ended::Exited(0);
        }
        let event = RawEvent { time_ns, cpu, tid, during, kind };
        self.assembler.event(event).map_err(ImportError::Write)
    }

    /// What is no event may say that some are missing.
    fn no_event(&mut self, line: &str) -> Result<(), ImportError> {
        match head::lost(line) {
            Some((cpu, count)) => self.lose(cpu, count),
            None => Ok(()),
        }
    }

    fn lose(&mut self, cpu: u32, count: u64) -> Result<(), ImportError> {
        self.running.remove(&cpu);
        self.imported.lost = self.imported.lost.saturating_add(count);
        self.imported.is_complete = false;
        let kind = RawKind::Lost { count };
        // Nobody knows when, but it was after the event that was seen last.
        let event =
            RawEvent { time_ns: self.time_ns, cpu, tid: Tid(0), during: During::Task, kind };
        self.assembler.event(event).map_err(ImportError::Write)
    }
}
