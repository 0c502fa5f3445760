//! A session of tracing, which starts before the command and ends after it.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, HumanCount};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::counted::Counted;
use super::decode::Enabled;
use super::error::RecordError;
use super::page::PageFormat;
use super::priority::Background;
use super::queue::{Batch, Queue, Stopped};
use super::recorded::Reason;
use super::rings::{Counts, Drained, Rings};
use super::signals::{Signals, StopRequest};
use super::target::{Target, Watched};
use super::tracefs::{Instance, Scope, Tracefs};
use super::user::User;

/// The longest time for which buffers below the kernel's threshold are not emptied.
const PATIENCE: Duration = Duration::from_millis(100);

/// The two instances of tracing and their buffers.
#[derive(Debug)]
pub(super) struct Session {
    command: Instance,
    system: Instance,
    rings: Rings,
}

/// The end of tracing.
#[derive(Debug)]
pub(super) struct Captured {
    /// Number of lost events of each buffer.
    pub(super) lost: Vec<u64>,
    /// Number of tasks of the programs that still live.
    pub(super) left: usize,
}

impl Session {
    /// Makes the instances, each with its events, which do not trace yet.
    ///
    /// # Errors
    ///
    /// If the kernel refuses, or there is no memory.
    pub(super) fn new(
        tracefs: &Tracefs,
        events: impl Fn(Scope) -> Vec<Enabled>,
        buffer_kib: u32,
    ) -> Result<Self, RecordError> {
        let instance = |scope| Instance::new(tracefs, scope, events(scope), buffer_kib);
        let (command, system) = (instance(Scope::Command)?, instance(Scope::System)?);
        let rings = Rings::open(&[&command, &system])?;
        Ok(Self { command, system, rings })
    }

    /// Traces these tasks and their descendants, besides those that are traced already.
    ///
    /// # Errors
    ///
    /// If the kernel refuses.
    pub(super) fn follow(&self, tasks: impl Iterator<Item = u32>) -> Result<(), RecordError> {
        self.command.follow(tasks)
    }

    /// Starts tracing, and adds the kernel's counters of this time to `queue`.
    ///
    /// # Errors
    ///
    /// If the kernel refuses.
    pub(super) fn start(&self, queue: &Queue) -> Result<(), RecordError> {
        self.command.start()?;
        self.system.start()?;
        // Events from here on are counted by both.
        let _ = queue.push(Batch { counted: Counted::now(), ..Batch::default() });
        Ok(())
    }

    /// Returns the number of CPUs of a recording on this machine.
    pub(super) fn cpus(&self) -> u32 {
        self.rings.cpus().max().map_or(1, |cpu| cpu.saturating_add(1))
    }

    /// Returns the CPU of each buffer.
    pub(super) fn streams(&self) -> Vec<u32> {
        self.rings.cpus().collect()
    }

    pub(super) fn format(&self) -> PageFormat {
        self.rings.format()
    }

    /// Moves pages from the buffers to `queue` until the programs end, the time is over, or the
    /// user stops the recorder.
    ///
    /// # Errors
    ///
    /// If the kernel refuses.
    pub(super) fn run(
        &mut self,
        target: &mut Target,
        end: Option<Instant>,
        (queue, writer): (&Queue, Background),
        user: &mut User,
    ) -> Result<Reason, RecordError> {
        let mut watched = Watched::default();
        loop {
            let (batch, drained) = self.rings.read()?;
            match queue.push(batch) {
                Ok(false) => {}
                Ok(true) => writer.hurry(),
                Err(Stopped) => return Ok(Reason::Full),
            }
            let Counts { events, lost, bytes } = self.rings.counts;
            let (events, bytes) = (HumanCount(events), HumanBytes(bytes));
            user.show(format!("recording: {events} events, {lost} lost, {bytes}"));
            if watched.has_ended(target, || self.command.followed())? {
                return Ok(Reason::Ended);
            }
            if end.is_some_and(|end| Instant::now() >= end) {
                return Ok(Reason::Time);
            }
            let note = "waiting for the command to end; press Ctrl-C again to stop recording";
            match user.stop_request(target.note_of_stop(note)) {
                StopRequest::None => {}
                StopRequest::Once if target.runs_command() => {}
                StopRequest::Once | StopRequest::Now => return Ok(Reason::User),
            }
            if drained == Drained::Empty {
                self.wait(target, end, &user.signals)?;
            }
        }
    }

    /// Stops tracing and empties the buffers.
    ///
    /// # Errors
    ///
    /// If the kernel refuses.
    pub(super) fn end(mut self, queue: &Queue) -> Result<Captured, RecordError> {
        let counted = Counted::now();
        self.command.stop()?;
        self.system.stop()?;
        let _ = queue.push(Batch { counted, ..Batch::default() });
        loop {
            let (batch, drained) = self.rings.read()?;
            if queue.push(batch).is_err() || drained == Drained::Empty {
                break;
            }
        }
        let mut lost = Vec::new();
        for instance in [&self.command, &self.system] {
            for cpu in instance.cpus()? {
                lost.push(instance.lost(cpu)?);
            }
        }
        Ok(Captured { lost, left: self.command.followed()? })
    }

    /// Waits until a buffer reaches the kernel's threshold, the command ends, the time is over, or
    /// a signal arrives.
    fn wait(
        &self,
        target: &Target,
        end: Option<Instant>,
        signals: &Signals,
    ) -> Result<(), RecordError> {
        let ended = target.ended_fd();
        let mut fds: Vec<_> = self.rings.fds().collect();
        fds.extend(ended.as_ref().map(|ended| ended.as_fd()));
        let signals = signals.fds();
        fds.extend(signals.iter().map(|signal| signal.as_fd()));
        let mut fds: Vec<_> =
            fds.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let left = end.map_or(PATIENCE, |end| end.saturating_duration_since(Instant::now()));
        let patience = left.min(PATIENCE);
        let patience = Timespec { tv_sec: 0, tv_nsec: i64::from(patience.subsec_nanos()) };
        match poll(&mut fds, Some(&patience)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => {
                Err(RecordError::system("waiting for events")(std::io::Error::from(error)))
            }
        }
    }
}
