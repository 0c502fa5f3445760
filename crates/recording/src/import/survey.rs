//! The first pass over a text: collects the data that a recording needs before its first record.

use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead, Seek};

use super::fields::{self, Parsed};
use super::head::{self, Head};
use super::kind;
use super::lines::Lines;
use super::{CPUS_MAX, ImportError, Options, Program};
use crate::assemble::{StartTask, TaskKind, shorten};
use crate::format::Source;
use crate::raw::{RawKind, Tid};
use crate::record::FlushReason;

/// Largest number of bytes of a thread's name that Linux keeps (`TASK_COMM_LEN`).
const COMM_BYTES_MAX: usize = 15;
/// Largest number of bytes that are kept of a line of `perf script --header`.
const TITLE_BYTES_MAX: usize = 255;

/// The name of the event of a thread that executes a program.
const EXECUTION: &str = "sched_process_exec:";

/// Parts of the names of the events that show which CPUs are asked to flush.
const INTERRUPTS: [&str; 2] = ["ipi_send_", "csd_queue_cpu"];

/// The result of the first pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Survey {
    pub(super) source: Source,
    pub(super) cpus: u32,
    /// Time of the first event.
    pub(super) start_ns: u64,
    /// The threads of the program that no thread in the text created. The first is the one that
    /// has the first event.
    pub(super) threads: Vec<StartTask>,
    /// The basis on which `threads` are threads of one process.
    pub(super) grouping: Grouping,
    /// `true` if the text lacks the beginning of the program.
    pub(super) began_before: bool,
    /// `true` if the text has events of interrupts to other CPUs.
    pub(super) has_interrupts: bool,
    /// The kernel's release; empty if the text lacks it.
    pub(super) kernel: String,
    /// The processor's name; empty if the text lacks it.
    pub(super) processor: String,
}

/// The basis on which threads are threads of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grouping {
    /// The text has the number of each thread's process.
    #[default]
    Process,
    /// The text has no processes. All threads with the program's name are taken for one process.
    Name,
    /// The text has no processes. Only the thread with the program's number is imported.
    OneThread,
}

/// The data that were found so far.
#[derive(Debug, Default)]
struct Known {
    source: Option<Source>,
    cpus: u32,
    start_ns: Option<u64>,
    /// The thread of the program that has the first event.
    first: Option<Tid>,
    /// The threads of the program that no thread in the text created.
    threads: BTreeMap<Tid, StartTask>,
    /// The threads that another thread in the text created.
    created: HashSet<Tid>,
    grouping: Grouping,
    /// `true` if the first thread executed a program in the text.
    has_executed: bool,
    has_interrupts: bool,
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
        let began_before = !known.has_executed && !known.created.contains(&first);
        let Known { cpus, kernel, processor, grouping, threads, has_interrupts, .. } = known;
        let mut threads: Vec<_> = threads.into_values().collect();
        if grouping == Grouping::Name {
            // Linux numbers a process as its first thread, and later threads usually above.
            let process = threads.first().map_or(first.0, |lowest| lowest.tid.0);
            threads.iter_mut().for_each(|thread| thread.process = process);
        }
        threads.sort_by_key(|thread| thread.tid != first);
        Ok(Self {
            source,
            cpus,
            start_ns,
            threads,
            grouping,
            began_before,
            has_interrupts,
            kernel,
            processor,
        })
    }
}

/// A process or thread in a text, with the flushes that it requested from other CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requester {
    /// Linux's number of the process, or of the thread if the text lacks that of its process.
    pub pid: u32,
    /// The last name of a thread of it.
    pub name: String,
    /// Number of flush requests.
    pub flushes: u64,
}

/// Returns the processes of a text that requested flushes, the most first.
///
/// # Errors
///
/// If the text cannot be read, or is another file.
pub fn requesters(mut text: impl BufRead + Seek) -> Result<Vec<Requester>, ImportError> {
    kind::refuse_other(&mut text)?;
    let mut found: BTreeMap<u32, Requester> = BTreeMap::new();
    let (mut lines, mut has_events) = (Lines::new(&mut text), false);
    while let Some(line) = lines.next_line()? {
        let Some(head) = Head::parse(&line) else { continue };
        has_events = true;
        if !head.rest.contains("tlb_flush:") {
            continue;
        }
        let is_request = match fields::parse(head.rest) {
            Ok(Parsed::Event(RawKind::Flush { reason, .. })) => reason == FlushReason::Request,
            _ => false,
        };
        if let Some(Tid(tid)) = head.tid.filter(|_| is_request) {
            let pid = head.process.unwrap_or(tid);
            let new = Requester { pid, name: String::new(), flushes: 0 };
            let requester = found.entry(pid).or_insert(new);
            head.name.clone_into(&mut requester.name);
            requester.flushes += 1;
        }
    }
    if !has_events {
        text.rewind().map_err(ImportError::Read)?;
        return Err(kind::without_events(&mut text));
    }
    let mut found: Vec<_> = found.into_values().collect();
    found.sort_by_key(|it| (std::cmp::Reverse(it.flushes), it.pid));
    Ok(found)
}

impl Known {
    fn event(&mut self, head: &Head<'_>, program: &Program, line: u64) -> Result<(), ImportError> {
        if head.rest.starts_with(fields::PERF_RECORD) {
            // These records may concern events from before the start.
            return Ok(());
        }
        self.start_ns.get_or_insert(head.time_ns.ok_or(ImportError::UnknownClock { line })?);
        self.count_cpu(head.cpu, line)?;
        self.has_interrupts |= INTERRUPTS.iter().any(|event| head.rest.contains(event));
        // A CPU without events of its own may still be interrupted.
        if head.rest.contains("ipi_send_")
            && let Ok(Parsed::Event(RawKind::Ipi { targets, .. })) = fields::parse(head.rest)
        {
            for target in targets {
                self.count_cpu(target, line)?;
            }
        }
        if is_creation(head.rest)
            && let Ok(Parsed::Event(RawKind::NewTask { tid, .. })) = fields::parse(head.rest)
            && Some(tid) != self.first
        {
            self.created.insert(tid);
        }
        if let Some(tid) = head.tid.filter(|&tid| tid != Tid(0)) {
            self.thread(head, tid, program);
            self.has_executed |= self.first == Some(tid) && head.rest.contains(EXECUTION);
        }
        Ok(())
    }

    /// Notes a thread if it belongs to the program from the start.
    fn thread(&mut self, head: &Head<'_>, tid: Tid, program: &Program) {
        let of_first = |first: Tid| self.threads.get(&first).map(|first| first.process);
        let is_of_program = match self.first {
            None => is_of(head, tid, program),
            Some(_) if self.threads.contains_key(&tid) || self.created.contains(&tid) => false,
            // If the first thread was created in the text, so were its later threads.
            Some(first) if self.created.contains(&first) => false,
            Some(first) => match (head.process, program) {
                (Some(process), _) => of_first(first) == Some(process),
                (None, Program::Pid(_)) => false,
                (None, Program::Name(_)) => is_of(head, tid, program),
            },
        };
        if !is_of_program {
            return;
        }
        self.first.get_or_insert(tid);
        self.grouping = match (head.process, program) {
            (Some(_), _) => Grouping::Process,
            (None, Program::Pid(_)) => Grouping::OneThread,
            (None, Program::Name(_)) => Grouping::Name,
        };
        let (process, name) = (head.process.unwrap_or(tid.0), head.name.to_owned());
        self.threads.insert(tid, StartTask { tid, process, kind: TaskKind::User, name });
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

/// Returns `true` if the text may be that of an event which creates a thread.
fn is_creation(event: &str) -> bool {
    event.contains("task_newtask") || event.contains("sched_process_fork")
}

fn is_of(head: &Head<'_>, tid: Tid, program: &Program) -> bool {
    match program {
        Program::Pid(pid) => head.process == Some(*pid) || tid == Tid(*pid),
        Program::Name(name) => head.name == shorten(name, COMM_BYTES_MAX) && tid != Tid(0),
    }
}
