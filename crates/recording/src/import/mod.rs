//! Recordings from the text of other tools: `trace-cmd report`, the kernel's own `trace` file,
//! and `perf script`.
//!
//! All three print the same events in almost the same words. A recording needs these events, on
//! all CPUs (`-a`): `sched:sched_switch`, `sched:sched_waking`, `sched:sched_wakeup`,
//! `task:task_newtask`, `sched:sched_process_exec`, `sched:sched_process_exit`,
//! `exceptions:page_fault_user`, `exceptions:page_fault_kernel`, `tlb:tlb_flush`,
//! `csd:csd_queue_cpu`, `ipi:ipi_send_cpu`, `ipi:ipi_send_cpumask`, and `syscalls:sys_enter_*` and
//! `sys_exit_*` of `mmap`, `munmap`, `mprotect`, `madvise`, `mremap`, `brk` and `msync`. A replay
//! lacks the events that the text lacks.
//!
//! The text of perf needs `--ns`, because perf otherwise rounds times to microseconds; trace-cmd
//! does so without `-t`. The text of perf and that of older versions of trace-cmd do not mark
//! events in interrupts. Such events are then attributed to the thread.
//!
//! In reading order: `kind` recognises other files, `lines` reads lines, `head` parses the start of
//! each line, `fields` parses the fields of an event, `stack` the calls below it, and `survey`
//! collects the data that the recording's header needs.

mod error;
mod fields;
mod head;
mod kind;
mod lines;
mod stack;
mod survey;

use std::collections::HashMap;
use std::io::{BufRead, Seek, Write};
use std::mem;

pub use error::ImportError;
pub use survey::{Grouping, Requester, requesters};

use super::assemble::{Assembler, Startup};
use super::format::{CPUS_MAX, Ended, Header, Source, Writer};
use super::raw::{During, RawEvent, RawKind, Tid};
use super::record::{FlushReason, Frame};
use error::excerpt;
use fields::{ParseError, Parsed};
use head::Head;
use lines::Lines;
use survey::Survey;

/// The text's tool, and the program to record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The tool that wrote the text; `None` to detect it.
    pub source: Option<Source>,
    /// The program to record.
    pub program: Program,
}

/// The program to record, with all threads and processes that it creates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// The process with this number.
    Pid(u32),
    /// The first thread with this name. Only the first 15 bytes are compared, because the text has
    /// no more.
    Name(String),
}

/// The result of an import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The tool that wrote the text.
    pub source: Source,
    /// Linux's number of the program's process.
    pub process: u32,
    /// Number of the program's threads that no thread in the text created.
    pub threads: usize,
    /// The basis on which these are threads of one process.
    pub grouping: Grouping,
    /// `true` if the text begins after the program, so that the memory that the program had mapped
    /// before is unknown.
    pub began_before: bool,
    /// `true` if the text has events of interrupts to other CPUs. Without them, no flush is known
    /// to have asked another CPU.
    pub has_interrupts: bool,
    /// Number of events of known kinds, whether they concern the program or not.
    pub events: u64,
    /// Number of events of kinds that no recording uses.
    pub unknown: u64,
    /// Number of events that the source lost, as far as it counted them.
    pub lost: u64,
    /// `true` if the source reported no lost events.
    pub is_complete: bool,
    /// `true` if the text ends within a line, which is left out.
    pub is_cut: bool,
    /// Number of CPUs.
    pub cpus: u32,
    /// Nanoseconds from the first event to the last.
    pub time_ns: u64,
}

/// Reads a text twice, and writes the recording.
///
/// The memory that this needs is bounded by the number of live threads in the text, and by the
/// length of a line.
///
/// # Errors
///
/// Fails if the text cannot be read or parsed, or if the recording cannot be written. The output is
/// then not a valid recording.
pub fn import<W: Write>(
    mut text: impl BufRead + Seek,
    options: &Options,
    out: W,
) -> Result<(Imported, W), ImportError> {
    let start = text.stream_position().map_err(ImportError::Read)?;
    kind::refuse_other(&mut text)?;
    let survey = Survey::of(&mut text, options);
    text.seek(std::io::SeekFrom::Start(start)).map_err(ImportError::Read)?;
    let survey = survey.map_err(|error| match error {
        ImportError::NoEvents => kind::without_events(&mut text),
        error => error,
    })?;
    let header = Header {
        recorder: concat!("shootdown ", env!("CARGO_PKG_VERSION")).to_owned(),
        source: survey.source,
        kernel: survey.kernel.clone(),
        processor: survey.processor.clone(),
        cpus: survey.cpus,
        command: survey.threads.first().map(|first| first.name.clone()).into_iter().collect(),
    };
    let writer = Writer::create(out, &header).map_err(ImportError::Write)?;
    let recorded = survey.threads.iter().map(|thread| thread.tid).collect();
    let startup = Startup { recorded, tasks: survey.threads.clone() };
    let imported = Imported {
        source: survey.source,
        process: survey.threads.first().map_or(0, |first| first.process),
        threads: survey.threads.len(),
        grouping: survey.grouping,
        began_before: survey.began_before,
        has_interrupts: survey.has_interrupts,
        events: 0,
        unknown: 0,
        lost: 0,
        is_complete: true,
        is_cut: false,
        cpus: survey.cpus,
        time_ns: 0,
    };
    let import = Import {
        assembler: Assembler::new(writer, startup),
        survey: &survey,
        imported,
        running: HashMap::new(),
        time_ns: survey.start_ns,
        requested: None,
        frames: Vec::new(),
        ended: Ended::Interrupted,
    };
    import.run(text)
}

/// An import in progress.
struct Import<'a, W: Write> {
    assembler: Assembler<W>,
    survey: &'a Survey,
    imported: Imported,
    /// The last thread that ran on each CPU.
    running: HashMap<u32, Tid>,
    /// Time of the last event.
    time_ns: u64,
    /// The last event, if it is a flush request, and the calls below it.
    requested: Option<(u32, Tid)>,
    frames: Vec<Frame>,
    ended: Ended,
}

impl<W: Write> Import<'_, W> {
    fn run(mut self, text: impl BufRead) -> Result<(Imported, W), ImportError> {
        let mut lines = Lines::new(text);
        while let Some(line) = lines.next_line()? {
            match Head::parse(&line) {
                Some(head) if head.source == self.survey.source => {
                    self.stack()?;
                    self.event(&head, lines.number)?;
                }
                Some(_) => {}
                None => match stack::frame(&line) {
                    Some(frame) => self.frames.push(frame),
                    None => self.parse_loss(&line)?,
                },
            }
        }
        self.stack()?;
        self.imported.is_cut = lines.is_cut;
        let out = self.assembler.finish(self.ended).map_err(ImportError::Write)?;
        self.imported.time_ns = self.time_ns - self.survey.start_ns;
        Ok((self.imported, out))
    }

    fn event(&mut self, head: &Head<'_>, line: u64) -> Result<(), ImportError> {
        let kind = match fields::parse(head.rest) {
            Ok(Parsed::Event(kind)) => kind,
            Ok(Parsed::Ignored) => return Ok(()),
            Ok(Parsed::Unknown) => {
                self.imported.unknown += 1;
                return Ok(());
            }
            Err(error) => {
                let excerpt = excerpt(head.rest);
                return Err(match error {
                    ParseError::Format => ImportError::Malformed { line, excerpt },
                    ParseError::Symbol => ImportError::Unresolved { line, excerpt },
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
            return self.record_loss(cpu, count);
        }
        let Some(tid) = head.tid.or_else(|| self.running.get(&cpu).copied()) else {
            // The thread ended before any line named it.
            return Ok(());
        };
        let next = if let RawKind::Switch { next, .. } = kind { next } else { tid };
        self.running.insert(cpu, next);
        if head.tid.is_some() {
            self.assembler.introduce(tid, head.process, head.name);
        }
        if kind == RawKind::Exit && tid.0 == self.imported.process {
            // No event contains the exit status.
            self.ended = Ended::Exited(0);
        }
        let is_request = matches!(kind, RawKind::Flush { reason: FlushReason::Request, .. });
        self.requested = is_request.then_some((cpu, tid));
        let event = RawEvent { time_ns, cpu, tid, during, kind };
        self.assembler.event(event).map_err(ImportError::Write)
    }

    /// Records the calls below the last event.
    fn stack(&mut self) -> Result<(), ImportError> {
        let frames = mem::take(&mut self.frames);
        let Some((cpu, tid)) = self.requested.take().filter(|_| !frames.is_empty()) else {
            return Ok(());
        };
        let kind = RawKind::Stack { frames, requests: 1 };
        let event = RawEvent { time_ns: self.time_ns, cpu, tid, during: During::Task, kind };
        self.assembler.event(event).map_err(ImportError::Write)
    }

    /// Records a loss of events, if the line reports one.
    fn parse_loss(&mut self, line: &str) -> Result<(), ImportError> {
        match head::lost(line) {
            Some((cpu, count)) => self.record_loss(cpu, count),
            None => Ok(()),
        }
    }

    fn record_loss(&mut self, cpu: u32, count: u64) -> Result<(), ImportError> {
        self.running.remove(&cpu);
        self.imported.lost = self.imported.lost.saturating_add(count);
        self.imported.is_complete = false;
        let kind = RawKind::Lost { count };
        // The time of the loss is unknown, but it was after the last event of the text.
        let event =
            RawEvent { time_ns: self.time_ns, cpu, tid: Tid(0), during: During::Task, kind };
        self.assembler.event(event).map_err(ImportError::Write)
    }
}
