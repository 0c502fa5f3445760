//! A session of tracing, which starts before the command and ends after it.

use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use indicatif::{HumanBytes, HumanCount};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use shootdown_recording::Ended;

use super::decode::Decoder;
use super::error::RecordError;
use super::page::PageFormat;
use super::rings::{Counts, Drained, Rings};
use super::signals::{Signals, StopRequest};
use super::spool::{Spool, Spooled};
use super::stopped_child::StoppedChild;
use super::tracefs::{Instance, Scope, Tracefs};
use super::user::User;
use crate::output::Output;

/// The longest time for which buffers below the kernel's threshold are not emptied.
const PATIENCE: Duration = Duration::from_millis(100);

/// The two instances of tracing, their buffers, and the spool of their events.
#[derive(Debug)]
pub(super) struct Session<'a> {
    command: Instance,
    system: Instance,
    rings: Rings,
    spool: Spool<'a>,
}

/// The traced events.
#[derive(Debug)]
pub(super) struct Captured {
    pub(super) pages: Spooled,
    pub(super) format: PageFormat,
    /// Number of tasks of the command that still live.
    pub(super) left: usize,
}

impl<'a> Session<'a> {
    /// Makes the instances, which do not trace yet, and a spool beside `output`.
    ///
    /// # Errors
    ///
    /// If the kernel refuses, or there is no memory or disk space.
    pub(super) fn new(
        tracefs: &Tracefs,
        decoder: &Decoder,
        buffer_kib: u32,
        output: &'a Output,
    ) -> Result<Self, RecordError> {
        let instance = |scope| Instance::new(tracefs, scope, decoder.events(scope), buffer_kib);
        let (command, system) = (instance(Scope::Command)?, instance(Scope::System)?);
        let rings = Rings::open([&command, &system])?;
        let spool = Spool::new(output, rings.cpus())?;
        Ok(Self { command, system, rings, spool })
    }

    /// Starts tracing the task `pid` with its descendants, and the whole system.
    ///
    /// # Errors
    ///
    /// If the kernel refuses.
    pub(super) fn start(&self, pid: u32) -> Result<(), RecordError> {
        self.command.follow(pid)?;
        self.command.start()?;
        self.system.start()
    }

    /// Returns the number of CPUs of a recording on this machine.
    pub(super) fn cpus(&self) -> u32 {
        self.rings.cpus().max().map_or(1, |cpu| cpu.saturating_add(1))
    }

    /// Empties the buffers until the command ends or the user stops the recorder.
    ///
    /// # Errors
    ///
    /// If the kernel refuses, or the disk is full.
    pub(super) fn run(
        &mut self,
        child: &mut StoppedChild,
        user: &mut User,
    ) -> Result<Ended, RecordError> {
        loop {
            let drained = self.rings.drain(&mut self.spool)?;
            let (Counts { events, lost }, bytes) = (self.rings.counts, self.spool.bytes());
            let (events, bytes) = (HumanCount(events), HumanBytes(bytes));
            user.show(format!("recording: {events} events, {lost} lost, {bytes}"));
            if let Some(status) = child.ended()? {
                return Ok(ended(status));
            }
            let note = "waiting for the command to end; press Ctrl-C again to stop recording";
            if user.stop_request(note) == StopRequest::Now {
                return Ok(Ended::Interrupted);
            }
            if drained == Drained::Empty {
                self.wait(child, &user.signals)?;
            }
        }
    }

    /// Stops tracing and empties the buffers.
    ///
    /// # Errors
    ///
    /// Those of [`run`](Self::run).
    pub(super) fn end(mut self) -> Result<Captured, RecordError> {
        self.command.stop()?;
        self.system.stop()?;
        while self.rings.drain(&mut self.spool)? == Drained::MaybeMore {}
        let mut stream = 0;
        for instance in [&self.command, &self.system] {
            for cpu in instance.cpus()? {
                self.spool.set_lost(stream, instance.lost(cpu)?);
                stream += 1;
            }
        }
        let left = self.command.followed()?;
        let pages = self.spool.finish()?;
        Ok(Captured { pages, format: self.rings.format(), left })
    }

    /// Waits until a buffer reaches the kernel's threshold, the command ends, or a signal arrives.
    fn wait(&self, child: &StoppedChild, signals: &Signals) -> Result<(), RecordError> {
        let ended = child.ended_fd();
        let mut fds: Vec<_> = self.rings.fds().collect();
        fds.push(ended.as_fd());
        let signals = signals.fds();
        fds.extend(signals.iter().map(|signal| signal.as_fd()));
        let mut fds: Vec<_> =
            fds.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let patience = Timespec { tv_sec: 0, tv_nsec: i64::from(PATIENCE.subsec_nanos()) };
        match poll(&mut fds, Some(&patience)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(RecordError::system("waiting for events")(io::Error::from(error))),
        }
    }
}

fn ended(status: ExitStatus) -> Ended {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ended::Exited(code),
        (None, signal) => Ended::Signalled(signal.unwrap_or_default()),
    }
}
